"""Which slots to write now: the rules of decoders that see, in each pass, how certain the model is of every slot.

    confidence       the slot whose best token is most likely
    threshold        all slots whose best token has probability tau or more
    entropy_bounded  the slots of least entropy, as long as all but the last of them add up to gamma or less
    information_gain of eight candidate slots the one that, once written, leaves the others most certain

A rule is a function from a `Pass` to the slots (R, M) to write, at least one for each row. any_order.py runs it with
every model that can score any slot in any context. To add one, write the function and its row in RULES:
docs/adding_a_decoder.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recor_dist.core.decoder_text import Parameter

CANDIDATES = 8  # of information_gain: the most confident slot, and seven draws
TEMPERATURE = 0.2  # of those draws
SURE = 0.8  # no look-ahead where all slots are at least this confident


@dataclass(frozen=True)
class Pass:
    """What a pass over the model tells about the slots of R answers. Written slots have confidence -inf and entropy
    inf, so they come last in any ranking."""

    unfilled: Tensor  # (R, M) bool
    confidences: Tensor  # (R, M): probability of the most likely token
    entropies: Tensor  # (R, M): of the token, in nats
    gumbel: Callable[[int], Tensor]  # count -> noise (R, count, M); the same for a row whatever the other rows are
    # Candidates (R, M) bool -> (R, M): the mean entropy of the slots that are left once this one is written; inf where
    # there is no candidate. All candidates go through the model in one pass.
    look_ahead: Callable[[Tensor], Tensor]


def best(scores: Tensor) -> Tensor:
    """(R, M) bool: the slot of the highest score in each row."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.argmax(1, keepdim=True), True)


def confidence(now: Pass) -> Tensor:
    return best(now.confidences)


def threshold(now: Pass, tau: float) -> Tensor:
    """Every slot whose confidence is at least tau, or the best one if none is."""
    return (now.confidences >= tau) & now.unfilled | best(now.confidences)


def entropy_bounded(now: Pass, gamma: float) -> Tensor:
    """The first k slots by entropy (Ben-Hamu et al.): the most for which the sum of their entropies minus the largest
    of them, which is the sum of the first k - 1, is at most gamma. With gamma=0 that is one slot."""
    entropies, order = now.entropies.sort(dim=1, stable=True)
    places = torch.arange(order.shape[1], device=order.device)
    # (R, M): the sum of those before. There is no deterministic `cumsum` on a GPU.
    before = torch.where(places < places[:, None], entropies[:, None], 0.0).sum(2)
    allowed = before <= (gamma if gamma > 0 else -1.0)
    allowed[:, 0] = True
    return torch.zeros_like(allowed).scatter(1, order, allowed) & now.unfilled


def information_gain(now: Pass) -> Tensor:
    """One slot (arXiv 2602.18176): of the candidates the one with the largest -H(this slot) - mean H(slots left).

    There is no look-ahead for rows that are sure of all slots or have a single candidate; they write the most confident
    slot."""
    draws = (now.confidences[:, None] / TEMPERATURE + now.gumbel(CANDIDATES - 1)).argmax(2)  # (R, 7)
    surest = best(now.confidences)
    candidates = surest.scatter(1, draws, True)
    unsure = (now.confidences < SURE) & now.unfilled
    several = candidates.sum(1, keepdim=True) > 1
    candidates &= unsure.any(1, keepdim=True) & several
    gain = best(-now.entropies - now.look_ahead(candidates))
    return torch.where(candidates.any(1, keepdim=True), gain, surest)


@dataclass(frozen=True)
class Rule:
    """`choose(pass)`, or `choose(pass, value)` for a rule with a parameter."""

    choose: Callable[..., Tensor]
    parameter: Parameter | None = None


RULES = {
    "confidence": Rule(confidence),
    "threshold": Rule(threshold, Parameter("tau", 0.9, at_least=0, at_most=1, usual=(0.3, 0.5, 0.7, 0.9, 0.99))),
    "entropy_bounded": Rule(entropy_bounded, Parameter("gamma", 0.1, at_least=0, usual=(0, 0.01, 0.1, 0.5, 2))),
    "information_gain": Rule(information_gain),
}
