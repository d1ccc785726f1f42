"""What a running driver shows: on SIGUSR1, in its folder, and when it hangs."""

import logging
import os
import signal
import time
from pathlib import Path

import pytest

from recor_dist.engine.observer import FAULTS, Faults, Observer
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.snapshot import Activity, describe, read_snapshot


@pytest.fixture
def observer(tmp_path: Path) -> Observer:
    observer = Observer(RunFolder.open(str(tmp_path)), 600.0)
    observer.period = 0.05
    return observer


def test_a_signal_prints_what_the_run_does_and_where_its_driver_is(
    observer: Observer, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with observer:
        os.kill(os.getpid(), signal.SIGUSR1)
        observer.begins(3, 10)
        observer.looked((Activity("learner", "pid 1 on box", "takes tickets", 0.0),))
        observer.stepped(4)
        os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) == before
    printed = capfd.readouterr().err
    assert "training has not started" in printed
    assert "step 4 of 10, " in printed
    assert "learner  pid 1 on box  takes tickets, for 0:00\n" in printed
    assert " in test_a_signal_prints_what_the_run_does_and_where_its_driver_is\n" in printed


def test_the_folder_has_the_newest_state_and_the_last_faults(observer: Observer) -> None:
    with observer:
        observer.begins(0, 100)
        for step in range(1, 11):
            observer.stepped(step)
            logging.getLogger("recor_dist").warning("fault %d\nwith its details", step + 10)
            time.sleep(0.02)
        deadline = time.monotonic() + 30
        while not (seen := read_snapshot(observer.folder)) or seen.step < 10 or not seen.rate:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert [fault.split(" ", 1)[1] for fault in seen.faults] == [f"fault {n}" for n in range(21 - FAULTS, 21)]


def test_the_last_snapshot_is_that_of_the_end(observer: Observer) -> None:
    observer.period = 3600
    with observer:
        observer.begins(0, 7)
        observer.stepped(7)
    seen = read_snapshot(observer.folder)
    assert seen is not None and seen.step == 7


@pytest.mark.parametrize(
    ("message", "arguments", "kept"), [("", (), [""]), ("%d", ("text",), []), ("two\nlines", (), ["two"])]
)
def test_a_strange_warning_does_not_disturb_who_logs_it(
    message: str, arguments: tuple[str, ...], kept: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    faults = Faults()
    faults.handle(logging.LogRecord("recor_dist", logging.WARNING, "file.py", 1, message, arguments, None))
    assert [line.split(" ", 1)[1] for line in faults.lines] == kept
    assert ("Logging error" in capfd.readouterr().err) == (not kept)


def test_every_event_counts_as_a_sign_of_life_and_activities_go_on(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    observer.looked((Activity("this process", "pid 1 on box", "evaluates v_5 on val", 2.0),))
    now = 1090.0
    observer.heard()
    now = 1100.0
    seen = observer.snapshot()
    assert seen.noted == 1090
    assert "evaluates v_5 on val, for 1:42" in describe(seen)


def test_a_driver_that_hangs_still_tells_that_it_lives_and_logs_its_stacks(
    observer: Observer, capfd: pytest.CaptureFixture[str]
) -> None:
    observer.patience = 0.5
    with observer:
        observer.begins(0, 100)
        noted, deadline = observer.noted, time.monotonic() + 30
        printed = ""
        while "most recent call first" not in printed:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            printed += capfd.readouterr().err
        seen = read_snapshot(observer.folder)
    assert "in test_a_driver_that_hangs_still_tells_that_it_lives_and_logs_its_stacks" in printed
    assert seen is not None and seen.noted == noted and seen.written > noted + 0.4


def test_a_folder_that_cannot_be_written_does_not_disturb_the_run(tmp_path: Path) -> None:
    observer = Observer(RunFolder.open(str(tmp_path / "missing")), 600.0)
    observer.period = 0.01
    with observer:
        time.sleep(0.1)
        assert observer.thread.is_alive()
