"""Shows what a running run does: in a file of its folder, on stderr at SIGUSR1, and when its driver hangs.

A thread of its own writes the file, so neither a slow disk nor an object store delays the run, and the file still tells
that the driver lives when its loop hangs. If the loop notes nothing for `deadline.answer` seconds, the interpreter
writes the driver's stacks to stderr.
"""

import faulthandler
import logging
import os
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from types import FrameType, TracebackType

from recor_dist.core.setting import Mistake
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.snapshot import PERIOD, Activity, Snapshot, describe, this_process, write_snapshot

FAULTS = 10  # warnings to keep
STDERR = 2
log = logging.getLogger(__name__)


class Faults(logging.Handler):
    """Keeps the first line of each of the last warnings in the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=FAULTS)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            at = time.strftime("%X", time.localtime(record.created))
            self.lines.append(f"{at} {next(iter(record.getMessage().splitlines()), '')}")
        except Exception:  # of arguments that do not fit: as every handler of logging does
            self.handleError(record)


class Observer:
    """What is known about the run at the moment. The loop notes it, which costs a few assignments."""

    def __init__(self, folder: RunFolder, patience: float) -> None:
        """`patience`: seconds without a note after which the driver's stacks go to stderr."""
        self.folder, self.patience = folder, patience
        self.period = PERIOD["disk" if folder.is_local else "object store"]
        self.process = this_process()
        self.step = self.steps = 0
        self.noted = time.time()
        self.look: tuple[float, tuple[Activity, ...]] = self.noted, ()  # when, and who did what
        self.steps_at: deque[tuple[float, int]] = deque(maxlen=int(60 / self.period))  # for the rate
        self.faults = Faults()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._write_now_and_then, daemon=True)

    # --- what the loop notes -----------------------------------------------------------------------------------------

    def begins(self, step: int, steps: int) -> None:
        """The data is there, and the run continues at a step."""
        self.step, self.steps, self.noted = step, steps, time.time()

    def heard(self) -> None:
        """The engine has reported something, whatever it is."""
        self.noted = time.time()

    def stepped(self, step: int) -> None:
        self.step = step

    def looked(self, activities: tuple[Activity, ...]) -> None:
        self.look = time.time(), activities

    # --- what others see ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        now, noted = time.time(), self.noted
        looked, activities = self.look
        before, step = self.steps_at[0] if self.steps_at else (now, self.step)
        rate = max(0.0, (self.step - step) / (now - before)) if now > before else 0.0
        return Snapshot(
            **self.process,
            period=self.period,
            written=now,
            noted=noted,
            step=self.step,
            steps=self.steps,
            rate=rate,
            activities=tuple(_later(activity, noted - looked) for activity in activities),
            faults=tuple(self.faults.lines),
        )

    def __enter__(self) -> "Observer":
        logging.getLogger().addHandler(self.faults)
        self.before = None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGUSR1, self._tell)
            faulthandler.register(signal.SIGUSR1, STDERR, all_threads=False, chain=True)
        self.thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ended.set()
        self.thread.join(timeout=self.period)
        if not self.thread.is_alive():  # else a disk or a store does not respond
            self.write()
        faulthandler.cancel_dump_traceback_later()
        if self.before is not None:
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, self.before)
        logging.getLogger().removeHandler(self.faults)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        """Not through the log, which may be in the middle of a line."""
        os.write(STDERR, f"{describe(self.snapshot())}\n".encode())

    def write(self) -> None:
        with suppress(OSError, Mistake):  # the next one may succeed
            write_snapshot(self.folder, self.snapshot())

    def _write_now_and_then(self) -> None:
        watched = 0.0
        while True:
            if self.steps and self.noted != watched:
                watched = self.noted
                faulthandler.dump_traceback_later(self.patience, file=STDERR)
            self.write()
            if self.ended.wait(self.period):
                return
            if self.steps:
                self.steps_at.append((time.time(), self.step))


def _later(activity: Activity, seconds: float) -> Activity:
    """The same some seconds later, if nothing else is known by then."""
    return activity if activity.seconds is None else replace(activity, seconds=activity.seconds + seconds)
