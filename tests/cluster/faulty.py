"""Workers with a fault, for Ray actors."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.worker import Worker
from data.shards import Dataset
from learner.learner import Learner
from recor_dist.core.config import Config
from recor_dist.core.messages import Ticket
from recor_dist.core.setting import Mistake
from recor_dist.methods import make_worker

STEP = 5  # where the fault appears


class Bug(Exception):
    """Raised by a bug in the rollout."""


def faulty_worker(config: Config, fault: str, marks: Path, data: Dataset) -> Worker:
    """A worker with a fault at step 5, which leaves a mark named after its process each time."""
    worker = make_worker(config, data)
    roll_out = worker.roll_out
    started = marks.parent / "started"
    started.mkdir(exist_ok=True)
    (started / str(os.getpid())).touch()

    def faulty(ticket: Ticket) -> Any:
        if ticket.step == STEP and not (fault.endswith("once") and any(marks.iterdir())):
            (marks / f"{os.getpid()}-{time.monotonic_ns()}").touch()
            if fault.startswith("raise"):
                _wait_for(started, config.actors.count)
                raise Bug("the order was lost")
            if fault == "mistake":
                raise Mistake("task=arg: the user can correct this")
            if fault.startswith("die"):
                os._exit(1)
            if fault.startswith("hoard"):
                _hoard(20)
            if fault.startswith("stop"):
                _stop()
            if fault.startswith("deadlock"):
                _deadlock()
        return roll_out(ticket)

    worker.roll_out = faulty
    return worker


def stuck_learner(make: Callable[[], Learner], marks: Path) -> Learner:
    """A learner that, the first time, never finishes step 5."""
    learner = make()
    finish = learner.finish

    def stuck() -> dict[str, float]:
        if learner.step == STEP and not any(marks.iterdir()):
            (marks / "learner").touch()
            _loop()
        return finish()

    learner.finish = stuck
    return learner


def _loop() -> None:
    while True:
        pass


def _stop() -> None:
    """Another thread may receive the signal first, and this one would get on for a moment."""
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)  # until it is stopped


def _deadlock() -> None:
    """Waits for a lock that it holds."""
    lock = threading.Lock()
    with lock:
        lock.acquire()


def _hoard(seconds: float) -> None:
    """Allocates up to 8 GB and holds them."""
    kept, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        if len(kept) < 40:
            kept.append(b"x" * 200_000_000)
        time.sleep(0.05)


def _wait_for(started: Path, count: int) -> None:
    """Waits for all actors: a failed ticket is tried on a different actor only if there is one."""
    while len(list(started.iterdir())) < count:
        time.sleep(0.1)
    time.sleep(1.0)  # until the driver knows it, too
