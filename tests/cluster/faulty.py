"""Workers with a fault, for actors in processes of their own."""

import os
import time
from pathlib import Path
from typing import Any

from actors.worker import Worker
from data.shards import Dataset
from recor_dist.core.config import Config, Mistake
from recor_dist.core.messages import Ticket
from recor_dist.methods import make_worker

STEP = 5  # where it shows


class Bug(Exception):
    """What a bug in the rollout raises."""


def faulty_worker(config: Config, fault: str, marks: Path, data: Dataset) -> Worker:
    """A worker that has a fault at step 5. Every time it shows, it leaves a mark named after its process."""
    worker = make_worker(config, data)
    roll_out = worker.roll_out
    there = marks.parent / "there"
    there.mkdir(exist_ok=True)
    (there / str(os.getpid())).touch()

    def faulty(ticket: Ticket) -> Any:
        if ticket.step == STEP and not (fault.endswith("once") and any(marks.iterdir())):
            (marks / f"{os.getpid()}-{time.monotonic_ns()}").touch()
            if fault.startswith("raise"):
                _wait_for(there, config.actors.count)
                raise Bug("the order was lost")
            if fault == "mistake":
                raise Mistake("task=arg: this is the user's, with a remedy")
            if fault.startswith("die"):
                os._exit(1)
            if fault.startswith("hoard"):
                _hoard(20)
        return roll_out(ticket)

    worker.roll_out = faulty
    return worker


def _hoard(seconds: float) -> None:
    """Takes up to 8 GB, and keeps them."""
    kept, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        if len(kept) < 40:
            kept.append(b"x" * 200_000_000)
        time.sleep(0.05)


def _wait_for(there: Path, count: int) -> None:
    """Until all actors are there: a ticket that fails is tried on another one only if there is one."""
    while len(list(there.iterdir())) < count:
        time.sleep(0.1)
    time.sleep(1.0)  # and have told the driver
