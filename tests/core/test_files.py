"""Folders on a disk and in an object store: names, full disks, and who may be in there."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from pyarrow import fs

from recor_dist.core import files
from recor_dist.core.config import Mistake
from recor_dist.core.files import (
    exclusive,
    exists,
    join,
    open_folder,
    read_json,
    split_name,
    write_atomically,
    write_json,
)
from tests.object_store import keys, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def folder(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fs.SubTreeFileSystem:
    monkeypatch.setattr(files, "BEAT", 0.2)
    return open_folder(f"s3://bucket/{tmp_path.name}", create=True)


@pytest.mark.parametrize(
    ("parent", "name", "whole"),
    [
        ("runs", "a", "runs/a"),
        (".", "a", "./a"),
        ("/", "a", "/a"),
        ("s3://bucket", "a", "s3://bucket/a"),
        ("s3://bucket/b?scheme=http&region=x", "a", "s3://bucket/b/a?scheme=http&region=x"),
        ("what?", "a", "what?/a"),
    ],
)
def test_names_are_put_together_and_taken_apart(parent: str, name: str, whole: str) -> None:
    assert join(parent, name) == whole
    assert split_name(whole) == (parent, name)
    assert split_name("a") == (".", "a")


def test_options_of_a_uri_reach_the_store(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    uri = f"s3://bucket/options?scheme=http&endpoint_override={s3.removeprefix('http://')}"
    write_json(open_folder(join(uri, "inner"), create=True), "a.json", [1])
    assert read_json(open_folder(uri), "inner/a.json") == [1]


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(Mistake, match=r"s3://no-such-bucket/x: cannot be used as a folder"):
        open_folder("s3://no-such-bucket/x", create=True)


def test_a_full_disk_is_told_in_one_line_and_leaves_what_was_there(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    write_json(folder, "run.json", {"status": "running"})
    (tmp_path / "run.json.partial").symlink_to("/dev/full")
    with pytest.raises(Mistake, match="the disk is full; make room"):
        write_json(folder, "run.json", {"status": "finished"})
    assert json.loads((tmp_path / "run.json").read_text()) == {"status": "running"}
    assert exists(folder, "run.json")


def test_in_an_object_store_a_second_process_is_refused_while_the_first_lives(folder: fs.SubTreeFileSystem) -> None:
    with exclusive(folder, "training"):
        refused = rf"another process is training there \(pid {os.getpid()} on .*\); wait for it, or stop it"
        with pytest.raises(Mistake, match=refused), exclusive(folder, "training"):
            pass
    assert not exists(folder, files.LOCK)
    began = time.monotonic()
    with exclusive(folder, "training"):
        pass
    assert time.monotonic() - began < files.SILENCE * files.BEAT, "a lock that was given back is free at once"


def test_in_an_object_store_one_may_wait_for_the_first_to_end(
    folder: fs.SubTreeFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    holding = exclusive(folder, "preparing data")
    holding.__enter__()
    threading.Timer(1.5, lambda: (done.set(), holding.__exit__(None, None, None))).start()
    with caplog.at_level(logging.INFO), exclusive(folder, "preparing data", wait=True):
        assert done.is_set()
    assert "was left locked by pid" in caplog.text


def test_in_an_object_store_the_lock_of_a_killed_process_falls_silent(folder: fs.SubTreeFileSystem) -> None:
    program = (
        "import sys, time\nfrom recor_dist.core.files import *\nwith exclusive(open_folder(sys.argv[1]), 'training'):\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{program}  print('in', flush=True); time.sleep(60)", f"s3://{folder.base_path}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "in\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert read_json(folder, files.LOCK)["pid"] == holder.pid
    with exclusive(folder, "training"):
        assert read_json(folder, files.LOCK)["pid"] == os.getpid()


def test_in_an_object_store_whoever_was_taken_for_dead_stops(folder: fs.SubTreeFileSystem) -> None:
    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(True))
    try:
        with exclusive(folder, "training"):
            write_json(folder, files.LOCK, {"host": "other", "pid": 1, "key": "theirs", "beat": 3})
            deadline = time.monotonic() + 20
            while not received and time.monotonic() < deadline:
                time.sleep(0.05)
        assert received
        assert read_json(folder, files.LOCK)["key"] == "theirs", "it is not ours to remove"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_written_to_an_object_store_is_all_there_or_not_at_all(folder: fs.SubTreeFileSystem) -> None:
    content = os.urandom(12_000_000)
    write_atomically(folder, "large", content)
    assert (
        boto3.client("s3").get_object(Bucket="bucket", Key=keys(folder.base_path.split("/")[1])[0])["Body"].read()
        == content
    )
