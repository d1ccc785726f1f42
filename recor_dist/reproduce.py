"""`python -m recor_dist.reproduce [do=train] [part=arg ...]`: the runs behind docs/results.md, and that page.

Trains the runs of conf/reproduce.yaml, each on one core and as many at a time as there are cores, adds each result to a
file that can be committed, and writes the results page from those files. The same command resumes.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from recor_dist.core.command import plain_command
from recor_dist.core.compose import CONF
from recor_dist.core.progress import clock, set_up_logging
from recor_dist.core.setting import Mistake, nearest, setting
from recor_dist.record.published import ENDING, publish, read_published
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.runs import Run
from recor_dist.report import save, write

log = logging.getLogger(__name__)

ABOUT = [
    "Trains the runs behind docs/results.md and writes that page from their results. The same command resumes.",
    "",
    "  python -m recor_dist.reproduce do=plan            print the runs and how long they take",
    "  python -m recor_dist.reproduce part=arg part=mul  some parts",
    "  python -m recor_dist.reproduce                    everything",
    "  python -m recor_dist.reproduce do=page            write the page again from the results",
    "",
    "A run takes one core, and trains with engine=local. Results of runs that are not repeated stay as they are.",
]


@dataclass
class ReproduceConfig:
    """What to repeat, and where."""

    do: str = setting(
        "train",
        "train and write the page; only print the plan; or only write the page",
        choices=("train", "plan", "page"),
    )
    part: tuple[str, ...] = setting((), "a part of conf/reproduce.yaml; by default all parts")
    folder: str = setting("runs/reproduce", "folder for the runs and their data")
    results: str = setting("docs/results", "folder for the results, a file per part; the page is written next to it")
    jobs: int = setting(0, "runs at a time; 0 means one per core", at_least=0, at_most=1024)


@dataclass(frozen=True)
class Planned:
    """A run to repeat."""

    part: str
    command: str  # its settings
    minutes: float  # expected
    decoders: str = ""  # that score it after its own test

    @property
    def name(self) -> str:
        """Of its folder."""
        return re.sub(r"[^A-Za-z0-9_.]+", "-", self.command)


def planned_runs(parts: tuple[str, ...]) -> list[Planned]:
    table = OmegaConf.to_container(OmegaConf.load(CONF / "reproduce.yaml"))
    assert isinstance(table, dict)
    known = [str(part) for part in table]
    for part in parts:
        if part not in known:
            raise Mistake(f"part={part}: no such part; allowed: {', '.join(known)}{nearest(part, known)}")
    return [
        Planned(str(part), f"{about['settings']} {settings} seed={seed}", minutes, about.get("decoders", ""))
        for part, about in table.items()
        if part in (parts or table)
        for seed in about["seeds"]
        for settings, minutes in about["runs"].items()
    ]


class Work:
    """The runs, each trained by a process of its own."""

    def __init__(self, planned: list[Planned], folder: Path, results: Path, jobs: int) -> None:
        self.left, self.folder, self.results, self.jobs = set(planned), folder, results, jobs
        self.planned = planned
        self.training: set[subprocess.Popen] = set()
        self.failed = False
        self.expected = self.taken = 0.0  # minutes, of the runs trained so far
        self.lock = threading.Lock()  # for everything above and the files of results

    def train_all(self) -> None:
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._train, run) for run in self.planned]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in self.training:
                    process.terminate()  # it saves a checkpoint
                raise

    def _train(self, run: Planned) -> None:
        out = self.folder / run.part / run.name
        out.mkdir(parents=True, exist_ok=True)
        began, finished = time.monotonic(), RunFolder.open(str(out)).has_result()
        fixed = ["engine=local", "track.enabled=false", f"data.dir={self.folder / 'shards'}", f"out={out}"]
        code = self._call("run", [*run.command.split(), *fixed], f"{out}.log")
        if not code and run.decoders:
            code = self._call("evaluate", [f"out={out}", f"decoders={run.decoders}"], f"{out}.log")
        with self.lock:
            self.left.remove(run)
            if not finished:
                self.expected += run.minutes
                self.taken += (time.monotonic() - began) / 60
            if code:
                self.failed = True
                log.warning("%s: exit code %d; see %s.log", run.command, code, out)
                return
            file = self.results / f"{run.part}{ENDING}"
            before = next((r for r in published_runs(file) if r.place == run.command), None)
            log.info("%s; %s", _told(publish(str(out), file, run.command), before), self._progress())

    def _call(self, command: str, settings: list[str], output: str) -> int:
        with open(output, "a") as file:
            arguments = [sys.executable, "-m", f"recor_dist.{command}", *settings]
            process = subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT)
            self.training.add(process)
            code = process.wait()
            self.training.remove(process)
        return code

    def _progress(self) -> str:
        pace = self.taken / self.expected if self.expected else 1.0
        seconds = 60 * pace * sum(run.minutes for run in self.left) / self.jobs
        return f"{len(self.planned) - len(self.left)} of {len(self.planned)} runs, {clock(seconds)} left"


def _told(run: Run, before: Run | None) -> str:
    """The result of a run, next to what was published before."""
    accuracy, published = (r and f"{next(iter(r.decoders.values()))['exact_match']:.3f}" for r in (run, before))
    if before is None:
        return f"{run.place}: {accuracy}"
    if before.weights == run.weights:
        return f"{run.place}: {accuracy}, with the published weights"
    where = "the same kind of machine" if before.machine == run.machine else "a different kind of machine"
    return f"{run.place}: {accuracy}, published {published}; other weights, on {where}"


def published_runs(file: Path) -> Iterator[Run]:
    if file.exists():
        yield from read_published(file)


def write_page(results: Path) -> Path:
    """Writes the page next to the folder of the results, from all of them."""
    for figure in results.glob("*.svg"):  # of the page before
        figure.unlink()
    files = sorted(results.glob(f"*{ENDING}"))
    runs = [run for file in files for run in read_published(file)]
    notes = results / "notes.md"
    report = write(runs, [str(file) for file in files], notes.read_text() if notes.exists() else "", results.name)
    save(report, results, results.parent / f"{results.name}.md")
    return results.parent / f"{results.name}.md"


def main(config: ReproduceConfig) -> int:
    set_up_logging()
    failed = False
    if config.do != "page":
        planned, jobs = planned_runs(config.part), config.jobs or len(os.sched_getaffinity(0))
        hours = sum(run.minutes for run in planned) / 60
        print(
            f"{len(planned)} runs: about {hours:.1f} hours of one core, {hours / jobs:.1f} hours with {jobs} at a time"
        )
        if config.do == "plan":
            for run in planned:
                print(f"{run.minutes:6.1f} min  python -m recor_dist.run {run.command}")
            return 0
        work = Work(planned, Path(config.folder), Path(config.results), jobs)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # an exception ends its runs, too
        work.train_all()
        failed = bool(work.failed)
    print(f"saved in {write_page(Path(config.results))}")
    return 1 if failed else 0


if __name__ == "__main__":
    plain_command(ReproduceConfig, main, ABOUT)
