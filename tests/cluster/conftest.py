"""Real Ray with several raylets on one machine, and runs in separate processes, observed through their logs."""

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
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

SMALL = ["scale=smoke", "checkpoint.every=20", "eval.every=25", "track.enabled=false"]


@pytest.fixture(scope="module")
def _ray_ends() -> Iterator[None]:
    yield
    ray.shutdown()


@pytest.fixture
def one_ray(_ray_ends: None) -> None:
    """Ray on this machine, with enough simulated CPUs for four actors. Consecutive tests of a module share it."""
    if not ray.is_initialized():
        ray.init(
            address="local",
            num_cpus=5,
            num_gpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=200_000_000,
        )


@pytest.fixture
def cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes a cluster from the resources of each node, the head first. It is shut down after the test."""
    ray.shutdown()
    clusters: list[Cluster] = []

    def make(*nodes: dict[str, float]) -> Cluster:
        made = Cluster()
        clusters.append(made)
        for node in nodes:
            add_node(made, **node)
        return made

    try:
        yield make
    finally:
        ray.shutdown()
        for made in clusters:
            made.shutdown()


def add_node(cluster: Cluster, **resources: float) -> Any:
    head = {} if cluster.list_all_nodes() else {"include_dashboard": False}
    return cluster.add_node(**resources, **head, object_store_memory=200_000_000, node_ip_address="127.0.0.1")


def is_on(node: Any, pid: int) -> bool:
    """True if this node's raylet started the process."""
    (raylet,) = node.all_processes["raylet"]
    status = Path(f"/proc/{pid}/status")
    return status.exists() and f"PPid:\t{raylet.process.pid}\n" in status.read_text()


class Run:
    """`python -m recor_dist.run` as a user starts it, and its log so far."""

    def __init__(self, folder: Path, overrides: list[str], address: str = "local") -> None:
        command = [sys.executable, "-m", "recor_dist.run", *SMALL, f"data.dir={folder}/shards", "out=out", *overrides]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RAY_ADDRESS": address},
        )
        self.out = folder / "out"
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
        """Waits until a pattern occurs `count` times in the log; returns all matches."""
        deadline = time.monotonic() + seconds
        while len(found := re.findall(pattern, self.log)) < count:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log}"
            assert time.monotonic() < deadline, f"no {pattern!r} in {seconds} s:\n{self.log}"
            time.sleep(0.02)
        return found

    def wait_for_step(self, step: int, seconds: float = 120.0) -> None:
        """Waits until this many steps are in the journal."""
        journal = self.out / "metrics.jsonl"
        deadline = time.monotonic() + seconds
        while not journal.exists() or sum("loss/lm" in line for line in journal.read_text().splitlines()) < step:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log}"
            assert time.monotonic() < deadline, f"step {step} not reached in {seconds} s:\n{self.log}"
            time.sleep(0.02)

    def descendants(self) -> list[int]:
        """The processes that this one started, and those that they started."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        parents = {int(pid): int(parent) for pid, parent in map(str.split, listed.splitlines())}
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]

    def finish(self, seconds: float = 240.0) -> str:
        """Waits for the run to end; returns what it printed."""
        self.process.wait(timeout=seconds)
        self.reader.join(timeout=10)
        return self.process.stdout.read()

    def sha256(self, seconds: float = 240.0) -> str:
        printed = self.finish(seconds)
        assert self.process.returncode == 0, self.log
        return re.findall(r"^weights sha256 ([0-9a-f]{64})$", printed, re.M)[0]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(*overrides: str, address: str = "local") -> Run:
        started.append(Run(tmp_path, list(overrides), address))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGKILL)
                one.process.wait()
            one.process.stdout.close()
            one.process.stderr.close()


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
