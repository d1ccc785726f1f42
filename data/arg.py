"""Autoregression: y_L = x_L, y_i = prod_{j>i} [(y_j + x_i) mod (p-1) + 1] mod p. Easy from right to left only."""

import numpy as np

from data.vocab import Vocabulary
from recor_dist.core.config import ArgConfig
from recor_dist.core.messages import Rows


def vocabulary(task: ArgConfig) -> Vocabulary:
    return Vocabulary(tuple(str(value) for value in range(task.modulus)))


def respond(prompts: np.ndarray, modulus: int) -> np.ndarray:
    """Responses (R, L) to prompts (R, L)."""
    x = prompts.astype(np.int64).T  # (L, R): columns of the rows lie together
    y = np.empty_like(x)
    y[-1] = x[-1]
    for i in range(len(x) - 2, -1, -1):
        product = np.ones(x.shape[1], dtype=np.int64)
        for later in y[i + 1 :]:
            product = product * ((later + x[i]) % (modulus - 1) + 1) % modulus
        y[i] = product
    return y.T.astype(np.uint8)


def sample(task: ArgConfig, random: np.random.Generator, rows: int) -> Rows:
    prompts = random.integers(0, task.modulus, size=(rows, task.length), dtype=np.uint8)
    return Rows(prompts, respond(prompts, task.modulus))
