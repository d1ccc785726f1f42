"""The loop and its clock: learner step n turns weights v_n into v_{n+1}.

            rows n B .. n B + B - 1                v_max(0, n - lag)
                     │                                   │
                     ▼                                   │
    tickets (n, 0), (n, 1), ...  ──► Worker.roll_out ◄───┘
                                            │ batches, in the order of the groups
                                            ▼
                                     Learner.update ──► v_{n+1} ──► validation, checkpoint

A ticket is a pure function of (seed, n, group, weights), so it can be computed anywhere, twice, or again after a crash.
`lag` is fixed, never "whatever was newest". A checkpoint holds v_{n-lag} .. v_n, the optimizer's state and n: to resume
is to load it and continue.

An engine computes and reports what happened, as events. The loop turns events into the record: journal, checkpoints,
result. MLflow gets its copy from another process that reads the journal; the loop never waits for it.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from data.prepare import cluster_if_any, open_data
from data.shards import Dataset
from data.tasks import task_of
from learner.learner import LearnerState
from recor_dist.core.config import Config, total_steps
from recor_dist.core.device import fingerprint, resolve_device, set_up_torch
from recor_dist.core.memory import check_memory
from recor_dist.core.messages import Cost, Shape
from recor_dist.core.progress import TrainingDisplay
from recor_dist.core.setting import Mistake
from recor_dist.core.tracing import span
from recor_dist.engine.cost import costs_of
from recor_dist.engine.events import Checkpoint, Evaluated, Event, Looked, Profiled, Stepped, splits_due
from recor_dist.engine.local_engine import LocalEngine
from recor_dist.engine.observer import Observer
from recor_dist.engine.profile import chrome_trace, table
from recor_dist.engine.system import SystemMetrics
from recor_dist.methods import lay_out
from recor_dist.model.evaluation import orders_by_decoder, summarise_by_decoder
from recor_dist.model.transformer import Model
from recor_dist.record import checkpoint
from recor_dist.record.confirmation import read_confirmed
from recor_dist.record.identity import (
    check_data,
    check_machine,
    default_out,
    keep_earlier_choices,
    note_start,
    open_run,
    write_status,
)
from recor_dist.record.journal import Journal
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.warm_start import first_state, resolve_init

log = logging.getLogger(__name__)
Follow = Callable[[str, str], None]  # gets the folder of a run and the path of its journal


class Stopped(Exception):
    """A signal stopped the run, after it wrote a checkpoint."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} at step {step}")
        self.signal_number, self.step = signal_number, step


def train(config: Config, follow: Follow = lambda out, journal: None) -> dict[str, Any]:
    """Trains to the end, from the newest checkpoint if there is one, and returns the result. A finished run returns its
    result immediately.

    `follow` gets the folder of the run and the path of its journal, once, before the first step."""
    keep_earlier_choices(config)
    with ExitStack() as stack:
        if config.engine == "ray":
            from recor_dist.core import ray_session  # here, so that engine=local does not wait for Ray's import
            from recor_dist.engine.gradient_mode import check_gradients

            check_gradients(config)
            stack.enter_context(ray_session.session())
            on_cluster = ray_session.connect()
            resolve_device(config, ray_session.device_of_cluster(config) if on_cluster else None)
        else:
            on_cluster = False
            resolve_device(config)
        task = task_of(config)
        shape = Shape(task.N, task.M, len(task.vocabulary.tokens))
        if not on_cluster:  # else each process checks the machine it is on
            check_memory(config, shape)
        resolve_init(config, lay_out(config, shape))
        config.out = config.out or default_out(config, task)
        if config.resume == "never" and not RunFolder.open(config.out).is_empty():
            raise Mistake(f"out={config.out}: exists, and resume=never; choose another out, or resume=auto")
        folder = RunFolder.open(config.out, create=True)
        stack.enter_context(folder.training_lock())
        about = open_run(config, task, folder)
        if result := read_confirmed(folder, lay_out(config, shape)):
            log.info("this run is finished; its result is in %s", config.out)
            return result
        if config.engine == "local":
            check_machine(config, about, folder, fingerprint(config))
        observer = stack.enter_context(Observer(folder, config.deadline.answer))
        data = open_data(config, task, cluster_if_any() if config.engine == "ray" else None)
        check_data(config, data, about, folder)
        note_start(config, about)
        with _status(about, folder):
            return _train(config, data, folder, about, follow, observer)


@contextmanager
def _status(about: dict, folder: RunFolder) -> Iterator[None]:
    """Keeps `status` in run.json up to date: running, finished, stopped or failed. A killed run stays `running`."""
    write_status(about, folder, "running")
    try:
        yield
    except (Stopped, KeyboardInterrupt, SystemExit):
        write_status(about, folder, "stopped")
        raise
    except BaseException as error:
        write_status(about, folder, "failed", f"{type(error).__name__}: {error}")
        raise
    write_status(about, folder, "finished")


def _train(
    config: Config, data: Dataset, folder: RunFolder, about: dict, follow: Follow, observer: Observer
) -> dict[str, Any]:
    """Runs the engine to the last step or to a signal, and writes the result."""
    set_up_torch(config)
    steps = total_steps(config, data.rows_of("train"))
    model = lay_out(config, data.shape)  # knows the names of the weights; nothing is computed with it

    def restore() -> LearnerState:
        return checkpoint.load_newest(folder, model) or first_state(config, model)

    costs = costs_of(config, data.shape)
    began = time.monotonic()
    journal = Journal(folder)
    state = checkpoint.load_newest(folder, model, journal.holds) or first_state(config, model)
    observer.begins(state.step, steps)
    if state.step:
        log.info("resuming at step %d of %d", state.step, steps)
    elif config.init_sha256 and not folder.checkpoints():  # so that the run never needs `init` again
        checkpoint.save(folder, model, state, about, config.checkpoint.keep)
    with ExitStack() as stack:
        stack.enter_context(journal)
        follow(folder.uri, journal.path)
        unevaluated = _unevaluated(config, state, steps, journal)
        check = partial(check_machine, config, about, folder)
        engine = stack.enter_context(closing(_engine(config, data, steps, state, unevaluated, restore, check)))
        stopping = stack.enter_context(_signals())  # after Ray has started, because Ray sets handlers, too
        display = stack.enter_context(TrainingDisplay(state.step, steps))
        record = _Record(folder, about, model, steps, config.checkpoint.keep, costs, journal, display, observer, state)
        del state  # its tensors belong to the engine now
        for event in engine.events(lambda: bool(stopping)):
            with span("record"):
                record.take(event)
    if stopping and len(record.final) < 2:
        raise Stopped(stopping[0], record.saved.step)
    result = {
        "task": config.task.name,
        "method": config.method.name,
        "steps": steps,
        **record.final,
        "weights_sha256": checkpoint.weights_sha256(model, record.saved.versions[steps]),
        "reproducible": about["reproducible"],
        "seconds_of_last_start": round(time.monotonic() - began, 1),
    }
    folder.write_result(result)
    return result


def _unevaluated(config: Config, state: LearnerState, steps: int, journal: Journal) -> list[int]:
    """The versions in a checkpoint whose evaluation is due and not in the journal; the last one is always due."""
    return [
        version
        for version in sorted(state.versions)
        if splits_due(config, version, steps) and (version == steps or (version, "val") not in journal.evaluated)
    ]


@dataclass
class _Record:
    """Turns the events of an engine into the record: journal, checkpoints, final figures, and the live display."""

    folder: RunFolder
    about: dict
    model: Model
    steps: int
    keep: int  # number of checkpoints
    costs: dict[str, Cost]
    journal: Journal
    display: TrainingDisplay
    observer: Observer
    saved: LearnerState  # the state in the newest checkpoint
    final: dict[str, dict[str, Any]] = field(default_factory=dict)  # metrics of the final weights, by split
    system: SystemMetrics = field(default_factory=SystemMetrics)

    def take(self, event: Event) -> None:
        self.observer.heard()
        if isinstance(event, Stepped):
            self.journal.step(event.step, event.metrics | self.system.sample())
            self.display.step(event.step, event.metrics)
            self.observer.stepped(event.step)
        elif isinstance(event, Looked):
            self.observer.looked(event.activities)
        elif isinstance(event, Profiled):
            place = self.folder.write_profile(chrome_trace(event.traces))
            log.info("%s shows ten steps; open it at https://ui.perfetto.dev\n%s", place, table(event.traces))
        elif isinstance(event, Checkpoint):
            self.journal.keep()
            about = {**self.about, "journal": self.journal.note()}
            checkpoint.save(self.folder, self.model, event.state, about, self.keep)
            self.saved = event.state
        elif event.done < event.total:
            self.display.evaluating(event.split, event.done, event.total)
        else:
            self._take_evaluation(event)

    def _take_evaluation(self, event: Evaluated) -> None:
        figures = summarise_by_decoder(event.sums, self.costs)
        self.journal.evaluation(event.version, event.split, figures)
        self.display.evaluated(event.split, figures)
        if event.version == self.steps:
            self.final[event.split] = figures
            if event.split == "test":
                self.folder.write_orders(orders_by_decoder(event.sums))


def _engine(
    config: Config,
    data: Dataset,
    steps: int,
    state: LearnerState,
    unevaluated: list[int],
    restore: Callable[[], LearnerState],
    check: Callable[[dict[str, str | int]], dict[str, str | int]],
) -> Any:
    """The engine: `events(stopping)` yields what happened, `close()` releases all processes."""
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
    """Collects SIGINT and SIGTERM, to save a checkpoint before stopping; the second signal interrupts at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, _: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        os.write(2, b"stopping after the current step; the same command resumes from there\n")

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
