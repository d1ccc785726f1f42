"""Answers: the policy picks a slot, the token query at that slot picks a token, and so on, with a KV cache.

2 + C forward passes in all: the prompt and every written token pass once, with C order queries, and every slot is asked
for once.
"""

import numpy as np
import torch

from recor_dist.messages import Generation
from recor_dist.model import Model


@torch.inference_mode()
def generate(model: Model, prompts: np.ndarray) -> Generation:
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
