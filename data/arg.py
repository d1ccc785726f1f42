"""Autoregression: y_L = x_L, y_i = prod_{j>i} [(y_j + x_i) mod (p-1) + 1] mod p. Easy only from right to left."""

from dataclasses import dataclass

import numpy as np

from data.task_type import TaskType
from data.vocab import Vocabulary
from recor_dist.core.config import GeneratedTaskConfig
from recor_dist.core.messages import Rows
from recor_dist.core.setting import Mistake, setting


@dataclass
class ArgConfig(GeneratedTaskConfig):
    """Autoregression: each response token depends on all tokens after it."""

    name: str = setting("arg", "the task", choices=("arg",))
    length: int = setting(20, "L: tokens in the prompt, and in the response", at_least=1, at_most=1024)
    modulus: int = setting(7, "p: a prime; tokens are 0..p-1", at_least=3, at_most=251)

    def check(self) -> None:
        if any(self.modulus % d == 0 for d in range(2, self.modulus)):
            raise Mistake(f"task.modulus={self.modulus}: must be a prime")

    def slots(self) -> int:
        return self.length


def vocabulary(task: ArgConfig) -> Vocabulary:
    return Vocabulary(tuple(str(value) for value in range(task.modulus)))


def lengths(task: ArgConfig) -> tuple[int, int]:
    """N and M."""
    return task.length, task.length


def respond(prompts: np.ndarray, modulus: int) -> np.ndarray:
    """Responses (R, L) to prompts (R, L)."""
    x = prompts.astype(np.int64).T  # (L, R): each position is contiguous in memory
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


TASK = TaskType(
    schema=ArgConfig,
    name="ARG",
    title="Autoregression",
    vocabulary=vocabulary,
    lengths=lengths,
    sample=sample,
    order="reversed",
)
