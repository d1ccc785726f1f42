"""The Ray shell around the learner: it takes the results of tickets by reference and returns receipts, and v_{n+1} with
the last tickets of a step.

The driver owns what it returns, so published weights outlive the process that computed them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from learner.learner import Learner, LearnerState
from recor_dist.core.messages import Receipt
from recor_dist.core.ray_member import Fingerprint, RayMember


class LearnerActor(RayMember):
    def __init__(self, fingerprint: Callable[[], Fingerprint], make_learner: Callable[[], Learner]) -> None:
        """Both functions are passed in, so this shell depends on neither methods nor configuration."""
        super().__init__(fingerprint)
        self.make_learner = make_learner
        self.learner: Learner | None = None
        self.lock = threading.Lock()  # held while the learner changes

    def begin(self, state: LearnerState) -> None:
        """Resumes from a state; the first time, that of step 0."""
        self.learner = self.make_learner()
        self.learner.load_state(state)

    @ray.method(num_returns=3)
    def update(
        self, step: int, first: int, results: Sequence[ray.ObjectRef], last: bool, with_state: bool
    ) -> tuple[Receipt, np.ndarray | None, LearnerState | None]:
        """Takes tickets `first`, `first` + 1, ... of a step, for whose results it waits; with `last`, it then takes the
        step. Takes nothing if the tickets before them could not be taken."""
        assert self.learner is not None
        if (step, first) != (self.learner.step, self.learner.taken):
            return Receipt(0.0, 0.0, 0), None, None
        began = time.perf_counter()
        taken, lost = _take(results)
        fetched = time.perf_counter()
        if lost:
            return Receipt(0.0, fetched - began, 0, lost=tuple(first + index for index in lost)), None, None
        with self.lock:
            self.learner.take(taken)
            metrics = self.learner.finish() if last else {}
            state = self.learner.state() if with_state else None
        receipt = Receipt(time.perf_counter() - fetched, fetched - began, _bytes(taken), metrics)
        return receipt, self.learner.versions[self.learner.step] if last else None, state

    @ray.method(concurrency_group="state")
    def state(self) -> LearnerState:
        """The state after the last whole step, even while `update` waits for results."""
        with self.lock:
            assert self.learner is not None
            return self.learner.state()


def _take(results: Sequence[ray.ObjectRef]) -> tuple[list[Any], tuple[int, ...]]:
    """Fetches results; returns them, or the indices of those that were lost with the machine that held them."""
    try:
        return ray.get(list(results)), ()
    except RayError:
        lost = tuple(index for index, result in enumerate(results) if not _exists(result))
        return ([], lost) if lost else (ray.get(list(results)), ())


def _exists(result: ray.ObjectRef) -> bool:
    try:
        ray.get(result)
    except RayError:
        return False
    return True


def _bytes(results: Sequence[Any]) -> int:
    return sum(array.nbytes for result in results for array in vars(result).values() if isinstance(array, np.ndarray))
