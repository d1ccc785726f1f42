"""`python -m data.prepare task=arg ...`: makes a data set, or verifies one and rebuilds just its bad shards."""

import logging
import multiprocessing
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial

from pyarrow import fs

from data import sudoku, zebra
from data.shards import BadShard, Dataset, Manifest, ShardEntry, read_notes, read_shard, shard_name, write_shard
from data.splits import SPLITS
from data.sudoku import SudokuConfig
from data.tasks import Task, task_of
from data.zebra import ZebraConfig
from recor_dist.core.command import command
from recor_dist.core.config import Config, Mistake, digest
from recor_dist.core.files import exclusive, exists, join, open_folder, write_json
from recor_dist.core.messages import Rows
from recor_dist.core.progress import progress_bar, set_up_logging

log = logging.getLogger(__name__)

Job = tuple[Config, str, int, ShardEntry | None]  # what make_shard is called with
Made = tuple[str, int, ShardEntry]  # what it returns
Run = Callable[[list[Job]], Iterable[Made]]  # calls make_shard on every job, somewhere


def open_data(config: Config, task: Task, run: Run | None = None) -> Dataset:
    """The data set of a task, prepared on first use. Its shards are verified as they are read."""
    return find_data(config, task) or prepare(config, task, run)


def find_data(config: Config, task: Task) -> Dataset | None:
    """The data set of a task, where it was prepared."""
    return Dataset.open(_uri(config, task), task.spec, _remedy(config))


def prepare(config: Config, task: Task, run: Run | None = None) -> Dataset:
    """Makes every shard that is missing or bad, and the manifest. Goes on where an interrupted preparation stopped.

    `run` is who makes slow shards, this machine's processes by default; it may yield what was made in any order.
    """
    uri = _uri(config, task)
    folder = open_folder(uri, create=True)
    splits: dict[str, dict[int, ShardEntry]] = {split: {} for split in SPLITS}
    total = sum(map(sum, task.sizes.values()))
    with exclusive(folder, "preparing data", wait=True), progress_bar(f"preparing {uri}", total) as advance:
        known = Dataset.open(uri, task.spec, _remedy(config))
        jobs = []
        for split, index in _shards(task):
            listed = known.manifest.splits[split][index] if known else None
            entry = _good_shard(folder, task, split, index, listed)
            if entry is None:
                jobs.append((config, split, index, listed))
            else:
                splits[split][index] = entry
                advance(entry.rows)
        for split, index, entry in _who_makes(config, task, len(jobs), run)(jobs):
            splits[split][index] = entry
            advance(entry.rows)
        listed_splits = {split: [splits[split][index] for index in sorted(splits[split])] for split in SPLITS}
        manifest = Manifest(task.spec, task.N, task.M, list(task.vocabulary.tokens), task.order, listed_splits)
        write_json(folder, "manifest.json", asdict(manifest))
    return Dataset(uri, manifest, _remedy(config))


def _shards(task: Task) -> Iterator[tuple[str, int]]:
    for split in SPLITS:
        for index in range(len(task.sizes[split])):
            yield split, index


def _good_shard(
    folder: fs.SubTreeFileSystem, task: Task, split: str, index: int, listed: ShardEntry | None
) -> ShardEntry | None:
    """The entry of a shard that is there and as the manifest lists it; None if it is to be made."""
    try:
        _, entry = read_shard(folder, task.spec, split, index)
        if listed and entry != listed:
            raise BadShard(f"shard {entry.file} does not have the checksum of the manifest")
    except BadShard as bad:
        if exists(folder, shard_name(split, index)):
            log.warning("%s: building it again", bad)
        return None
    return entry


# --- who makes shards ------------------------------------------------------------------------------------------------


def make_shard(config: Config, split: str, index: int, listed: ShardEntry | None, task: Task | None = None) -> Made:
    """Makes one shard where it belongs. Needs nothing but its arguments, so any process may call it."""
    task = task or task_of(config)
    return store_shard(config, split, index, listed, task.make_shard(split, index), task)


def store_shard(
    config: Config, split: str, index: int, listed: ShardEntry | None, rows: Rows, task: Task | None = None
) -> Made:
    """Writes the rows of one shard where it belongs."""
    task = task or task_of(config)
    uri = _uri(config, task)
    entry = write_shard(open_folder(uri), task.spec, split, index, rows)
    if listed and entry != listed:
        raise Mistake(
            f"data.dir: shard {entry.file} of {uri} was built again and came out different: "
            "numpy draws other numbers here; move the folder away to start a new data set"
        )
    return split, index, entry


def _who_makes(config: Config, task: Task, shards: int, run: Run | None) -> Run:
    processes = min(config.data.jobs or os.cpu_count() or 1, shards)
    if not task.slow or (run is None and processes <= 1):
        return partial(_in_this_process, task)
    return run or partial(_in_processes, processes)


def _in_this_process(task: Task, jobs: list[Job]) -> Iterator[Made]:
    for job in jobs:
        yield make_shard(*job, task)


def _in_processes(processes: int, jobs: list[Job]) -> Iterator[Made]:
    """Several processes on this machine. After an interruption, shards that are under way are finished first."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_end_with_parent) as pool:
        futures = [pool.submit(make_shard, *job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise Mistake(
                f"data.jobs={processes}: a process that made puzzles was killed, perhaps for want of memory; "
                "the same command goes on where it stopped"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)  # leaving the `with` alone would first make every shard


def _end_with_parent() -> None:
    """A worker leaves Ctrl-C to its parent, and ends when that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def cluster_if_any() -> Run | None:
    """Who makes slow shards where a Ray cluster can be reached: all of its machines."""
    from recor_dist.core import ray_session  # here, as Ray's import takes a second

    if not ray_session.connect():
        return None
    from data.over_cluster import make_over_cluster

    return make_over_cluster


# --- where it lies, and the command ----------------------------------------------------------------------------------


def _uri(config: Config, task: Task) -> str:
    if config.data.source and config.task.name != "custom":  # an imported data set stays where it is
        return config.data.source
    return join(config.data.dir, f"{config.task.name}-{digest(task.spec)[:12]}")


def _remedy(config: Config) -> str:
    """The command that prepares the data of the command that is running."""
    words = [word for word in sys.argv[1:] if word.startswith(("task", "data."))]
    return shlex.join(["python", "-m", "data.prepare", f"scale={config.scale}", *words])


def main(config: Config) -> None:
    set_up_logging()
    task = task_of(config)
    data = prepare(config, task, cluster_if_any() if task.slow else None)
    counts = ", ".join(f"{data.rows_of(split):,} {split}" for split in SPLITS)
    print(f"{data.uri}: {counts} rows, N={task.N}, M={task.M}, V={len(task.vocabulary.tokens)}")
    print(f"manifest sha256 {data.manifest.checksum}")
    if isinstance(config.task, SudokuConfig | ZebraConfig):
        left_out = sum(read_notes(data.folder, split, index)[1] for split, index in _shards(task))
        if left_out:
            print(f"{left_out:,} puzzles were left out: their clues take more than {task.N} tokens")
        print("the first row of test:", show_row(config.task, data.read_split("test", 0, 1)), sep="\n\n")


def show_row(task: SudokuConfig | ZebraConfig, rows: Rows) -> str:
    """The first of some rows, as a board or as a table of houses."""
    row = rows.prompts[0], rows.responses[0], rows.orders[0]
    return sudoku.show(*row) if isinstance(task, SudokuConfig) else zebra.show(*row, wide=task.range_of("houses")[1])


if __name__ == "__main__":
    command(main)
