"""Sudoku: minimal puzzles with one solution, in the order in which people would fill them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from data.shards import NotedRows
from data.splits import SPLITS, split_of
from data.sudoku_rules import BOX, RECTANGLE, dig, explain, geometry, random_grids
from data.vocab import Vocabulary
from recor_dist.core.config import GeneratedTaskConfig, Mistake, setting


@dataclass
class SudokuConfig(GeneratedTaskConfig):
    """Minimal Sudoku puzzles with one solution, their blanks 0."""

    reads_source: ClassVar[str] = "optionally"

    name: str = setting("sudoku", "the task", choices=("sudoku",))
    size: int = setting(9, "cells of a side: 4, 6 or 9", at_least=4, at_most=9)
    hard: str = setting(
        "none",
        "which rows are puzzles beyond the seven techniques people use; the others are within them",
        choices=("none", "test", "all"),
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


CHUNK = 512  # grids drawn at a time; part of what a shard is a function of
PATIENCE = 50  # chunks without a puzzle of the wanted kind before giving up


def vocabulary(task: SudokuConfig) -> Vocabulary:
    return Vocabulary(tuple(str(digit) for digit in range(task.size + 1)))


def lengths(task: SudokuConfig) -> tuple[int, int]:
    """N and M."""
    return task.size**2, task.size**2


def canonical(boards: np.ndarray) -> np.ndarray:
    """Boards (R, n n) with their digits renamed in the order in which they appear; blanks stay 0."""
    cells = boards.shape[1]
    n = round(cells**0.5)
    first = np.stack([np.where((boards == d).any(1), (boards == d).argmax(1), cells) for d in range(1, n + 1)], axis=1)
    names = np.zeros((len(boards), n + 1), dtype=np.uint8)
    names[:, 1:] = np.argsort(np.argsort(first, axis=1, kind="stable"), axis=1) + 1
    return np.take_along_axis(names, boards.astype(np.intp), axis=1)


def keys(puzzles: np.ndarray, solutions: np.ndarray) -> Iterator[bytes]:
    """What the split of each row goes by: its solution, however its digits are named. There are just twelve such
    solutions of 4x4 boards; there it is the puzzle."""
    return (key.tobytes() for key in canonical(puzzles if solutions.shape[1] == 16 else solutions))


def splits(puzzles: np.ndarray, solutions: np.ndarray) -> np.ndarray:
    """The split of each row."""
    return split_of(keys(puzzles, solutions))


def shard(task: SudokuConfig, split: str, random: np.random.Generator, rows: int) -> NotedRows:
    """Draws grids, keeps those of the split, digs puzzles from them, and keeps the puzzles of the wanted difficulty."""
    board, cells, wanted = geometry(task.size), task.size**2, SPLITS.index(split)
    hard = task.hard == "all" or task.hard == split
    parts: list[tuple[np.ndarray, ...]] = []
    have = fruitless = 0
    while have < rows:
        seeds = random.integers(0, 2**64, size=(2, CHUNK), dtype=np.uint64)
        grids = np.empty((CHUNK, cells), dtype=np.uint8)
        random_grids(board, seeds[0], grids)
        if task.size > 4:  # the puzzle is not needed to tell the split, and takes longer to find
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
            raise Mistake(f"task.hard={task.hard}: none of {PATIENCE * CHUNK:,} {task.size}x{task.size} grids gave one")
    return noted(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def solve_as_people_do(puzzles: np.ndarray, solutions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cell of each step, and the technique it took; both (R, n n)."""
    orders = np.empty(puzzles.shape, dtype=np.int16)
    techniques = np.empty(puzzles.shape, dtype=np.uint8)
    explain(geometry(round(puzzles.shape[1] ** 0.5)), puzzles, solutions, orders, techniques)
    return orders, techniques


def noted(puzzles: np.ndarray, solutions: np.ndarray, orders: np.ndarray, techniques: np.ndarray) -> NotedRows:
    """Rows with the technique of every step, the number of givens and the hardest technique."""
    notes = {
        "technique": techniques,
        "givens": (puzzles > 0).sum(axis=1).astype(np.uint8),
        "hardest": techniques.max(axis=1),
    }
    return NotedRows(puzzles, solutions, orders, notes)


# --- for people ------------------------------------------------------------------------------------------------------


def show(prompt: np.ndarray, response: np.ndarray, order: np.ndarray) -> str:
    """A puzzle, its answer, and the step at which each blank was filled, side by side."""
    n = round(len(prompt) ** 0.5)
    steps = np.empty(len(order), dtype=np.int64)
    steps[order[prompt[order] == 0]] = 1 + np.arange((prompt == 0).sum())
    boards = {
        "puzzle": [str(digit) if digit else "·" for digit in prompt],
        "answer": [str(digit) for digit in response],
        "order": [str(step) if blank else "·" for step, blank in zip(steps, prompt == 0, strict=True)],
    }
    drawn = [_draw(title, cells, n) for title, cells in boards.items()]
    return "\n".join("    ".join(line).rstrip() for line in zip(*drawn, strict=True))


def _draw(title: str, cells: list[str], n: int) -> list[str]:
    """A board with lines between its boxes."""
    high, wide = BOX[n]
    width = max(map(len, cells))
    lines = []
    for row in range(n):
        padded = [cell.rjust(width) for cell in cells[row * n : row * n + n]]
        groups = [" ".join(padded[start : start + wide]) for start in range(0, n, wide)]
        if row and row % high == 0:
            lines.append("-+-".join("-" * len(group) for group in groups))
        lines.append(" | ".join(groups))
    return [title.ljust(len(lines[0])), *lines]
