"""Decoding with masked diffusion: T forward passes, each over the whole sequence, from all slots masked to none.

    vanilla      fills each masked slot with its most likely token, with probability 1/(t+1)
    top_prob     first fills the slots whose best token is most likely
    top_margin   first fills the slots whose best token has the largest margin over the second best

The two adaptive decoders keep what they have written (as Kim et al. do) or, with `rewrite`, predict and rank every slot
again in each pass (as Ye et al. do). The loss covers masked slots only, so the model was never trained to predict a
written one: docs/methods.md has results for both.

A KV cache would not help: filling in a token changes what every other position sees.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from recor_dist.core.decoder_text import Parameter
from recor_dist.core.device import to_device
from recor_dist.core.messages import Generation
from recor_dist.core.method_settings import MdmConfig
from recor_dist.core.rng import gumbel
from recor_dist.model.decoding import Decoder, Family
from recor_dist.model.transformer import Model

FEW_STEPS = 2  # as many passes as ReCOR needs without order queries
NOISE = 0.5  # scale of the adaptive decoders' Gumbel noise; decays to 0 over the passes


def mdm_decoders(method: MdmConfig) -> dict[str, Decoder]:
    """Every decoder with its full number of steps and with two, under the paper's names; method.decoder comes first."""
    families = mdm_families(method)
    full = {name: family.make(method.steps) for name, family in families.items()}
    few = {f"{name}_T{FEW_STEPS}": family.make(FEW_STEPS) for name, family in families.items()}
    return full if method.steps == FEW_STEPS else full | few


def mdm_families(method: MdmConfig) -> dict[str, Family]:
    """The three decoders with any number of steps."""
    suffix = "suf" if method.suffix else ""
    names = {"vanilla": f"{suffix}mdm", "top_prob": f"ada{suffix}mdm_prob", "top_margin": f"ada{suffix}mdm_margin"}
    answers = {
        "vanilla": denoise_vanilla,
        "top_prob": partial(denoise_adaptively, score=log_probability, rewrite=method.rewrite),
        "top_margin": partial(denoise_adaptively, score=margin, rewrite=method.rewrite),
    }
    first = [method.decoder, *(kind for kind in names if kind != method.decoder)]
    steps = Parameter("T", method.steps, at_least=1, usual=(1, 2, 5, 10, 20), whole=True, plain_at=method.steps)
    return {names[kind]: Family(partial(_with_steps, answers[kind]), steps) for kind in first}


def _with_steps(answer: Callable[..., Generation], steps: float | None) -> Decoder:
    assert isinstance(steps, int)
    return Decoder(partial(answer, steps=steps), steps)


def denoise_vanilla(model: Model, prompts: np.ndarray, random: np.random.Generator, steps: int) -> Generation:
    """Fills slots at random: for t = T-1..0 each masked one with probability 1/(t+1), so all that remain at t = 0."""

    def fill(logits: Tensor, masked: Tensor, t: int) -> Tensor:
        kept = random.random(masked.shape) >= 1 / (t + 1)
        return masked & to_device(kept, masked.device)

    return _denoise(model, prompts, steps, fill, rewrite=False)


def denoise_adaptively(
    model: Model,
    prompts: np.ndarray,
    random: np.random.Generator,
    steps: int,
    score: Callable[[Tensor], Tensor],
    rewrite: bool = False,
) -> Generation:
    """For t = T-1..0, masks the floor(M t/T) slots whose score plus Gumbel noise 0.5 t/T is lowest."""

    def fill(logits: Tensor, masked: Tensor, t: int) -> Tensor:
        noise = NOISE * t / steps * gumbel(random, masked.shape)
        scores = score(logits) + to_device(noise, masked.device)
        if not rewrite:
            scores = scores.masked_fill(~masked, torch.inf)
        lowest = scores.argsort(dim=1, stable=True)[:, : masked.shape[1] * t // steps]
        return torch.zeros_like(masked).scatter(1, lowest, True)

    return _denoise(model, prompts, steps, fill, rewrite)


def log_probability(logits: Tensor) -> Tensor:
    """Log-probability of the best token: (R, M, V) -> (R, M)."""
    return logits.log_softmax(-1).amax(-1)


def margin(logits: Tensor) -> Tensor:
    """Probability of the best token minus that of the second best: (R, M, V) -> (R, M)."""
    best = logits.softmax(-1).topk(min(2, logits.shape[-1])).values
    return best[..., 0] - best[..., -1]


@torch.inference_mode()
def _denoise(
    model: Model, prompts: np.ndarray, steps: int, fill: Callable[[Tensor, Tensor, int], Tensor], rewrite: bool
) -> Generation:
    """`fill(logits, masked, t)` returns what is masked after the pass; with `rewrite`, written tokens may change too.

    The step of a slot is the pass that last filled it.
    """
    device = model.flat.device
    x = to_device(prompts.astype(np.int64), device)
    responses = torch.zeros(len(prompts), model.shape.M, dtype=torch.int64, device=device)
    masked = torch.ones_like(responses, dtype=torch.bool)
    filled_at = torch.zeros_like(responses)
    confidences = torch.zeros(responses.shape, device=device)
    for t in range(steps - 1, -1, -1):
        logits = model.denoise(x, responses, masked, answering=True).float()  # (R, M, V)
        responses = torch.where(masked | rewrite, logits.argmax(-1), responses)
        confidences = torch.where(masked | rewrite, logits.softmax(-1).amax(-1), confidences)
        before, masked = masked, fill(logits, masked, t)
        filled_at = torch.where(before & ~masked, steps - t, filled_at)
    return Generation(responses.cpu().numpy(), filled_at.cpu().numpy(), confidences.cpu().numpy(), steps)
