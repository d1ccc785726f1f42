"""metrics.jsonl: a line a step and a line an evaluation, appended as the run goes.

A resumed run cuts off what it is about to repeat. Lines of evaluations may come later than those of the next steps.
"""

import json
import math
import os
from types import TracebackType
from typing import Any

from pyarrow import fs

from recor_dist.files import exists, read_bytes, write_atomically

FILE = "metrics.jsonl"


class Journal:
    def __init__(self, out: fs.SubTreeFileSystem, step: int) -> None:
        """Opens the journal of a run that goes on after `step` steps."""
        lines = read_bytes(out, FILE).splitlines(keepends=True) if exists(out, FILE) else []
        kept = [line for line in lines if _step(line) <= step]
        write_atomically(out, FILE, b"".join(kept))
        self.last = step  # steps that are recorded
        records = [json.loads(line) for line in kept]
        self.evaluated = {(r["step"], key.split("/")[1]) for r in records for key in r if key.startswith("eval/")}
        # Object stores cannot append: there the lines of this start stay in the log alone.
        local = isinstance(out.base_fs, fs.LocalFileSystem)
        self.file = open(os.path.join(out.base_path, FILE) if local else os.devnull, "ab")  # noqa: SIM115

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """A step that was recorded before the learner was lost gives the same figures again, and is left out."""
        if step > self.last:
            self.last = step
            self._write({"step": step, **metrics})

    def evaluation(self, version: int, split: str, figures: dict[str, Any]) -> None:
        """One that was recorded before the run was killed gives the same figures again, and is left out."""
        if (version, split) in self.evaluated:
            return
        self.evaluated.add((version, split))
        record = {"step": version, **_numbers(f"eval/{split}", figures)}
        for decoder, part in figures["decoders"].items() if split == "test" else ():
            record |= _numbers(f"eval/{split}/{decoder}", part)
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps(record).encode() + b"\n")
        self.file.flush()


def _numbers(prefix: str, figures: dict[str, Any]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in figures.items() if isinstance(value, int | float)}


def _step(line: bytes) -> float:
    """The step of a line; infinity for what a killed process left half-written."""
    try:
        return json.loads(line)["step"] if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
