"""Files of prompts in, files of answers out: Parquet, JSON Lines or plain text, on any file system.

A .txt file has one prompt per line. The others have a column `prompt`, and may have a column `response`.
"""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recor_dist.answers.prompts import Text
from recor_dist.core.files import open_folder, split_name, write_atomically
from recor_dist.core.setting import Mistake

ENDINGS = (".parquet", ".jsonl", ".txt")


@dataclass(frozen=True)
class PromptFile:
    """The content of a file of prompts."""

    path: str
    numbers: list[int]  # of the rows: line or table row, from 1
    prompts: list[Text]
    responses: list[Text]  # empty if the file has none

    def name_row(self, index: int) -> str:
        """How messages name the prompt at `index`."""
        return f"row {self.numbers[index]} of {self.path}"


def check_ending(key: str, path: str) -> None:
    """`key`: the setting that the path comes from."""
    if not path.endswith(ENDINGS):
        raise Mistake(f"{key}={path}: must end in {', '.join(ENDINGS)}")


def read_prompts(path: str) -> PromptFile:
    """Reads the file of setting `input`. Either all rows have a response or none do."""
    check_ending("input", path)
    try:
        rows = _read_rows(path, _read(path))
    except UnicodeDecodeError:
        raise Mistake(f"input={path}: is not UTF-8 text") from None
    if not rows:
        raise Mistake(f"input={path}: has no rows")
    have = sum(row.get("response") is not None for row in rows.values())
    if 0 < have < len(rows):
        raise Mistake(f"input={path}: {len(rows) - have} rows lack the `response` that others have")
    prompts = [row["prompt"] for row in rows.values()]
    return PromptFile(path, list(rows), prompts, [row["response"] for row in rows.values()] if have else [])


def _read(path: str) -> bytes:
    parent, name = split_name(path)
    try:
        with open_folder(parent).open_input_file(name) as stream:
            return stream.read()
    except OSError as error:
        raise Mistake(f"input={path}: cannot be read ({str(error).splitlines()[0]})") from None


def _read_rows(path: str, content: bytes) -> dict[int, dict[str, Any]]:
    """Rows by number."""
    if path.endswith(".parquet"):
        return _read_parquet(path, content)
    lines = enumerate(content.decode().split("\n"), 1)  # not splitlines: JSON may hold U+2028
    written = {number: line for number, line in lines if line.strip()}
    if path.endswith(".txt"):
        return {number: {"prompt": line.rstrip("\r")} for number, line in written.items()}
    return {number: _read_json(path, number, line) for number, line in written.items()}


def _read_parquet(path: str, content: bytes) -> dict[int, dict[str, Any]]:
    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowInvalid, OSError) as error:
        raise Mistake(f"input={path}: is not a Parquet file ({str(error).splitlines()[0]})") from None
    if "prompt" not in table.column_names:
        raise Mistake(f"input={path}: has no column `prompt`; it has {', '.join(table.column_names)}")
    columns = [name for name in ("prompt", "response") if name in table.column_names]
    return dict(enumerate(table.select(columns).to_pylist(), 1))


def _read_json(path: str, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise Mistake(f"input={path}: row {number} is not JSON") from None
    if not isinstance(row, dict) or "prompt" not in row:
        raise Mistake(f"input={path}: row {number} is not an object with a `prompt`")
    return row


def write_answers(path: str, rows: list[dict[str, Any]]) -> None:
    """Writes all columns, or only the responses, one per line, if the file is .txt."""
    if path.endswith(".parquet"):
        sink = pa.BufferOutputStream()
        try:
            table = pa.Table.from_pylist(rows)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise Mistake(
                f"output={path}: some prompts are text and some are lists, which one Parquet column cannot hold; "
                "write to a .jsonl file"
            ) from None
        pq.write_table(table, sink)
        content = sink.getvalue().to_pybytes()
    elif path.endswith(".jsonl"):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    else:
        content = "".join(row["response"] + "\n" for row in rows).encode()
    parent, name = split_name(path)
    write_atomically(open_folder(parent, create=True), name, content)
