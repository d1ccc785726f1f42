"""A sweep, `--multirun method=recor,clm seed=0,1,2`: many runs, and one folder that summarises them.

    runs/sweep-.../sweep.json       the overrides of the command, its runs, and its status
    runs/sweep-.../metrics.jsonl    mean and deviation for each setting, that is, each combination of swept values
                                    other than the seed

The same command resumes in the same folder. In MLflow, the folder is the parent of its runs.
"""

import json
import logging
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from recor_dist.core.command import overrides_of_command_line
from recor_dist.core.config import Config
from recor_dist.record.journal import evaluation_metrics, read_metrics
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.sending import SECONDS_AFTER_STOP, sync_command, sync_within

log = logging.getLogger(__name__)
_current: list["Sweep"] = []  # the sweep of this process; Hydra runs its jobs one after another


class Sweep:
    def __init__(self, uri: str) -> None:
        self.folder = RunFolder.open(uri, create=True)
        self.runs: list[dict[str, Any]] = (self.folder.read_sweep() or {}).get("runs", [])
        self.config: Config | None = None
        self.overrides: list[str] = []
        self.job_overrides: list[str] = []
        self.swept: set[str] = set()

    def begin(self, overrides: list[str], swept: set[str], job_overrides: list[str], config: Config) -> None:
        """Begins a job: the overrides of the sweep, the keys that it sweeps over, and the overrides of the job."""
        self.overrides, self.swept, self.job_overrides, self.config = overrides, swept, job_overrides, config
        self._write("running")

    def add(self, out: str) -> None:
        """Adds the folder of the current job; a job that is refused has none."""
        run = {"overrides": self.job_overrides, "out": out if "://" in out else os.path.abspath(out)}
        if run not in self.runs:
            self.runs.append(run)
            self._write("running")

    def end(self, status: str, draw: Callable[["Sweep"], None] = lambda sweep: None) -> None:
        """Summarises the finished runs and, if the sweep is tracked, calls `draw` unless it was stopped, and sends the
        record to MLflow."""
        self._summarise()
        self._write(status)
        assert self.config is not None  # a sweep ends after its first job has begun
        track = self.config.track
        if not track.enabled:
            return
        if status != "stopped":
            draw(self)
        if not sync_within(self.folder.uri, track, SECONDS_AFTER_STOP if status == "stopped" else track.wait):
            command = sync_command(self.folder.uri, track)
            log.warning("tracking: the record of the sweep is incomplete; %s sends the rest", command)

    def finished(self) -> list[str]:
        """The folders of its finished runs."""
        return [run["out"] for run in self.runs if RunFolder.open(run["out"]).has_result()]

    def _write(self, status: str) -> None:
        self.folder.write_sweep({"words": self.overrides, "runs": self.runs, "status": status})

    def _summarise(self) -> None:
        """Appends a line for each setting, unless the journal has it."""
        written = {(record["step"], key) for record in read_metrics(self.folder) for key in record}
        by_setting = defaultdict(list)
        for run in self.runs:
            if result := RunFolder.open(run["out"]).read_result():
                by_split = [evaluation_metrics(split, result[split]) for split in ("val", "test")]
                by_setting[self._setting(run["overrides"])].append(by_split[0] | by_split[1])
        path = self.folder.journal_path
        assert path is not None, "Hydra makes the folder of a sweep on this disk"
        with open(path, "ab") as file:
            for setting, runs in by_setting.items():
                record = summary(setting, runs)
                if not all((len(runs), key) in written for key in record):
                    line = {"step": len(runs), **record, "time": round(time.time(), 3)}
                    file.write(json.dumps(line).encode() + b"\n")

    def _setting(self, overrides: list[str]) -> str:
        """The swept overrides of a job other than the seed: `method:recor lag:1`."""
        bare = [override.lstrip("+") for override in overrides]
        swept = [override for override in bare if override.split("=", 1)[0] in self.swept - {"seed"}]
        return " ".join(override.replace("=", ":", 1).replace("/", ".") for override in swept)


def summary(setting: str, runs: list[dict[str, float]]) -> dict[str, float]:
    """Mean and, for more than one run, sample standard deviation over runs that differ only in their seed."""
    prefix = f"{setting}/" if setting else ""
    metrics = {}
    for key in sorted(set.intersection(*(set(run) for run in runs))):
        values = [run[key] for run in runs]
        metrics[f"{prefix}{key}/mean"] = statistics.fmean(values)
        if len(runs) > 1:
            metrics[f"{prefix}{key}/deviation"] = statistics.stdev(values)
    return metrics


def sweep_of_this_job(config: Config) -> Sweep | None:
    """The sweep that this run belongs to, with its next job begun; None for a single run."""
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return None
    if not _current:
        _current.append(Sweep(hydra.sweep.dir))
    overrides = overrides_of_command_line()
    swept = {o.key_or_group for o in OverridesParser.create().parse_overrides(overrides) if o.is_sweep_override()}
    swept |= {key.lstrip("+") for key in hydra.sweeper.params or {}}
    _current[0].begin(sorted(overrides), swept, list(hydra.overrides.task), config)
    return _current[0]


def end_sweep(status: str, draw: Callable[[Sweep], None] = lambda sweep: None) -> None:
    """Ends the sweep of this process, if it has one."""
    for sweep in _current:
        sweep.end(status, draw)
