"""Sudoku puzzles from files, checked row by row. Errors name the row, counted from 1.

.npy    the set of Shah et al. (arXiv 2409.10502): rows of 325 whole numbers, the number of givens, then row, column,
        value and technique of each cell, the givens first and the rest in the solver's order
others  one puzzle per line, `.` or `0` for a blank
"""

from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.lib.format import open_memmap

from data import sudoku
from data.shards import NotedRows
from data.splits import Classes
from data.sudoku import SudokuConfig
from data.sudoku_rules import BOX, geometry, solve
from data.task_type import Imported
from recor_dist.core.progress import progress_bar
from recor_dist.core.setting import Mistake

AT_A_TIME = 10_000  # rows that are checked together
NODES = (
    100_000  # search nodes per puzzle of a list: known puzzles take hundreds; this many take a twentieth of a second
)
# Why a puzzle of a list is skipped, by the result of `solve`.
WHY = {0: "has no solution", 2: "has several solutions", -1: f"needs more than {NODES:,} search nodes to check"}


def read(path: Path) -> Imported:
    rows, skipped = (_read_npy(path), []) if path.suffix == ".npy" else _read_lines(path)
    parts = (slice(start, start + AT_A_TIME) for start in range(0, len(rows), AT_A_TIME))
    classes = Classes.concatenate(Classes.of(sudoku.keys(rows.prompts[at], rows.responses[at])) for at in parts)
    task = SudokuConfig(size=round(rows.prompts.shape[1] ** 0.5))
    alike = f"up to renaming digits, they have the same {'puzzles' if task.size == 4 else 'solutions'}"
    return Imported(rows, classes, alike, task, overrides=[f"task.size={task.size}"], skipped=skipped)


def _read_npy(path: Path) -> NotedRows:
    try:
        with np.errstate(over="raise"):  # the size of an absurd shape
            rows = open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError, ArithmeticError, MemoryError, RecursionError, TokenError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise Mistake(f"{path}: is not a complete .npy file of numbers ({why})") from None
    if rows.ndim != 2 or rows.shape[1] != 325 or rows.dtype.kind not in "iu":
        raise Mistake(f"{path}: must hold rows of 325 whole numbers; it holds {rows.dtype} of shape {rows.shape}")
    if not len(rows):
        raise Mistake(f"{path}: has no rows")
    parts = [_check_npy(path, rows[start : start + AT_A_TIME], start) for start in range(0, len(rows), AT_A_TIME)]
    return sudoku.noted(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _check_npy(path: Path, rows: np.ndarray, start: int) -> tuple[np.ndarray, ...]:
    """Puzzles, solutions, orders and techniques of some rows. Raises Mistake for the first bad row."""
    rows = np.asarray(rows).astype(np.int64)
    givens = rows[:, 0]
    row, column, value, technique = np.moveaxis(rows[:, 1:].reshape(-1, 81, 4), 2, 0)

    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            raise Mistake(f"{path}: row {start + int(bad.argmax()) + 1} {why}")

    refuse((givens < 0) | (givens > 81), "does not begin with a number of givens from 0 to 81")
    refuse(np.any((row < 0) | (row > 8) | (column < 0) | (column > 8), axis=1), "has a cell outside 0 to 8")
    refuse(np.any((value < 1) | (value > 9), axis=1), "has a value outside 1 to 9")
    refuse(np.any((technique < 0) | (technique > 2**31 - 1), axis=1), "has a technique id out of range")
    order = row * 9 + column
    refuse((np.sort(order, axis=1) != np.arange(81)).any(1), "does not name every cell once")
    solutions = np.empty_like(value)
    np.put_along_axis(solutions, order, value, axis=1)
    wrong = np.zeros(len(rows), dtype=bool)
    for unit in geometry(9).units:
        wrong |= (np.sort(solutions[:, unit], axis=1) != np.arange(1, 10)).any(1)
    refuse(wrong, "has a solution with a digit twice in a row, column or box")
    given = np.arange(81) < givens[:, None]
    puzzles = np.zeros_like(solutions)
    np.put_along_axis(puzzles, order, np.where(given, value, 0), axis=1)
    return (
        puzzles.astype(np.uint8),
        solutions.astype(np.uint8),
        order.astype(np.int16),
        technique.astype(np.int32),  # one number may encode several techniques; it is kept unchanged
    )


def _read_lines(path: Path) -> tuple[NotedRows, list[str]]:
    """Solves a list of puzzles; returns the rows, and a line for each puzzle without exactly one solution."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError) as error:
        raise Mistake(f"{path}: cannot be read as text ({error})") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise Mistake(f"{path}: has no puzzles")
    n = round(len(numbered[0][1]) ** 0.5)
    for number, line in numbered:
        if n not in BOX or len(line) != n * n:
            sizes = ", ".join(str(size * size) for size in BOX)
            raise Mistake(f"{path}: row {number} has {len(line)} characters; allowed: {sizes}, the same in every row")
        if wrong := set(line) - set("." + "".join(map(str, range(n + 1)))):
            raise Mistake(f"{path}: row {number} has the character {min(wrong)!r}; allowed: 0 to {n} and .")
    board, puzzles, solutions, skipped = geometry(n), [], [], []
    with progress_bar(f"solving {path.name}", len(numbered)) as advance:
        for number, line in numbered:
            puzzle = np.array([int(c) for c in line.replace(".", "0")], dtype=np.uint8)
            solution = np.empty_like(puzzle)
            found = solve(board, puzzle, solution, NODES)
            if found == 1:
                puzzles.append(puzzle)
                solutions.append(solution)
            else:
                skipped.append(f"row {number} {WHY[found]}: {line}")
            advance(1)
    if not puzzles:
        raise Mistake(f"{path}: found no puzzle with exactly one solution among {len(numbered)}; {skipped[0]}")
    both = np.stack(puzzles), np.stack(solutions)
    return sudoku.noted(*both, *sudoku.solve_as_people_do(*both)), skipped
