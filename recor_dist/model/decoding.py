"""Decoding one token at a time with a KV cache: pick a slot, predict its token, write it, repeat.

With the order policy an answer costs 2 + C forward passes in total: the prompt and every written token pass once, each
with C order queries, and every slot is queried once. Left to right, where the main stream itself predicts the next
token, one pass is enough.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recor_dist.core.messages import Generation
from recor_dist.model.transformer import Model


@dataclass(frozen=True)
class Decoder:
    """A way to answer prompts. All its randomness comes from the generator it is given."""

    answer: Callable[[Model, np.ndarray, np.random.Generator], Generation]  # model, prompts (R, N), random
    passes: int  # complete forward passes per answer


@torch.inference_mode()
def generate(
    model: Model, prompts: np.ndarray, _: np.random.Generator | None = None, orders: np.ndarray | None = None
) -> Generation:
    """Greedy answers to prompts (R, N), in the order that the policy chooses or in the given orders (R, M)."""
    R, M, device = len(prompts), model.shape.M, model.flat.device
    cache = model.new_cache(R)
    given = None if orders is None else torch.as_tensor(orders, device=device)
    filled = torch.zeros(R, M, dtype=torch.bool, device=device)
    writing = Writing(model, R)
    logits = model.start(torch.as_tensor(prompts.astype(np.int64), device=device), cache)
    for t in range(M):
        slots = logits.masked_fill(filled, -torch.inf).argmax(-1) if given is None else given[:, t]  # (R,)
        tokens = writing.write(t, slots, model.ask(slots, cache))
        filled.scatter_(1, slots[:, None], True)
        if t < M - 1:
            logits = model.step(tokens, slots, cache)
    return writing.done()


@torch.inference_mode()
def generate_left_to_right(model: Model, prompts: np.ndarray, _: np.random.Generator | None = None) -> Generation:
    """Greedy answers to prompts (R, N), each next token predicted by the main stream."""
    R, M, device = len(prompts), model.shape.M, model.flat.device
    cache = model.new_cache(R)
    writing = Writing(model, R)
    logits = model.predict_first(torch.as_tensor(prompts.astype(np.int64), device=device), cache)
    for t in range(M):
        slots = torch.full((R,), t, device=device)
        tokens = writing.write(t, slots, logits)
        if t < M - 1:
            logits = model.predict_next(tokens, slots, cache)
    return writing.done()


def generate_in_random_order(model: Model, prompts: np.ndarray, random: np.random.Generator) -> Generation:
    order = np.tile(np.arange(model.shape.M), (len(prompts), 1))
    return generate(model, prompts, orders=random.permuted(order, axis=1))


class Writing:
    """Answers in progress, one slot per step."""

    def __init__(self, model: Model, rows: int) -> None:
        size, device = (rows, model.shape.M), model.flat.device
        self.responses = torch.zeros(size, dtype=torch.int64, device=device)
        self.steps = torch.zeros(size, dtype=torch.int64, device=device)
        self.confidences = torch.zeros(size, device=device)

    def write(self, t: int, slots: Tensor, logits: Tensor) -> Tensor:
        """Writes the most likely tokens (R,) under logits (R, V) into slots (R,), and returns them."""
        where, tokens = slots[:, None], logits.argmax(-1, keepdim=True)
        self.responses.scatter_(1, where, tokens)
        self.confidences.scatter_(1, where, logits.float().softmax(-1).gather(1, tokens))
        self.steps.scatter_(1, where, t + 1)
        return tokens[:, 0]

    def done(self) -> Generation:
        responses, steps, confidences = (x.cpu().numpy() for x in (self.responses, self.steps, self.confidences))
        return Generation(responses, steps, confidences, last_step=steps.shape[1])
