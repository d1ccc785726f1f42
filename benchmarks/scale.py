"""`python benchmarks/scale.py`: how many actors one driver keeps busy, with the real pool and real Ray.

Stand-in actors (light processes without torch) sleep for the duration of a rollout; the stand-in learner publishes the
paper's 6M weights immediately. The ideal rate is actors / rollout time. Prints the share of that rate reached,
where the driver's time went, and which processes used CPU time per ticket: all of them share this machine's cores, and
once those are busy, actors wait for each other. `python benchmarks/scale.py 0.1` assumes rollouts of 0.1 s instead of
measuring one of the paper's ARG on this CPU.
"""

import logging
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import ray

from data.prepare import open_data
from data.shards import Dataset
from data.tasks import task_of
from learner.learner import LearnerState, initial_state
from recor_dist.core import ray_session
from recor_dist.core.compose import compose
from recor_dist.core.config import Config
from recor_dist.core.messages import Receipt, Ticket
from recor_dist.core.ray_member import RayMember
from recor_dist.engine.calls import Call
from recor_dist.engine.crew import Crew
from recor_dist.engine.events import Stepped
from recor_dist.engine.placement import cpus_wanted
from recor_dist.engine.ray_engine import RayEngine
from recor_dist.methods import lay_out, make_worker

COUNTS = (1, 4, 16, 64)
STEPS = 6  # measured for each number of actors, after as many to fill the pipeline
OPTIONS = {"num_cpus": 0, "max_restarts": 0, "concurrency_groups": {"watch": 1}}


class SleepingActor(RayMember):
    """Answers like an actor, and takes as long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(dict)
        self.seconds = seconds

    def begin(self, data: Any, shards: Any) -> None:
        """Nothing to open."""

    @ray.method(num_returns=2)
    def roll_out(self, ticket: Ticket, weights: list[ray.ObjectRef]) -> tuple[Receipt, np.ndarray]:
        ray.get(weights[0])
        time.sleep(self.seconds)
        return Receipt(self.seconds, 0.0, 0), np.zeros(20_000, dtype=np.uint8)  # the size of a batch of 16 rows


class InstantLearner(RayMember):
    def __init__(self) -> None:
        super().__init__(dict)

    def begin(self, state: Any) -> None:
        self.weights = next(iter(state.versions.values()))

    @ray.method(num_returns=3)
    def update(
        self, step: int, first: int, batches: list[ray.ObjectRef], last: bool, with_state: bool
    ) -> tuple[Receipt, np.ndarray | None, None]:
        ray.get(list(batches))
        return Receipt(0.0, 0.0, 0, {}), self.weights if last else None, None


STAND_INS = tuple(f"ray::{kind.__name__}" for kind in (SleepingActor, InstantLearner))  # the names of their processes


def stand_ins(seconds: float) -> AbstractContextManager:
    """Inside this context, a crew hires stand-ins."""
    return patch.multiple(
        Crew,
        start_actor=lambda _: ray.remote(**OPTIONS)(SleepingActor).remote(seconds),
        start_learner=lambda _: ray.remote(**OPTIONS)(InstantLearner).remote(),
    )


class StandInEngine(RayEngine):
    """The real engine with stand-ins, which also measures where its own time goes."""

    def __init__(self, config: Config, data: Dataset, state: LearnerState) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        super().__init__(config, data, 10**6, state, [], lambda: state, lambda machine: machine)
        self.pool.decide = self._timed("deciding", self.pool.decide)

    def _carry_out(self, command: Any) -> None:
        self._timed("issuing", super()._carry_out)(command)

    def _take(self, ref: ray.ObjectRef, call: Call, now: float) -> None:
        self._timed("taking answers", super()._take)(ref, call, now)

    def _timed(self, name: str, function: Callable) -> Callable:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.spent[name] += time.perf_counter() - began

        return timed


def measured_rollout(config: Config, data: Dataset) -> float:
    """Seconds per ticket on one core of this machine."""
    worker = make_worker(config, data)
    worker.load(0, worker.model.weights())
    times = []
    for group in range(5):
        began = time.perf_counter()
        worker.roll_out(Ticket(0, group, 0))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def cpu_seconds() -> dict[str, float]:
    """CPU seconds used so far by the driver, by the stand-ins, and by Ray's own processes."""
    me = psutil.Process()
    spent: defaultdict[str, float] = defaultdict(float)
    for process in [me, *me.children(recursive=True)]:
        times, stand_in = process.cpu_times(), process.cmdline()[0].startswith(STAND_INS)
        whose = "driver" if process == me else "stand-ins" if stand_in else "Ray's own"
        spent[whose] += times.user + times.system
    return spent


def measure(config: Config, data: Dataset, state: LearnerState, seconds: float) -> str:
    engine = StandInEngine(config, data, state)
    count, groups = config.actors.count, config.batch_size // config.rollout_size
    assert isinstance(count, int)
    try:
        done, began, before = 0, 0.0, {}
        for event in engine.events(lambda: False):
            if not isinstance(event, Stepped) or len(engine.pool.actors) < count:
                continue
            done += 1
            if done == STEPS:
                before, began = cpu_seconds(), time.perf_counter()
                engine.spent.clear()
            if done == 2 * STEPS:
                break
        passed = time.perf_counter() - began
        cpu = {whose: spent - before.get(whose, 0.0) for whose, spent in cpu_seconds().items()}
    finally:
        engine.close()
    tickets = groups * STEPS / passed
    largest_first = sorted(engine.spent.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {part / passed:.1%}" for name, part in largest_first)
    reached = f"{tickets:8.1f} tickets/s of {count / seconds:8.1f} ideal = {tickets * seconds / count:.2f}"
    each = ", ".join(f"{whose} {1e3 * cpu[whose] / (groups * STEPS):.1f} ms" for whose in cpu)
    busy = f"{sum(cpu.values()) / passed:.2f} of {len(os.sched_getaffinity(0))} cores"
    return f"  {count:>3} actors  {reached}\n    driver: {shares}\n    CPU per ticket: {each}; {busy} busy"


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        overrides = ["scale=paper", "device=cpu", "precision=float32", "rollout_size=16", "lag=1", "eval.every=0"]
        overrides += ["checkpoint.every=1000000", "task.train_rows=20000", f"data.dir={folder}"]
        config = compose(overrides)
        data = open_data(config, task_of(config))
        state = initial_state(lay_out(config, data.shape), 0)
        seconds = float(sys.argv[1]) if len(sys.argv) > 1 else measured_rollout(config, data)
        print(f"a rollout takes {seconds:.3f} s; a step is 64 tickets, lag=1; target >= 0.90 of the ideal")
        ray_session.start(cpus_wanted(config))
        try:
            with stand_ins(seconds):
                for count in COUNTS:
                    print(measure(compose([*overrides, f"actors.count={count}"]), data, state, seconds), flush=True)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
