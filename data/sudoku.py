"""Sudoku: minimal puzzles with one solution, and the order in which a person would fill them in."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data.layouts import Layout
from data.shards import NotedRows
from data.splits import SPLITS, split_of
from data.sudoku_rules import BOX, RECTANGLE, dig, explain, geometry, random_grids
from data.task_type import Imported, TaskType
from data.vocab import Vocabulary
from recor_dist.core.config import GeneratedTaskConfig
from recor_dist.core.setting import Mistake, setting


@dataclass
class SudokuConfig(GeneratedTaskConfig):
    """Minimal Sudoku puzzles with one solution; 0 is a blank."""

    reads_source: ClassVar[str] = "optionally"
    generated_only: ClassVar[tuple[str, ...]] = ("extra_givens",)

    name: str = setting("sudoku", "the task", choices=("sudoku",))
    size: int = setting(9, "cells per side: 4, 6 or 9", at_least=4, at_most=9)
    hard: str = setting(
        "none",
        "which rows are puzzles that the seven human techniques cannot solve",
        choices=("none", "test", "all"),
    )
    extra_givens: int = setting(
        0,
        "a training row gets 0 to this many further cells of its solution as givens; val and test none",
        at_least=0,
        at_most=81,
        newer=True,
    )

    def check(self) -> None:
        if self.size not in (4, 6, 9):
            raise Mistake(f"task.size={self.size}: allowed: 4, 6, 9")
        if self.size == 4 and self.hard != "none":
            raise Mistake(
                f"task.hard={self.hard}: no 4x4 puzzle needs more than the seven techniques; use task.size=6 or 9"
            )

    def slots(self) -> int:
        return self.size**2


CHUNK = 512  # grids drawn at a time; a shard's rows depend on it
PATIENCE = 50  # chunks without a matching puzzle before giving up


def vocabulary(task: SudokuConfig) -> Vocabulary:
    return Vocabulary(tuple(str(digit) for digit in range(task.size + 1)))


def lengths(task: SudokuConfig) -> tuple[int, int]:
    """N and M."""
    return task.size**2, task.size**2


def canonical(boards: np.ndarray) -> np.ndarray:
    """Boards (R, n n) with digits renamed in order of appearance; blanks stay 0."""
    cells = boards.shape[1]
    n = round(cells**0.5)
    first = np.stack([np.where((boards == d).any(1), (boards == d).argmax(1), cells) for d in range(1, n + 1)], axis=1)
    names = np.zeros((len(boards), n + 1), dtype=np.uint8)
    names[:, 1:] = np.argsort(np.argsort(first, axis=1, kind="stable"), axis=1) + 1
    return np.take_along_axis(names, boards.astype(np.intp), axis=1)


def keys(puzzles: np.ndarray, solutions: np.ndarray) -> Iterator[bytes]:
    """The key that decides each row's split: its solution up to renaming digits. 4x4 boards have only twelve such
    solutions, so there the key is the puzzle."""
    return (key.tobytes() for key in canonical(puzzles if solutions.shape[1] == 16 else solutions))


def splits(puzzles: np.ndarray, solutions: np.ndarray) -> np.ndarray:
    """The split of each row."""
    return split_of(keys(puzzles, solutions))


def shard(task: SudokuConfig, split: str, random: np.random.Generator, rows: int) -> NotedRows:
    """Draws grids of the split, digs puzzles from them, and keeps those of the requested difficulty."""
    board, cells, wanted = geometry(task.size), task.size**2, SPLITS.index(split)
    hard = task.hard == "all" or task.hard == split
    parts: list[tuple[np.ndarray, ...]] = []
    have = fruitless = 0
    while have < rows:
        seeds = random.integers(0, 2**64, size=(2, CHUNK), dtype=np.uint64)
        grids = np.empty((CHUNK, cells), dtype=np.uint8)
        random_grids(board, seeds[0], grids)
        if task.size > 4:  # the grid alone decides the split, and digging a puzzle takes longer
            keep = splits(grids, grids) == wanted
            grids, seeds = grids[keep], seeds[:, keep]
        puzzles = np.empty_like(grids)
        dig(board, seeds[1], grids, puzzles)
        if task.size == 4:
            keep = splits(puzzles, grids) == wanted
            grids, puzzles = grids[keep], puzzles[keep]
        orders, techniques = solve_as_people_do(puzzles, grids)
        keep = np.flatnonzero((techniques.max(axis=1, initial=0) > RECTANGLE) == hard)[: rows - have]
        parts.append((puzzles[keep], grids[keep], orders[keep], techniques[keep]))
        have += len(keep)
        fruitless = 0 if len(keep) else fruitless + 1
        if fruitless == PATIENCE:
            raise Mistake(
                f"task.hard={task.hard}: {PATIENCE * CHUNK:,} {task.size}x{task.size} grids gave no such puzzle"
            )
    puzzles, grids, orders, techniques = (np.concatenate(column) for column in zip(*parts, strict=True))
    if split == "train" and task.extra_givens:
        puzzles = with_extra_givens(task, random, puzzles, grids)
        orders, techniques = solve_as_people_do(puzzles, grids)
    return noted(puzzles, grids, orders, techniques)


def with_extra_givens(
    task: SudokuConfig, random: np.random.Generator, puzzles: np.ndarray, solutions: np.ndarray
) -> np.ndarray:
    """Puzzles (R, n n) with k ~ U{0..extra_givens} of their blanks filled in.

    Such a puzzle is not minimal, so it is none of val or test, even at 4x4, where the puzzle decides the split.
    """
    wanted = random.integers(0, task.extra_givens + 1, size=(len(puzzles), 1))
    blank = puzzles == 0
    draws = np.where(blank, random.random(puzzles.shape), np.inf)
    rank = np.argsort(np.argsort(draws, axis=1), axis=1)
    return np.where(blank & (rank < wanted), solutions, puzzles)


def solve_as_people_do(puzzles: np.ndarray, solutions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cell filled at each step and the technique it took, both (R, n n)."""
    orders = np.empty(puzzles.shape, dtype=np.int16)
    techniques = np.empty(puzzles.shape, dtype=np.uint8)
    explain(geometry(round(puzzles.shape[1] ** 0.5)), puzzles, solutions, orders, techniques)
    return orders, techniques


def noted(puzzles: np.ndarray, solutions: np.ndarray, orders: np.ndarray, techniques: np.ndarray) -> NotedRows:
    """Rows with three notes: the technique of every step, the number of givens, the hardest technique."""
    notes = {
        "technique": techniques,
        "givens": (puzzles > 0).sum(axis=1).astype(np.uint8),
        "hardest": techniques.max(axis=1),
    }
    return NotedRows(puzzles, solutions, orders, notes)


# --- display and import ----------------------------------------------------------------------------------------------


def layout(task: SudokuConfig, prompt: list[str], M: int, response: list[str] | None) -> Layout:
    givens = [slot for slot, token in enumerate(prompt) if token != "0"]
    return Layout(
        "board",
        prompt,
        rows=task.size,
        columns=task.size,
        stride=task.size,
        box=BOX[task.size],
        givens=givens,
        free=givens,
    )


def coordinates(task: SudokuConfig, N: int, M: int) -> dict[str, np.ndarray]:
    """A slot has the coordinates of the prompt cell that it completes."""
    row, column = np.divmod(np.arange(N), task.size)
    high, wide = BOX[task.size]
    cells = {"row": row, "column": column, "box": row // high * (task.size // wide) + column // wide}
    return {name: np.tile(values, 2) for name, values in cells.items()}


def read_file(_: SudokuConfig, path: Path) -> Imported:
    """Puzzles from a .npy file of Shah et al., or from a text file with one puzzle per line."""
    from data import sudoku_files  # here, because it builds on this module

    return sudoku_files.read(path)


def read_prompt(task: SudokuConfig, text: str) -> str:
    """A blank cell is `.` or 0."""
    return text.replace(".", "0")


TASK = TaskType(
    schema=SudokuConfig,
    name="Sudoku",
    title="Sudoku",
    vocabulary=vocabulary,
    lengths=lengths,
    shard=shard,
    read_file=read_file,
    size_settings="task.size",
    order="recorded",
    slow=True,
    read_prompt=read_prompt,
    layout=layout,
    coordinates=coordinates,
)
