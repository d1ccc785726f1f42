"""The user's own rows: a Parquet or JSONL file with `prompt` and `response`, or a folder with one file per split.

Strings are read as characters, lists as tokens. An optional `order` lists the slots of a response in the order in which
they are best filled. A single file is split by a hash of the prompt; the files train, val and test of a folder are used
unchanged. An error names the row, counted from 1.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from data.splits import SPLITS, split_of
from data.task_type import TaskType
from data.vocab import PAD, Vocabulary
from recor_dist.core.config import TaskConfig
from recor_dist.core.files import open_folder, split_name
from recor_dist.core.messages import Rows
from recor_dist.core.setting import Mistake, setting


@dataclass
class CustomConfig(TaskConfig):
    """Your own Parquet or JSONL file with `prompt` and `response`: `task=custom data.source=PATH`."""

    reads_source: ClassVar[str] = "always"

    name: str = setting("custom", "the task", choices=("custom",))
    prompt_length: int | None = setting(None, "N; null takes the longest prompt of the source", at_least=0)
    response_length: int | None = setting(None, "M; null takes the longest response of the source", at_least=1)
    max_length: int = setting(2048, "a longer prompt or response is refused", at_least=1, placement=True)

    def slots(self) -> int | None:
        return self.response_length


ENDINGS = (".parquet", ".jsonl")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    """One row of a source, before token ids."""

    prompt: tuple[str, ...]
    response: tuple[str, ...]
    order: tuple[int, ...] | None

    @property
    def key(self) -> bytes:
        return "\x1f".join(self.prompt).encode(errors="surrogatepass")


@dataclass(frozen=True)
class Source:
    """A source after reading, checking and splitting."""

    examples: dict[str, list[Example]]
    checksum: str
    vocabulary: Vocabulary
    N: int
    M: int
    ordered: bool

    def rows(self, split: str, start: int, count: int) -> Rows:
        """Rows start .. start + count - 1 of a split as token ids, padded."""
        examples = self.examples[split][start : start + count]
        prompts, responses = (
            np.stack([self.vocabulary.encode(tokens, length) for tokens in column])
            for column, length in (([e.prompt for e in examples], self.N), ([e.response for e in examples], self.M))
        )
        orders = np.stack([_with_pads_first(e, self.M) for e in examples]) if self.ordered else None
        return Rows(prompts, responses, orders)


def read_source(task: CustomConfig, path: str) -> Source:
    """Reads data.source. Raises Mistake, which names the row, for anything malformed."""
    files = _files(path)
    sha = hashlib.sha256()
    examples: dict[str, list[Example]] = {}
    for split, file in files.items():
        examples[split] = [_example(row, f"row {i} of {file.name}", task) for i, row in _read(file)]
        if not examples[split]:
            raise Mistake(f"data.source: {file.name} has no rows")
        for example in examples[split]:
            sha.update(json.dumps([split, example.prompt, example.response, example.order]).encode())
    examples = _hold_out(examples, path)
    everything = [example for split in SPLITS for example in examples[split]]
    N = max(len(e.prompt) for e in everything) if task.prompt_length is None else task.prompt_length
    M = max(len(e.response) for e in everything) if task.response_length is None else task.response_length
    if M == 0:
        raise Mistake(f"data.source: every response of {path} is empty")
    tokens = {token for e in everything for token in e.prompt + e.response}
    if PAD in tokens:
        raise Mistake(
            f"data.source: the token {PAD} of {path} is reserved; rename it (shorter rows are padded automatically)"
        )
    padded = any(len(e.prompt) < N or len(e.response) < M for e in everything)
    with_order = sum(e.order is not None for e in everything)
    if 0 < with_order < len(everything):
        raise Mistake(f"data.source: {len(everything) - with_order} rows of {path} lack the `order` that others have")
    vocabulary = Vocabulary((*sorted(tokens), *((PAD,) if padded else ())))
    return Source(examples, sha.hexdigest(), vocabulary, N, M, ordered=with_order > 0)


@dataclass(frozen=True)
class _File:
    folder: fs.SubTreeFileSystem
    name: str


def _files(path: str) -> dict[str, _File]:
    """The file of each split, or one file under `train`."""
    parent, name = split_name(path)
    beside = open_folder(parent)
    kind = beside.get_file_info(name).type
    if kind == fs.FileType.NotFound:
        raise Mistake(f"data.source: {path} does not exist")
    if kind == fs.FileType.File:
        if not name.endswith(ENDINGS):
            raise Mistake(f"data.source: {path} must end in {' or '.join(ENDINGS)}")
        return {"train": _File(beside, name)}
    folder = open_folder(path)
    found = {}
    for split in SPLITS:
        names = [f"{split}{ending}" for ending in ENDINGS if folder.get_file_info(f"{split}{ending}").is_file]
        if len(names) > 1:
            raise Mistake(f"data.source: {path} holds both {names[0]} and {names[1]}; keep one")
        if names:
            found[split] = _File(folder, names[0])
    if "train" not in found:
        raise Mistake(f"data.source: the folder {path} needs a train.parquet or train.jsonl")
    return found


def _read(file: _File) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file with their numbers; for JSONL, line numbers."""
    with file.folder.open_input_file(file.name) as stream:
        if file.name.endswith(".jsonl"):
            yield from _read_jsonl(stream.read(), file.name)
            return
        try:
            table = pq.read_table(stream, page_checksum_verification=True)
            names = table.column_names
            table = table.select([column for column in ("prompt", "response", "order") if column in names])
            table.validate(full=True)
            rows = [row for batch in table.to_batches() for row in batch.to_pylist()]
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:  # a decoding error is a ValueError
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise Mistake(f"data.source: {file.name} is not a Parquet file ({why})") from None
    for column in ("prompt", "response"):
        if column not in names:
            raise Mistake(f"data.source: {file.name} has no column `{column}`; it has {', '.join(names)}")
    yield from enumerate(rows, 1)


def _read_jsonl(content: bytes, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise Mistake(f"data.source: row {number} of {name} is not JSON") from None
        if not isinstance(row, dict):
            raise Mistake(f"data.source: row {number} of {name} is not an object with prompt and response")
        for column in ("prompt", "response"):
            if column not in row:
                raise Mistake(
                    f"data.source: row {number} of {name} has no `{column}`; it has {', '.join(row) or 'nothing'}"
                )
        yield number, row


def _example(row: dict[str, Any], where: str, task: CustomConfig) -> Example:
    limits = {"prompt": task.prompt_length, "response": task.response_length}
    read = {}
    for column, limit in limits.items():
        tokens = read[column] = _tokens(row[column], f"{column} in {where}")
        name, allowed = ("max_length", task.max_length) if limit is None else (f"{column}_length", limit)
        if len(tokens) > allowed:
            raise Mistake(
                f"data.source: the {column} in {where} has {len(tokens)} tokens, over task.{name}={allowed}; "
                "raise that, or shorten the row"
            )
    order = row.get("order")
    slots = len(read["response"])
    whole = isinstance(order, list) and all(isinstance(slot, int) for slot in order)
    if order is not None and not (whole and sorted(order) == list(range(slots))):
        raise Mistake(f"data.source: the order in {where} does not name each of its {slots} slots once, from 0")
    return Example(read["prompt"], read["response"], None if order is None else tuple(order))


def _tokens(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        raise Mistake(f"data.source: the {where} is null")
    if isinstance(value, str):
        return tuple(value)
    if isinstance(value, list) and all(isinstance(t, str | int) and not isinstance(t, bool) for t in value):
        return tuple(str(token) for token in value)
    raise Mistake(f"data.source: the {where} is neither a string nor a list of strings or whole numbers")


def _hold_out(examples: dict[str, list[Example]], path: str) -> dict[str, list[Example]]:
    """Fills the splits without a file from train, by a hash of the prompt."""
    missing = [split for split in SPLITS if split not in examples]
    split = split_of(e.key for e in examples["train"])
    held = {name: [e for e, s in zip(examples["train"], split, strict=True) if SPLITS[s] == name] for name in missing}
    kept = [e for e, s in zip(examples["train"], split, strict=True) if SPLITS[s] not in missing]
    for name, rows in {**held, "train": kept}.items():
        if not rows:
            raise Mistake(
                f"data.source: {path} has too few different prompts for a {name} split; "
                "give a folder with train, val and test files"
            )
    result = {**examples, **held, "train": kept}
    for other in ("val", "test"):
        shared = {e.key for e in result["train"]} & {e.key for e in result[other]}
        if shared:
            log.warning("data.source: %d prompts of %s are in train as well", len(shared), other)
    return result


def _with_pads_first(example: Example, M: int) -> np.ndarray:
    """PAD slots need no deduction, so they come first, in reading order."""
    assert example.order is not None
    return np.array([*range(len(example.response), M), *example.order], dtype=np.int16)


TASK = TaskType(schema=CustomConfig, name="custom", title="Custom rows", read_source=read_source)
