"""The journal, metrics.jsonl: a line per step and a line per evaluation, only ever appended. All that is known about a
run's progress is read from it.

A run that resumes after a kill repeats the steps since its checkpoint. They give the same numbers, bit for bit, so a
line that is in the journal stays and is not written again: a reader continues from where it was. The line of an
evaluation may come after those of later steps.

Object stores cannot append: there the journal is a local file that is uploaded as a whole before each checkpoint and at
the end, and a run resumes from a checkpoint.
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

from recor_dist.model.evaluation import kendall_tau
from recor_dist.record.run_folder import JOURNAL, RunFolder


class Journal:
    def __init__(self, folder: RunFolder) -> None:
        """Opens the journal of a run that starts or resumes."""
        self.folder = folder
        lines = folder.read_journal().splitlines(keepends=True)
        whole = [line for line in lines if read_line(line)]
        if whole != lines:  # a killed process left half a line
            folder.write_journal(b"".join(whole))
        records = read_records(whole)
        self.evaluated = {(r["step"], key.split("/")[1]) for r in records for key in r if key.startswith("eval/")}
        self.steps = {r["step"] for r in records if not any(key.startswith("eval/") for key in r)}
        self.path = folder.journal_path or os.path.join(tempfile.mkdtemp(prefix="recor_dist-"), JOURNAL)
        self.file = open(self.path, "ab")  # noqa: SIM115
        if not folder.is_local:
            self.file.write(b"".join(whole))
            self.file.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.keep()
        self.file.close()
        if not self.folder.is_local:
            shutil.rmtree(os.path.dirname(self.path))

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Records a step. One that is repeated after a crash has the same metrics, and is skipped."""
        if step not in self.steps:
            self.steps.add(step)
            self._write({"step": step, **metrics})

    def evaluation(self, version: int, split: str, figures: dict[str, Any]) -> None:
        """Records an evaluation. One that is repeated after a crash has the same metrics, and is skipped."""
        if (version, split) not in self.evaluated:
            self.evaluated.add((version, split))
            self._write({"step": version, **evaluation_metrics(split, figures)})

    def keep(self) -> None:
        """Puts all lines where they survive the end of this process and a power failure of this machine."""
        if self.folder.is_local:
            os.fsync(self.file.fileno())
            return
        with open(self.path, "rb") as file:
            self.folder.write_journal(file.read())

    def _write(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps({**record, "time": round(time.time(), 3)}).encode() + b"\n")
        self.file.flush()


def evaluation_metrics(split: str, figures: dict[str, Any]) -> dict[str, float]:
    """The results of a split as flat metrics: accuracy under `eval/`, order under `order/`."""
    metrics = _flat(split, figures)
    for decoder, part in figures["decoders"].items() if split == "test" else ():
        metrics |= _flat(f"{split}/{decoder}", part)
    return metrics


def _flat(name: str, figures: dict[str, Any]) -> dict[str, float]:
    numbers = {key: value for key, value in figures.items() if isinstance(value, int | float)}
    metrics: dict[str, float] = {
        f"{'order' if key == 'kendall_tau' else 'eval'}/{name}/{key}": value for key, value in numbers.items()
    }
    if len(figures["mean_step"]) > 1:  # 1 if the slots were filled from left to right, -1 for the reverse
        ranks = np.unique(figures["mean_step"], return_inverse=True)[1]
        metrics[f"order/{name}/left_to_right"] = float(kendall_tau(ranks[None], np.arange(len(ranks))[None])[0])
    return metrics


def read_line(line: bytes) -> dict[str, Any] | None:
    """The record in a line; None if a killed process left it half-written."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
        return record if isinstance(record["step"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def read_records(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    return [record for line in lines if (record := read_line(line))]


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """All records in a folder's journal; none if there is no journal."""
    return read_records(folder.read_journal().splitlines(keepends=True))
