"""The learner's shell, without Ray: steps in parts, lost results, and parts that arrive too early."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from learner import ray_learner as shell
from learner.ray_learner import LearnerActor
from recor_dist.core.config import Config
from recor_dist.core.messages import Receipt
from tests.learner.test_learner import learner_of, tickets


def test_a_step_taken_in_parts_continues_after_one_of_its_batches_is_lost(
    config_in: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in("device=cpu", "precision=float32")
    whole = learner_of(config)
    batches = tickets(config, whole, count=4)
    gone = {2}

    def take(groups: Sequence[int]) -> tuple[list[Any], tuple[int, ...]]:
        lost = tuple(index for index, group in enumerate(groups) if group in gone)
        return ([], lost) if lost else ([batches[group] for group in groups], ())

    monkeypatch.setattr(shell, "_take", take)
    actor: Any = LearnerActor(dict, lambda: learner_of(config))  # Any: Ray's types of its methods know only `remote`
    actor.begin(whole.state())

    def update(first: int, end: int, step: int = 0) -> tuple[Receipt, np.ndarray | None]:
        return actor.update(step, first, range(first, end), last=end == 4, with_state=False)[:2]

    receipt, weights = update(0, 1)
    assert (receipt.metrics, receipt.lost, weights) == ({}, (), None)
    assert update(1, 3)[0].lost == (2,), "by its group in the step"
    for followed in (update(3, 4), update(0, 4, step=1)):
        assert (followed[0].metrics, followed[0].lost, followed[1]) == (None, (), None), (
            "what was already queued is refused"
        )
    gone.clear()
    assert update(1, 3)[0].metrics == {}
    receipt, weights = update(3, 4)
    assert receipt.metrics == whole.update(batches)
    assert np.array_equal(weights, whole.versions[1])
