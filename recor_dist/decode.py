"""Answers, one token at a time: something picks a slot, the model picks its token, and so on, with a KV cache.

With the order policy that takes 2 + C forward passes in all: the prompt and every written token pass once, with C order
queries, and every slot is asked for once. Left to right, where the main stream itself predicts, one pass is enough.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from recor_dist.messages import Generation
from recor_dist.model import Model


@dataclass(frozen=True)
class Decoder:
    """A way to answer prompts; what it draws at random comes from the generator it is given, and depends on no more."""

    answer: Callable[[Model, np.ndarray, np.random.Generator], Generation]  # model, prompts (R, N), random
    passes: int  # complete forward passes an answer


@torch.inference_mode()
def generate(model: Model, prompts: np.ndarray, _: np.random.Generator | None = None) -> Generation:
    """Greedy answers to prompts (R, N) in the order that the policy finds."""
    R, M, device = len(prompts), model.shape.M, model.flat.device
    cache = model.new_cache(R)
    responses = torch.zeros(R, M, dtype=torch.int64, device=device)
    orders = torch.zeros(R, M, dtype=torch.int64, device=device)
    filled = torch.zeros(R, M, dtype=torch.bool, device=device)
    logits = model.start(torch.as_tensor(prompts.astype(np.int64), device=device), cache)
    for t in range(M):
        slots = logits.masked_fill(filled, -torch.inf).argmax(-1)  # (R,)
        tokens = model.ask(slots, cache).argmax(-1)  # (R,)
        orders[:, t] = slots
        responses.scatter_(1, slots[:, None], tokens[:, None])
        filled.scatter_(1, slots[:, None], True)
        if t < M - 1:
            logits = model.step(tokens, slots, cache)
    return Generation(responses.cpu().numpy(), orders.cpu().numpy())


@torch.inference_mode()
def generate_left_to_right(model: Model, prompts: np.ndarray, _: np.random.Generator | None = None) -> Generation:
    """Greedy answers to prompts (R, N), the main stream predicting each next token."""
    R, M, device = len(prompts), model.shape.M, model.flat.device
    cache = model.new_cache(R)
    slots = torch.arange(M, device=device).expand(R, M)
    responses = torch.zeros(R, M, dtype=torch.int64, device=device)
    logits = model.predict_first(torch.as_tensor(prompts.astype(np.int64), device=device), cache)
    for t in range(M):
        responses[:, t] = logits.argmax(-1)
        if t < M - 1:
            logits = model.predict_next(responses[:, t], slots[:, t], cache)
    return Generation(responses.cpu().numpy(), slots.cpu().numpy())


@torch.inference_mode()
def generate_in_order(model: Model, prompts: np.ndarray, orders: np.ndarray) -> Generation:
    """Greedy answers to prompts (R, N) in given orders (R, M)."""
    device, cache = model.flat.device, model.new_cache(len(prompts))
    slots = torch.as_tensor(orders, device=device)
    responses = torch.zeros_like(slots)
    model.start(torch.as_tensor(prompts.astype(np.int64), device=device), cache)
    for t in range(model.shape.M):
        tokens = model.ask(slots[:, t], cache).argmax(-1)  # (R,)
        responses.scatter_(1, slots[:, t, None], tokens[:, None])
        if t < model.shape.M - 1:
            model.step(tokens, slots[:, t], cache)
    return Generation(responses.cpu().numpy(), slots.cpu().numpy())


def generate_in_random_order(model: Model, prompts: np.ndarray, random: np.random.Generator) -> Generation:
    order = np.tile(np.arange(model.shape.M), (len(prompts), 1))
    return generate_in_order(model, prompts, random.permuted(order, axis=1))
