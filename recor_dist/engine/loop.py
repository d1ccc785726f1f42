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

An engine computes and tells what happened, as events; the loop keeps the record: journal, checkpoints, result. Whoever
carries it further, to MLflow for one, reads the journal, and is never waited for.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

from pyarrow import fs

from data.prepare import cluster_if_any, open_data
from data.shards import Dataset
from data.tasks import task_of
from learner.learner import LearnerState, initial_state
from recor_dist.core.config import Config, Mistake, total_steps
from recor_dist.core.device import fingerprint, resolve_device, set_up_torch
from recor_dist.core.files import exclusive, open_folder, read_json, write_json
from recor_dist.core.progress import TrainingDisplay
from recor_dist.engine.cost import costs_of
from recor_dist.engine.events import Checkpoint, Stepped, splits_due
from recor_dist.engine.local_engine import LocalEngine
from recor_dist.engine.system import SystemMetrics
from recor_dist.methods import lay_out
from recor_dist.model.evaluation import orders_by_decoder, summarise_by_decoder
from recor_dist.record import checkpoint
from recor_dist.record.identity import (
    check_data,
    check_machine,
    default_out,
    keep_earlier_choices,
    mark,
    note_start,
    open_run,
)
from recor_dist.record.journal import Journal

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The run was asked to stop by a signal and has written a checkpoint."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} at step {step}")
        self.signal_number, self.step = signal_number, step


def train(config: Config, follow: Callable[[str], None] = lambda journal: None) -> dict[str, Any]:
    """Trains to the end, from the newest checkpoint if there is one; returns the result, at once if it is finished.

    `follow` is told the journal's path once, before the first step."""
    keep_earlier_choices(config)
    with ExitStack() as stack:
        if config.engine == "ray":
            from recor_dist.core import ray_session  # here, so that engine=local does not wait for Ray's import

            stack.enter_context(ray_session.session())
            resolve_device(config, ray_session.device_of_cluster(config) if ray_session.connect() else None)
        else:
            resolve_device(config)
        task = task_of(config)
        config.out = config.out or default_out(config, task)
        out = open_folder(config.out)
        if config.resume == "never" and out.get_file_info(fs.FileSelector("", allow_not_found=True)):
            raise Mistake(
                f"out={config.out}: exists, and resume=never; choose another out, or resume=auto to go on there"
            )
        stack.enter_context(exclusive(open_folder(config.out, create=True), "training"))
        about = open_run(config, task, out)
        if result := _finished(out):
            log.info("this run is finished; its result stands in %s", config.out)
            return result
        if config.engine == "local":
            check_machine(config, about, out, fingerprint(config))
        data = open_data(config, task, cluster_if_any() if config.engine == "ray" else None)
        check_data(config, data, about, out)
        note_start(config, about)
        with _status(about, out):
            return _train(config, data, out, about, follow)


def _finished(out: fs.SubTreeFileSystem) -> dict[str, Any] | None:
    try:
        return read_json(out, "result.json")
    except (FileNotFoundError, ValueError):  # a damaged result is found again from the last checkpoint
        return None


@contextmanager
def _status(about: dict, out: fs.SubTreeFileSystem) -> Iterator[None]:
    """Keeps `status` in run.json: running, finished, stopped or failed. A killed run is left as running."""
    mark(about, out, "running")
    try:
        yield
    except (Stopped, KeyboardInterrupt, SystemExit):
        mark(about, out, "stopped")
        raise
    except BaseException as error:
        mark(about, out, "failed", f"{type(error).__name__}: {error}")
        raise
    mark(about, out, "finished")


def _train(
    config: Config, data: Dataset, out: fs.SubTreeFileSystem, about: dict, follow: Callable[[str], None]
) -> dict[str, Any]:
    set_up_torch(config)
    steps = total_steps(config, data.rows_of("train"))
    model = lay_out(config, data.shape)  # knows the names of the weights; nothing is computed with it

    def restore() -> LearnerState:
        return checkpoint.load_newest(out, model) or initial_state(model, config.seed)

    costs = costs_of(config, data.shape)
    began = time.monotonic()
    state = restore()
    if state.step:
        log.info("resuming at step %d of %d", state.step, steps)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(out))
        follow(journal.path)
        unevaluated = [
            version
            for version in sorted(state.versions)
            if splits_due(config, version, steps) and (version == steps or (version, "val") not in journal.evaluated)
        ]
        engine = stack.enter_context(
            closing(
                _engine(config, data, steps, state, unevaluated, restore, partial(check_machine, config, about, out))
            )
        )
        stopping = stack.enter_context(_signals())  # after Ray has started: it sets handlers, too
        display = stack.enter_context(TrainingDisplay(state.step, steps))
        system = SystemMetrics()
        final: dict[str, dict[str, Any]] = {}
        saved = state
        del state  # its tensors are the engine's now
        for event in engine.events(lambda: bool(stopping)):
            if isinstance(event, Stepped):
                journal.step(event.step, event.metrics | system.sample())
                display.step(event.step, event.metrics)
            elif isinstance(event, Checkpoint):
                journal.keep()
                checkpoint.save(out, model, event.state, about, config.checkpoint.keep)
                saved = event.state
            elif event.done < event.total:
                display.evaluating(event.split, event.done, event.total)
            else:
                figures = summarise_by_decoder(event.sums, costs)
                journal.evaluation(event.version, event.split, figures)
                display.evaluated(event.split, figures)
                if event.version == steps:
                    final[event.split] = figures
                    if event.split == "test":
                        write_json(out, "orders.json", orders_by_decoder(event.sums))
    if stopping and len(final) < 2:
        raise Stopped(stopping[0], saved.step)
    result = {
        "task": config.task.name,
        "method": config.method.name,
        "steps": steps,
        **final,
        "weights_sha256": checkpoint.weights_sha256(model, saved.versions[steps]),
        "reproducible": about["reproducible"],
        "seconds_of_last_start": round(time.monotonic() - began, 1),
    }
    write_json(out, "result.json", result)
    return result


def _engine(
    config: Config,
    data: Dataset,
    steps: int,
    state: LearnerState,
    unevaluated: list[int],
    restore: Callable[[], LearnerState],
    check: Callable[[dict[str, str | int]], dict[str, str | int]],
) -> Any:
    """Whoever computes: `events(stopping)` tells what happened, `close()` lets everybody go."""
    if config.engine == "local":
        return LocalEngine(config, data, steps, state, unevaluated)
    from recor_dist.core import ray_session
    from recor_dist.engine.placement import cpus_wanted
    from recor_dist.engine.ray_engine import RayEngine

    if not ray_session.connect():
        ray_session.start(cpus_wanted(config))
    return RayEngine(config, data, steps, state, unevaluated, restore, check)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that what is learned is saved first; the second one interrupts at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, _: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        os.write(2, b"stopping after the last whole step; the same command goes on from there\n")

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
