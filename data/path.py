"""Path-finding on a star graph (Bachmann and Nagarajan, arXiv 2403.06963): which arm leads from the center to the goal?

The prompt lists the edges in random order, then start and goal; the response is the path. From left to right, the first
step is a guess among the arms. From the goal backwards, each step is one look-up among the edges.
"""

from dataclasses import dataclass

import numpy as np

from data.task_type import TaskType
from data.vocab import Vocabulary
from recor_dist.core.config import GeneratedTaskConfig
from recor_dist.core.messages import Rows
from recor_dist.core.setting import setting


@dataclass
class PathConfig(GeneratedTaskConfig):
    """Path-finding on a star graph."""

    name: str = setting("path", "the task", choices=("path",))
    arms: int = setting(3, "arms of the star", at_least=2, at_most=64)
    length: int = setting(4, "edges per arm", at_least=1, at_most=64)

    def slots(self) -> int:
        return self.length + 1


def vocabulary(task: PathConfig) -> Vocabulary:
    return Vocabulary(tuple(str(node) for node in range(task.arms * task.length + 1)))


def lengths(task: PathConfig) -> tuple[int, int]:
    """Two tokens per edge, the start and the goal; every node of the path."""
    return 2 * task.arms * task.length + 2, task.length + 1


def sample(task: PathConfig, random: np.random.Generator, count: int) -> Rows:
    nodes = 1 + task.arms * task.length
    names = random.permuted(np.tile(np.arange(nodes, dtype=np.uint16), (count, 1)), axis=1)  # (count, nodes)
    arms = np.arange(1, nodes).reshape(task.arms, task.length)  # node 0 is the center
    paths = np.insert(arms, 0, 0, axis=1)  # (arms, length + 1), from the center outwards
    edges = np.stack([paths[:, :-1], paths[:, 1:]], axis=2).reshape(-1, 2)  # (arms * length, 2)
    order = random.permuted(np.tile(np.arange(len(edges)), (count, 1)), axis=1)
    listed = np.take_along_axis(names, edges[order].reshape(count, -1), axis=1)
    responses = np.take_along_axis(names, paths[random.integers(task.arms, size=count)], axis=1)
    return Rows(np.concatenate([listed, responses[:, [0, -1]]], axis=1), responses)


TASK = TaskType(
    schema=PathConfig,
    name="Path",
    title="Path-finding on a star graph",
    vocabulary=vocabulary,
    lengths=lengths,
    sample=sample,
    order="reversed",
)
