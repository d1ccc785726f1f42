"""The loop and its clock: learner step n turns weights v_n into v_{n+1}.

            rows n B .. n B + B - 1                v_max(0, n - lag)
                     │                                   │
                     ▼                                   │
    tickets (n, 0), (n, 1), ...  ──► Worker.roll_out ◄───┘
                                            │ batches, in the order of the groups
                                            ▼
                                     Learner.update ──► v_{n+1} ──► validation, checkpoint

A ticket is a pure function of (seed, n, group, weights), so it can be computed anywhere, twice, or again after a crash.
`lag` is fixed, never "whatever was newest". A checkpoint holds v_{n-lag} .. v_n, AdamW's moments and n: resuming is
loading it and going on.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from pyarrow import fs

from actors.worker import Worker
from data.prepare import open_data
from data.shards import Dataset
from learner.update import Learner, LearnerState
from recor_dist import checkpoint
from recor_dist.config import Config, Mistake, digest, flatten
from recor_dist.device import fingerprint, resolve_device, set_up_torch
from recor_dist.evaluate import summarise
from recor_dist.files import exclusive, exists, is_remote, join, open_folder, read_json, write_json
from recor_dist.journal import Journal
from recor_dist.messages import EvalSums, Ticket
from recor_dist.methods import METHODS, build_model
from recor_dist.progress import TrainingDisplay

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The run was asked to stop by a signal and has written a checkpoint."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} at step {step}")
        self.signal_number, self.step = signal_number, step


class LocalEngine:
    """Worker and learner in this process."""

    def __init__(self, config: Config, data: Dataset, steps: int) -> None:
        method = METHODS[config.method.name]
        self.config, self.data = config, data
        self.learner = Learner(config, build_model(config, data.shape), steps, method.loss, method.statistics)
        self.worker = Worker(config, data, build_model(config, data.shape), method.prepare, method.generate)

    def step(self) -> dict[str, float]:
        """Rolls out and learns the next step; returns its metrics."""
        n = self.learner.step
        version = max(0, n - self.config.lag)
        self.worker.load(version, self.learner.versions[version])
        groups = range(self.config.batch_size // self.config.rollout_size)
        return self.learner.update([self.worker.roll_out(Ticket(n, group, version)) for group in groups])

    def evaluate(self, split: str) -> EvalSums:
        """Scores a split with the newest weights."""
        self.worker.load(self.learner.step, self.learner.versions[self.learner.step])
        tickets = math.ceil(self.data.rows_of(split) / self.config.eval.size)
        sums = [self.worker.evaluate(split, index) for index in range(tickets)]
        return sum(sums[1:], sums[0])

    def state(self) -> LearnerState:
        return self.learner.state()


def train(config: Config) -> dict[str, Any]:
    """Trains to the end, from the newest checkpoint if there is one; returns the result, at once if it is finished."""
    resolve_device(config)
    set_up_torch(config)
    data = open_data(config)
    steps = total_steps(config, data)
    config.out = config.out or default_out(config, data)
    _check_out(config)
    out = open_folder(config.out, create=True)
    with exclusive(out, "training"):
        about = _open_run(config, data, out)
        if exists(out, "result.json"):
            log.info("this run is finished; its result stands in %s", config.out)
            return read_json(out, "result.json")
        return _train(config, data, steps, out, about)


def _train(config: Config, data: Dataset, steps: int, out: fs.SubTreeFileSystem, about: dict) -> dict[str, Any]:
    engine = LocalEngine(config, data, steps)
    learner = engine.learner
    state = checkpoint.load_newest(out, learner.model)
    if state:
        learner.load_state(state)
        log.info("resuming at step %d of %d", state.step, steps)

    def save() -> None:
        checkpoint.save(out, learner.model, engine.state(), about, config.checkpoint.keep)

    began = time.monotonic()
    with ExitStack() as stack:
        stopping = stack.enter_context(_signals())
        journal = (
            None
            if is_remote(config.out)
            else stack.enter_context(Journal(Path(config.out) / "metrics.jsonl", learner.step))
        )
        display = stack.enter_context(TrainingDisplay(learner.step, steps))
        while learner.step < steps:
            metrics = engine.step()
            done = learner.step
            if config.eval.every and done % config.eval.every == 0 and done < steps:
                accuracy = summarise(engine.evaluate("val"))
                display.validated(accuracy["exact_match"])
                metrics |= {f"eval/val/{k}": v for k, v in accuracy.items() if isinstance(v, float)}
            if journal:
                journal.write(done, metrics)
            display.step(done, metrics)
            if done % config.checkpoint.every == 0 or done == steps or stopping:
                save()
            if stopping and done < steps:
                raise Stopped(stopping[0], done)
    seconds = time.monotonic() - began
    result = {
        "task": config.task.name,
        "method": config.method.name,
        "steps": steps,
        "val": summarise(engine.evaluate("val")),
        "test": summarise(engine.evaluate("test")),
        "weights_sha256": checkpoint.weights_sha256(learner.model, learner.versions[steps]),
        "reproducible": about["reproducible"],
        "seconds_since_start": round(seconds, 1),
        "out": config.out,
    }
    write_json(out, "result.json", result)
    return result


def total_steps(config: Config, data: Dataset) -> int:
    """floor(epochs * rows / B), in exact arithmetic."""
    steps = math.floor(Fraction(str(config.epochs)) * data.rows_of("train") / config.batch_size)
    if steps == 0:
        raise Mistake(
            f"epochs={config.epochs}: {data.rows_of('train')} training rows give not one batch of {config.batch_size}; "
            "raise epochs or lower batch_size"
        )
    return steps


def identity_of(config: Config, data: Dataset) -> dict[str, Any]:
    """All that decides the result, by name."""
    return {**flatten(config, identity_only=True), "data": data.manifest.checksum}


def default_out(config: Config, data: Dataset) -> str:
    name = f"{config.task.name}-{config.method.name}-{config.scale}-seed{config.seed}"
    return join("runs", f"{name}-{digest(identity_of(config, data))[:8]}")


def _check_out(config: Config) -> None:
    out = open_folder(config.out)
    if config.resume == "never" and out.get_file_info(fs.FileSelector("", allow_not_found=True)):
        raise Mistake(f"out={config.out}: exists, and resume=never; choose another out, or resume=auto to go on there")


def _open_run(config: Config, data: Dataset, out: fs.SubTreeFileSystem) -> dict[str, Any]:
    """What this run is, from run.json, or into it at the first start; refuses another identity or another machine."""
    identity, machine = identity_of(config, data), fingerprint(config)
    if not exists(out, "run.json"):
        about = {
            "settings": flatten(config),
            "identity": identity,
            "machine": machine,
            "reproducible": True,
            "vocabulary": data.manifest.vocabulary,
            "shape": vars(data.shape),
        }
        write_json(out, "run.json", about)
        return about
    about = read_json(out, "run.json")
    differing = [
        f"{k} ({_was(about['identity'], k)}, now {identity.get(k)})"
        for k in sorted({*identity, *about["identity"]})
        if about["identity"].get(k) != identity.get(k)
    ]
    if differing:
        raise Mistake(f"out={config.out}: holds a run with other settings: {'; '.join(differing)}; choose another out")
    other = [
        f"{k} ({_was(about['machine'], k)}, now {machine.get(k)})"
        for k in machine
        if about["machine"].get(k) != machine[k]
    ]
    if other and not config.allow_mixed:
        raise Mistake(
            f"out={config.out}: was begun on another kind of machine: {'; '.join(other)}; "
            "allow_mixed=true goes on, and marks the run reproducible=false"
        )
    if other and about["reproducible"]:
        about["reproducible"] = False
        write_json(out, "run.json", about)
    return about


def _was(before: dict[str, Any], key: str) -> str:
    return f"was {before[key]}" if key in before else "was not there"


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that a step is finished and saved first; the second one interrupts at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, _: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        os.write(2, b"stopping after this step; the same command goes on from there\n")

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
