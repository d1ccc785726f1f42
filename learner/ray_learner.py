"""The Ray shell around the learner: it takes the results of tickets by reference and returns receipts, and v_{n+1} with
the last tickets of a step. Or it leads: it hands out the tickets of whole steps itself (learner/leading.py).

The driver owns what it returns, so published weights outlive the process that computed them.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from learner.gradients import Compute
from learner.leading import Leading, Terms, Troubled
from learner.learner import Learner, LearnerState
from recor_dist.core.messages import HandedOut, Led, LedStep, Receipt, Trouble
from recor_dist.core.ray_member import Fingerprint, RayMember
from recor_dist.core.tracing import span


class LearnerActor(RayMember):
    def __init__(self, fingerprint: Callable[[], Fingerprint], make_learner: Callable[[], Learner]) -> None:
        """Both functions are passed in, so this shell depends on neither methods nor configuration."""
        super().__init__(fingerprint)
        self.make_learner = make_learner
        self.learner: Learner | None = None
        self.compute: Compute | None = None
        self.terms: Terms | None = None
        self.led: list[LedStep] = []  # since it began to lead
        self.leading: Leading | None = None  # the step that it leads
        self.lock = threading.Lock()  # held while the learner changes

    def begin(self, state: LearnerState) -> None:
        """Resumes from a state; the first time, that of step 0."""
        self.learner = self.make_learner()
        self.learner.load_state(state)

    def prepare_to_lead(self, make_compute: Callable[[], Compute], terms: Terms) -> None:
        """Gives the learner what it needs to hand out tickets, and to compute them itself."""
        self.compute, self.terms = make_compute(), terms

    @ray.method(num_returns=3)
    def lead(
        self, end: int, actors: Mapping[str, Any], seconds: float, with_state: bool
    ) -> tuple[Led, np.ndarray, LearnerState | None]:
        """Takes steps until `end`, with the help of actors, for about this many seconds; stops at the first trouble.
        Returns the newest weights and, if it reached the end and is asked for it, the state."""
        assert self.learner is not None
        self.led, trouble, began = [], None, time.monotonic()
        while self.learner.step < end and trouble is None and time.monotonic() - began < seconds:
            trouble = self._lead_step(actors)
        self.leading = None
        step = self.learner.step
        state = self.learner.state() if with_state and step == end else None
        return Led(tuple(self.led), trouble), self.learner.versions[step], state

    def _lead_step(self, actors: Mapping[str, Any]) -> Trouble | None:
        learner, compute, terms, began = self.learner, self.compute, self.terms, time.monotonic()
        assert learner is not None and compute is not None and terms is not None
        assert not learner.taken, "a step is led as a whole"
        leading = Leading(learner.step, learner.versions[learner.step], actors, compute, terms)
        self.leading = leading
        try:
            for gradient in leading.gradients():
                with self.lock:
                    learner.take([gradient])
        except Troubled as troubled:
            with self.lock:
                learner.restart_step()
            return troubled.trouble
        with self.lock:
            metrics = learner.finish()
            self.led.append(leading.measured(time.monotonic() - began, metrics))
        return None

    @ray.method(num_returns=3)
    def update(
        self, step: int, first: int, results: Sequence[ray.ObjectRef], last: bool, with_state: bool
    ) -> tuple[Receipt, np.ndarray | None, LearnerState | None]:
        """Takes tickets `first`, `first` + 1, ... of a step; with `last`, it then takes the step. Takes nothing if the
        tickets before them could not be taken."""
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
    def state(self) -> tuple[LearnerState, tuple[LedStep, ...]]:
        """The state after the last whole step, even in the middle of the next one, and the steps that it has taken
        since it began to lead."""
        with self.lock:
            assert self.learner is not None
            return self.learner.state(), tuple(self.led)

    @ray.method(concurrency_group="state")
    def handed_out(self) -> HandedOut | None:
        """Who computes what in the step that it leads, if it does."""
        leading = self.leading
        return leading.handed_out() if leading else None


def _take(results: Sequence[ray.ObjectRef]) -> tuple[list[Any], tuple[int, ...]]:
    """Fetches results; returns them, or the indices of those that were lost with the machine that held them."""
    try:
        with span("fetch batches"):
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
