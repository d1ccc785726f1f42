"""The Ray shell around the learner: it takes batches by reference and gives back receipts, and v_{n+1}
with the last of a step.

What it returns belongs to the driver, so that published weights outlive the process that made them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray

from learner.learner import Learner, LearnerState
from recor_dist.core.messages import Hello, Receipt


class LearnerActor:
    def __init__(self, hello: Callable[[], Hello], make_learner: Callable[[], Learner]) -> None:
        self.introduce, self.make_learner = hello, make_learner
        self.learner: Learner | None = None

    def hello(self) -> Hello:
        return self.introduce()

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Never answers: its reference fails the moment this process is gone, at work or not."""
        threading.Event().wait()

    def begin(self, state: LearnerState) -> None:
        """Goes on from a state; at the first start, that of step 0."""
        self.learner = self.make_learner()
        self.learner.load_state(state)

    @ray.method(num_returns=3)
    def update(
        self, step: int, first: int, batches: Sequence[ray.ObjectRef], *, last: bool, with_state: bool
    ) -> tuple[Receipt, np.ndarray | None, LearnerState | None]:
        """Takes tickets `first`, `first` + 1, ... of a step, and with its last ones the step itself; nothing, if those
        before them could not be taken."""
        assert self.learner is not None
        if (step, first) != (self.learner.step, self.learner.taken):
            return Receipt(0.0, 0.0, 0), None, None
        began = time.perf_counter()
        taken, lost = _take(batches)
        fetched = time.perf_counter()
        if lost:
            return Receipt(0.0, fetched - began, 0, lost=tuple(first + index for index in lost)), None, None
        self.learner.take(taken)
        metrics = self.learner.finish() if last else {}
        receipt = Receipt(time.perf_counter() - fetched, fetched - began, _bytes(taken), metrics)
        weights = self.learner.versions[self.learner.step] if last else None
        return receipt, weights, self.learner.state() if with_state else None

    def state(self) -> LearnerState:
        assert self.learner is not None
        return self.learner.state()


def _take(batches: Sequence[ray.ObjectRef]) -> tuple[list[Any], tuple[int, ...]]:
    """Fetches batches; returns them, and which of them went down with the machine that held them."""
    try:
        return ray.get(list(batches)), ()
    except ray.exceptions.RayError:
        lost = tuple(index for index, batch in enumerate(batches) if not _can_be_had(batch))
        return ([], lost) if lost else (ray.get(list(batches)), ())


def _can_be_had(batch: ray.ObjectRef) -> bool:
    try:
        ray.get(batch)
    except ray.exceptions.RayError:
        return False
    return True


def _bytes(batches: Sequence[Any]) -> int:
    return sum(array.nbytes for batch in batches for array in vars(batch).values() if isinstance(array, np.ndarray))
