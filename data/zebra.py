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
from data.zebra_clues import FORMATS, PADDING, Clue, convert, letter, name, sentences
from data.zebra_rules import EQUAL, LARGEST, MOST_CLUES, NEXT_TO, NOT_EQUAL, explain_puzzles, insert_hints, make_puzzles
from recor_dist.core.config import GeneratedTaskConfig
from recor_dist.core.setting import Mistake, setting


@dataclass
class ZebraConfig(GeneratedTaskConfig):
    """Who lives where: clues about the attributes of houses in a row; the response is the table of houses."""

    reads_source: ClassVar[str] = "optionally"
    generated_only: ClassVar[tuple[str, ...]] = ("hints",)

    name: str = setting("zebra", "the task", choices=("zebra",))
    houses: str = setting("3-6", "houses: a number, or a range like 3-6")
    attributes: str = setting("3-6", "attributes: a number, or a range like 3-6")
    prompt_length: int = setting(
        455, "N: tokens of the clues; puzzles with longer clues are dropped", at_least=1, at_most=4096
    )
    tokens: str = setting(
        "public",
        "how clues are written: as in the public set, 6 to 13 tokens each, or compact, always 4",
        choices=tuple(FORMATS),
        newer=True,
    )
    hints: int = setting(
        0,
        "a training row gets 0 to this many cells of its table as further clues, as far as they fit; val and test none",
        at_least=0,
        at_most=LARGEST**2,
        newer=True,
    )

    def check(self) -> None:
        if self.tokens == "compact" and self.prompt_length % 4:
            raise Mistake(
                f"task.prompt_length={self.prompt_length}: must be a multiple of 4, the tokens of a clue with "
                f"task.tokens=compact; nearest: {-(-self.prompt_length // 4) * 4}"
            )

    def range_of(self, key: str) -> tuple[int, int]:
        """The smallest and the largest number of `houses` or `attributes`."""
        return read_range(key, getattr(self, key))

    def slots(self) -> int:
        return (self.range_of("attributes")[1] + 1) * self.range_of("houses")[1]


def read_range(key: str, text: str) -> tuple[int, int]:
    words = text.split("-")
    if len(words) > 2 or not all(word in ("3", "4", "5", "6") for word in words) or words[0] > words[-1]:
        raise Mistake(f"task.{key}={text}: must be a number from 3 to 6, or a range like 3-6")
    return int(words[0]), int(words[-1])


CHUNK = 512  # puzzles drawn at a time; a shard's rows depend on it
PATIENCE = 50  # chunks without a puzzle that fits before giving up
TRIES = 8  # draws of hints that keep a row in its split before it gets none


def vocabulary(task: ZebraConfig) -> Vocabulary:
    return FORMATS[task.tokens].vocabulary


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


def sizes(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R,) and (R,): the number of houses and of attributes."""
    return (tables[:, 0] >= 0).sum(axis=1), (tables[:, 1:, 0] >= 0).sum(axis=1)


def shard(task: ZebraConfig, split: str, random: np.random.Generator, rows: int) -> NotedRows:
    """Draws puzzles and keeps those of the split whose clues fit into the prompt."""
    houses, attributes, N = task.range_of("houses"), task.range_of("attributes"), task.prompt_length
    for_hints = random.spawn(1)[0]  # a stream of its own: hints do not change which puzzles are drawn
    parts: list[tuple[np.ndarray, ...]] = []
    have = fruitless = left_out = 0
    while have < rows:
        seeds = random.integers(0, 2**64, size=CHUNK, dtype=np.uint64)
        tables = np.empty((CHUNK, attributes[1] + 1, houses[1]), dtype=np.int8)
        clues = np.empty((CHUNK, MOST_CLUES, 7), dtype=np.int8)
        make_puzzles(seeds, houses, attributes, tables, clues)
        n, m = sizes(tables)
        tokens = FORMATS[task.tokens].lengths(clues)
        # Only the largest value in the clues tells the model how many houses there are.
        told = clues[:, :, 2::2].max(axis=(1, 2)) == n - 1
        ours = np.flatnonzero((splits(clues, n, m) == SPLITS.index(split)) & told)
        fits = tokens[ours] <= N
        keep = ours[fits][: rows - have]
        left_out += int((~fits).sum())
        tables, clues = tables[keep], clues[keep]
        if split == "train" and task.hints:
            clues = with_hints(task, for_hints, tables, clues)
        parts.append(columns(task, tables, clues))
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


def columns(task: ZebraConfig, tables: np.ndarray, clues: np.ndarray) -> tuple[np.ndarray, ...]:
    """Prompts, responses, orders, and the notes on each row: rounds of deduction, houses, attributes, clues."""
    N, M = lengths(task)
    responses = np.where(tables < 0, PADDING, tables).astype(np.uint8).reshape(-1, M)
    orders, rounds = np.empty(responses.shape, dtype=np.int16), np.empty(responses.shape, dtype=np.uint8)
    explain_puzzles(tables, clues, orders, rounds)
    counted = (*sizes(tables), (clues[:, :, 0] >= 0).sum(axis=1))
    prompts = FORMATS[task.tokens].write(clues, N)
    return prompts, responses, orders, rounds, *(number.astype(np.uint8) for number in counted)


def with_hints(task: ZebraConfig, random: np.random.Generator, tables: np.ndarray, clues: np.ndarray) -> np.ndarray:
    """The clues with m ~ U{0..hints} cells of each table as further clues, as many of them as the prompt has room for.

    With its hints, a puzzle could have exactly the clues of another one in val or test. So hints that would move it
    to another split are drawn again.
    """
    form, count = FORMATS[task.tokens], (clues[:, :, 0] >= 0).sum(axis=1)
    room = np.minimum((task.prompt_length - form.lengths(clues)) // form.sizes[EQUAL], MOST_CLUES - count)
    wanted = np.minimum(random.integers(0, task.hints + 1, len(clues)), room)
    result, waiting = clues.copy(), np.flatnonzero(wanted)
    for _ in range(TRIES):
        tried, its_tables = clues[waiting], tables[waiting]
        seeds = random.integers(0, 2**64, size=len(waiting), dtype=np.uint64)
        insert_hints(seeds, wanted[waiting], its_tables, tried)
        ours = splits(tried, *sizes(its_tables)) == SPLITS.index("train")
        result[waiting[ours]] = tried[ours]
        waiting = waiting[~ours]
    return result


# --- display and import ----------------------------------------------------------------------------------------------


def size(clues: list[Clue]) -> tuple[int, int]:
    """The number of houses and attributes that the clues name."""
    entities = [entity for _, entities in clues for entity in entities]
    return 1 + max(value for _, value in entities), max(row for row, _ in entities)


def layout(task: ZebraConfig, prompt: list[str], M: int, response: list[str] | None) -> Layout:
    """The table of houses and the clues in words. Clues may not name the last house or attribute; `response` does."""
    told = [token for token in prompt if token != PAD]
    clues, stride = FORMATS[task.tokens].parse(told), task.range_of("houses")[1]
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
    """Of a prompt token its place, or if compact, its clue and its field in it; of a slot its row and its house."""
    place = np.arange(N)
    prompt = {"clue": place // 4, "field": place % 4} if task.tokens == "compact" else {"place": place}
    row, column = np.divmod(np.arange(M), task.range_of("houses")[1])
    slots = {"row": row, "column": column}
    return {name: np.concatenate([values, np.full(M, -1)]) for name, values in prompt.items()} | {
        name: np.concatenate([np.full(N, -1), values]) for name, values in slots.items()
    }


def read_tokens(task: ZebraConfig, tokens: list[str]) -> list[str]:
    """Clues may be written in either format."""
    try:
        return convert(tokens, to=task.tokens)
    except ValueError as error:
        raise Mistake(f"is not made of clues: {error}") from None


def check_prompt(task: ZebraConfig, tokens: list[str]) -> None:
    """Raises Mistake if the tokens are not clues, or about more houses or attributes than the task has."""
    try:
        clues = FORMATS[task.tokens].parse(tokens)
    except ValueError as error:
        raise Mistake(f"is not made of clues: {error}") from None
    if not clues:
        raise Mistake("has no clues")
    houses, attributes = size(clues)
    most = read_range("houses", task.houses)[1], read_range("attributes", task.attributes)[1]
    if houses > most[0] or attributes > most[1]:
        raise Mistake(
            f"is about {houses} houses and {attributes} attributes; this model knows at most {most[0]} and {most[1]}"
        )


def read_file(task: ZebraConfig, path: Path) -> Imported:
    """Puzzles from a pickle of Shah et al., none with more houses, attributes or clues than the task has."""
    from data import zebra_files  # here, because it builds on this module

    task.check()
    return zebra_files.read(path, task)


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
    read_tokens=read_tokens,
    check_prompt=check_prompt,
    layout=layout,
    token_name=token_name,
    coordinates=coordinates,
    row_names=row_names,
)
