"""Zebra puzzles: clues about houses in a row; the response is the table of houses, in the order of deduction."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data.layouts import Layout
from data.shards import NotedRows
from data.splits import SPLITS, split_of
from data.task_type import Imported, TaskType
from data.vocab import PAD, Vocabulary
from data.zebra_rules import ANSWER, ENTITIES, EQUAL, KINDS, MOST_CLUES, NEXT_TO, NOT_EQUAL, PADDING, make_puzzles
from recor_dist.core.config import GeneratedTaskConfig
from recor_dist.core.setting import Mistake, setting


@dataclass
class ZebraConfig(GeneratedTaskConfig):
    """Who lives where: clues about the attributes of houses in a row; the response is the table of houses."""

    reads_source: ClassVar[str] = "optionally"

    name: str = setting("zebra", "the task", choices=("zebra",))
    houses: str = setting("3-6", "houses: a number, or a range like 3-6")
    attributes: str = setting("3-6", "attributes: a number, or a range like 3-6")
    prompt_length: int = setting(
        455, "N: tokens of the clues; puzzles with longer clues are dropped", at_least=1, at_most=4096
    )

    def range_of(self, key: str) -> tuple[int, int]:
        """The smallest and the largest number of `houses` or `attributes`."""
        words = getattr(self, key).split("-")
        if len(words) > 2 or not all(word in ("3", "4", "5", "6") for word in words) or words[0] > words[-1]:
            raise Mistake(f"task.{key}={getattr(self, key)}: must be a number from 3 to 6, or a range like 3-6")
        return int(words[0]), int(words[-1])

    def slots(self) -> int:
        return (self.range_of("attributes")[1] + 1) * self.range_of("houses")[1]


CHUNK = 512  # puzzles drawn at a time; a shard's rows depend on it
PATIENCE = 50  # chunks without a puzzle that fits before giving up
TOKENS = (*"012345", *KINDS, "LHS", "RHS", "c", "n", "CLUE_END", "ANSWER")  # the 19 of the public set


def vocabulary(_: ZebraConfig) -> Vocabulary:
    return Vocabulary((*TOKENS, PAD))


assert TOKENS[ANSWER] == "ANSWER"
assert len(TOKENS) == PADDING


def lengths(task: ZebraConfig) -> tuple[int, int]:
    """N and M."""
    return task.prompt_length, task.slots()


def keys(clues: np.ndarray, houses: np.ndarray, attributes: np.ndarray) -> Iterator[bytes]:
    """The key that decides each puzzle's split: its clues, whatever their order and the order of symmetric sides.

    clues (R, most, 7), -1 beyond the last.
    """
    clues = clues.copy()
    symmetric = np.isin(clues[:, :, 0], (EQUAL, NOT_EQUAL, NEXT_TO))
    swap = symmetric & (clues[:, :, 1] * 8 + clues[:, :, 2] > clues[:, :, 3] * 8 + clues[:, :, 4])
    clues[swap] = clues[swap][:, [0, 3, 4, 1, 2, 5, 6]]
    codes = np.zeros(clues.shape[:2], dtype=np.int32)  # one number per clue, 0 for none
    for place in range(clues.shape[2]):
        codes = codes * 8 + clues[:, :, place] + 1
    codes.sort(axis=1)
    listed = np.concatenate([houses[:, None], attributes[:, None], codes], axis=1)
    return (key[key > 0].astype("<i8").tobytes() for key in listed)


def splits(clues: np.ndarray, houses: np.ndarray, attributes: np.ndarray) -> np.ndarray:
    """The split of each puzzle."""
    return split_of(keys(clues, houses, attributes))


def shard(task: ZebraConfig, split: str, random: np.random.Generator, rows: int) -> NotedRows:
    """Draws puzzles and keeps those of the split whose clues fit into the prompt."""
    houses, attributes = task.range_of("houses"), task.range_of("attributes")
    N, M = lengths(task)
    parts: list[tuple[np.ndarray, ...]] = []
    have = fruitless = left_out = 0
    while have < rows:
        seeds = random.integers(0, 2**64, size=CHUNK, dtype=np.uint64)
        tables = np.empty((CHUNK, attributes[1] + 1, houses[1]), dtype=np.int8)
        clues = np.empty((CHUNK, MOST_CLUES, 7), dtype=np.int8)
        prompts = np.empty((CHUNK, N), dtype=np.uint8)
        tokens = np.empty(CHUNK, dtype=np.int64)
        orders, rounds = np.empty((CHUNK, M), dtype=np.int16), np.empty((CHUNK, M), dtype=np.uint8)
        make_puzzles(seeds, houses, attributes, tables, clues, prompts, tokens, orders, rounds)
        n, m = (tables[:, 0] >= 0).sum(axis=1), (tables[:, 1:, 0] >= 0).sum(axis=1)
        # Only the largest value in the clues tells the model how many houses there are.
        told = clues[:, :, 2::2].max(axis=(1, 2)) == n - 1
        ours = np.flatnonzero((splits(clues, n, m) == SPLITS.index(split)) & told)
        fits = tokens[ours] <= N
        keep = ours[fits][: rows - have]
        left_out += int((~fits).sum())
        responses = np.where(tables < 0, PADDING, tables).astype(np.uint8).reshape(CHUNK, M)
        counts = (clues[:, :, 0] >= 0).sum(axis=1).astype(np.uint8)
        columns = (prompts, responses, orders, rounds, n.astype(np.uint8), m.astype(np.uint8), counts)
        parts.append(tuple(column[keep] for column in columns))
        have += len(keep)
        fruitless = 0 if len(keep) else fruitless + 1
        if fruitless == PATIENCE:
            raise Mistake(
                f"task.prompt_length={N}: none of {PATIENCE * CHUNK:,} puzzles fits; the last {CHUNK} had "
                f"{tokens.min()} to {tokens.max()} tokens"
            )
    prompts, responses, orders, *notes = (np.concatenate(column) for column in zip(*parts, strict=True))
    names = ("rounds", "houses", "attributes", "clues")
    return NotedRows(prompts, responses, orders, dict(zip(names, notes, strict=True)), left_out)


# --- clues as text ---------------------------------------------------------------------------------------------------


def parse(tokens: list[str]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Clues from their tokens: (kind, entities), an entity a (row, value). Raises ValueError for what is not a clue."""
    clues = []
    while tokens:
        if "CLUE_END" not in tokens:
            raise ValueError("the last clue has no CLUE_END")
        end = tokens.index("CLUE_END")
        clue, tokens = tokens[:end], tokens[end + 1 :]
        text = " ".join(clue)
        if len(clue) < 2 or clue[0] not in KINDS or clue[1] != "LHS":
            raise ValueError(f"`{text}` does not begin with the kind of a clue and LHS")
        kind = KINDS.index(clue[0])
        right = clue.index("RHS") if "RHS" in clue else len(clue)
        left_side, right_side = clue[2:right], clue[right + 1 :]
        if (len(left_side), len(right_side)) != (3, 3 * (int(ENTITIES[kind]) - 1)):
            raise ValueError(f"`{text}` does not have the entities of a clue `{clue[0]}`")
        words = left_side + right_side
        entities = []
        for letter, attribute, value in zip(words[::3], words[1::3], words[2::3], strict=True):
            known = letter == "c" or (letter, attribute) == ("n", "0")
            if not known or not attribute.isdecimal() or not value.isdecimal():
                raise ValueError(f"`{letter} {attribute} {value}` is not an entity")
            entities.append((0 if letter == "n" else int(attribute) + 1, int(value)))
        clues.append((kind, entities))
    return clues


# --- display and import ----------------------------------------------------------------------------------------------

SENTENCES = {
    "=": "{} and {} are in the same house",
    "!=": "{} and {} are in different houses",
    "nbr": "{} and {} are neighbours",
    "ends": "{} is in the first or the last house",
    "immediate-left": "{} is immediately left of {}",
    "left-of": "{} is somewhere left of {}",
    "inbetween": "{}, {} and {} are in this order from left to right",
}


def sentences(clues: list[tuple[int, list[tuple[int, int]]]]) -> list[str]:
    """Clues in words. The values of attribute A are a0, a1, ..., those of B b0, b1, ...; houses count from 1."""
    return [SENTENCES[KINDS[kind]].format(*(name(row, value) for row, value in entities)) for kind, entities in clues]


def name(row: int, value: int) -> str:
    """The display name of an entity."""
    return f"house {value + 1}" if row == 0 else f"{letter(row).lower()}{value}"


def letter(row: int) -> str:
    """The name of the attribute in a row of the table."""
    return "ABCDEF"[row - 1]


def size(clues: list[tuple[int, list[tuple[int, int]]]]) -> tuple[int, int]:
    """The number of houses and attributes that the clues name."""
    entities = [entity for _, entities in clues for entity in entities]
    return 1 + max(value for _, value in entities), max(row for row, _ in entities)


def layout(task: ZebraConfig, prompt: list[str], M: int, response: list[str] | None) -> Layout:
    """The table of houses and the clues in words. Clues may not name the last house or attribute; `response` does."""
    told = [token for token in prompt if token != PAD]
    clues, stride = parse(told), task.range_of("houses")[1]
    houses, attributes = size(clues)
    for slot, token in enumerate(response or []):
        if token != PAD:
            houses, attributes = max(houses, slot % stride + 1), max(attributes, slot // stride)
    return Layout(
        "table",
        told,
        rows=attributes + 1,
        columns=houses,
        stride=stride,
        row_names=row_names(task)[: attributes + 1],
        free=[s for s in range(M) if s < stride or s // stride > attributes or s % stride >= houses],
        clues=[
            {"text": text, "about": [list(entity) for entity in entities]}
            for text, (_, entities) in zip(sentences(clues), clues, strict=True)
        ],
    )


def row_names(task: ZebraConfig) -> list[str]:
    return ["house", *(letter(row) for row in range(1, task.range_of("attributes")[1] + 1))]


def token_name(task: ZebraConfig, slot: int, token: str) -> str:
    """House numbers count from 1; the values of attribute A are a0, a1, ..."""
    if not token.isdecimal():
        return token
    row = slot // task.range_of("houses")[1]
    return str(int(token) + 1) if row == 0 else name(row, int(token))


def coordinates(task: ZebraConfig, N: int, M: int) -> dict[str, np.ndarray]:
    row, column = np.divmod(np.arange(M), task.range_of("houses")[1])
    prompt, no_place = np.full(N, -1), np.full(M, -1)
    return {
        "place": np.concatenate([np.arange(N), no_place]),
        "row": np.concatenate([prompt, row]),
        "column": np.concatenate([prompt, column]),
    }


def check_prompt(task: ZebraConfig, tokens: list[str]) -> None:
    """Raises Mistake if the tokens are not clues, or about more houses or attributes than the task has."""
    try:
        clues = parse(tokens)
    except ValueError as error:
        raise Mistake(f"is not made of clues: {error}") from None
    if not clues:
        raise Mistake("has no clues")
    houses, attributes = size(clues)
    most = task.range_of("houses")[1], task.range_of("attributes")[1]
    if houses > most[0] or attributes > most[1]:
        raise Mistake(
            f"is about {houses} houses and {attributes} attributes; this model knows at most {most[0]} and {most[1]}"
        )


def read_file(path: Path, prompt_length: int) -> Imported:
    """Puzzles from a pickle of Shah et al. whose clues have at most `prompt_length` tokens."""
    from data import zebra_files  # here, because it builds on this module

    return zebra_files.read(path, prompt_length)


TASK = TaskType(
    schema=ZebraConfig,
    name="Zebra",
    title="Zebra",
    vocabulary=vocabulary,
    lengths=lengths,
    shard=shard,
    read_file=read_file,
    size_settings="task.houses and task.attributes",
    order="recorded",
    slow=True,
    check_prompt=check_prompt,
    layout=layout,
    token_name=token_name,
    coordinates=coordinates,
    row_names=row_names,
)
