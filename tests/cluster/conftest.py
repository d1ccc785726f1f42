"""Real Ray, several raylets on one machine; a run in a process of its own, watched through its log."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

SMALL = ["scale=smoke", "checkpoint.every=20", "eval.every=25"]


@pytest.fixture
def cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes a cluster: the resources of each node, the head first. It is gone after the test, come what may."""
    clusters: list[Cluster] = []

    def make(*nodes: dict[str, float]) -> Cluster:
        made = Cluster()
        clusters.append(made)
        for node in nodes:
            made.add_node(**node, object_store_memory=200_000_000, include_dashboard=False)
        return made

    try:
        yield make
    finally:
        ray.shutdown()
        for made in clusters:
            made.shutdown()


class Run:
    """`python -m recor_dist.run` as a person starts it, with its log lines as they come."""

    def __init__(self, folder: Path, words: list[str], address: str = "local") -> None:
        command = [sys.executable, "-m", "recor_dist.run", *SMALL, f"data.dir={folder}/shards", *words]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RAY_ADDRESS": address},
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, seconds: float = 90.0, count: int = 1) -> list[str]:
        """Waits until the log holds a pattern so many times; returns what it holds of it."""
        deadline = time.monotonic() + seconds
        while len(found := re.findall(pattern, self.log)) < count:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log}"
            assert time.monotonic() < deadline, f"no {pattern!r} in {seconds} s:\n{self.log}"
            time.sleep(0.02)
        return found

    def finish(self, seconds: float = 240.0) -> str:
        """Waits for the end; returns what the run printed."""
        printed, _ = self.process.communicate(timeout=seconds) if False else (self.process.stdout.read(), None)
        self.process.wait(timeout=seconds)
        self.reader.join(timeout=10)
        return printed

    def sha256(self, seconds: float = 240.0) -> str:
        printed = self.finish(seconds)
        assert self.process.returncode == 0, self.log
        return re.findall(r"^weights sha256 ([0-9a-f]{64})$", printed, re.M)[0]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(*words: str, address: str = "local") -> Run:
        started.append(Run(tmp_path, list(words), address))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGKILL)
                one.process.wait()


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def steps_of(out: Path) -> int:
    """How many steps are recorded by now."""
    file = out / "metrics.jsonl"
    return sum("loss/lm" in line for line in file.read_text().splitlines()) if file.exists() else 0


def wait_for_step(out: Path, step: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while steps_of(out) < step:
        assert time.monotonic() < deadline, f"{steps_of(out)} steps of {step} after {seconds} s"
        time.sleep(0.02)
