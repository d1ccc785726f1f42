"""Puzzles from files of others, as shards with their recorded order.

    python -m data.import_public sudoku Sudoku-train-data.npy test=Sudoku-test-data.npy
    python -m data.import_public zebra zebra-train-data.pkl test=zebra-test-data.pkl
    python -m data.import_public sudoku puzzles.txt

The first two are the files of Shah et al. (arXiv 2409.10502); the third is one puzzle a line, `.` or `0` for blank.
Without a test file, a sixteenth of all solutions is held out. What is the same as a row of val or test is left out of
train, and counted. Other settings (data.dir, data.shard_rows, task.val_rows, task.prompt_length) are those of every
command. What cannot be read is refused with its row, counted from 1.
"""

import hashlib
import itertools
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from data import sudoku, zebra
from data.plain_pickle import RefusedPickle, load, plain
from data.shards import Dataset, Manifest, NotedRows, shard_sizes, write_shard
from data.splits import SPLITS, Classes
from data.sudoku import SudokuConfig
from data.sudoku_rules import BOX, geometry, solve
from data.tasks import FORMAT
from data.vocab import Vocabulary
from data.zebra import ZebraConfig
from data.zebra_rules import LARGEST, MOST_CLUES, PADDING, holds
from recor_dist.core.command import compose
from recor_dist.core.config import Config, Mistake, digest
from recor_dist.core.files import exclusive, join, open_folder, write_atomically, write_json
from recor_dist.core.progress import progress_bar, set_up_logging

log = logging.getLogger(__name__)
AT_A_TIME = 10_000  # rows that are checked together
NODES = 100_000  # of search, for each puzzle of a list: known ones take hundreds; this many, a twentieth of a second
# Why a puzzle of a list is left out, by what `solve` found.
WHY = {0: "has no solution", 2: "has several solutions", -1: f"is too hard to check in {NODES:,} nodes of search"}


# --- Sudoku ----------------------------------------------------------------------------------------------------------


def read_sudoku(path: Path) -> tuple[NotedRows, Classes, list[str]]:
    """Puzzles of a file, the class of each, and a line for each that was left out."""
    rows, left_out = (_read_npy(path), []) if path.suffix == ".npy" else _read_lines(path)
    some = (slice(start, start + AT_A_TIME) for start in range(0, len(rows), AT_A_TIME))
    classes = Classes.concatenate(Classes.of(sudoku.keys(rows.prompts[at], rows.responses[at])) for at in some)
    return rows, classes, left_out


def _read_npy(path: Path) -> NotedRows:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise Mistake(f"{path}: is not a whole .npy file of numbers ({str(error).splitlines()[0]})") from None
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 325 or rows.dtype.kind not in "iu":
        found = f"{rows.dtype} of shape {rows.shape}" if isinstance(rows, np.ndarray) else "no array"
        raise Mistake(f"{path}: must hold rows of 325 whole numbers, and holds {found}")
    if not len(rows):
        raise Mistake(f"{path}: has no rows")
    parts = [_check_npy(path, rows[start : start + AT_A_TIME], start) for start in range(0, len(rows), AT_A_TIME)]
    return sudoku.noted(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _check_npy(path: Path, rows: np.ndarray, start: int) -> tuple[np.ndarray, ...]:
    """Puzzles, solutions, orders and techniques of some rows, or a Mistake that names the first bad one."""
    rows = np.asarray(rows).astype(np.int64)
    givens = rows[:, 0]
    row, column, value, technique = np.moveaxis(rows[:, 1:].reshape(-1, 81, 4), 2, 0)

    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            raise Mistake(f"{path}: row {start + int(bad.argmax()) + 1} {why}")

    refuse((givens < 0) | (givens > 81), "does not begin with a number of givens from 0 to 81")
    refuse(((row < 0) | (row > 8) | (column < 0) | (column > 8)).any(1), "has a cell outside 0 to 8")
    refuse(((value < 1) | (value > 9)).any(1), "has a value outside 1 to 9")
    refuse((technique < 0).any(1) | (technique > 2**31 - 1).any(1), "has a technique that is no id")
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
        technique.astype(np.int32),  # a file may code several techniques in one number: it is kept
    )


def _read_lines(path: Path) -> tuple[NotedRows, list[str]]:
    """Solves a list of puzzles; those with no solution, several, or too long a search are left out and named."""
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
    board, puzzles, solutions, left_out = geometry(n), [], [], []
    with progress_bar(f"solving {path.name}", len(numbered)) as advance:
        for number, line in numbered:
            puzzle = np.array([int(c) for c in line.replace(".", "0")], dtype=np.uint8)
            solution = np.empty_like(puzzle)
            found = solve(board, puzzle, solution, NODES)
            if found == 1:
                puzzles.append(puzzle)
                solutions.append(solution)
            else:
                left_out.append(f"row {number} {WHY[found]}: {line}")
            advance(1)
    if not puzzles:
        raise Mistake(f"{path}: none of its {len(numbered)} puzzles was found to have one solution; {left_out[0]}")
    both = np.stack(puzzles), np.stack(solutions)
    return sudoku.noted(*both, *sudoku.solve_as_people_do(*both)), left_out


# --- Zebra -----------------------------------------------------------------------------------------------------------


def read_zebra(path: Path, prompt_length: int) -> tuple[NotedRows, Classes]:
    """Puzzles of a pickle, padded to 7 x 6 tables, and the class of each."""
    try:
        items = load(path.read_bytes())
    except OSError as error:
        raise Mistake(f"{path}: cannot be read ({error})") from None
    except RefusedPickle as refusal:
        raise Mistake(f"{path}: was not unpickled: {refusal}") from None
    if not isinstance(items, list) or not items:
        raise Mistake(f"{path}: must hold a list of puzzles")
    N, M = prompt_length, (LARGEST + 1) * LARGEST
    prompts = np.full((len(items), N), PADDING, dtype=np.uint8)
    responses = np.full((len(items), M), PADDING, dtype=np.uint8)
    orders = np.empty((len(items), M), dtype=np.int16)
    sizes = np.empty((2, len(items)), dtype=np.uint8)  # houses, attributes
    ids = {token: i for i, token in enumerate(zebra.TOKENS)}
    classes = []
    with progress_bar(f"reading {path.name}", len(items)) as advance:
        for start in range(0, len(items), AT_A_TIME):
            some = items[start : start + AT_A_TIME]
            clues = np.full((len(some), MOST_CLUES, 7), -1, dtype=np.int8)  # more than all else of a row: not for all
            for i, item in enumerate(some, start):
                try:
                    words, table, order = _check_zebra(item, N)
                    parsed = zebra.parse(words)
                    _check_clues(parsed, table)
                except ValueError as error:
                    raise Mistake(f"{path}: row {i + 1} {error}") from None
                prompts[i, : len(words)] = [ids[word] for word in words]
                responses[i].reshape(LARGEST + 1, LARGEST)[: table.shape[0], : table.shape[1]] = table
                solved = set(order)
                orders[i] = [*(slot for slot in range(M) if slot not in solved), *order]
                sizes[:, i] = table.shape[1], table.shape[0] - 1
                for clue, (kind, entities) in zip(clues[i - start], parsed, strict=False):
                    clue[: 1 + 2 * len(entities)] = [kind, *(number for entity in entities for number in entity)]
                advance(1)
            classes.append(Classes.of(zebra.keys(clues, *sizes[:, start : start + AT_A_TIME])))
    notes = {"houses": sizes[0], "attributes": sizes[1]}
    return NotedRows(prompts, responses, orders, notes), Classes.concatenate(classes)


def _check_zebra(item: Any, N: int) -> tuple[list[str], np.ndarray, list[int]]:
    """The words of the clues, the table, and the slots in the order in which they were solved."""
    if not isinstance(item, list | tuple) or len(item) < 2:
        raise ValueError("is not a list of tokens, table and order")
    tokens, rows = plain(item[0]), plain(item[1])
    if not isinstance(tokens, list) or not all(isinstance(token, str | int) for token in tokens):
        raise ValueError("has no list of tokens")
    words = [str(token) for token in tokens]
    if words.count("ANSWER") != 1:
        raise ValueError("does not have ANSWER once")
    if unknown := set(words) - set(zebra.TOKENS):
        raise ValueError(f"has the token {min(unknown)!r}, which is none of the {len(zebra.TOKENS)}")
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise ValueError("has no table")
    m, n = len(rows) - 1, len(rows[0]) if rows else 0
    if not (3 <= m <= LARGEST and 3 <= n <= LARGEST):
        raise ValueError(f"has a table of {m} attributes and {n} houses; allowed: 3 to {LARGEST}")
    whole = all(type(value) is int for row in rows for value in row)
    if not whole or rows[0] != list(range(n)) or any(sorted(row) != list(range(n)) for row in rows):
        raise ValueError(f"has a table whose rows do not hold 0 to {n - 1} once each, the house numbers first")
    answer = words[words.index("ANSWER") + 1 :]
    if len(answer) != 3 * m * n or not all(word.isdecimal() for word in answer):
        raise ValueError(f"does not give {m * n} times attribute, house and value behind ANSWER")
    order = []
    for attribute, house, value in zip(*(map(int, answer[start::3]) for start in range(3)), strict=True):
        if attribute >= m or house >= n or rows[attribute + 1][house] != value:
            raise ValueError(f"answers {attribute} {house} {value}, which the table does not say")
        order.append((attribute + 1) * LARGEST + house)
    if len(set(order)) != m * n:
        raise ValueError("answers a cell twice")
    clues = words[: words.index("ANSWER")]
    if len(clues) > N:
        raise ValueError(f"has clues of {len(clues)} tokens; set task.prompt_length={len(clues)} or more")
    return clues, np.array(rows), order


def _check_clues(clues: Sequence[tuple[int, list[tuple[int, int]]]], table: np.ndarray) -> None:
    if len(clues) > MOST_CLUES:
        raise ValueError(f"has {len(clues)} clues; at most {MOST_CLUES} are read")
    for number, (kind, entities) in enumerate(clues, 1):
        houses = [0, 0, 0]
        for i, (row, value) in enumerate(entities):
            if row >= len(table) or value >= table.shape[1]:
                raise ValueError(f"has a clue ({number}) about something that is not in its table")
            houses[i] = int(np.flatnonzero(table[row] == value)[0])
        if not holds(kind, *houses, table.shape[1]):
            raise ValueError(f"has a clue ({number}) that its table contradicts")


# --- the command -----------------------------------------------------------------------------------------------------


def import_files(config: Config, file: Path, test: Path | None) -> Dataset:
    """Reads, checks and cuts the files into a data set; an equal one that is there is written again."""
    files = [file] + ([test] if test else [])
    read, classes, left_out = [], [], []
    for path in files:
        if isinstance(config.task, ZebraConfig):
            rows, known = read_zebra(path, config.task.prompt_length)
        else:
            rows, known, skipped = read_sudoku(path)
            left_out += [f"{path.name}: {line}" for line in skipped]
        read.append(rows)
        classes.append(known)
    if len({rows.prompts.shape[1] for rows in read}) > 1:
        raise Mistake(f"{test}: its puzzles have another size than those of {file}")
    N, M = read[0].prompts.shape[1], read[0].responses.shape[1]
    cut = config.data.shard_rows
    if isinstance(config.task, ZebraConfig):
        task, tokens, same = config.task, zebra.vocabulary(config.task).tokens, "they have the same clues"
    else:
        task = SudokuConfig(size=round(N**0.5))
        tokens = sudoku.vocabulary(task).tokens
        same = f"but for the names of digits, they have the same {'puzzles' if task.size == 4 else 'solutions'}"
    chosen = _hold_out(read, classes, config.task.val_rows, file, same)
    sha = hashlib.sha256()
    for rows in chosen.values():
        for column in (rows.prompts, rows.responses, rows.orders):
            sha.update(np.ascontiguousarray(column))
    spec = {"format": FORMAT, "task": task.name, "source": sha.hexdigest(), "N": N, "M": M, "shard_rows": cut}
    uri = join(config.data.dir, f"{task.name}-{digest(spec)[:12]}")
    folder = open_folder(uri, create=True)
    splits: dict[str, list] = {}
    with exclusive(folder, "preparing data", wait=True):
        for split, rows in chosen.items():
            starts = np.cumsum([0, *shard_sizes(len(rows), cut)])
            splits[split] = [
                write_shard(folder, spec, split, index, _slice(rows, np.arange(start, end)))
                for index, (start, end) in enumerate(itertools.pairwise(starts))
            ]
        if left_out:
            write_atomically(folder, "left_out.txt", "".join(f"{line}\n" for line in left_out).encode())
            log.warning("%d puzzles were left out; left_out.txt names them: %s", len(left_out), "; ".join(left_out[:5]))
        manifest = Manifest(spec, N, M, list(Vocabulary(tokens).tokens), "recorded", splits)
        write_json(folder, "manifest.json", asdict(manifest))
    return Dataset(uri, manifest, "python -m data.import_public")


def _hold_out(
    read: list[NotedRows], classes: list[Classes], val_rows: int, file: Path, same: str
) -> dict[str, NotedRows]:
    """Validation is held out of the first file, and so is the test where there is no second; the rest is train, without
    the rows that have their like in val or test. `same`: what such rows have in common."""
    split, mark = classes[0]
    if len(read) == 1:
        in_test = split == SPLITS.index("test")  # with every row that is like one of them
        test, copies = _slice(read[0], np.flatnonzero(in_test)), 0
    else:
        in_test = np.isin(mark, classes[1].mark)
        test, copies = read[1], int(in_test.sum())
    val = np.flatnonzero((split == SPLITS.index("val")) & ~in_test)[:val_rows]
    in_val = np.isin(mark, mark[val])
    result = {"train": _slice(read[0], np.flatnonzero(~in_val & ~in_test)), "val": _slice(read[0], val), "test": test}
    for name, count in {"val": int(in_val.sum()) - len(val), "test": copies}.items():
        if count:
            log.warning("%s: %s rows were left out of train: %s as rows of %s", file, f"{count:,}", same, name)
    for split, rows in result.items():
        if not len(rows):
            raise Mistake(f"{file}: has too few different puzzles to hold out a {split} split; give more, or test=FILE")
    return result


def _slice(rows: NotedRows, index: np.ndarray) -> NotedRows:
    notes = {name: column[index] for name, column in rows.notes.items()}
    return NotedRows(rows.prompts[index], rows.responses[index], rows.orders[index], notes)


def main(words: list[str]) -> None:
    if len(words) < 2 or words[0] not in ("sudoku", "zebra") or "=" in words[1]:
        raise Mistake("write python -m data.import_public sudoku|zebra FILE [test=FILE] [key=value ...]")
    tests = [word.removeprefix("test=") for word in words[2:] if word.startswith("test=")]
    others = [word for word in words[2:] if not word.startswith("test=")]
    config = compose([f"task={words[0]}", "scale=paper", *others])
    set_up_logging()
    data = import_files(config, Path(words[1]), Path(tests[-1]) if tests else None)
    print(f"{data.uri}: " + ", ".join(f"{data.rows_of(split):,} {split}" for split in SPLITS) + " rows")
    size = f" task.size={round(data.shape.N**0.5)}" if words[0] == "sudoku" else ""
    print(f"train with: python -m recor_dist.run task={words[0]}{size} data.source={data.uri}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(2)
