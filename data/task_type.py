"""What a task is to the rest of the project: the type of a row in the table of tasks (tasks.py).

Each task is one file, which ends with such a row. docs/adding_a_task.md has a worked example.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data.layouts import Layout, line
from data.shards import NotedRows
from data.splits import Classes
from data.vocab import PAD, Vocabulary
from recor_dist.core.config import TaskConfig
from recor_dist.core.messages import Rows


def places(N: int, M: int) -> np.ndarray:
    """(N + M,): prompt and response, both counted from 0."""
    return np.concatenate([np.arange(N), np.arange(M)])


@dataclass(frozen=True)
class Imported:
    """Rows read from a file by `data.import_public`."""

    rows: NotedRows
    classes: Classes  # which rows count as the same, so that none is in two splits
    alike: str  # what rows of one class have in common
    task: TaskConfig  # the settings of these rows
    overrides: list[str] = field(default_factory=list)  # what to add to `task=NAME` to train on them
    skipped: list[str] = field(default_factory=list)  # a line for each row that was not taken


@dataclass(frozen=True)
class TaskType:
    """A row of the table of tasks. `task`, the first argument of each function, is an object of `schema`."""

    schema: type[TaskConfig]
    name: str  # in tables: ARG
    title: str  # on pages: Autoregression

    # --- rows: a generated task sets the first three; one that reads the user's own rows sets `read_source`
    vocabulary: Callable[[Any], Vocabulary] | None = None
    lengths: Callable[[Any], tuple[int, int]] | None = None  # N and M
    # task, random, count -> Rows. tasks.py keeps those whose prompt belongs to the split.
    sample: Callable[[Any, np.random.Generator, int], Rows] | None = None
    # Instead of `sample`, if prompts alone do not separate the splits: task, split, random, count -> Rows.
    shard: Callable[[Any, str, np.random.Generator, int], Rows] | None = None
    read_source: Callable[[Any, str], Any] | None = None  # task, data.source -> custom.Source
    read_file: Callable[[Any, Path], Imported] | None = None  # reads puzzles as they are published
    size_settings: str = ""  # the settings that must fit an imported data set
    order: str | None = None  # the known order: "reversed", "recorded" in the shards, or None
    slow: bool = False  # True if a shard takes so long that several processes should make them

    # --- prompts and answers as people write and read them
    read_prompt: Callable[[Any, str], str] = lambda task, text: text  # the canonical text of what a person may write
    read_tokens: Callable[[Any, list[str]], list[str]] = lambda task, tokens: tokens  # the canonical tokens of a prompt
    check_prompt: Callable[[Any, list[str]], None] = lambda task, tokens: None  # raises Mistake for an invalid prompt
    # task, prompt tokens, M, response tokens or None -> Layout
    layout: Callable[[Any, list[str], int, list[str] | None], Layout] = lambda task, prompt, M, response: line(
        prompt, M
    )
    token_name: Callable[[Any, int, str], str] = lambda task, slot, token: token  # display name of a token in a slot

    # --- where tokens are: coordinate name -> its value at each of N + M positions, prompt first; -1 where it has none.
    # Answers with `row` and `column` are drawn as boards.
    coordinates: Callable[[Any, int, int], dict[str, np.ndarray]] = lambda task, N, M: {"place": places(N, M)}
    row_names: Callable[[Any], list[str]] = lambda task: []  # of answers with rows and columns

    def slot_coordinates(self, task: TaskConfig) -> dict[str, np.ndarray]:
        """The coordinates of the M slots of a generated answer."""
        if self.lengths is None:
            return {}
        N, M = self.lengths(task)
        return {name: values[N:] for name, values in self.coordinates(task, N, M).items()}

    def display_name(self, task: TaskConfig, slot: int, token: str) -> str:
        """The text that is shown for a token in a slot."""
        return "–" if token == PAD else self.token_name(task, slot, token)
