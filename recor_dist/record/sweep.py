"""A sweep, `--multirun method=recor,clm seed=0,1,2`: many runs, and one folder that tells of them all.

    runs/sweep-.../sweep.json       the words of the command, its runs, how it ended
    runs/sweep-.../metrics.jsonl    for each setting, which is all that was swept but the seed: mean and deviation

The same command goes on in the same folder. In MLflow the folder is the parent of its runs.
"""

import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from recor_dist.core.command import words_of_command_line
from recor_dist.core.config import Config
from recor_dist.core.files import exists, join, open_folder, read_bytes, read_json, write_json
from recor_dist.record import journal
from recor_dist.track import SECONDS_AFTER_STOP, SWEEP, finish_within, sync_command, words_of

log = logging.getLogger(__name__)
_current: list["Sweep"] = []  # of this process; Hydra runs the jobs of a sweep one after another


class Sweep:
    def __init__(self, folder: str) -> None:
        self.folder, self.place = folder, open_folder(folder, create=True)
        known = read_json(self.place, SWEEP) if exists(self.place, SWEEP) else {}
        self.runs: list[dict[str, Any]] = known.get("runs", [])
        self.config: Config | None = None
        self.overrides: list[str] = []
        self.swept: set[str] = set()

    def begin(self, words: list[str], swept: set[str], overrides: list[str], config: Config) -> None:
        """A job begins: the sweep's words, the keys that it sweeps over, and the job's own words."""
        self.words, self.swept, self.overrides, self.config = words, swept, overrides, config
        self._write("running")

    def add(self, out: str) -> None:
        """The job has its folder; one that is refused never comes so far."""
        run = {"overrides": self.overrides, "out": out if "://" in out else os.path.abspath(out)}
        if run not in self.runs:
            self.runs.append(run)
            self._write("running")

    def end(self, status: str) -> None:
        """Writes down mean and deviation of what is finished, and brings the record to MLflow."""
        self._summarise()
        self._write(status)
        if not self.config.track.enabled:
            return
        if status != "stopped":
            self._draw()
        words = [f"out={self.folder}", *(word for word in words_of(self.config.track) if not word.startswith("wait="))]
        sender = subprocess.Popen([sys.executable, "-m", "recor_dist.track", "sync", *words], start_new_session=True)
        if not finish_within(sender, SECONDS_AFTER_STOP if status == "stopped" else self.config.track.wait):
            log.warning("tracking: the sweep's record is not complete; %s brings the rest", sync_command(self.folder))

    def _draw(self) -> None:
        """What an answer costs against how right it is, for all methods of the sweep."""
        from recor_dist.figures.pictures import FOLDER, draw_sweep  # here, as its import takes seconds

        try:
            draw_sweep(
                [run["out"] for run in self.runs if exists(open_folder(run["out"]), "result.json")],
                join(self.folder, FOLDER),
            )
        except Exception:  # the sweep stands, whatever becomes of its picture
            log.warning("the sweep's picture could not be drawn", exc_info=True)

    def _write(self, status: str) -> None:
        write_json(self.place, SWEEP, {"words": self.words, "runs": self.runs, "status": status})

    def _summarise(self) -> None:
        """A line for each setting; one that stands there already is left alone."""
        before = read_bytes(self.place, journal.FILE) if exists(self.place, journal.FILE) else b""
        records = journal.read_records(before.splitlines(keepends=True))
        told = {(record["step"], key) for record in records for key in record}
        by_setting = defaultdict(list)
        for run in self.runs:
            folder = open_folder(run["out"])
            if exists(folder, "result.json"):
                result = read_json(folder, "result.json")
                by_split = [journal.evaluation_metrics(split, result[split]) for split in ("val", "test")]
                by_setting[self._setting(run["overrides"])].append(by_split[0] | by_split[1])
        with open(os.path.join(self.place.base_path, journal.FILE), "ab") as file:
            for setting, runs in by_setting.items():
                record = summary(setting, runs)
                if not all((len(runs), key) in told for key in record):
                    line = {"step": len(runs), **record, "time": round(time.time(), 3)}
                    file.write(json.dumps(line).encode() + b"\n")

    def _setting(self, overrides: list[str]) -> str:
        """What was swept of these words, but for the seed: `method:recor lag:1`."""
        words = [word.lstrip("+") for word in overrides]
        own = [word for word in words if word.split("=", 1)[0] in self.swept - {"seed"}]
        return " ".join(word.replace("=", ":", 1).replace("/", ".") for word in own)


def summary(setting: str, runs: list[dict[str, float]]) -> dict[str, float]:
    """Mean over runs that differ in their seed, and, where there are several, the sample's standard deviation."""
    prefix = f"{setting}/" if setting else ""
    metrics = {}
    for key in sorted(set.intersection(*(set(run) for run in runs))):
        values = [run[key] for run in runs]
        metrics[f"{prefix}{key}/mean"] = statistics.fmean(values)
        if len(runs) > 1:
            metrics[f"{prefix}{key}/deviation"] = statistics.stdev(values)
    return metrics


def sweep_of_this_job(config: Config) -> Sweep | None:
    """The sweep that this run belongs to, which now begins its next job; None for a run of its own."""
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return None
    if not _current:
        _current.append(Sweep(hydra.sweep.dir))
    words = words_of_command_line()
    swept = {o.key_or_group for o in OverridesParser.create().parse_overrides(words) if o.is_sweep_override()}
    swept |= {key.lstrip("+") for key in hydra.sweeper.params or {}}
    _current[0].begin(sorted(words), swept, list(hydra.overrides.task), config)
    return _current[0]


def end_sweep(status: str) -> None:
    for sweep in _current:
        sweep.end(status)
