"""Training batches for masked diffusion: rows with some response tokens hidden. Needs no weights."""

import numpy as np

from recor_dist.core.messages import MaskedBatch, Rows
from recor_dist.core.method_settings import MdmConfig
from recor_dist.model.transformer import Model


def mask(method: MdmConfig, _: Model, rows: Rows, random: np.random.Generator, version: int) -> MaskedBatch:
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
