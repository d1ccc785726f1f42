"""The table of tasks, and the rows that a configuration names.

A task is a file and a row in this table; nothing else knows its name. A shard of rows is a pure function of the task's
settings, the split and its index.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from data import arg, custom, mul, path, sudoku, zebra
from data.shards import MANIFEST, Manifest, shard_sizes
from data.splits import SPLITS, split_of
from data.task_type import TaskType
from data.vocab import Vocabulary
from recor_dist.core.config import SCHEMAS, Config, GeneratedTaskConfig, check_order, check_response_length, flatten
from recor_dist.core.files import open_folder
from recor_dist.core.messages import Rows
from recor_dist.core.rng import rng
from recor_dist.core.sealed import Damaged
from recor_dist.core.setting import Mistake

TASKS: dict[str, TaskType] = {
    "arg": arg.TASK,
    "mul": mul.TASK,
    "sudoku": sudoku.TASK,
    "zebra": zebra.TASK,
    "path": path.TASK,
    "custom": custom.TASK,
}
SCHEMAS["task"] |= {name: row.schema for name, row in TASKS.items()}

FORMAT = 1  # incremented when the same settings would give different rows
MOST_SHARDS = 1_000_000  # per split
CHUNK = 16_384  # candidates drawn at a time; a shard's rows depend on it


@dataclass(frozen=True)
class Task:
    """The rows that a configuration names, before they are made or read."""

    spec: dict  # what the rows are a pure function of
    N: int
    M: int
    vocabulary: Vocabulary
    order: str | None  # the known order: "reversed", "recorded" in the shards, or None
    sizes: dict[str, list[int]]  # rows per shard, by split
    make_shard: Callable[[str, int], Rows]  # (split, index) -> its rows
    slow: bool = False  # True if making a shard is worth a separate process


def task_of(config: Config) -> Task:
    """The rows of a run: generated, imported (`data.import_public`), or the user's own."""
    row = TASKS[config.task.name]
    if row.read_source:
        return _custom(config, row)
    if config.data.source:
        return _imported(config, row, config.data.source)
    return _generated(config, row)


def _generated(config: Config, row: TaskType) -> Task:
    task = config.task
    assert isinstance(task, GeneratedTaskConfig) and row.lengths and row.vocabulary
    check_order(config, row.order is not None)
    counts = {"train": task.train_rows, "val": task.val_rows, "test": task.test_rows}
    if max(counts.values()) > MOST_SHARDS * config.data.shard_rows:
        raise Mistake(
            f"data.shard_rows={config.data.shard_rows}: {max(counts.values()):,} rows would be more than "
            f"{MOST_SHARDS:,} files; raise it, or lower the number of rows"
        )
    sizes = {split: shard_sizes(counts[split], config.data.shard_rows) for split in SPLITS}
    spec = {"format": FORMAT, "task": flatten(task, identity_only=True), "shard_rows": config.data.shard_rows}
    make = partial(_make_shard, row, task, sizes)
    return Task(spec, *row.lengths(task), row.vocabulary(task), row.order, sizes, make, row.slow)


def _make_shard(row: TaskType, task: GeneratedTaskConfig, sizes: dict[str, list[int]], split: str, index: int) -> Rows:
    random = rng(task.seed, f"data/{task.name}/{split}", index)
    if row.shard:
        return row.shard(task, split, random, sizes[split][index])
    return _sample_shard(row, task, split, random, sizes[split][index])


def _sample_shard(row: TaskType, task: GeneratedTaskConfig, split: str, random: np.random.Generator, rows: int) -> Rows:
    """Draws candidates and keeps those whose prompt belongs to the split, until the shard is full."""
    assert row.sample
    parts: list[Rows] = []
    while (have := sum(len(part) for part in parts)) < rows:
        drawn = row.sample(task, random, CHUNK)
        chosen = split_of(prompt.tobytes() for prompt in np.ascontiguousarray(drawn.prompts)) == SPLITS.index(split)
        keep = np.flatnonzero(chosen)[: rows - have]
        if not len(keep):
            raise Mistake(f"task={task.name}: too few different prompts for a {split} split; make the prompts longer")
        parts.append(drawn.select(keep))
    return Rows.concatenate(parts)


def _custom(config: Config, row: TaskType) -> Task:
    assert config.data.source is not None and row.read_source
    source = row.read_source(config.task, config.data.source)
    check_response_length(config, source.M)
    check_order(config, source.ordered)
    cut = config.data.shard_rows
    sizes = {split: shard_sizes(len(source.examples[split]), cut) for split in SPLITS}
    spec = {"format": FORMAT, "task": config.task.name, "source": source.checksum}
    spec |= {"N": source.N, "M": source.M, "shard_rows": cut}
    order = "recorded" if source.ordered else None
    return Task(spec, source.N, source.M, source.vocabulary, order, sizes, partial(_cut_shard, source, sizes, cut))


def _cut_shard(source: custom.Source, sizes: dict[str, list[int]], cut: int, split: str, index: int) -> Rows:
    return source.rows(split, index * cut, sizes[split][index])


def _imported(config: Config, row: TaskType, uri: str) -> Task:
    """A data set that `data.import_public` made; its shards cannot be made again from here."""
    try:
        manifest = Manifest.read(open_folder(uri))
    except FileNotFoundError:
        raise Mistake(f"data.source={uri}: holds no data set; make one with python -m data.import_public") from None
    except Damaged as damaged:
        raise Mistake(f"data.source={uri}: {MANIFEST} is damaged ({damaged}); import the file again") from None
    if manifest.spec["task"] != config.task.name:
        raise Mistake(f"data.source={uri}: was not imported for task={config.task.name}")
    if config.task.slots() != manifest.M:
        raise Mistake(f"data.source={uri}: its responses have {manifest.M} slots; set {row.size_settings} to match")
    vocabulary = Vocabulary(tuple(manifest.vocabulary))
    if row.vocabulary and row.vocabulary(config.task) != vocabulary:
        raise Mistake(f"data.source={uri}: has other tokens; add the settings that data.import_public printed")
    sizes = {split: [entry.rows for entry in manifest.splits[split]] for split in SPLITS}
    return Task(manifest.spec, manifest.N, manifest.M, vocabulary, row.order, sizes, partial(_lost_shard, uri))


def _lost_shard(uri: str, split: str, index: int) -> Rows:
    raise Mistake(f"data.source={uri}: shard {index} of {split} is missing or damaged; import the file again")
