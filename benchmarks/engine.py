"""`python -m benchmarks.engine`: what Ray costs and what it gains, measured side by side in one run.

Rounds of steps alternate between engine=local on one core and engine=ray with one actor and the learner on a core each,
with the same model and data. At lag=1 they also alternate with two plain processes connected by a pipe: the lowest cost
of overlap on this machine, without Ray. Machines are noisy and drift, so each round on Ray is compared with the local
rounds before and after it, and every number is a median over many short rounds. Look at ratios, not at single times.

`python -m benchmarks.engine lag=1 batch_size=128` runs only the comparison with these settings.
"""

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.connection import Connection

import numpy as np
import ray

from data.prepare import open_data
from data.tasks import task_of
from learner.learner import Learner, initial_state
from recor_dist.core import ray_session
from recor_dist.core.compose import compose
from recor_dist.core.config import Config, ModelConfig
from recor_dist.core.device import set_up_torch
from recor_dist.core.messages import Shape, Ticket
from recor_dist.engine.crew import Handle
from recor_dist.engine.events import Event, Stepped
from recor_dist.engine.local_engine import LocalEngine
from recor_dist.engine.placement import cpus_wanted
from recor_dist.engine.ray_engine import RayEngine
from recor_dist.methods import lay_out, make_worker
from recor_dist.model.transformer import Model

ROUNDS = 21
ROUND = 0.8  # seconds per round on one core; at least three steps
WARM_UP = 3  # steps that refill the pipeline
SETTLE = 0.7  # seconds for actors and learner to finish their work before the local engine's turn


def configure(folder: str, *overrides: str) -> Config:
    fixed = ["scale=laptop", "device=cpu", "precision=float32", "eval.every=0", "checkpoint.every=100000", "epochs=20"]
    return compose([*fixed, f"data.dir={folder}", "actors.count=1", "actors.gradients=false", *overrides])


def seconds_of_ray(engine: RayEngine, events: Iterator[Event], steps: int) -> float:
    """Seconds per step, over at least this many, after some that refill the pipeline."""
    first = pass_steps(engine, events, engine.pool.learned + WARM_UP)
    began = time.perf_counter()
    last = pass_steps(engine, events, first + steps)
    return (time.perf_counter() - began) / (last - first)


def pass_steps(engine: RayEngine, events: Iterator[Event], step: int) -> int:
    """Runs up to this step, and to the end of what the engine reports at once; returns the step it is at."""
    return next(e.step for e in events if isinstance(e, Stepped) and e.step == engine.pool.learned and e.step >= step)


def seconds_of_local(engine: LocalEngine, steps: int) -> tuple[float, float]:
    """Seconds per step spent on rollouts, and on learning."""
    rollout = learn = 0.0
    for _ in range(steps):
        n = engine.learner.step
        began = time.perf_counter()
        version = max(0, n - engine.config.lag)
        engine.worker.load(version, engine.learner.versions[version])
        groups = engine.config.batch_size // engine.config.rollout_size
        batches = [engine.worker.roll_out(Ticket(n, group, version)) for group in range(groups)]
        middle = time.perf_counter()
        engine.learner.update(batches)
        rollout, learn = rollout + middle - began, learn + time.perf_counter() - middle
    return rollout / steps, learn / steps


class TwoProcesses:
    """lag=1 without Ray: another process rolls out step n + 1 with v_n while this one learns step n."""

    def __init__(self, config: Config, learner: Learner) -> None:
        self.learner = learner
        context = multiprocessing.get_context("spawn")
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(target=roll_out_for, args=(config, other_end), daemon=True)
        self.process.start()
        self.pipe.recv()

    def seconds(self, steps: int) -> float:
        """Seconds per step."""
        self._ask(self.learner.step)
        began = time.perf_counter()
        for done in range(WARM_UP + steps):
            batches = self.pipe.recv()
            if done == WARM_UP:
                began = time.perf_counter()
            self._ask(self.learner.step + 1)
            self.learner.update(batches)
        self.pipe.recv()
        return (time.perf_counter() - began) / steps

    def _ask(self, step: int) -> None:
        version = max(0, step - 1)
        self.pipe.send((step, version, self.learner.versions[version]))


def roll_out_for(config: Config, pipe: Connection) -> None:
    """The other process: rolls out the steps it is asked for."""
    set_up_torch(config)
    worker = make_worker(config, open_data(config, task_of(config)))
    pipe.send("ready")
    while True:
        step, version, weights = pipe.recv()
        worker.load(version, weights)
        groups = range(config.batch_size // config.rollout_size)
        pipe.send([worker.roll_out(Ticket(step, group, version)) for group in groups])


def compare(title: str, config: Config) -> None:
    data = open_data(config, task_of(config))
    state = initial_state(lay_out(config, data.shape), config.seed)
    local = LocalEngine(config, data, 100_000, state, [])
    engine = RayEngine(config, data, 100_000, state, [], lambda: state, lambda machine: machine)
    plain = TwoProcesses(config, local.learner) if config.lag else None
    on_one_core, on_ray, on_two = [], [], []
    try:
        events = engine.events(lambda: False)
        next(event for event in events if isinstance(event, Stepped))
        time.sleep(SETTLE)
        steps = max(3, round(ROUND / sum(seconds_of_local(local, 3))))
        on_one_core.append(seconds_of_local(local, steps))
        for _ in range(ROUNDS):
            on_ray.append(seconds_of_ray(engine, events, steps))
            time.sleep(SETTLE)
            on_one_core.append(seconds_of_local(local, steps))
            if plain:
                on_two.append(plain.seconds(steps))
    finally:
        engine.close()
        if plain:
            plain.process.terminate()
    beside = [np.mean(pair, axis=0) for pair in pairwise(on_one_core)]
    rounds = [(rollout, learn, ray_step) for (rollout, learn), ray_step in zip(beside, on_ray, strict=True)]
    rollout, learn, with_ray = (statistics.median(column) for column in zip(*rounds, strict=True))
    gains = sorted((r + x) / y for r, x, y in rounds)
    print(f"\n{title}: B={config.batch_size}, tickets of {config.rollout_size} rows")
    parts = f"{1e3 * rollout:.1f} rollout + {1e3 * learn:.1f} learning"
    local_step, actors = rollout + learn, config.actors.count
    print(f"  local, one process       {1e3 * local_step:7.1f} ms per step = {parts}; {1 / local_step:.1f} steps/s")
    print(f"  Ray, learner, actors: {actors:<2} {1e3 * with_ray:7.1f} ms per step; {1 / with_ray:.1f} steps/s")
    print(f"  gain over local          {statistics.median(gains):7.2f}  (rounds: {gains[0]:.2f} to {gains[-1]:.2f})")
    if config.lag:
        shares = [max(r, x) / y for r, x, y in rounds]  # gain / ideal gain
        ideal = statistics.median((r + x) / max(r, x) for r, x, _ in rounds)
        print(f"  ideal gain               {ideal:7.2f}  (rollout + learning) / the longer of the two")
        print(f"  share of the ideal       {statistics.median(shares):7.2f}  target >= 0.90")
        least = statistics.median(max(r, x) / y for (r, x), y in zip(on_one_core[1:], on_two, strict=True))
        print(f"  two plain processes      {least:7.2f}  of the ideal")
    else:
        overheads = [y / (r + x) - 1 for r, x, y in rounds]
        print(f"  overhead of Ray          {statistics.median(overheads):7.1%}  target <= 5 %")


@ray.remote(num_cpus=1)
class Publisher:
    """Publishes weights like the learner."""

    def __init__(self, size: int) -> None:
        self.weights = np.random.default_rng(0).random(size, dtype=np.float32)

    def publish(self) -> tuple[float, np.ndarray]:
        weights = self.weights.copy()
        return time.monotonic(), weights


@ray.remote(num_cpus=1)
class Puller:
    """Loads weights like an actor."""

    def __init__(self, sizes: ModelConfig) -> None:
        set_up_torch(compose(["engine=local"]))
        self.model = Model(sizes, Shape(20, 20, 7))

    def pull(self, weights: list[ray.ObjectRef]) -> float:
        self.model.load(ray.get(weights[0]))
        return time.monotonic()


def publish_to_visible(name: str, sizes: ModelConfig) -> None:
    flat = Model(sizes, Shape(20, 20, 7)).weights()
    publisher: Handle = Publisher.remote(flat.size)
    puller: Handle = Puller.remote(sizes)
    target = np.empty_like(flat)
    visible, copied = [], []
    for _ in range(3 * ROUNDS):
        ended: ray.ObjectRef
        ended, weights = publisher.publish.options(num_returns=2).remote()
        loaded: ray.ObjectRef = puller.pull.remote([weights])
        visible.append(ray.get(loaded) - ray.get(ended))
        began = time.perf_counter()
        np.copyto(target, flat)
        copied.append(time.perf_counter() - began)
    seen, copy = statistics.median(visible), statistics.median(copied)
    times = f"{1e3 * seen:.1f} ms; a plain copy takes {1e3 * copy:.1f} ms; ratio {seen / copy:.1f}"
    print(f"  {name}: {flat.size:,} weights, {flat.nbytes / 1e6:.0f} MB: {times}")
    ray.kill(publisher)
    ray.kill(puller)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        overrides = sys.argv[1:]
        config = configure(folder, *overrides)
        set_up_torch(config)
        with ray_session.session():
            ray_session.start(cpus_wanted(config))
            if overrides:
                compare(" ".join(overrides), config)
                return
            # Ray costs a few milliseconds per step, so measure a short step and a long one.
            for step in (["batch_size=128"], ["batch_size=512", "rollout_size=128"]):
                compare("lag=1: overlaps rollouts and learning", configure(folder, "lag=1", *step))
            for step in (["batch_size=256"], ["batch_size=1024", "rollout_size=256"]):
                compare("lag=0: learns while the last tickets are rolled out", configure(folder, "lag=0", *step))
            alone = ["batch_size=512", "rollout_size=512"]
            compare(
                "lag=0 with one ticket per step: rollouts and learning alternate", configure(folder, "lag=0", *alone)
            )
            print("\ntime from the end of an update until an actor has loaded the weights")
            publish_to_visible("the paper's 6M", ModelConfig(layers=3, width=384, heads=12))
            publish_to_visible("the paper's 11M", ModelConfig(layers=6, width=384, heads=12))


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main()
