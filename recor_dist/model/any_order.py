"""Decoding in any order: each pass scores every slot that is not written yet, and a rule chooses which to write now.

    prompt and what is written ──► model ──► probabilities at all other slots ──► rule ──► write the likeliest tokens
                 ▲                                                                                     │
                 └─────────────────────────────────────────────────────────────────────────────────────┘

Two kinds of models can do that. Masked diffusion reads the whole sequence again in each pass. A stream with token
queries (AO-ARM, ReCOR) keeps its cache: a pass writes the tokens that the one before has chosen, and asks for all other
slots. Such a stream reads tokens one after another, and those of one pass enter it most confident first: the order in
which a decoder of one slot per pass would write them if the confidences did not change in between.

Answers need different numbers of passes. One that is complete is not computed any longer, and passes and FLOPs are
those that the row needs by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from recor_dist.core.device import to_device
from recor_dist.core.messages import Generation
from recor_dist.core.rng import gumbel
from recor_dist.model.decoding import Decoder, Family
from recor_dist.model.flops import flops_of_pass, flops_of_positions
from recor_dist.model.rules import RULES, Pass
from recor_dist.model.transformer import Model, RaggedCache

AT_ONCE = 16  # states that a look-ahead computes together, at least; more if there are more prompts


@dataclass(frozen=True)
class Answers:
    """Answers in progress."""

    tokens: Tensor  # (R, M) int64; anything at unfilled slots
    unfilled: Tensor  # (R, M) bool
    confidences: Tensor  # (R, M): the probability of each token when it was written

    def select(self, rows: Tensor) -> "Answers":
        return Answers(self.tokens[rows], self.unfilled[rows], self.confidences[rows])

    def update(self, rows: Tensor, answers: "Answers") -> None:
        """Puts answers back into their rows."""
        self.tokens[rows], self.unfilled[rows] = answers.tokens, answers.unfilled
        self.confidences[rows] = answers.confidences

    def write(self, chosen: Tensor, tokens: Tensor, confidences: Tensor) -> "Answers":
        """With tokens and confidences (R, M) written where `chosen`."""
        return Answers(
            torch.where(chosen, tokens, self.tokens),
            self.unfilled & ~chosen,
            torch.where(chosen, confidences, self.confidences),
        )


class Reader(Protocol):
    """A model that reads prompts and what is written of their answers."""

    def score(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """Logits (R, M, V), which mean something at unfilled slots, and the FLOPs of this pass by row (R,). The answers
        are those of the call before, with more slots written."""
        ...

    def select(self, rows: Tensor) -> "Reader":
        """Another reader of some of the rows, in the same state."""
        ...

    def flops_beside(self, passes: Tensor) -> Tensor:
        """(R,): what so many passes cost besides those that `score` counts."""
        ...


@dataclass(frozen=True)
class WholeReader:
    """Masked diffusion: every pass reads prompt and response, with the unfilled slots masked."""

    model: Model
    prompts: Tensor  # (R, N)

    def score(self, answers: Answers) -> tuple[Tensor, Tensor]:
        N, M = self.model.shape.N, self.model.shape.M
        logits = self.model.denoise(self.prompts, answers.tokens, answers.unfilled, answering=True)
        all_positions = N + 1 + M
        cost = flops_of_pass(self.model, new=all_positions, read=all_positions, last=M, keys=all_positions)
        return logits, torch.full_like(answers.tokens[:, 0], cost)

    def select(self, rows: Tensor) -> "WholeReader":
        return WholeReader(self.model, self.prompts[rows])

    def flops_beside(self, passes: Tensor) -> Tensor:
        return flops_of_positions(self.model) * passes


@dataclass
class StreamReader:
    """A stream with token queries: a pass appends what was written since the last one, and asks for all other slots."""

    model: Model
    prompts: Tensor  # (R, N)
    cache: RaggedCache = field(init=False)
    in_cache: Tensor = field(init=False)  # (R, M) bool: slots whose tokens the cache holds

    def __post_init__(self) -> None:
        R, M = len(self.prompts), self.model.shape.M
        self.cache = self.model.new_ragged_cache(R)
        self.in_cache = torch.zeros(R, M, dtype=torch.bool, device=self.prompts.device)

    def score(self, answers: Answers) -> tuple[Tensor, Tensor]:
        unfilled, cache = answers.unfilled, self.cache
        asked = _slots_in(unfilled, unfilled.float())  # (R, Q)
        if cache.length:
            new = ~unfilled & ~self.in_cache
            slots, counts = _slots_in(new, answers.confidences), new.sum(1)
            tokens = answers.tokens.gather(1, slots)
            logits = self.model.write_and_ask_several(tokens, slots, counts, asked, cache)
        else:
            counts = torch.full_like(unfilled[:, 0], self.model.shape.N + 1, dtype=torch.int64)
            logits = self.model.read_and_ask_several(self.prompts, asked, cache)
        self.in_cache = ~unfilled
        queries = unfilled.sum(1)
        cost = flops_of_pass(self.model, new=counts, read=counts + queries, last=queries, keys=cache.lengths)
        everywhere = logits.new_zeros(*unfilled.shape, logits.shape[-1])
        return everywhere.scatter(1, asked[..., None].expand_as(logits), logits), cost

    def select(self, rows: Tensor) -> "StreamReader":
        chosen = StreamReader.__new__(StreamReader)
        chosen.model, chosen.prompts = self.model, self.prompts[rows]
        chosen.cache, chosen.in_cache = self.cache.select(rows), self.in_cache[rows]
        return chosen

    def flops_beside(self, passes: Tensor) -> Tensor:
        return torch.full_like(passes, flops_of_positions(self.model))  # the cache holds the vectors


def _slots_in(chosen: Tensor, scores: Tensor) -> Tensor:
    """(R, S): the slots of `chosen` (R, M) by falling score; rows with fewer than S are filled up with other slots."""
    count = int(chosen.sum(1).max())
    return scores.masked_fill(~chosen, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :count]


@dataclass(frozen=True)
class Certainty:
    """How certain the model is of every slot, from its logits."""

    tokens: Tensor  # (R, M): the most likely ones
    confidences: Tensor  # (R, M): their probability
    entropies: Tensor  # (R, M), in nats

    @staticmethod
    def of(logits: Tensor) -> "Certainty":
        log_probabilities = logits.float().log_softmax(-1)
        probabilities = log_probabilities.exp()
        best = probabilities.max(-1)
        return Certainty(best.indices, best.values, -(probabilities * log_probabilities).sum(-1))


class LookAhead:
    """Tries what writing a slot would do to the others, and counts what that costs."""

    def __init__(self, reader: Reader, answers: Answers, now: Certainty, at_once: int) -> None:
        self.reader, self.answers, self.now, self.at_once = reader, answers, now, at_once
        self.passes, self.flops = (torch.zeros_like(answers.tokens[:, 0]) for _ in range(2))  # (R,)

    def __call__(self, candidates: Tensor) -> Tensor:
        """`Pass.look_ahead`."""
        left = self.now.entropies.new_full(candidates.shape, torch.inf)
        states = candidates.nonzero()
        for start in range(0, len(states), self.at_once):
            rows, slots = states[start : start + self.at_once].unbind(1)
            before = self.answers.select(rows)
            chosen = torch.zeros_like(before.unfilled).scatter(1, slots[:, None], True)
            after = before.write(chosen, self.now.tokens[rows], self.now.confidences[rows])
            logits, cost = self.reader.select(rows).score(after)
            entropies = Certainty.of(logits).entropies.masked_fill(~after.unfilled, 0.0)
            left[rows, slots] = entropies.sum(1) / after.unfilled.sum(1)
            self.flops.index_add_(0, rows, cost)
        self.passes += candidates.any(1)
        return left


@torch.inference_mode()
def generate_by_rule(
    model: Model,
    prompts: np.ndarray,
    random: np.random.Generator,
    read: Callable[[Model, Tensor], Reader],
    choose: Callable[[Pass], Tensor],
) -> Generation:
    """Answers to prompts (R, N) by a rule of rules.py."""
    R, M, device = len(prompts), model.shape.M, model.flat.device
    reader = read(model, to_device(prompts.astype(np.int64), device))
    steps = torch.zeros(R, M, dtype=torch.int64, device=device)
    every = Answers(torch.zeros_like(steps), steps == 0, torch.zeros(R, M, device=device))
    passes, flops = (torch.zeros_like(steps[:, 0]) for _ in range(2))  # (R,)
    rows = torch.arange(R, device=device)  # the answers that are not complete
    for step in range(1, M + 1):
        answers = every.select(rows)
        logits, cost = reader.score(answers)
        now = Certainty.of(logits)
        ahead = LookAhead(reader, answers, now, at_once=max(R, AT_ONCE))
        seen = Pass(
            answers.unfilled,
            now.confidences.masked_fill(~answers.unfilled, -torch.inf),
            now.entropies.masked_fill(~answers.unfilled, torch.inf),
            partial(_noise, random, (R, M), rows),
            ahead,
        )
        chosen = choose(seen)
        assert bool((chosen & answers.unfilled).any(1).all()), "a rule writes at least one slot of each row"
        every.update(rows, answers.write(chosen & answers.unfilled, now.tokens, now.confidences))
        steps[rows] += step * (answers.unfilled & chosen)
        passes[rows] += 1 + ahead.passes
        flops[rows] += cost + ahead.flops
        left = every.unfilled[rows].any(1)
        if not left.any():
            break
        if not left.all():
            reader, rows = reader.select(left.nonzero()[:, 0]), rows[left]
    flops += reader.flops_beside(passes)
    parts = (every.tokens, steps, every.confidences)
    responses, filled_at, confidences = (part.cpu().numpy() for part in parts)
    return Generation(responses, filled_at, confidences, M, passes.cpu().numpy(), flops.cpu().numpy())


def _noise(random: np.random.Generator, shape: tuple[int, int], rows: Tensor, count: int) -> Tensor:
    """(rows, count, M) of Gumbel noise, drawn for all R rows, complete or not: each row gets its own."""
    R, M = shape
    return to_device(gumbel(random, (R, count, M)).astype(np.float32), rows.device)[rows]


def any_order_decoders(prefix: str, read: Callable[[Model, Tensor], Reader]) -> dict[str, Family]:
    """A family for each rule: recor_confidence, recor_threshold, ..."""
    return {
        f"{prefix}_{name}": Family(partial(_make, read, rule.choose), rule.parameter) for name, rule in RULES.items()
    }


def _make(read: Callable[[Model, Tensor], Reader], choose: Callable[..., Tensor], value: float | None) -> Decoder:
    rule = choose if value is None else lambda now: choose(now, value)
    return Decoder(partial(generate_by_rule, read=read, choose=rule), passes=None)
