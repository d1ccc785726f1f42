"""One process at a time in a folder: on a disk, and in an object store."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyarrow import fs

from recor_dist.core import locks
from recor_dist.core.files import exists, open_folder, read_json, write_json
from recor_dist.core.locks import exclusive
from recor_dist.core.setting import Mistake


@pytest.fixture
def folder(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fs.SubTreeFileSystem:
    monkeypatch.setattr(locks, "BEAT", 0.2)
    return open_folder(f"s3://bucket/{tmp_path.name}", create=True)


def test_on_a_disk_locks_of_different_names_do_not_exclude_each_other(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    refused = f"^{tmp_path}: another process is sending there; wait for it, or stop it$"
    with (
        exclusive(folder, "training"),
        exclusive(folder, "sending", name=".other.lock"),
        pytest.raises(Mistake, match=refused),
        exclusive(folder, "sending", name=".other.lock"),
    ):
        pass
    with exclusive(folder, "sending", name=".other.lock"):
        pass


def test_a_disk_only_lock_excludes_no_process_in_an_object_store(folder: fs.SubTreeFileSystem) -> None:
    with exclusive(folder, "sending", disk_only=True), exclusive(folder, "sending", disk_only=True):
        assert not exists(folder, locks.LOCK)


def test_in_an_object_store_a_second_process_is_refused_while_the_first_lives(
    folder: fs.SubTreeFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with exclusive(folder, "training"):
        refused = rf"another process is training there \(pid {os.getpid()} on .*\); wait for it, or stop it"
        with pytest.raises(Mistake, match=refused), exclusive(folder, "training"):
            pass
    assert not exists(folder, locks.LOCK)
    monkeypatch.setattr(locks, "BEAT", 30.0)
    began = time.monotonic()
    with exclusive(folder, "training"):
        pass
    assert time.monotonic() - began < locks.BEAT, "a released lock is free at once, without waiting for silence"


def test_in_an_object_store_a_second_process_can_wait_for_the_first(
    folder: fs.SubTreeFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    holding = exclusive(folder, "preparing data")
    holding.__enter__()
    threading.Timer(1.5, lambda: (done.set(), holding.__exit__(None, None, None))).start()
    with caplog.at_level(logging.INFO), exclusive(folder, "preparing data", wait=True):
        assert done.is_set()
    assert "is locked by pid" in caplog.text


def test_in_an_object_store_the_lock_of_a_killed_process_expires(folder: fs.SubTreeFileSystem) -> None:
    program = (
        "import sys, time\n"
        "from recor_dist.core.files import open_folder\n"
        "from recor_dist.core.locks import exclusive\n"
        "with exclusive(open_folder(sys.argv[1]), 'training'):\n"
        "  print('in', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, f"s3://{folder.base_path}"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "in\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert read_json(folder, locks.LOCK)["pid"] == holder.pid
    with exclusive(folder, "training"):
        assert read_json(folder, locks.LOCK)["pid"] == os.getpid()


def test_in_an_object_store_a_holder_that_was_taken_for_dead_stops(folder: fs.SubTreeFileSystem) -> None:
    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(True))
    try:
        with exclusive(folder, "training"):
            write_json(folder, locks.LOCK, {"host": "other", "pid": 1, "key": "theirs", "beat": 3})
            deadline = time.monotonic() + 20
            while not received and time.monotonic() < deadline:
                time.sleep(0.05)
        assert received
        assert read_json(folder, locks.LOCK)["key"] == "theirs", "it is not ours to remove"
    finally:
        signal.signal(signal.SIGTERM, before)
