"""Puzzles made by several processes: the same rows as with one, and nothing lost or left over if they are killed."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data.prepare import Job, Made, make_shard, open_data, prepare
from data.shards import read_notes
from data.tasks import task_of
from recor_dist.core.config import Config

Configure = Callable[..., Config]


def test_several_processes_make_the_same_rows_as_one(config_in: Configure, tmp_path: Path) -> None:
    one = config_in("task=zebra", "data.jobs=1")
    two = config_in("task=zebra", "data.jobs=2", f"data.dir={tmp_path}/other")
    assert prepare(one, task_of(one)).manifest == prepare(two, task_of(two)).manifest


def test_jobs_may_run_in_any_order_and_be_interrupted(config_in: Configure) -> None:
    config = config_in("task=zebra")
    made: list[tuple[str, int]] = []

    def backwards(jobs: list[Job]) -> Iterator[Made]:
        for job in reversed(jobs):
            made.append((job[1], job[2]))
            yield make_shard(*job)

    def two_of_them(jobs: list[Job]) -> Iterator[Made]:
        yield from backwards(jobs[-2:])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(config, task_of(config), two_of_them)
    data = prepare(config, task_of(config), backwards)
    assert made == [("test", 0), ("val", 0), ("train", 2), ("train", 1), ("train", 0)]
    assert [entry.rows for entry in data.manifest.splits["train"]] == [250, 250, 100]
    assert open_data(config, task_of(config)).manifest == data.manifest


def test_notes_are_stored_with_the_rows_and_damage_to_them_is_detected(config_in: Configure) -> None:
    config = config_in("task=sudoku", "data.jobs=1")
    data = open_data(config, task_of(config))
    notes, left_out = read_notes(data.folder, "test", 0)
    assert left_out == 0
    assert {name: column.shape for name, column in notes.items()} == {
        "technique": (40, 16), "givens": (40,), "hardest": (40,),
    }  # fmt: skip
    file = Path(data.uri, "test-00000.parquet")
    columns = pq.ParquetFile(file).metadata.row_group(0)
    technique = next(columns.column(i) for i in range(6) if columns.column(i).path_in_schema.startswith("technique"))
    content = bytearray(file.read_bytes())
    content[technique.data_page_offset + technique.total_compressed_size // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        read_notes(data.folder, "test", 0)
    again = open_data(config, task_of(config))
    assert again.read_split("test", 0, 40).orders.shape == (40, 16), "training does not read them"


@pytest.mark.slow  # stops and kills a preparation that must take long enough for it
def test_a_stopped_or_killed_preparation_leaves_no_process_and_resumes_with_the_missing_shards(
    tmp_path: Path, config_in: Configure
) -> None:
    overrides = ["task=sudoku", "scale=smoke", "task.size=9", "task.train_rows=12000", "data.shard_rows=250"]
    command = [sys.executable, "-m", "data.prepare", *overrides, "data.jobs=2", f"data.dir={tmp_path}/shards"]
    deadline = time.monotonic() + 200
    times: dict[Path, int] = {}
    for number in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
            # Background jobs of a shell ignore Ctrl-C, and tests started there inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        while len(_made(tmp_path)) <= len(times):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        workers = _children(process.pid)
        assert len(workers) >= 2
        process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
        while any(_is_running(worker) for worker in workers):
            assert time.monotonic() < deadline, "a worker outlived its parent"
            time.sleep(0.05)
        now = _made(tmp_path)
        assert len(now) < 50, "it did not stop"
        assert {file: now[file] for file in times} == times, "finished shards are not made again"
        times = now
    assert not list(tmp_path.glob("shards/*/manifest.json"))
    config = config_in(*overrides, "data.jobs=1")
    data = prepare(config, task_of(config))
    alone = config_in(*overrides, "data.jobs=1", f"data.dir={tmp_path}/alone")
    assert prepare(alone, task_of(alone)).manifest == data.manifest, "the same as without an interruption"
    assert {file: _made(tmp_path)[file] for file in times} == times


def _made(folder: Path) -> dict[Path, int]:
    """The existing shards, and when each was written."""
    return {file: file.stat().st_mtime_ns for file in folder.glob("shards/*/*.parquet")}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
