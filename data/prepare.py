"""`python -m data.prepare task=arg ...`: makes a data set, or verifies one and rebuilds only its bad shards."""

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
from functools import partial

from pyarrow import fs
from rich.console import Console

from data.drawing import draw_side_by_side
from data.shards import (
    MANIFEST,
    BadShard,
    Dataset,
    Manifest,
    ShardEntry,
    read_notes,
    read_shard,
    shard_name,
    write_shard,
)
from data.splits import SPLITS
from data.tasks import TASKS, Task, task_of
from data.vocab import Vocabulary
from recor_dist.core.command import command
from recor_dist.core.config import Config, TaskConfig, digest
from recor_dist.core.files import exists, join, open_folder
from recor_dist.core.locks import exclusive
from recor_dist.core.messages import Rows
from recor_dist.core.progress import progress_bar, set_up_logging
from recor_dist.core.setting import Mistake

log = logging.getLogger(__name__)

Job = tuple[Config, str, int, ShardEntry | None]  # what make_shard is called with
Made = tuple[str, int, ShardEntry]  # what it returns
Run = Callable[[list[Job]], Iterable[Made]]  # calls make_shard on every job, somewhere


def open_data(config: Config, task: Task, run: Run | None = None) -> Dataset:
    """The data set of a task, prepared on first use. Its shards are verified as they are read."""
    return find_data(config, task) or prepare(config, task, run)


def find_data(config: Config, task: Task) -> Dataset | None:
    """The data set of a task, or None if it was not prepared."""
    return Dataset.open(_uri(config, task), task.spec, _remedy(config))


def prepare(config: Config, task: Task, run: Run | None = None) -> Dataset:
    """Makes every shard that is missing or bad, and the manifest. Resumes an interrupted preparation.

    `run` makes the slow shards, by default in processes on this machine; it may yield them in any order.
    """
    uri = _uri(config, task)
    folder = open_folder(uri, create=True)
    splits: dict[str, dict[int, ShardEntry]] = {split: {} for split in SPLITS}
    total = sum(map(sum, task.sizes.values()))
    with exclusive(folder, "preparing data", wait=True), progress_bar(f"preparing {uri}", total) as advance:
        known = Dataset.open(uri, task.spec, _remedy(config))
        if known is None and exists(folder, MANIFEST):
            log.warning("%s/%s is damaged: making it again from the shards", uri, MANIFEST)
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
        manifest.write(folder)
    return Dataset(uri, manifest, _remedy(config))


def _shards(task: Task) -> Iterator[tuple[str, int]]:
    for split in SPLITS:
        for index in range(len(task.sizes[split])):
            yield split, index


def _good_shard(
    folder: fs.SubTreeFileSystem, task: Task, split: str, index: int, listed: ShardEntry | None
) -> ShardEntry | None:
    """The entry of a shard that exists and matches the manifest; None if it must be made."""
    try:
        _, entry = read_shard(folder, task.spec, split, index)
        if listed and entry != listed:
            raise BadShard(f"shard {entry.file} does not have the checksum of the manifest")
    except BadShard as bad:
        if exists(folder, shard_name(split, index)):
            log.warning("%s: rebuilding it", bad)
        return None
    return entry


# --- who makes shards ------------------------------------------------------------------------------------------------


def make_shard(config: Config, split: str, index: int, listed: ShardEntry | None, task: Task | None = None) -> Made:
    """Makes one shard and writes it. Depends on its arguments only, so any process may call it."""
    task = task or task_of(config)
    return store_shard(config, split, index, listed, task.make_shard(split, index), task)


def store_shard(
    config: Config, split: str, index: int, listed: ShardEntry | None, rows: Rows, task: Task | None = None
) -> Made:
    """Writes the rows of one shard."""
    task = task or task_of(config)
    uri = _uri(config, task)
    entry = write_shard(open_folder(uri), task.spec, split, index, rows)
    if listed and entry != listed:
        raise Mistake(
            f"data.dir: shard {entry.file} of {uri} came out different when rebuilt: "
            "this numpy draws different numbers; move the folder away to start a new data set"
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
    """Several processes on this machine. An interruption first finishes the shards in progress."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_end_with_parent) as pool:
        futures = [pool.submit(make_shard, *job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise Mistake(
                f"data.jobs={processes}: a process that made puzzles was killed, perhaps because memory ran out; "
                "run the same command again to resume"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)  # without this, leaving the `with` would first make every shard


def _end_with_parent() -> None:
    """A worker ignores Ctrl-C, which its parent handles, and exits when its parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def cluster_if_any() -> Run | None:
    """A `run` for `prepare` that uses all machines of the Ray cluster; None if no cluster can be reached."""
    from recor_dist.core import ray_session  # here, as Ray's import takes a second

    if not ray_session.connect():
        return None
    from data.over_cluster import make_over_cluster

    return make_over_cluster


# --- where it is stored, and the command -------------------------------------------------------------------------


def _uri(config: Config, task: Task) -> str:
    if config.data.source and not TASKS[config.task.name].read_source:  # an imported data set is used in place
        return config.data.source
    return join(config.data.dir, f"{config.task.name}-{digest(task.spec)[:12]}")


def _remedy(config: Config) -> str:
    """The command that prepares the data of the running command."""
    words = [word for word in sys.argv[1:] if word.startswith(("task", "data."))]
    return shlex.join(["python", "-m", "data.prepare", f"scale={config.scale}", *words])


def main(config: Config) -> None:
    if config.out:
        raise Mistake(f"out={config.out}: data.prepare makes no run; omit out, and give the run's task and scale")
    set_up_logging()
    task = task_of(config)
    data = prepare(config, task, cluster_if_any() if task.slow else None)
    counts = ", ".join(f"{data.rows_of(split):,} {split}" for split in SPLITS)
    print(f"{data.uri}: {counts} rows, N={task.N}, M={task.M}, V={len(task.vocabulary.tokens)}")
    print(f"manifest sha256 {data.manifest.checksum}")
    if task.slow:
        dropped = sum(read_notes(data.folder, split, index)[1] for split, index in _shards(task))
        if dropped:
            print(f"dropped {dropped:,} puzzles whose prompts have more than {task.N} tokens")
    first = data.read_split("test", 0, 1)
    print("the first test row:", show_row(config.task, data.vocabulary, first), sep="\n\n")


def show_row(task: TaskConfig, vocabulary: Vocabulary, rows: Rows) -> str:
    """The first of some rows, for display: clues, answer, and the step at which each slot is filled, if known."""
    row, M = TASKS[task.name], rows.responses.shape[1]
    prompt, response = vocabulary.decode(rows.prompts[0]), vocabulary.decode(rows.responses[0])
    layout = row.layout(task, prompt, M, response)
    panels = {"puzzle": [prompt[slot] if slot in layout.givens else "·" for slot in range(M)]} if layout.givens else {}
    panels["answer"] = [row.display_name(task, slot, token) for slot, token in enumerate(response)]
    if rows.orders is not None:
        deduced = [slot for slot in rows.orders[0].tolist() if slot not in layout.free]
        steps = {slot: str(step) for step, slot in enumerate(deduced, start=1)}
        panels["step"] = [steps.get(slot, "·") for slot in range(M)]
    console = Console(width=1000, color_system=None)
    with console.capture() as shown:
        for number, clue in enumerate(layout.clues, start=1):
            console.print(f"{number:3}. {clue['text']}")
        if layout.clues:
            console.print()
        console.print(draw_side_by_side(layout, panels))
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


if __name__ == "__main__":
    command(main)
