"""Zebra puzzles from the pickles of Shah et al. (arXiv 2409.10502), checked item by item. Errors name the row, from 1.

An item is [tokens, table, order]. The tokens are the clues, then ANSWER, then (attribute, house, value) in the solver's
order, attributes counted from 0. Row 0 of the table is the house numbers, so attribute a is row a + 1.
"""

from pathlib import Path
from typing import Any

import numpy as np

from data import zebra
from data.plain_pickle import RefusedPickle, load, plain
from data.shards import NotedRows
from data.splits import Classes
from data.task_type import Imported
from data.zebra import ZebraConfig
from data.zebra_clues import FORMATS, PADDING, TOKENS, Clue, as_array
from data.zebra_rules import MOST_CLUES, holds
from recor_dist.core.progress import progress_bar
from recor_dist.core.setting import Mistake

AT_A_TIME = 10_000  # rows whose clues are in memory at once: they take more memory than the rest of a row


def read(path: Path, task: ZebraConfig) -> Imported:
    """Puzzles of a pickle, padded to the tables of `task`, with their clues in its tokens."""
    items = _load(path)
    N, M, columns = task.prompt_length, task.slots(), task.range_of("houses")[1]
    prompts = np.empty((len(items), N), dtype=np.uint8)
    responses = np.full((len(items), M), PADDING, dtype=np.uint8)
    orders = np.empty((len(items), M), dtype=np.int16)
    sizes = np.empty((2, len(items)), dtype=np.uint8)  # houses, attributes
    classes = []
    with progress_bar(f"reading {path.name}", len(items)) as advance:
        for start in range(0, len(items), AT_A_TIME):
            some = items[start : start + AT_A_TIME]
            clues = np.full((len(some), MOST_CLUES, 7), -1, dtype=np.int8)
            for i, item in enumerate(some, start):
                try:
                    table, order, parsed = _check_item(item, task)
                except ValueError as error:
                    raise Mistake(f"{path}: row {i + 1} {error}") from None
                responses[i].reshape(-1, columns)[: table.shape[0], : table.shape[1]] = table
                solved = set(order)
                orders[i] = [*(slot for slot in range(M) if slot not in solved), *order]
                sizes[:, i] = table.shape[1], table.shape[0] - 1
                clues[i - start, : len(parsed)] = as_array(parsed)[0]
                advance(1)
            prompts[start : start + AT_A_TIME] = FORMATS[task.tokens].write(clues, N)
            classes.append(Classes.of(zebra.keys(clues, *sizes[:, start : start + AT_A_TIME])))
    rows = NotedRows(prompts, responses, orders, {"houses": sizes[0], "attributes": sizes[1]})
    compact = [f"task.tokens={task.tokens}", f"task.prompt_length={N}"] if task.tokens != "public" else []
    return Imported(rows, Classes.concatenate(classes), "they have the same clues", task, overrides=compact)


def _load(path: Path) -> list[Any]:
    try:
        items = load(path.read_bytes())
    except OSError as error:
        raise Mistake(f"{path}: cannot be read ({error})") from None
    except RefusedPickle as refusal:
        raise Mistake(f"{path}: was not unpickled: {refusal}") from None
    if not isinstance(items, list) or not items:
        raise Mistake(f"{path}: must hold a list of puzzles")
    return items


def _check_item(item: Any, task: ZebraConfig) -> tuple[np.ndarray, list[int], list[Clue]]:
    """The table, the slots in the solver's order, the clues. Raises ValueError."""
    if not isinstance(item, list | tuple) or len(item) < 2:
        raise ValueError("is not a list of tokens, table and order")
    words, table = _check_tokens(plain(item[0])), _check_table(plain(item[1]), task)
    end = words.index("ANSWER")
    order = _check_answer(words[end + 1 :], table, task.range_of("houses")[1])
    clues = FORMATS["public"].parse(words[:end])
    _check_clues(clues, table)
    length = sum(int(FORMATS[task.tokens].sizes[kind]) for kind, _ in clues)
    if length > task.prompt_length:
        raise ValueError(f"has clues of {length} tokens; set task.prompt_length={length} or more")
    return table, order, clues


def _check_tokens(tokens: Any) -> list[str]:
    if not isinstance(tokens, list) or not all(isinstance(token, str | int) for token in tokens):
        raise ValueError("has no list of tokens")
    words = [str(token) for token in tokens]
    if words.count("ANSWER") != 1:
        raise ValueError("does not have exactly one ANSWER")
    if unknown := set(words) - set(TOKENS):
        raise ValueError(f"has the token {min(unknown)!r}, which is not one of the {len(TOKENS)}")
    return words


def _check_table(rows: Any, task: ZebraConfig) -> np.ndarray:
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise ValueError("has no table")
    m, n = len(rows) - 1, len(rows[0]) if rows else 0
    most = task.range_of("attributes")[1], task.range_of("houses")[1]
    if not (3 <= m <= most[0] and 3 <= n <= most[1]):
        raise ValueError(f"has a table of {m} attributes and {n} houses; allowed: 3 to {most[0]} and 3 to {most[1]}")
    whole = all(type(value) is int for row in rows for value in row)
    if not whole or rows[0] != list(range(n)) or any(sorted(row) != list(range(n)) for row in rows):
        raise ValueError(f"has a table whose rows do not hold 0 to {n - 1} once each, the house numbers first")
    return np.array(rows)


def _check_answer(words: list[str], table: np.ndarray, columns: int) -> list[int]:
    """The slots of the answer, in the order in which they were solved; `columns`: of the padded table."""
    m, n = len(table) - 1, table.shape[1]
    if len(words) != 3 * m * n or not all(word.isdecimal() for word in words):
        raise ValueError(f"does not list {m * n} triples of attribute, house and value after ANSWER")
    order = []
    for attribute, house, value in zip(*(map(int, words[start::3]) for start in range(3)), strict=True):
        if attribute >= m or house >= n or table[attribute + 1][house] != value:
            raise ValueError(f"answers {attribute} {house} {value}, which contradicts its table")
        order.append((attribute + 1) * columns + house)
    if len(set(order)) != m * n:
        raise ValueError("answers a cell twice")
    return order


def _check_clues(clues: list[Clue], table: np.ndarray) -> None:
    if len(clues) > MOST_CLUES:
        raise ValueError(f"has {len(clues)} clues; allowed: at most {MOST_CLUES}")
    for number, (kind, entities) in enumerate(clues, 1):
        houses = [0, 0, 0]
        for i, (row, value) in enumerate(entities):
            if row >= len(table) or value >= table.shape[1]:
                raise ValueError(f"has a clue ({number}) about something outside its table")
            houses[i] = int(np.flatnonzero(table[row] == value)[0])
        if not holds(kind, *houses, table.shape[1]):
            raise ValueError(f"has a clue ({number}) that its table contradicts")
