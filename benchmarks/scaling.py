"""`python -m benchmarks.scaling`: how a step gets faster with more actors, with batches and with gradients.

`python -m benchmarks.scaling cores`: on this machine's cores. Rounds of steps alternate between engine=local on one
core and engine=ray with one and with two actors, rolling out only (batches) or computing gradients, too. Each round on
Ray is compared with the local rounds before and after it; every number is a median over rounds.

`python -m benchmarks.scaling stand-ins`: on a pretended cluster of up to 64 machines, with the real driver, the real
learner and real Ray. Stand-in actors (light processes without torch) sleep as long as a ticket takes here and return a
gradient of the real size. Prints the share of the ideal rate, what adding costs the learner, and which processes used
CPU time: all of them share this machine's cores and its memory.

`python -m benchmarks.scaling paper`: nothing is measured. FLOPs and sizes of the four runs at `scale=paper` are
counted, and hours on 1 to 8 GPU workers are computed from them for assumed speeds of GPU and network (see
docs/scaling.md).
"""

import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import ray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from actors.pool import Command, Pool
from benchmarks.engine import SETTLE, configure, pass_steps, seconds_of_local, seconds_of_ray
from data.prepare import open_data
from data.shards import Dataset
from data.tasks import task_of
from learner.learner import LearnerState, initial_state
from recor_dist.core import ray_session
from recor_dist.core.compose import compose
from recor_dist.core.config import Config, total_steps
from recor_dist.core.device import set_up_torch
from recor_dist.core.messages import Receipt, Shape, Ticket, TicketGradient
from recor_dist.core.ray_member import RayMember
from recor_dist.engine.crew import Crew
from recor_dist.engine.events import Stepped
from recor_dist.engine.local_engine import LocalEngine
from recor_dist.engine.ray_engine import RayEngine
from recor_dist.methods import lay_out, make_learner, make_worker

# --- on this machine's cores -----------------------------------------------------------------------------------------

ROUNDS = 7
ROUND = 1.0  # seconds per round on one core; at least three steps
STEPS_OF = [
    ["method=recor", "batch_size=128"],
    ["method=recor", "batch_size=512", "rollout_size=128"],
    ["method=recor", "batch_size=2048", "rollout_size=256"],
    ["method=ar_gt", "batch_size=512", "rollout_size=128"],
    ["method=mdm", "batch_size=512", "rollout_size=128"],
]
MODES = {
    f"{'gradients' if gradients else 'batches'}, actors: {count}": [
        f"actors.gradients={str(gradients).lower()}",
        f"actors.count={count}",
    ]
    for gradients in (False, True)
    for count in (1, 2)
}


def start_on_ray(config: Config, data: Dataset, state: LearnerState, engine: type[RayEngine] = RayEngine) -> RayEngine:
    return engine(config, data, 100_000, state, [], lambda: state, lambda machine: machine)


def on_cores(folder: str, overrides: list[str]) -> None:
    config = configure(folder, *overrides)
    set_up_torch(config)
    data = open_data(config, task_of(config))
    state = initial_state(lay_out(config, data.shape), config.seed)
    local = LocalEngine(config, data, 100_000, state, [])
    steps = max(3, round(ROUND / sum(seconds_of_local(local, 3))))
    seconds, lines = [], []
    for name, mode in MODES.items():
        # One engine at a time: on two cores, the idle processes of the others would take their share.
        engine = start_on_ray(configure(folder, *overrides, *mode), data, state)
        try:
            gains, local_seconds = gains_over(local, engine, steps)
        finally:
            engine.close()
        seconds += local_seconds
        middle, span = statistics.median(gains), f"{min(gains):.2f} to {max(gains):.2f}"
        lines.append(f"  {name}  {middle:.2f} times one core  ({span})")
    print(f"\n{' '.join(overrides)}: {1e3 * statistics.median(seconds):.1f} ms per step on one core")
    print("\n".join(lines), flush=True)


def gains_over(local: LocalEngine, engine: RayEngine, steps: int) -> tuple[list[float], list[float]]:
    """The speed of rounds on Ray in multiples of the local rounds before and after them, and the seconds per step of
    these."""
    events, count = engine.events(lambda: False), engine.config.actors.count
    assert isinstance(count, int)
    while len(engine.pool.actors) < count:
        next(event for event in events if isinstance(event, Stepped))
    time.sleep(SETTLE)
    gains, seconds = [], [sum(seconds_of_local(local, steps))]
    for _ in range(ROUNDS):
        on_ray = seconds_of_ray(engine, events, steps)
        time.sleep(SETTLE)
        seconds.append(sum(seconds_of_local(local, steps)))
        gains.append((seconds[-2] + seconds[-1]) / 2 / on_ray)
    return gains, seconds


# --- with stand-ins --------------------------------------------------------------------------------------------------

COUNTS = (2, 8, 32, 64)
STEPS = 3  # measured for each number of actors, after two
OPTIONS = {"num_cpus": 0, "max_restarts": 0, "concurrency_groups": {"watch": 1, "state": 1}}
# The paper's two model sizes, each with a ticket of its task.
MODELS = {
    "arg": ["task=arg", "rollout_size=256", "task.train_rows=20000"],
    "zebra": ["task=zebra", "rollout_size=16", "task.train_rows=2000", "task.test_rows=100", "task.val_rows=100"],
}


class SleepingActor(RayMember):
    """Answers like an actor, and takes as long."""

    def __init__(self, seconds: float, weights: int) -> None:
        super().__init__(dict)
        self.seconds = seconds
        self.gradient = np.zeros(weights, dtype=np.float32)

    def begin(self, data: Any, shards: Any) -> None:
        """Nothing to open."""

    @ray.method(num_returns=2)
    def differentiate(self, ticket: Ticket, weights: list[ray.ObjectRef]) -> tuple[Receipt, TicketGradient]:
        """The learner sends weights once per step."""
        flat = ray.get(weights[0]) if weights else self.gradient
        time.sleep(self.seconds)
        return Receipt(self.seconds, 0.0, flat.nbytes), TicketGradient(self.gradient, 1, {})


def stand_ins(seconds: float, weights: int) -> AbstractContextManager:
    """Inside this context, a crew hires stand-ins as actors; the learner is the real one."""
    actor = ray.remote(**OPTIONS)(SleepingActor)
    return patch.object(Crew, "start_actor", lambda _: actor.remote(seconds, weights))


@dataclass
class AddingPool(Pool):
    """The learner only adds, as on a GPU that it shares with an actor, and the first step waits for all actors."""

    leads_alone: bool = False
    count: int = 0  # actors

    def decide(self, now: float) -> list[Command]:
        return super().decide(now) if len(self.actors) == self.count else []


class EngineOfStandIns(RayEngine):
    def _make_pool(self, weights: int, step: int) -> Pool:
        pool = super()._make_pool(weights, step)
        return AddingPool(**vars(pool) | {"leads_alone": False, "count": self.config.actors.count})


def seconds_of_ticket(config: Config, data: Dataset) -> float:
    """Rollout and gradient on one core of this machine."""
    worker = make_worker(config, data)
    worker.load(0, worker.model.weights())
    times = []
    for group in range(4):
        began = time.perf_counter()
        worker.differentiate(Ticket(0, group, 0))
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def seconds_of_adding(config: Config, shape: Shape, weights: int) -> tuple[float, float]:
    """One gradient, and the end of a step (division, norm, AdamW, a copy of the weights), in this process."""
    learner = make_learner(config, shape, 100)
    part = TicketGradient(np.full(weights, 1e-4, dtype=np.float32), 1, {})
    adding, ending = [], []
    for _ in range(10):
        began = time.perf_counter()
        learner.take([part] * 4)
        middle = time.perf_counter()
        learner.finish()
        adding.append((middle - began) / 4)
        ending.append(time.perf_counter() - middle)
    return statistics.median(adding), statistics.median(ending)


def cpu_seconds() -> dict[str, float]:
    """CPU seconds used so far by the driver, the learner, the stand-ins, and Ray's own processes."""
    me, names = psutil.Process(), {"ray::SleepingActor": "stand-ins", "ray::LearnerActor": "learner"}
    spent: defaultdict[str, float] = defaultdict(float)
    for process in [me, *me.children(recursive=True)]:
        times, command = process.cpu_times(), process.cmdline()[:1] or [""]
        known = next((whose for name, whose in names.items() if command[0].startswith(name)), "Ray's own")
        spent["driver" if process == me else known] += times.user + times.system
    return spent


def with_stand_ins(config: Config, data: Dataset, state: LearnerState, seconds: float) -> str:
    engine = start_on_ray(config, data, state, EngineOfStandIns)
    count, groups = config.actors.count, config.batch_size // config.rollout_size
    assert isinstance(count, int)
    try:
        events = engine.events(lambda: False)
        first = pass_steps(engine, events, engine.pool.learned + 2)
        began, before, added = time.perf_counter(), cpu_seconds(), engine.meter.whole.publish
        steps = pass_steps(engine, events, first + STEPS) - first
        passed, added = time.perf_counter() - began, engine.meter.whole.publish - added
        cpu = {whose: spent - before.get(whose, 0.0) for whose, spent in cpu_seconds().items()}
    finally:
        engine.close()
    tickets = groups * steps / passed
    reached = f"{tickets:7.2f} tickets/s of {count / seconds:7.2f} ideal = {tickets * seconds / count:.2f}"
    each = ", ".join(f"{whose} {1e3 * cpu[whose] / (groups * steps):.1f} ms" for whose in cpu)
    busy = f"{sum(cpu.values()) / passed:.2f} of {len(os.sched_getaffinity(0))} cores"
    return (
        f"  {count:>3} actors  {reached}; the learner sends, adds and steps {added / passed:.1%} of the time\n"
        f"    CPU per ticket: {each}; {busy} busy"
    )


def on_pretended_machines(folder: str, name: str) -> None:
    fixed = ["scale=paper", "device=cpu", "precision=float32", "eval.every=0", "checkpoint.every=1000000"]
    fixed.append("allow_mixed=true")  # stand-ins have no fingerprint
    overrides = [*fixed, f"data.dir={folder}", "actors.gradients=true", *MODELS[name]]
    config = compose(overrides)
    data = open_data(config, task_of(config))
    state = initial_state(lay_out(config, data.shape), 0)
    weights = state.versions[0].size
    seconds = seconds_of_ticket(config, data)
    adding, ending = seconds_of_adding(config, data.shape, weights)
    print(
        f"\n{name}: {weights / 1e6:.1f}M weights; a ticket of {config.rollout_size} rows takes {seconds:.2f} s, adding "
        f"its gradient {1e3 * adding:.1f} ms, the end of a step {1e3 * ending:.1f} ms\n"
        f"  adding alone limits a step to {seconds / adding:.0f} actors"
    )
    with stand_ins(seconds, weights):
        for count in COUNTS:
            # One ticket per actor and step: all of them finish at the same time, which is the hardest case.
            step = [f"batch_size={count * config.rollout_size}", f"actors.count={count}", "epochs=1000"]
            print(with_stand_ins(compose([*overrides, *step]), data, state, seconds), flush=True)


# --- on paper --------------------------------------------------------------------------------------------------------

WORKERS = (1, 2, 4, 8)
GPU = (10e12, 40e12)  # FLOPS that a run reaches
NETWORK = (1.25e9, 12.5e9)  # bytes per second into a machine: 10 and 100 Gb/s
SIZES = {  # small data sets with rows of the paper's shape
    "arg": ["task.train_rows=2000"],
    "mul": ["task.train_rows=2000"],
    "sudoku": ["task.train_rows=200", "task.test_rows=50", "task.val_rows=50"],
    "zebra": ["task.train_rows=200", "task.test_rows=50", "task.val_rows=50"],
}


def flops_of_row(config: Config, data: Dataset) -> tuple[int, int]:
    """Of the rollout and of the gradient of one row."""
    worker = make_worker(config, data)
    worker.load(0, worker.model.weights())
    learner = make_learner(config, data.shape, 100)
    counts = []
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # which counts plain products only
        batch = worker.roll_out(Ticket(0, 0, 0))
        counts.append(counter.get_total_flops())
        learner.take([batch])
        counts.append(counter.get_total_flops())
    return counts[0], counts[1] - counts[0]


def hours(workers: int, steps: int, tickets: int, seconds: float, weights: int, network: float) -> tuple[float, float]:
    """Of a run with batches, whose learner takes one of the GPUs, and with gradients. `seconds`: of a whole ticket."""
    learning = tickets * 0.75 * seconds
    rolling_out = math.ceil(tickets / max(1, workers - 1)) * 0.25 * seconds
    with_batches = max(learning, rolling_out) if workers > 1 else tickets * seconds
    rounds, away = math.ceil(tickets / workers), 1 - 1 / workers  # the learner is on one of the machines
    transfer = 4 * weights / network
    arriving = min(workers, tickets) * away * transfer  # of the gradients of a round, through the learner's network
    publishing = 2 * transfer * (workers > 1)  # Ray passes weights on from machine to machine
    with_gradients = (rounds - 1) * max(seconds, arriving) + seconds + arriving + publishing
    return steps * with_batches / 3600, steps * with_gradients / 3600


def on_paper(folder: str) -> None:
    for task, rows in SIZES.items():
        fixed = ["scale=paper", f"task={task}", "device=cpu", "precision=float32", f"data.dir={folder}"]
        paper = compose(fixed)
        data = open_data(config := compose([*fixed, *rows, "batch_size=1", "rollout_size=1"]), task_of(config))
        rollout, gradient = flops_of_row(config, data)
        weights = lay_out(paper, data.shape).flat.numel()
        tickets, R = paper.batch_size // paper.rollout_size, paper.rollout_size
        steps = total_steps(paper, paper.task.rows() or 0)
        share, flops = gradient / (rollout + gradient), paper.batch_size * (rollout + gradient)
        print(
            f"\n{task}: {steps:,} steps of {tickets} tickets; {weights / 1e6:.1f}M weights, "
            f"{4 * weights / 1e6:.0f} MB; {flops / 1e12:.2f} TFLOPs per step, {share:.0%} of them gradients"
        )
        print("| GPU | network | " + " | ".join(f"{workers}" for workers in WORKERS) + " |")
        for speed in GPU:
            for network in NETWORK:
                seconds = R * (rollout + gradient) / speed
                pairs = [hours(workers, steps, tickets, seconds, weights, network) for workers in WORKERS]
                cells = " | ".join(f"{batches:.1f} / {gradients:.1f}" for batches, gradients in pairs)
                print(f"| {speed / 1e12:g} TFLOPS | {8 * network / 1e9:g} Gb/s | {cells} |")


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    parts = sys.argv[1:] or ["cores", "stand-ins", "paper"]
    if unknown := set(parts) - {"cores", "stand-ins", "paper"}:
        sys.exit(f"{unknown.pop()}: allowed: cores, stand-ins, paper")
    with tempfile.TemporaryDirectory() as folder, ray_session.session():
        if parts != ["paper"]:
            ray_session.start(12)
        if "cores" in parts:
            for overrides in STEPS_OF:
                on_cores(folder, overrides)
        if "stand-ins" in parts:
            for name in MODELS:
                on_pretended_machines(folder, name)
        if "paper" in parts:
            on_paper(folder)


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main()
