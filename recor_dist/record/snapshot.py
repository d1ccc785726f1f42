"""What a running run does at the moment: in snapshot.json of its folder, for every machine that reaches the folder."""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from recor_dist.core.progress import clock
from recor_dist.record.run_folder import RunFolder

PERIOD = {"disk": 5.0, "object store": 10.0}  # seconds between two writings
SILENCE = 5  # periods without one after which the driver counts as lost


@dataclass(frozen=True)
class Activity:
    """What a process of the run does, or waits for."""

    name: str  # learner, actor 3
    place: str  # pid 123 on host
    doing: str
    seconds: float | None  # for this long when it was noted, if known


@dataclass(frozen=True)
class Snapshot:
    """A run as its driver saw it at `noted`. All times are seconds since 1970 by the driver's clock."""

    host: str  # of the driver
    pid: int
    born: float  # when the driver's process began; tells it from a later one with its pid
    period: float  # seconds between two writings of the file
    written: float
    noted: float  # later than a period before `written` if the driver's loop hangs
    step: int
    steps: int  # 0: not known yet
    rate: float  # steps per second in the last minute
    activities: tuple[Activity, ...]
    faults: tuple[str, ...]  # the last warnings in the log, oldest first


def write_snapshot(folder: RunFolder, snapshot: Snapshot) -> None:
    folder.write_snapshot(asdict(snapshot))


def read_snapshot(folder: RunFolder) -> Snapshot | None:
    """The last snapshot of a run; None if none was written, or the file is damaged."""
    read = folder.read_snapshot()
    try:
        return _snapshot(read) if read else None
    except (KeyError, TypeError):
        return None


def _snapshot(read: dict[str, Any]) -> Snapshot:
    activities = tuple(Activity(**activity) for activity in read["activities"])
    return Snapshot(**{**read, "activities": activities, "faults": tuple(read["faults"])})


def describe(snapshot: Snapshot, now: float | None = None) -> str:
    """A snapshot in words, a line for each process."""
    now = time.time() if now is None else now
    return "\n".join([*_head(snapshot, now), *_table(snapshot, now), *_faults(snapshot)])


def describe_end(snapshot: Snapshot) -> str:
    """What the last snapshot of a run says once the run has ended."""
    step = f"step {snapshot.step:,} of {snapshot.steps:,}" if snapshot.steps else "training had not started"
    return "\n".join([step, *_faults(snapshot)])


def _head(snapshot: Snapshot, now: float) -> Iterator[str]:
    yield f"driver: pid {snapshot.pid} on {snapshot.host}, {driver_in_words(snapshot, now)}"
    if not snapshot.steps:
        yield "training has not started"
        return
    to_come = snapshot.steps - snapshot.step
    left = f"{clock(to_come / snapshot.rate)} left" if snapshot.rate else "no step in the last minute"
    yield f"step {snapshot.step:,} of {snapshot.steps:,}, {snapshot.rate:.1f} per second, {left}"


def _table(snapshot: Snapshot, now: float) -> list[str]:
    since = now - snapshot.noted
    rows = [(activity.name, activity.place, _doing(activity, since)) for activity in snapshot.activities]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {place:<{widths[1]}}  {doing}" for name, place, doing in rows]


def _doing(activity: Activity, since: float) -> str:
    """`since`: seconds since it was noted."""
    if activity.seconds is None:
        return activity.doing
    return f"{activity.doing}, for {clock(max(0.0, activity.seconds + since))}"


def _faults(snapshot: Snapshot) -> list[str]:
    return ["last faults:", *(f"  {fault}" for fault in snapshot.faults)] if snapshot.faults else ["no faults"]


def driver_in_words(snapshot: Snapshot, now: float) -> str:
    """Whether the driver lives, as far as can be told from here."""
    heard, age = max(0.0, now - snapshot.written), max(0.0, snapshot.written - snapshot.noted)
    if not _lives(snapshot, heard):
        return f"gone: last seen {clock(heard)} ago"
    if age > SILENCE * snapshot.period:
        return f"lives, but its loop has noted nothing for {clock(heard + age)}"
    return f"lives: seen {clock(heard)} ago"


def _lives(snapshot: Snapshot, heard: float) -> bool:
    if snapshot.host != socket.gethostname():
        return heard < SILENCE * snapshot.period
    try:
        return abs(psutil.Process(snapshot.pid).create_time() - snapshot.born) < 1.0
    except psutil.Error:
        return False


def this_process() -> dict[str, Any]:
    """What tells the driver from other processes."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": psutil.Process().create_time()}
