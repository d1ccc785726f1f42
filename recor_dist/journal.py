"""metrics.jsonl: one line a record, appended as the run goes; a resumed run cuts off what it is about to repeat."""

import json
import os
from pathlib import Path
from types import TracebackType


class Journal:
    def __init__(self, path: Path, step: int) -> None:
        """Opens the journal of a run that goes on after `step` steps."""
        kept = [line for line in _complete_lines(path) if json.loads(line)["step"] <= step]
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(b"".join(kept))
        os.replace(partial, path)
        self.file = path.open("ab")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self.file.write(json.dumps({"step": step, **metrics}).encode() + b"\n")
        self.file.flush()


def _complete_lines(path: Path) -> list[bytes]:
    """Lines that were written to their end; a killed process may leave half a line."""
    return (
        [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")] if path.exists() else []
    )
