"""Parquet shards and their manifest: how rows are stored, and how a bad shard is detected.

A data set is a folder (any URI that pyarrow supports) of shards and a manifest.json that is written last:

    train-00000.parquet ...   val-00000.parquet   test-00000.parquet   manifest.json

Checksums are over decoded rows, not over file bytes, which differ between writers. Every shard also contains its own
description, so a shard of another configuration is recognized and a lost manifest can be rebuilt.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from data.row_order import RowOrder
from data.vocab import Vocabulary
from recor_dist.core.config import digest
from recor_dist.core.files import open_folder, read_bytes, write_atomically, write_json
from recor_dist.core.messages import Rows, Shape
from recor_dist.core.sealed import Damaged, open_file, seal_file
from recor_dist.core.setting import Mistake

KEY = b"recor_dist"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class NotedRows(Rows):
    """Rows with notes on each, stored in extra columns that training never reads."""

    notes: dict[str, np.ndarray] = field(default_factory=dict)  # name -> (R,) or (R, width), any integers
    left_out: int = 0  # valid candidates that were too long


class BadShard(Mistake):
    """A shard that cannot be used. The message names the file and what is wrong with it."""


@dataclass(frozen=True)
class ShardEntry:
    """A shard as the manifest lists it."""

    file: str
    rows: int
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """What a data set holds."""

    spec: dict  # task, parameters, seed and shard size; the rows are a pure function of it
    N: int
    M: int
    vocabulary: list[str]
    order: str | None  # the known order: "reversed", "recorded" in the shards, or None
    splits: dict[str, list[ShardEntry]]

    @property
    def checksum(self) -> str:
        return digest(asdict(self))

    def write(self, folder: fs.SubTreeFileSystem) -> None:
        write_json(folder, MANIFEST, seal_file(asdict(self)))

    @staticmethod
    def read(folder: fs.SubTreeFileSystem) -> "Manifest":
        """The manifest in a folder. Raises FileNotFoundError, or Damaged."""
        content = open_file(read_bytes(folder, MANIFEST))
        try:
            splits = {split: [ShardEntry(**entry) for entry in entries] for split, entries in content["splits"].items()}
            return Manifest(**{**content, "splits": splits})
        except (KeyError, TypeError, AttributeError):
            raise Damaged("it is incomplete") from None


class ShardFolder(Protocol):
    """What a data set needs from the place where its shards are."""

    def open_input_file(self, name: str) -> pa.NativeFile: ...


def shard_name(split: str, index: int) -> str:
    return f"{split}-{index:05d}.parquet"


def checksum(rows: Rows) -> str:
    """SHA-256 of decoded rows, independent of the file format and of the integer type."""
    sha = hashlib.sha256()
    for array in (rows.prompts, rows.responses, rows.orders):
        if array is not None:
            sha.update(repr(array.shape).encode() + np.ascontiguousarray(array, dtype="<u4").tobytes())
    return sha.hexdigest()


def write_shard(folder: fs.SubTreeFileSystem, spec: dict, split: str, index: int, rows: Rows) -> ShardEntry:
    """Writes a shard. Its file appears only once it is complete."""
    notes, left_out = (rows.notes, rows.left_out) if isinstance(rows, NotedRows) else ({}, 0)
    columns = {"prompt": rows.prompts, "response": rows.responses, "order": rows.orders, **notes}
    entry = ShardEntry(shard_name(split, index), len(rows), checksum(rows))
    table = pa.table({name: _to_column(array) for name, array in columns.items() if array is not None})
    described = json.dumps({"spec": digest(spec), **asdict(entry), "left_out": left_out})
    sink = pa.BufferOutputStream()
    # The checksum over rows does not cover notes; page checksums do.
    pq.write_table(table.replace_schema_metadata({KEY: described}), sink, compression="zstd", write_page_checksum=True)
    write_atomically(folder, entry.file, sink.getvalue())
    return entry


def read_shard(folder: ShardFolder, spec: dict, split: str, index: int) -> tuple[Rows, ShardEntry]:
    """Reads and verifies a shard; BadShard if it is missing, damaged or from another data set."""
    name = shard_name(split, index)
    try:
        with folder.open_input_file(name) as file:
            table = pq.ParquetFile(file).read(["prompt", "response", "order"])
        described = json.loads((table.schema.metadata or {}).get(KEY, b"{}"))
        orders = _from_column(table, "order") if "order" in table.column_names else None
        rows = Rows(_from_column(table, "prompt"), _from_column(table, "response"), orders)
        entry = ShardEntry(name, len(rows), checksum(rows))
    except FileNotFoundError:
        raise BadShard(f"shard {name} is missing") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, MemoryError) as error:
        # A flipped bit can be anywhere: in the data, in the metadata, or in the schema.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadShard(f"shard {name} is corrupt or truncated ({reason})") from None
    if not isinstance(described, dict) or (described.get("spec"), described.get("file")) != (digest(spec), name):
        raise BadShard(f"shard {name} is from another configuration")
    if entry.checksum != described.get("checksum"):
        raise BadShard(f"shard {name} is corrupt: its rows do not match the checksum stored in it")
    return rows, entry


def read_notes(folder: fs.SubTreeFileSystem, split: str, index: int) -> tuple[dict[str, np.ndarray], int]:
    """The notes of a shard by column, and how many candidates were dropped as too long."""
    with folder.open_input_file(shard_name(split, index)) as file:
        table = pq.read_table(file, page_checksum_verification=True)
    names = [name for name in table.column_names if name not in ("prompt", "response", "order")]
    return {name: _from_column(table, name) for name in names}, json.loads(table.schema.metadata[KEY])["left_out"]


def _to_column(array: np.ndarray) -> pa.Array:
    if array.ndim == 1:
        return pa.array(array)
    width = array.shape[1]
    if width == 0:
        return pa.array([[] for _ in array], type=pa.list_(pa.from_numpy_dtype(array.dtype), 0))
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), width)


def _from_column(table: pa.Table, name: str) -> np.ndarray:
    column = table.column(name).combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        return column.to_numpy()
    return column.flatten().to_numpy().reshape(len(column), column.type.list_size)


class Dataset:
    """A prepared data set, open for reading. Shards are verified when they are first read."""

    def __init__(self, uri: str, manifest: Manifest, remedy: str, folder: ShardFolder | None = None) -> None:
        """`remedy`: the command that rebuilds a bad shard, for error messages. `folder`: another way to read the files,
        for processes that cannot reach `uri`."""
        self.uri, self.manifest, self.remedy = uri, manifest, remedy
        self.folder = folder or open_folder(uri)
        self.vocabulary = Vocabulary(tuple(manifest.vocabulary))
        self.shape = Shape(manifest.N, manifest.M, len(manifest.vocabulary))
        # A batch usually spans at most two shards in each of two epochs; keep that many.
        self._shard = lru_cache(maxsize=4)(self._read)

    def __reduce__(self) -> tuple:
        """Another process opens the data set again, perhaps in another working directory."""
        return Dataset, (
            self.uri if "://" in self.uri else os.path.abspath(os.path.expanduser(self.uri)),
            self.manifest,
            self.remedy,
        )

    def read_from(self, folder: ShardFolder) -> "Dataset":
        return Dataset(self.uri, self.manifest, self.remedy, folder)

    @staticmethod
    def open(uri: str, spec: dict, remedy: str) -> "Dataset | None":
        """The data set at this URI; None if it is not (completely) prepared or its manifest is damaged."""
        try:
            manifest = Manifest.read(open_folder(uri))
        except (FileNotFoundError, Damaged):
            return None
        if manifest.spec != spec:
            raise Mistake(
                f"data.dir: {uri} holds a different data set than its name says; move it away, then run {remedy}"
            )
        return Dataset(uri, manifest, remedy)

    def rows_of(self, split: str) -> int:
        return sum(entry.rows for entry in self.manifest.splits[split])

    def row_order(self, seed: int) -> RowOrder:
        return RowOrder(seed, tuple(entry.rows for entry in self.manifest.splits["train"]))

    def take(self, order: RowOrder, start: int, count: int) -> Rows:
        """Training rows at positions start .. start + count - 1 of the endless stream."""
        return Rows.concatenate([self._select("train", shard, rows) for shard, rows in order.locate(start, count)])

    def read_split(self, split: str, start: int, count: int) -> Rows:
        """Rows start .. start + count - 1 of a split, in shard order."""
        parts = []
        for index, entry in enumerate(self.manifest.splits[split]):
            inside = np.arange(max(0, start), min(entry.rows, start + count))
            if len(inside):
                parts.append(self._select(split, index, inside))
            start -= entry.rows
        return Rows.concatenate(parts)

    def _select(self, split: str, index: int, rows: np.ndarray) -> Rows:
        chosen = self._shard(split, index).select(rows)
        if self.manifest.order == "reversed":
            reverse = np.arange(self.shape.M - 1, -1, -1, dtype=np.int16)
            chosen = replace(chosen, orders=np.broadcast_to(reverse, (len(rows), self.shape.M)))
        return chosen

    def _read(self, split: str, index: int) -> Rows:
        try:
            rows, entry = read_shard(self.folder, self.manifest.spec, split, index)
            if entry != self.manifest.splits[split][index]:
                raise BadShard(f"shard {entry.file} does not match its checksum in the manifest")
        except BadShard as bad:
            raise BadShard(f"data.dir: {bad} in {self.uri}; `{self.remedy}` rebuilds only that shard") from None
        return rows


def shard_sizes(rows: int, shard_rows: int) -> list[int]:
    """The sizes of the shards of a split: full ones, then the remainder."""
    return [min(shard_rows, rows - start) for start in range(0, rows, shard_rows)]
