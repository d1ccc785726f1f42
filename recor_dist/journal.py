"""metrics.jsonl: one line a record, appended as the run goes; a resumed run cuts off what it is about to repeat."""

import json
import math
import os
from types import TracebackType

from pyarrow import fs

from recor_dist.files import exists, read_bytes, write_atomically

FILE = "metrics.jsonl"


class Journal:
    def __init__(self, out: fs.SubTreeFileSystem, step: int) -> None:
        """Opens the journal of a run that goes on after `step` steps."""
        lines = read_bytes(out, FILE).splitlines(keepends=True) if exists(out, FILE) else []
        write_atomically(out, FILE, b"".join(line for line in lines if _step(line) <= step))
        # Object stores cannot append: there the lines of this start stay in the log alone.
        local = isinstance(out.base_fs, fs.LocalFileSystem)
        self.file = open(os.path.join(out.base_path, FILE) if local else os.devnull, "ab")  # noqa: SIM115

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self.file.write(json.dumps({"step": step, **metrics}).encode() + b"\n")
        self.file.flush()


def _step(line: bytes) -> float:
    """The step of a line; infinity for what a killed process left half-written."""
    try:
        return json.loads(line)["step"] if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
