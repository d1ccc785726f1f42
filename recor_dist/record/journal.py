"""metrics.jsonl: a line a step and a line an evaluation, only ever appended. Everything that tells of a run reads it.

A run that goes on after a kill repeats the steps since its checkpoint. They give the same figures, bit for bit, so
what stands in the journal stays, and is not written twice: whoever has read so far may go on from there. Lines of
evaluations may come later than those of the next steps.

Object stores cannot append: there the journal is a local file that is uploaded whole before each checkpoint and at the
end, and a run goes on from a checkpoint.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np
from pyarrow import fs

from recor_dist.core.files import exists, read_bytes, write_atomically
from recor_dist.model.evaluation import kendall_tau

FILE = "metrics.jsonl"


class Journal:
    def __init__(self, out: fs.SubTreeFileSystem) -> None:
        """Opens the journal of a run that begins or goes on."""
        self.out = out
        lines = read_bytes(out, FILE).splitlines(keepends=True) if exists(out, FILE) else []
        whole = [line for line in lines if read_line(line)]
        if whole != lines:  # a killed process left half a line
            write_atomically(out, FILE, b"".join(whole))
        records = [read_line(line) for line in whole]
        self.evaluated = {(r["step"], key.split("/")[1]) for r in records for key in r if key.startswith("eval/")}
        self.steps = {r["step"] for r in records if not any(key.startswith("eval/") for key in r)}
        self.local = isinstance(out.base_fs, fs.LocalFileSystem)
        self.path = os.path.join(out.base_path if self.local else tempfile.mkdtemp(prefix="recor_dist-"), FILE)
        self.file = open(self.path, "ab")  # noqa: SIM115
        if not self.local:
            self.file.write(b"".join(whole))
            self.file.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.keep()
        self.file.close()
        if not self.local:
            shutil.rmtree(os.path.dirname(self.path))

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """A step that was recorded before somebody was lost gives the same figures again, and is left out."""
        if step not in self.steps:
            self.steps.add(step)
            self._write({"step": step, **metrics})

    def evaluation(self, version: int, split: str, figures: dict[str, Any]) -> None:
        """One that was recorded before the run was killed gives the same figures again, and is left out."""
        if (version, split) not in self.evaluated:
            self.evaluated.add((version, split))
            self._write({"step": version, **evaluation_metrics(split, figures)})

    def keep(self) -> None:
        """Brings all lines to where they outlive this process and this machine's power."""
        if self.local:
            os.fsync(self.file.fileno())
            return
        with open(self.path, "rb") as file:
            write_atomically(self.out, FILE, file.read())

    def _write(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps({**record, "time": round(time.time(), 3)}).encode() + b"\n")
        self.file.flush()


def evaluation_metrics(split: str, figures: dict[str, Any]) -> dict[str, float]:
    """The figures of a split as flat metrics: how right under `eval/`, in which order under `order/`."""
    metrics = _flat(split, figures)
    for decoder, part in figures["decoders"].items() if split == "test" else ():
        metrics |= _flat(f"{split}/{decoder}", part)
    return metrics


def _flat(name: str, figures: dict[str, Any]) -> dict[str, float]:
    numbers = {key: value for key, value in figures.items() if isinstance(value, int | float)}
    metrics = {f"{'order' if key == 'kendall_tau' else 'eval'}/{name}/{key}": value for key, value in numbers.items()}
    if len(figures["mean_step"]) > 1:  # 1 where the slots were filled from the left to the right, -1 for the reverse
        ranks = np.unique(figures["mean_step"], return_inverse=True)[1]
        metrics[f"order/{name}/left_to_right"] = float(kendall_tau(ranks[None], np.arange(len(ranks))[None])[0])
    return metrics


def read_line(line: bytes) -> dict[str, Any] | None:
    """A line's record; None for what a killed process left half-written."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
        return record if isinstance(record["step"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def read_records(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    return [record for line in lines if (record := read_line(line))]
