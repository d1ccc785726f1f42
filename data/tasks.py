"""What a task is to the rest: lengths, a vocabulary, and shards that are pure functions of their names."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType

import numpy as np

from data import arg, custom, mul, sudoku, zebra
from data.custom import CustomConfig
from data.shards import Manifest, shard_sizes
from data.splits import SPLITS, split_of
from data.vocab import Vocabulary
from recor_dist.core.config import SCHEMAS, Config, GeneratedTaskConfig, Mistake, check_order, check_response_length
from recor_dist.core.files import open_folder, read_json
from recor_dist.core.messages import Rows
from recor_dist.core.rng import rng

FORMAT = 1  # raised when the same settings would give other rows
CHUNK = 16_384  # candidates drawn at a time; part of what a shard is a function of

# A generator module gives `vocabulary(task)` and `sample(task, random, rows) -> Rows`; here with its known order.
GENERATORS: dict[str, tuple[ModuleType, str | None]] = {"arg": (arg, "reversed"), "mul": (mul, "reversed")}

# A puzzle module gives `vocabulary(task)`, `lengths(task)` and `shard(task, split, random, rows) -> NotedRows`, which
# tells the splits apart in its own way and records the order of deduction.
PUZZLES: dict[str, ModuleType] = {"sudoku": sudoku, "zebra": zebra}


@dataclass(frozen=True)
class Task:
    spec: dict  # what the rows are a pure function of
    N: int
    M: int
    vocabulary: Vocabulary
    order: str | None
    sizes: dict[str, list[int]]  # rows of each shard of each split
    make_shard: Callable[[str, int], Rows]  # (split, index) -> its rows
    slow: bool = False  # whether making a shard is worth a process of its own


def task_of(config: Config) -> Task:
    """The task that a configuration names; a custom one is read from its source."""
    cut = config.data.shard_rows
    if isinstance(config.task, CustomConfig):
        assert config.data.source is not None
        source = custom.read_source(config.task, config.data.source)
        check_response_length(config, source.M)
        check_order(config, source.ordered)
        spec = {
            "format": FORMAT,
            "task": "custom",
            "source": source.checksum,
            "N": source.N,
            "M": source.M,
            "shard_rows": cut,
        }
        sizes = {split: shard_sizes(len(source.examples[split]), cut) for split in SPLITS}
        make = partial(_custom_shard, source, sizes, cut)
        return Task(spec, source.N, source.M, source.vocabulary, "recorded" if source.ordered else None, sizes, make)
    assert isinstance(config.task, GeneratedTaskConfig)
    if config.data.source:
        return _imported(config, config.data.source)
    counts = {"train": config.task.train_rows, "val": config.task.val_rows, "test": config.task.test_rows}
    sizes = {split: shard_sizes(counts[split], cut) for split in SPLITS}
    spec = {"format": FORMAT, "task": asdict(config.task), "shard_rows": cut}
    if config.task.name in PUZZLES:
        module = PUZZLES[config.task.name]
        make = partial(_puzzle_shard, module, config.task, sizes)
        return Task(spec, *module.lengths(config.task), module.vocabulary(config.task), "recorded", sizes, make, True)
    module, order = GENERATORS[config.task.name]
    check_order(config, order is not None)
    example = module.sample(config.task, rng(0, "example"), 1)
    N, M = example.prompts.shape[1], example.responses.shape[1]
    make = partial(_generated_shard, module, config.task, sizes)
    return Task(spec, N, M, module.vocabulary(config.task), order, sizes, make)


def _imported(config: Config, uri: str) -> Task:
    """The task of a data set that `data.import_public` made; its shards cannot be made again from here."""
    try:
        manifest = Manifest.from_json(read_json(open_folder(uri), "manifest.json"))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        raise Mistake(f"data.source={uri}: holds no data set; make one with python -m data.import_public") from None
    name = manifest.spec["task"]
    if name != config.task.name:
        raise Mistake(f"data.source={uri}: was not imported for task={config.task.name}")
    if config.task.slots() != manifest.M:
        key = "size" if name == "sudoku" else "houses and task.attributes"
        raise Mistake(f"data.source={uri}: its responses have {manifest.M} slots; set task.{key} accordingly")
    sizes = {split: [entry.rows for entry in manifest.splits[split]] for split in SPLITS}
    make = partial(_lost_shard, uri)
    return Task(manifest.spec, manifest.N, manifest.M, Vocabulary(tuple(manifest.vocabulary)), "recorded", sizes, make)


def _lost_shard(uri: str, split: str, index: int) -> Rows:
    raise Mistake(f"data.source={uri}: shard {index} of {split} is missing or bad; import the file again")


def _puzzle_shard(module: ModuleType, task: GeneratedTaskConfig, sizes: dict, split: str, index: int) -> Rows:
    return module.shard(task, split, rng(task.seed, f"data/{task.name}/{split}", index), sizes[split][index])


def _custom_shard(source: custom.Source, sizes: dict[str, list[int]], cut: int, split: str, index: int) -> Rows:
    return source.rows(split, index * cut, sizes[split][index])


def _generated_shard(module: ModuleType, task: GeneratedTaskConfig, sizes: dict, split: str, index: int) -> Rows:
    """Draws candidates and keeps those whose prompt belongs to the split, until the shard is full."""
    random = rng(task.seed, f"data/{task.name}/{split}", index)
    wanted, parts = sizes[split][index], []
    while (have := sum(len(part) for part in parts)) < wanted:
        drawn = module.sample(task, random, CHUNK)
        chosen = split_of(row.tobytes() for row in np.ascontiguousarray(drawn.prompts)) == SPLITS.index(split)
        keep = np.flatnonzero(chosen)[: wanted - have]
        if not len(keep):
            raise Mistake(
                f"task={task.name}: it has too few different prompts to set a {split} split apart; make it longer"
            )
        parts.append(drawn.select(keep))
    return Rows.concatenate(parts)


SCHEMAS["task"] |= {
    "arg": arg.ArgConfig,
    "mul": mul.MulConfig,
    "sudoku": sudoku.SudokuConfig,
    "zebra": zebra.ZebraConfig,
    "custom": CustomConfig,
}
