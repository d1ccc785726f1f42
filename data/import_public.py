"""Imports files of puzzles as shards, with their recorded order.

    python -m data.import_public sudoku Sudoku-train-data.npy test=Sudoku-test-data.npy
    python -m data.import_public zebra zebra-train-data.pkl test=zebra-test-data.pkl
    python -m data.import_public sudoku puzzles.txt

Each task reads its own files (`read_file` in the table of tasks); this command splits the rows and writes the shards.
"""

import hashlib
import itertools
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from omegaconf import MISSING

from data.shards import Dataset, Manifest, NotedRows, shard_sizes, write_shard
from data.splits import SPLITS
from data.task_type import Imported
from data.tasks import FORMAT, TASKS
from recor_dist.core.command import plain_command
from recor_dist.core.config import digest
from recor_dist.core.files import join, open_folder, write_atomically
from recor_dist.core.locks import exclusive
from recor_dist.core.progress import set_up_logging
from recor_dist.core.setting import Mistake, setting

log = logging.getLogger(__name__)
READERS = tuple(name for name, row in TASKS.items() if row.read_file)
ABOUT = [
    "Imports puzzles: the files of Shah et al. (arXiv 2409.10502), or a text file with one Sudoku per line.",
    "",
    "  python -m data.import_public sudoku Sudoku-train-data.npy test=Sudoku-test-data.npy",
    "  python -m data.import_public zebra zebra-train-data.pkl test=zebra-test-data.pkl",
    "  python -m data.import_public sudoku puzzles.txt",
    "",
    "Without a test file, a sixteenth of all solutions is held out for the test. Training rows that also occur in val",
    "or test are dropped and counted. An error names the row, counted from 1.",
]


@dataclass
class ImportConfig:
    """What to import, and where to."""

    task: str = setting(MISSING, "the task", choices=READERS)
    file: str = setting(MISSING, "the file with the training rows")
    test: str | None = setting(None, "a file with the test rows; by default they are held out of `file`")
    data_dir: str = setting("shards", "folder or URI for the data set", key="data.dir")
    data_shard_rows: int = setting(10_000, "rows per shard; decides the row order", key="data.shard_rows", at_least=1)
    task_val_rows: int = setting(448, "rows held out for validation", key="task.val_rows", at_least=1)
    task_prompt_length: int = setting(
        455, "zebra: N, the maximum length of the clues in tokens", key="task.prompt_length", at_least=1, at_most=4096
    )
    task_tokens: str = setting(
        "public", "zebra: how clues are written: public, or compact", key="task.tokens", choices=("public", "compact")
    )


def import_files(config: ImportConfig) -> tuple[Dataset, list[str]]:
    """Reads, checks and splits the files, and writes the data set (replacing an identical one). Returns it, and the
    overrides that make a run train on it."""
    file = Path(config.file)
    row = TASKS[config.task]
    assert row.read_file and row.vocabulary
    settings = {"prompt_length": config.task_prompt_length, "tokens": config.task_tokens}
    task = row.schema(**{key: value for key, value in settings.items() if hasattr(row.schema, key)})
    read = [row.read_file(task, Path(path)) for path in (config.file, config.test) if path]
    if len({part.rows.prompts.shape[1] for part in read}) > 1:
        raise Mistake(f"{config.test}: its puzzles differ in size from those of {file}")
    chosen = _hold_out(read, config.task_val_rows, file)
    first = read[0]
    N, M = first.rows.prompts.shape[1], first.rows.responses.shape[1]
    spec = {"format": FORMAT, "task": config.task, "source": _checksum(chosen), "N": N, "M": M}
    spec |= {"shard_rows": config.data_shard_rows}
    uri = join(config.data_dir, f"{config.task}-{digest(spec)[:12]}")
    folder = open_folder(uri, create=True)
    splits: dict[str, list] = {}
    with exclusive(folder, "preparing data", wait=True):
        for split, rows in chosen.items():
            starts = np.cumsum([0, *shard_sizes(len(rows), config.data_shard_rows)])
            splits[split] = [
                write_shard(folder, spec, split, index, _slice(rows, np.arange(start, end)))
                for index, (start, end) in enumerate(itertools.pairwise(starts))
            ]
        skipped = [f"{Path(path).name}: {line}" for path, part in _named(config, read) for line in part.skipped]
        if skipped:
            write_atomically(folder, "left_out.txt", "".join(f"{line}\n" for line in skipped).encode())
            log.warning("skipped %d puzzles, listed in left_out.txt: %s", len(skipped), "; ".join(skipped[:5]))
        manifest = Manifest(spec, N, M, list(row.vocabulary(first.task).tokens), "recorded", splits)
        manifest.write(folder)
    overrides = [f"task={config.task}", *first.overrides, f"data.source={uri}"]
    return Dataset(uri, manifest, "python -m data.import_public"), overrides


def _named(config: ImportConfig, read: list[Imported]) -> list[tuple[str, Imported]]:
    return list(zip([path for path in (config.file, config.test) if path], read, strict=True))


def _checksum(chosen: dict[str, NotedRows]) -> str:
    sha = hashlib.sha256()
    for rows in chosen.values():
        for column in (rows.prompts, rows.responses, rows.orders):
            sha.update(np.ascontiguousarray(column).tobytes())
    return sha.hexdigest()


def _hold_out(read: list[Imported], val_rows: int, file: Path) -> dict[str, NotedRows]:
    """Holds validation out of the first file, and the test as well if there is no second file. The rest is train, but
    without rows whose class is in val or test."""
    rows, (split, mark) = read[0].rows, read[0].classes
    if len(read) == 1:
        in_test = split == SPLITS.index("test")  # with all rows of the same class
        test, copies = _slice(rows, np.flatnonzero(in_test)), 0
    else:
        in_test = np.isin(mark, read[1].classes.mark)
        test, copies = read[1].rows, int(in_test.sum())
    val = np.flatnonzero((split == SPLITS.index("val")) & ~in_test)[:val_rows]
    in_val = np.isin(mark, mark[val])
    result = {"train": _slice(rows, np.flatnonzero(~in_val & ~in_test)), "val": _slice(rows, val), "test": test}
    for name, count in {"val": int(in_val.sum()) - len(val), "test": copies}.items():
        if count:
            log.warning("%s: dropped %s rows from train: %s as rows of %s", file, f"{count:,}", read[0].alike, name)
    for name, part in result.items():
        if not len(part):
            raise Mistake(f"{file}: has too few different puzzles for a {name} split; give more, or test=FILE")
    return result


def _slice(rows: NotedRows, index: np.ndarray) -> NotedRows:
    notes = {name: column[index] for name, column in rows.notes.items()}
    assert rows.orders is not None
    return NotedRows(rows.prompts[index], rows.responses[index], rows.orders[index], notes)


def main(config: ImportConfig) -> None:
    set_up_logging()
    data, overrides = import_files(config)
    print(f"{data.uri}: " + ", ".join(f"{data.rows_of(split):,} {split}" for split in SPLITS) + " rows")
    print(f"train with: python -m recor_dist.run {' '.join(overrides)}")


if __name__ == "__main__":
    plain_command(ImportConfig, main, ABOUT, positional=("task", "file"))
