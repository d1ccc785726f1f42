"""Training batches for masked diffusion: rows with some response tokens hidden.

    independent    each slot is hidden at random; needs no weights
    progressive    the states that decoding passes through: the model reveals first what it is most certain of

Progressive masking is PUMA's (arXiv 2602.10314) without its pool of half-revealed rows, which would outlive a step. A
chain starts and ends within its ticket, which therefore stays a pure function of its name and its weights.
"""

import numpy as np
import torch

from recor_dist.core.device import to_device
from recor_dist.core.messages import MaskedBatch, Rows
from recor_dist.core.method_settings import STAGES, MdmConfig
from recor_dist.model.denoising import log_probability
from recor_dist.model.transformer import Model


def mask(method: MdmConfig, model: Model, rows: Rows, random: np.random.Generator, version: int) -> MaskedBatch:
    hide = mask_progressively if method.masking == "progressive" else mask_independently
    return hide(method, model, rows, random, version)


def mask_independently(
    method: MdmConfig, _: Model, rows: Rows, random: np.random.Generator, version: int
) -> MaskedBatch:
    """t ~ U{0..T-1} for each row; each slot is masked with probability (t+1)/T."""
    R, M = rows.responses.shape
    times = random.integers(0, method.diffusion_steps, R, dtype=np.int32)
    masked = random.random((R, M)) < ((times + 1) / method.diffusion_steps)[:, None]
    if method.suffix:
        masked = leave_suffix(masked, random)
    return MaskedBatch(version, rows.prompts, rows.responses, masked, times)


def leave_suffix(masked: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """SufMDM: unmasks a suffix of length l ~ U{0..M-1}; if nothing stays masked, masks one random slot before it."""
    R, M = masked.shape
    before = M - random.integers(0, M, R)  # slots before the suffix, 1..M
    masked = masked & (np.arange(M) < before[:, None])
    instead = random.integers(0, before)
    empty = np.flatnonzero(~masked.any(axis=1))
    masked[empty, instead[empty]] = True
    return masked


@torch.inference_mode()
def mask_progressively(
    _: MdmConfig, model: Model, rows: Rows, random: np.random.Generator, version: int
) -> MaskedBatch:
    """A chain of J = STAGES states per row, each with something masked: J R states, those of stage 0 first. At each
    stage a pass finds the masked slots with the highest top probability, and their true tokens are revealed."""
    device = model.flat.device
    prompts = to_device(rows.prompts.astype(np.int64), device)
    responses = to_device(rows.responses.astype(np.int64), device)
    revealed = to_device(revealed_slots(random, *rows.responses.shape), device)
    masked, states = torch.ones_like(responses, dtype=torch.bool), []
    for new in revealed.diff(dim=0, prepend=torch.zeros_like(revealed[:1])):  # (R,)
        certainty = log_probability(model.denoise(prompts, responses, masked).float())  # (R, M)
        ranked = certainty.masked_fill(~masked, -torch.inf).argsort(dim=1, descending=True, stable=True)
        masked = masked & (ranked.argsort(dim=1) >= new[:, None])
        states.append(masked)
    return MaskedBatch(
        version,
        np.tile(rows.prompts, (STAGES, 1)),
        np.tile(rows.responses, (STAGES, 1)),
        torch.cat(states).cpu().numpy(),
        times=np.repeat(np.arange(STAGES, dtype=np.int32)[::-1], len(rows)),
    )


def revealed_slots(random: np.random.Generator, R: int, M: int) -> np.ndarray:
    """(J, R) int64: how many of M slots are revealed at stage j: a share of them drawn from [j/J, (j+1)/J)."""
    shares = (np.arange(STAGES)[:, None] + random.random((STAGES, R))) / STAGES
    return np.minimum(shares * M, M - 1).astype(np.int64)  # the minimum is for rounding errors
