"""A worker and the learner in this process: the loop without Ray."""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

from data.shards import Dataset
from learner.learner import LearnerState
from recor_dist.core import tracing
from recor_dist.core.config import Config
from recor_dist.core.messages import Ticket
from recor_dist.engine.events import (
    Checkpoint,
    Evaluated,
    Event,
    Looked,
    Profiled,
    Stepped,
    checkpoint_due,
    splits_due,
)
from recor_dist.engine.profile import INCOMPLETE, STEPS, WARM_UP
from recor_dist.methods import make_learner, make_worker
from recor_dist.model.evaluation import add_by_decoder
from recor_dist.record.snapshot import Activity

log = logging.getLogger(__name__)


class LocalEngine:
    def __init__(
        self, config: Config, data: Dataset, steps: int, state: LearnerState, unevaluated: Sequence[int]
    ) -> None:
        self.config, self.data, self.steps = config, data, steps
        self.learner = make_learner(config, data.shape, steps)
        self.learner.load_state(state)
        self.worker = make_worker(config, data)
        self.unevaluated = list(unevaluated)

    def events(self, stopping: Callable[[], bool]) -> Iterator[Event]:
        """Runs to the end, or until told to stop; then the last event is a checkpoint."""
        first = saved = self.learner.step
        for version in self.unevaluated:
            yield from self.evaluate(version, stopping)
        while self.learner.step < self.steps and not stopping():
            yield _does(f"computes step {self.learner.step}")
            batches = self.roll_out(stopping)
            if batches is None:
                break
            yield Stepped(self.learner.step + 1, self.learner.update(batches))
            done = self.learner.step
            if self.config.profile and done == first + WARM_UP:
                tracing.start()
            if self.config.profile and done == first + WARM_UP + STEPS:
                yield Profiled({"this process": tracing.stop()})
            if checkpoint_due(self.config, done, self.steps):
                saved = done
                yield Checkpoint(self.learner.state())
            yield from self.evaluate(done, stopping)
        if self.config.profile and self.learner.step < first + WARM_UP + STEPS:
            log.warning(INCOMPLETE)
        if self.learner.step > saved:
            yield Checkpoint(self.learner.state())

    def step(self) -> dict[str, float]:
        """Rolls out and takes the next step; returns its metrics."""
        batches = self.roll_out()
        assert batches is not None
        return self.learner.update(batches)

    def roll_out(self, stopping: Callable[[], bool] = lambda: False) -> list[Any] | None:
        """The batches of the next step; None if told to stop between two tickets."""
        n = self.learner.step
        version = max(0, n - self.config.lag)
        if self.worker.uses_weights:
            self.worker.load(version, self.learner.versions[version])
        batches = []
        for group in range(self.config.batch_size // self.config.rollout_size):
            if stopping():
                return None
            batches.append(self.worker.roll_out(Ticket(n, group, version)))
        return batches

    def evaluate(self, version: int, stopping: Callable[[], bool] = lambda: False) -> Iterator[Looked | Evaluated]:
        """Evaluates the splits that are due with these weights."""
        for split in splits_due(self.config, version, self.steps):
            yield _does(f"evaluates v_{version} on {split}")
            self.worker.load(version, self.learner.versions[version])
            total = math.ceil(self.data.rows_of(split) / self.config.eval.size)
            sums = []
            for index in range(total):
                if stopping():
                    return
                sums.append(self.worker.evaluate(split, index))
                yield Evaluated(version, split, reduce(add_by_decoder, sums), index + 1, total)

    def close(self) -> None:
        if tracing.running():  # a profile that the run's end has cut short
            tracing.stop()


def _does(doing: str) -> Looked:
    return Looked((Activity("this process", f"pid {os.getpid()}", doing, 0.0),))
