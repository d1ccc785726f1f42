"""What the tests of the record share: a real MLflow server on loopback, and reading a store."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recor_dist.core.sealed import OF_LINE
from recor_dist.record.delivery import prepare_mlflow


def until(what: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Waits until `what` returns something true, and returns that; an error counts as not yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := what():
                return found
            error: Exception | None = None
        except Exception as raised:
            error = raised
        assert time.monotonic() < deadline, f"not in {seconds} s; last error: {error!r}"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`mlflow server` with sqlite; its store survives a kill."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--backend-store-uri",
            f"sqlite:///{self.folder}/mlflow.db",
        ]
        command += ["--artifacts-destination", f"{self.folder}/artifacts"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        until(lambda: urllib.request.urlopen(f"{self.uri}/health", timeout=5).status == 200)

    def kill(self) -> None:
        """Kills it and its worker."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def client_of(uri: str) -> Any:
    prepare_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(uri)


def run_of(uri: str, out: Path) -> Any:
    """The one MLflow run of a folder."""
    state = json.loads((out / "track.json").read_text())
    client = client_of(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"tags.`recor_dist.record` = '{state['key']}'")
    return run


def points_in_store(uri: str, out: Path) -> dict[str, list[tuple[int, float, int]]]:
    """Every point of a run, by metric: (step, value, time), sorted."""
    run, client = run_of(uri, out), client_of(uri)
    histories = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    return {key: sorted((m.step, m.value, m.timestamp) for m in history) for key, history in histories.items()}


def points_in_journal(out: Path) -> dict[str, list[tuple[int, float, int]]]:
    points = defaultdict(list)
    for line in (out / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for key, value in record.items():
            if key not in ("step", "time", OF_LINE):
                points[key].append((record["step"], float(value), round(1000 * record["time"])))
    return {key: sorted(values) for key, values in points.items()}


def decided_points(points: dict[str, list[tuple[int, float, int]]]) -> dict[str, list[tuple[int, float]]]:
    """The points that every run of a configuration has: without times, and without the load of the machines."""
    kept = {key: values for key, values in points.items() if not key.startswith(("engine/", "system/"))}
    return {key: [(step, value) for step, value, _ in values] for key, values in kept.items()}


def assert_complete(uri: str, out: Path) -> dict[str, list[tuple[int, float, int]]]:
    """The store has all points of the journal, each once, and nothing else."""
    points = points_in_store(uri, out)
    assert points == points_in_journal(out)
    for key, values in points.items():
        steps = [step for step, _, _ in values]
        assert len(set(steps)) == len(steps), key
    return points


def sync(out: Path | str, uri: str | None, folder: Path, *settings: str) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    environment |= {"MLFLOW_TRACKING_URI": uri} if uri else {}
    command = [sys.executable, "-m", "recor_dist.track", "sync", f"out={out}", *settings]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
