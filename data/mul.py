"""Multiplication: `x*y=` with x of 20 digits and 2 <= y < 100; the response is the product, zero-filled on the left."""

from dataclasses import dataclass

import numpy as np

from data.task_type import TaskType
from data.vocab import Vocabulary
from recor_dist.core.config import GeneratedTaskConfig
from recor_dist.core.messages import Rows
from recor_dist.core.setting import setting


@dataclass
class MulConfig(GeneratedTaskConfig):
    """Multiplication `x*y=` of a long number by a short one."""

    name: str = setting("mul", "the task", choices=("mul",))
    digits: int = setting(20, "digits of x", at_least=1, at_most=1024)
    factor_digits: int = setting(2, "digits of y, leading zeros included", at_least=1, at_most=1024)

    def slots(self) -> int:
        return self.digits + self.factor_digits


TIMES, EQUALS = 10, 11


def vocabulary(_: MulConfig) -> Vocabulary:
    return Vocabulary((*"0123456789", "*", "="))


def lengths(task: MulConfig) -> tuple[int, int]:
    """N and M: `x*y=`, and as many digits as x and y have together."""
    return task.digits + task.factor_digits + 2, task.slots()


def multiply(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Digits of the products: x (R, n), y (R, m) -> (R, n + m). Long multiplication, so no integer overflows."""
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
    # Redrawing 0 and 1 leaves the other factors uniform.
    while len(trivial := np.flatnonzero((y[:, :-1] == 0).all(1) & (y[:, -1] < 2))):
        y[trivial] = random.integers(0, 10, size=(len(trivial), task.factor_digits), dtype=np.uint8)
    sign = np.ones((rows, 1), dtype=np.uint8)
    return Rows(np.concatenate([x, TIMES * sign, y, EQUALS * sign], axis=1), multiply(x, y))


def read_prompt(task: MulConfig, text: str) -> str:
    """`1234*5` is `1234*05=`: the factor's leading zeros and the `=` may be omitted."""
    if text.count("*") != 1:
        return text
    x, y = "".join(text.split()).removesuffix("=").split("*")
    return f"{x}*{y.zfill(task.factor_digits)}="


def coordinates(task: MulConfig, N: int, M: int) -> dict[str, np.ndarray]:
    """The decimal place, 0 for the last digit, and the number it is in; the signs have no place."""
    x, y = np.arange(task.digits)[::-1], np.arange(task.factor_digits)[::-1]
    place = [*x, -1, *y, -1, *np.arange(M)[::-1]]
    number = np.repeat([0, 1, 2, 3, 4], [len(x), 1, len(y), 1, M])  # x * y = product
    return {"place": np.array(place), "number": number}


TASK = TaskType(
    schema=MulConfig,
    name="MUL",
    title="Multiplication",
    vocabulary=vocabulary,
    lengths=lengths,
    sample=sample,
    order="reversed",
    read_prompt=read_prompt,
    coordinates=coordinates,
)
