"""What a snapshot of a run says, and whether its driver lives."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from recor_dist.record.run_folder import SNAPSHOT, RunFolder
from recor_dist.record.snapshot import Activity, Snapshot, describe, read_snapshot, this_process, write_snapshot

NOW = 1_000_000.0
SEEN = Snapshot(
    host="elsewhere",
    pid=7,
    born=NOW - 500,
    period=2.0,
    written=NOW - 3,
    noted=NOW - 4,
    step=1500,
    steps=3000,
    rate=2.5,
    activities=(
        Activity("learner", "pid 8 on box", "waits for Ticket(step=1500, group=1, version=1500)", 1.0),
        Activity("actor 12", "-", "waits for a place in the cluster", None),
    ),
    faults=("12:00:00 actor 3 was lost",),
)


def test_a_snapshot_says_how_far_the_run_is_who_does_what_and_what_went_wrong() -> None:
    assert describe(SEEN, NOW).splitlines() == [
        "driver: pid 7 on elsewhere, lives: seen 0:03 ago",
        "step 1,500 of 3,000, 2.5 per second, 10:00 left",
        "learner   pid 8 on box  waits for Ticket(step=1500, group=1, version=1500), for 0:05",
        "actor 12  -             waits for a place in the cluster",
        "last faults:",
        "  12:00:00 actor 3 was lost",
    ]
    assert "no step in the last minute" in describe(replace(SEEN, rate=0.0), NOW)
    assert "training has not started" in describe(replace(SEEN, steps=0), NOW)


@pytest.mark.parametrize(
    ("heard", "noted", "words"),
    [(9, 9, "lives: seen 0:09 ago"), (11, 11, "gone: last seen 0:11 ago"), (1, 90, "nothing for 1:30")],
)
def test_a_driver_on_another_machine_lives_as_long_as_it_writes(heard: float, noted: float, words: str) -> None:
    assert words in describe(replace(SEEN, written=NOW - heard, noted=NOW - noted), NOW)


def test_a_driver_on_this_machine_lives_if_its_process_does() -> None:
    here = replace(SEEN, **this_process(), written=time.time() - 3600, noted=time.time() - 3600)
    assert "lives: seen 1:00:00 ago" in describe(here)
    assert "gone: last seen" in describe(replace(here, born=here.born - 100)), "another process has its number now"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert "gone: last seen" in describe(replace(here, pid=ended.pid))
    assert (here.pid, here.host) == (os.getpid(), socket.gethostname())


def test_a_snapshot_is_read_as_it_was_written_and_a_damaged_one_counts_as_missing(tmp_path: Path) -> None:
    folder = RunFolder.open(str(tmp_path))
    assert read_snapshot(folder) is None
    write_snapshot(folder, SEEN)
    assert read_snapshot(folder) == SEEN
    whole = (tmp_path / SNAPSHOT).read_text()
    for damaged in (
        "",
        whole[:-20],
        "[]",
        "{}",
        '{"step": 1}',
        whole.replace("doing", "did"),
        whole.replace("1500", "1501"),
    ):
        (tmp_path / SNAPSHOT).write_text(damaged)
        assert read_snapshot(folder) is None, damaged
