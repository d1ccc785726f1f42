"""The journal, metrics.jsonl: a line per step and a line per evaluation, only ever appended. All that is known about a
run's progress is read from it.

Each line carries a checksum (sealed.py). A last line without its end was cut short by a kill and is dropped. Any other
line that cannot be read was damaged later: it is named, and the run resumes from a checkpoint before it. To know if
lines are missing, a checkpoint notes how many there were, and their hash.

A run that resumes after a kill repeats the steps since its checkpoint. They give the same numbers, bit for bit, so a
line that is in the journal stays and is not written again: a reader continues from where it was. The line of an
evaluation may come after those of later steps.

Object stores cannot append: there the journal is a local file that is uploaded as a whole before each checkpoint and at
the end, and a run resumes from a checkpoint.
"""

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from recor_dist.core.sealed import Damaged, open_line, seal_line
from recor_dist.model.evaluation import kendall_tau
from recor_dist.record.run_folder import JOURNAL, RunFolder

log = logging.getLogger(__name__)


class Journal:
    def __init__(self, folder: RunFolder) -> None:
        """Reads the journal of a run. As a context it can be appended to."""
        self.folder = folder
        lines = folder.read_journal().splitlines(keepends=True)
        # Up to the first line that cannot be read. What came after it is computed again, and so keeps its order.
        self.records: list[dict[str, Any]] = []
        for line in lines:
            if (record := read_line(line)) is None:
                break
            self.records.append(record)
        self.lines = lines[: len(self.records)]
        self.cut = len(self.lines) < len(lines)
        self.damaged = bool(damaged_lines(lines)) if self.cut else False
        self.evaluated = {(r["step"], key.split("/")[1]) for r in self.records for key in r if key.startswith("eval/")}
        self.steps = {r["step"] for r in self.records if not any(key.startswith("eval/") for key in r)}

    def holds(self, step: int, noted: dict[str, Any] | None) -> bool:
        """True if no line from before a checkpoint of this step is missing. `noted`: the `note` of that checkpoint;
        earlier versions took none."""
        if noted is None:
            return self.steps.issuperset(range(1, step + 1))
        lines = self.lines[: noted["lines"]]
        return noted == {"lines": len(lines), "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}

    def note(self) -> dict[str, Any]:
        """What a checkpoint notes about the lines before it."""
        return {"lines": self.count, "sha256": self.sha.hexdigest()}

    def __enter__(self) -> "Journal":
        if self.damaged:
            line = len(self.lines) + 1
            log.warning("%s/%s: line %d is damaged; resuming before it", self.folder.path, JOURNAL, line)
        sound = b"".join(self.lines)
        if self.cut:
            self.folder.write_journal(sound)
        self.count, self.sha = len(self.lines), hashlib.sha256(sound)
        self.path = self.folder.journal_path or os.path.join(tempfile.mkdtemp(prefix="recor_dist-"), JOURNAL)
        self.file = open(self.path, "ab")
        if not self.folder.is_local:
            self.file.write(sound)
            self.file.flush()
        self.lines, self.records = [], []  # which may be large
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
        line = seal_line({**record, "time": round(time.time(), 3)})
        self.file.write(line)
        self.file.flush()
        self.count += 1
        self.sha.update(line)


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
    """The record in a line; None if a killed process left it half-written, or if it was damaged."""
    try:
        return open_line(line) if line.endswith(b"\n") else None
    except Damaged:
        return None


def damaged_lines(lines: Sequence[bytes]) -> list[int]:
    """The numbers, from 1, of lines that cannot be read and are not the half line that a killed process left."""
    return [n for n, line in enumerate(lines, 1) if not read_line(line) and (n < len(lines) or line.endswith(b"\n"))]


def read_records(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    return [record for line in lines if (record := read_line(line))]


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """All records in a folder's journal; none if there is no journal."""
    lines = folder.read_journal().splitlines(keepends=True)
    records = read_records(lines)
    if len(records) < len(lines) and (damaged := damaged_lines(lines)):
        log.warning("%s/%s: %d damaged lines are skipped", folder.path, JOURNAL, len(damaged))
    return records


def points_of(record: dict[str, Any]) -> dict[str, float]:
    """The metrics in a record, by name."""
    numbers = {key: value for key, value in record.items() if key not in ("step", "time")}
    return {key: float(value) for key, value in numbers.items() if isinstance(value, int | float)}


class JournalReader:
    """Reads the records of a journal, each once; a line that is still being written is read the next time."""

    def __init__(self, folder: RunFolder, path: str | None) -> None:
        """`path`: the journal's local file, if it is not in the folder."""
        self.folder, self.path = folder, path or folder.journal_path
        self.position = 0

    def read(self) -> list[dict[str, Any]]:
        lines = self._rest().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        self.position += sum(map(len, lines))
        records = read_records(lines)
        if len(records) < len(lines):
            log.warning("%s: not sending %d damaged lines", JOURNAL, len(lines) - len(records))
        return records

    def _rest(self) -> bytes:
        try:
            if self.path:
                with open(self.path, "rb") as file:
                    file.seek(self.position)
                    return file.read()
        except FileNotFoundError:
            pass  # the local copy of an object store's journal is uploaded and then removed when the run ends
        return self.folder.read_journal()[self.position :]
