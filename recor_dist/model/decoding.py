"""Decoding one token at a time with a KV cache: pick a slot, predict its token, write it, repeat.

With the order policy an answer costs 2 + C forward passes in total: the prompt and every written token pass once, each
with C order queries, and every slot is queried once. In a given order, a token and the query of the next slot pass
together. Left to right, where the main stream itself predicts the next token, one pass is enough.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recor_dist.core.decoder_text import Parameter, read_decoders
from recor_dist.core.device import to_device
from recor_dist.core.messages import Generation
from recor_dist.model.transformer import Model


@dataclass(frozen=True)
class Decoder:
    """A way to answer prompts. All its randomness comes from the generator it is given."""

    answer: Callable[[Model, np.ndarray, np.random.Generator], Generation]  # model, prompts (R, N), random
    passes: int | None  # complete forward passes per answer; None: they depend on the answer, which tells them


@dataclass(frozen=True)
class Family:
    """Decoders that differ in the value of one parameter, or a single one."""

    make: Callable[[float | None], Decoder]  # the value; None if there is no parameter
    parameter: Parameter | None = None


def always(decoder: Decoder, _: float | None) -> Decoder:
    """The one decoder of a family without a parameter."""
    return decoder


def find_in(families: Mapping[str, Family], key: str, text: str) -> dict[str, Decoder]:
    """The decoders that a text names (core/decoder_text.py), by the names of their results. `key`: of the setting."""
    choices = read_decoders(key, text, {name: family.parameter for name, family in families.items()})
    return {name: families[base].make(value) for name, base, value in choices}


@torch.inference_mode()
def generate(model: Model, prompts: np.ndarray, _: np.random.Generator | None = None) -> Generation:
    """Greedy answers to prompts (R, N), in the order that the policy chooses."""
    R, M, device = len(prompts), model.shape.M, model.flat.device
    cache = model.new_cache(R, answering=True)
    filled = torch.zeros(R, M, dtype=torch.bool, device=device)
    writing = Writing()
    logits = model.start(to_device(prompts.astype(np.int64), device), cache)
    for t in range(M):
        slots = logits.masked_fill(filled, -torch.inf).argmax(-1)  # (R,)
        tokens = writing.write(slots, model.ask(slots, cache))
        filled.scatter_(1, slots[:, None], True)
        if t < M - 1:
            logits = model.step(tokens, slots, cache)
    return writing.done()


@torch.inference_mode()
def generate_left_to_right(model: Model, prompts: np.ndarray, _: np.random.Generator | None = None) -> Generation:
    """Greedy answers to prompts (R, N), each next token predicted by the main stream."""
    R, M, device = len(prompts), model.shape.M, model.flat.device
    cache = model.new_cache(R, answering=True)
    writing = Writing()
    logits = model.predict_first(to_device(prompts.astype(np.int64), device), cache)
    for t in range(M):
        slots = torch.full((R,), t, device=device)
        tokens = writing.write(slots, logits)
        if t < M - 1:
            logits = model.predict_next(tokens, slots, cache)
    return writing.done()


def generate_in_random_order(model: Model, prompts: np.ndarray, random: np.random.Generator) -> Generation:
    order = np.tile(np.arange(model.shape.M), (len(prompts), 1))
    return generate_in_orders(model, prompts, random.permuted(order, axis=1))


@torch.inference_mode()
def generate_in_orders(model: Model, prompts: np.ndarray, orders: np.ndarray) -> Generation:
    """Greedy answers to prompts (R, N) in the given orders (R, M). As the next slot is known, it is queried in the same
    pass that writes the token before it."""
    R, M, device = len(prompts), model.shape.M, model.flat.device
    cache = model.new_cache(R, answering=True)
    writing = Writing()
    slots = to_device(orders, device).unbind(1)  # M of (R,)
    logits = model.ask_first(to_device(prompts.astype(np.int64), device), slots[0], cache)
    for t in range(M):
        tokens = writing.write(slots[t], logits)
        if t < M - 1:
            logits = model.ask_next(tokens, slots[t], slots[t + 1], cache)
    return writing.done()


class Writing:
    """Answers in progress, one slot per step."""

    def __init__(self) -> None:
        self.slots: list[Tensor] = []
        self.tokens: list[Tensor] = []
        self.logits: list[Tensor] = []

    def write(self, slots: Tensor, logits: Tensor) -> Tensor:
        """Writes the most likely tokens (R,) under logits (R, V) into slots (R,), and returns them."""
        tokens = logits.argmax(-1)
        self.slots.append(slots)
        self.tokens.append(tokens)
        self.logits.append(logits)
        return tokens

    def done(self) -> Generation:
        slots, tokens = torch.stack(self.slots, 1), torch.stack(self.tokens, 1)  # (R, M)
        confidences = torch.stack(self.logits, 1).float().softmax(-1).amax(-1)
        steps = torch.arange(1, len(self.slots) + 1, device=slots.device).expand_as(slots)
        by_slot = (torch.empty_like(x).scatter_(1, slots, x) for x in (tokens, steps, confidences))
        responses, steps, confidences = (x.cpu().numpy() for x in by_slot)
        return Generation(responses, steps, confidences, last_step=steps.shape[1])
