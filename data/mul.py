"""Multiplication: `x*y=` with x of 20 digits and 2 <= y < 100; the response is the product, zero-filled on the left."""

from dataclasses import dataclass

import numpy as np

from data.vocab import Vocabulary
from recor_dist.core.config import GeneratedTaskConfig, setting
from recor_dist.core.messages import Rows


@dataclass
class MulConfig(GeneratedTaskConfig):
    """Multiplication `x*y=` of a long number and a short one."""

    name: str = setting("mul", "the task", choices=("mul",))
    digits: int = setting(20, "digits of x", at_least=1, at_most=1024)
    factor_digits: int = setting(2, "digits of y, leading zeros included", at_least=1, at_most=1024)

    def slots(self) -> int:
        return self.digits + self.factor_digits


TIMES, EQUALS = 10, 11


def vocabulary(_: MulConfig) -> Vocabulary:
    return Vocabulary((*"0123456789", "*", "="))


def multiply(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Digits of the products: x (R, n), y (R, m) -> (R, n + m). Long multiplication, so that no integer is too long."""
    n, m = x.shape[1], y.shape[1]
    columns = np.zeros((len(x), n + m), dtype=np.int64)
    for j in range(m):
        columns[:, j + 1 : j + 1 + n] += x.astype(np.int64) * y[:, j : j + 1]
    for column in range(n + m - 1, 0, -1):
        carry, columns[:, column] = np.divmod(columns[:, column], 10)
        columns[:, column - 1] += carry
    return columns.astype(np.uint8)


def sample(task: MulConfig, random: np.random.Generator, rows: int) -> Rows:
    x = random.integers(0, 10, size=(rows, task.digits), dtype=np.uint8)
    x[:, 0] = random.integers(1, 10, size=rows, dtype=np.uint8)
    y = random.integers(0, 10, size=(rows, task.factor_digits), dtype=np.uint8)
    # 0 and 1 are drawn again, which leaves the rest uniform.
    while len(trivial := np.flatnonzero((y[:, :-1] == 0).all(1) & (y[:, -1] < 2))):
        y[trivial] = random.integers(0, 10, size=(len(trivial), task.factor_digits), dtype=np.uint8)
    sign = np.ones((rows, 1), dtype=np.uint8)
    return Rows(np.concatenate([x, TIMES * sign, y, EQUALS * sign], axis=1), multiply(x, y))
