"""Rows to score a finished run on: a split of its data, a file with prompts and responses, or a file of puzzles."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from data.prepare import find_data
from data.shards import checksum
from data.tasks import TASKS, Task, task_of
from recor_dist.answers.prompt_files import read_prompts
from recor_dist.answers.solver import Solver
from recor_dist.core.config import Config
from recor_dist.core.files import split_name
from recor_dist.core.messages import Rows
from recor_dist.core.setting import Mistake

TABLES = (".jsonl", ".parquet")  # files with columns prompt and response; the task reads all others


@dataclass(frozen=True)
class NamedRows:
    """Rows, and where they are from: the name of a split or of a file."""

    source: str
    rows: Rows
    total: int  # rows of the source
    from_file: bool = False
    skipped: tuple[str, ...] = ()  # a line for each puzzle of a file that was not taken

    @property
    def name(self) -> str:
        """In results. A file may be called like a split or another file, so digits of its rows' checksum follow."""
        name = self.source if len(self.rows) == self.total else f"{self.source}-first-{len(self.rows)}"
        return f"{name}-{self.sha256[:8]}" if self.from_file else name

    @cached_property
    def sha256(self) -> str:
        return checksum(self.rows)


def read_rows(solver: Solver, split: str, file: str | None, count: int | None) -> NamedRows:
    """The first `count` rows, or all, of a file if there is one, else of a split."""
    if file is None:
        task = task_of(solver.config)
        total = sum(task.sizes[split])
        rows = read_split(solver.config, task, split, min(count or total, total))
        return NamedRows(split, rows, total)
    rows, skipped = _read_table(solver, file) if file.endswith(TABLES) else _read_puzzles(solver, file)
    total = len(rows)
    chosen = rows.select(np.arange(min(count or total, total)))
    return NamedRows(split_name(file)[1], chosen, total, from_file=True, skipped=tuple(skipped))


def read_split(config: Config, task: Task, split: str, count: int) -> Rows:
    """The first rows of a split of a run's data. If the data no longer exists, the rows are made again."""
    data = find_data(config, task)
    if data is not None:
        return data.read_split(split, 0, count)
    parts: list[Rows] = []
    for index in range(len(task.sizes[split])):
        if sum(map(len, parts)) < count:
            parts.append(task.make_shard(split, index))
    made = Rows.concatenate(parts).select(np.arange(count))
    if task.order == "reversed":
        reverse = np.arange(task.M - 1, -1, -1, dtype=np.int16)
        made = replace(made, orders=np.broadcast_to(reverse, (count, task.M)))
    return made


def _read_table(solver: Solver, path: str) -> tuple[Rows, list[str]]:
    file = read_prompts(path)
    if not file.responses:
        raise Mistake(f"input={path}: has no column `response` to compare answers with; recor_dist.solve needs none")
    prompts = solver.encode(file.prompts, file.name_row)
    responses = solver.encode_responses(file.responses, file.name_row)
    return Rows(prompts, responses.astype(solver.vocabulary.dtype)), []


def _read_puzzles(solver: Solver, path: str) -> tuple[Rows, list[str]]:
    """Puzzles as `data.import_public` reads them; those without a solution in the file are solved."""
    task = solver.config.task
    row, N = TASKS[task.name], solver.model.shape.N
    if row.read_file is None or row.vocabulary is None:
        raise Mistake(f"input={path}: must end in {', '.join(TABLES)}; task={task.name} has no files of its own")
    read = row.read_file(task, Path(path))
    if read.rows.prompts.shape[1] != N or row.vocabulary(read.task) != solver.vocabulary:
        sizes = f"{read.rows.prompts.shape[1]} tokens, and this model reads {N}"
        raise Mistake(f"input={path}: its puzzles differ from those of this model in size or tokens ({sizes})")
    return Rows(read.rows.prompts, read.rows.responses, read.rows.orders), read.skipped
