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
from contextlib import ExitStack, contextmanager, nullcontext
from functools import reduce
from typing import Any

from pyarrow import fs

from actors.worker import Worker
from data.prepare import open_data
from data.shards import Dataset
from data.tasks import task_of
from learner.update import Learner, LearnerState
from recor_dist import checkpoint
from recor_dist.config import Config, Mistake, total_steps
from recor_dist.cost import costs_of
from recor_dist.device import resolve_device, set_up_torch
from recor_dist.evaluate import add_by_decoder, headline, summarise, summarise_by_decoder
from recor_dist.files import exclusive, open_folder, read_json, write_json
from recor_dist.identity import check_data, check_machine, default_out, keep_earlier_choices, open_run
from recor_dist.journal import Journal
from recor_dist.messages import EvalSums, Ticket
from recor_dist.methods import METHODS, build_model
from recor_dist.progress import TrainingDisplay, progress_bar

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
        decoders = method.decoders(config.method)
        model = build_model(config, data.shape)
        self.worker = Worker(config, data, model, method.prepare, decoders, method.uses_weights)

    def step(self) -> dict[str, float]:
        """Rolls out and learns the next step; returns its metrics."""
        n = self.learner.step
        version = max(0, n - self.config.lag)
        self.worker.load(version, self.learner.versions[version])
        groups = range(self.config.batch_size // self.config.rollout_size)
        return self.learner.update([self.worker.roll_out(Ticket(n, group, version)) for group in groups])

    def evaluate(self, split: str) -> dict[str, EvalSums]:
        """Scores a split with the newest weights, by decoder."""
        self.worker.load(self.learner.step, self.learner.versions[self.learner.step])
        tickets = math.ceil(self.data.rows_of(split) / self.config.eval.size)
        sums = []
        with progress_bar(f"answering {split}", tickets) if split == "test" else nullcontext(lambda _: None) as advance:
            for index in range(tickets):
                sums.append(self.worker.evaluate(split, index))
                advance(1)
        return reduce(add_by_decoder, sums)

    def state(self) -> LearnerState:
        return self.learner.state()


def train(config: Config) -> dict[str, Any]:
    """Trains to the end, from the newest checkpoint if there is one; returns the result, at once if it is finished."""
    keep_earlier_choices(config)
    resolve_device(config)
    task = task_of(config)
    config.out = config.out or default_out(config, task)
    out = open_folder(config.out)
    if config.resume == "never" and out.get_file_info(fs.FileSelector("", allow_not_found=True)):
        raise Mistake(f"out={config.out}: exists, and resume=never; choose another out, or resume=auto to go on there")
    with exclusive(open_folder(config.out, create=True), "training"):
        about = open_run(config, task, out)
        if result := _finished(out):
            log.info("this run is finished; its result stands in %s", config.out)
            return result
        check_machine(config, about, out)
        data = open_data(config, task)
        check_data(config, data, about, out)
        return _train(config, data, out, about)


def _finished(out: fs.SubTreeFileSystem) -> dict[str, Any] | None:
    try:
        return read_json(out, "result.json")
    except (FileNotFoundError, ValueError):  # a damaged result is found again from the last checkpoint
        return None


def _train(config: Config, data: Dataset, out: fs.SubTreeFileSystem, about: dict) -> dict[str, Any]:
    set_up_torch(config)
    steps = total_steps(config, data.rows_of("train"))
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
        journal = stack.enter_context(Journal(out, learner.step))
        display = stack.enter_context(TrainingDisplay(learner.step, steps))
        while learner.step < steps:
            metrics = engine.step()
            done = learner.step
            if config.eval.every and done % config.eval.every == 0 and done < steps:
                accuracy = summarise(headline(engine.evaluate("val")))
                display.validated(accuracy["exact_match"])
                metrics |= {f"eval/val/{k}": v for k, v in accuracy.items() if isinstance(v, float)}
            journal.write(done, metrics)
            display.step(done, metrics)
            stop = bool(stopping)  # read once: the signal may come between the next two lines
            if done % config.checkpoint.every == 0 or done == steps or stop:
                save()
            if stop and done < steps:
                raise Stopped(stopping[0], done)
    costs = costs_of(config, data.shape)
    result = {
        "task": config.task.name,
        "method": config.method.name,
        "steps": steps,
        "val": summarise_by_decoder(engine.evaluate("val"), costs),
        "test": summarise_by_decoder(engine.evaluate("test"), costs),
        "weights_sha256": checkpoint.weights_sha256(learner.model, learner.versions[steps]),
        "reproducible": about["reproducible"],
        "seconds_of_last_start": round(time.monotonic() - began, 1),
    }
    write_json(out, "result.json", result)
    return result


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
