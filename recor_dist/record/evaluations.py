"""Evaluations of a finished run that were made after it: evaluations.jsonl, a line for each decoder and set of rows.

What the run itself recorded is never touched, and lines are only appended. Figures are recorded once for the same
decoder, rows and weights. The same rows under another name are other rows: the random numbers of decoders that draw
(mdm, ao_arm, information_gain) depend on the name. Every line carries a checksum (sealed.py).
"""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from recor_dist.core.sealed import Damaged, open_file, seal_file
from recor_dist.record.run_folder import EVALUATIONS, RunFolder

log = logging.getLogger(__name__)

TEST_ROWS = "test"  # the name of the rows of the whole test split: what the run itself was tested on
METRICS = "evaluate"  # the first part of the names of metrics in MLflow
KEY = ("decoder", "name", "rows_sha256", "weights_sha256")
FIGURES = (
    *("rows", "exact_match", "token_accuracy", "kendall_tau"),
    *("forward_passes", "most_forward_passes", "flops"),
)


def read_evaluations(folder: RunFolder) -> list[dict[str, Any]]:
    """All lines. One that is damaged is named and skipped; the same command measures it again."""
    lines = []
    for number, text in enumerate(folder.read_evaluations().splitlines(), 1):
        try:
            line = open_file(text)
            if not all(isinstance(line.get(key), str) for key in KEY):
                raise Damaged("it lacks the name of its decoder or of its rows")
        except Damaged as damaged:
            log.warning("%s/%s: line %d is damaged and skipped (%s)", folder.path, EVALUATIONS, number, damaged)
        else:
            lines.append(line)
    return lines


def find(lines: list[dict[str, Any]], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The line of the same decoder, rows and weights."""
    return next((line for line in lines if all(line[key] == wanted[key] for key in KEY)), None)


def add_evaluation(folder: RunFolder, line: dict[str, Any]) -> None:
    """Appends a line, with the time, unless one for the same decoder, rows and weights is there."""
    with folder.evaluation_lock():
        before = folder.read_evaluations()
        if find(read_evaluations(folder), line):
            return
        written = json.dumps(seal_file({**line, "time": round(time.time(), 3)}), sort_keys=True)
        ended = b"" if not before or before.endswith(b"\n") else b"\n"
        folder.write_evaluations(before + ended + written.encode() + b"\n")


def points_of_evaluation(line: dict[str, Any]) -> dict[str, Any]:
    """A record like those of the journal: figures by name, with step and time."""
    named = {f"{METRICS}/{line['name']}/{line['decoder']}/{key}": line[key] for key in FIGURES if key in line}
    return {**named, "step": line["step"], "time": line["time"]}
