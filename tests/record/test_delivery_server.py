"""With a real MLflow server: the record is complete and without duplicates, whatever happens to server or run."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from recor_dist.core.sealed import open_file, open_line, seal_line
from tests.mlflow_store import (
    Server,
    assert_complete,
    client_of,
    decided_points,
    free_port,
    points_in_journal,
    points_in_store,
    run_of,
    sync,
    until,
)
from tests.tracker_files import as_float32, points_in_event_files, points_in_offline_runs

# The warnings are MLflow's. Slow: a server takes ten seconds to start, and a run with gates half a minute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]
# 37 steps. On a busy machine the sender may be slow to start.
OVERRIDES = ["scale=smoke", "engine=local", "epochs=2", "checkpoint.every=8", "out=out", "track.wait=120"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The points of an undisturbed run that was not tracked."""
    folder = tmp_path_factory.mktemp("whole")
    command = [sys.executable, "-m", "recor_dist.run", *OVERRIDES, "track.enabled=false"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not (folder / "out/track.json").exists()
    return decided_points(points_in_journal(folder / "out"))


class Run:
    """A run that waits at gates, and its log lines so far."""

    def __init__(self, folder: Path, uri: str, *overrides: str, gates: str = "", **environment: str) -> None:
        self.folder, self.out, self.lines = folder, folder / "out", []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.gated_run", *OVERRIDES, *overrides],
            cwd=folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "MLFLOW_TRACKING_URI": uri, "GATES": gates, **environment},
        )
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def open(self, gate: int) -> None:
        (self.folder / f"gate-{gate}").touch()

    def wait_for_line(self, text: str) -> None:
        until(lambda: any(text in line for line in self.lines))

    def steps(self) -> list[int]:
        return [step for step, *_ in points_in_journal(self.out).get("loss/lm", [])]

    def finish(self) -> None:
        assert self.process.wait(timeout=600) == 0, "".join(self.lines)
        self.reader.join()
        self.process.stderr.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts a run in the test's folder, and kills it after the test if it still runs."""
    started: list[Run] = []

    def make(uri: str, *overrides: str, gates: str = "", **environment: str) -> Run:
        started.append(Run(tmp_path, uri, *overrides, gates=gates, **environment))
        return started[-1]

    yield make
    for run in started:
        if run.process.poll() is None:
            run.kill()


def steps_in_store(uri: str, out: Path) -> list[int]:
    return [step for step, *_ in points_in_store(uri, out)["loss/lm"]]


def test_a_server_that_is_killed_and_restarted_during_a_run_has_every_point_once(
    tmp_path: Path, start: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory, expected: dict
) -> None:
    server = Server(tmp_path_factory.mktemp("killed"))
    try:
        server.start()
        run = start(server.uri, gates="12,30")
        until(lambda: steps_in_store(server.uri, run.out) == list(range(1, 12)))
        server.kill()
        run.open(12)
        until(lambda: run.steps() == list(range(1, 30)))
        run.wait_for_line("fails")
        server.start()
        until(lambda: steps_in_store(server.uri, run.out) == list(range(1, 30)))
        run.wait_for_line("responds again")
        run.open(30)
        run.finish()
        points = assert_complete(server.uri, run.out)
        assert decided_points(points) == expected
        assert run_of(server.uri, run.out).info.status == "FINISHED"
    finally:
        server.kill()


def test_a_driver_that_is_killed_and_resumed_continues_its_record_in_every_tracker(
    tmp_path: Path, start: Callable[..., Run], server: Server, expected: dict
) -> None:
    trackers = ["track.tensorboard=true", "track.wandb=true"]
    run = start(server.uri, *trackers, gates="30")
    until(lambda: steps_in_store(server.uri, run.out) == list(range(1, 30)))
    (sender,) = psutil.Process(run.process.pid).children()
    first = run_of(server.uri, run.out)
    assert first.info.status == "RUNNING"
    run.kill()
    until(
        lambda: not sender.is_running() or sender.status() == psutil.STATUS_ZOMBIE
    )  # as an orphan, or as a child of init
    assert run_of(server.uri, run.out).info.status == "KILLED", (run.out / "track.log").read_text()

    for read in (points_in_event_files, points_in_offline_runs):
        assert [step for step, *_ in read(run.out)["loss/lm"]] == list(range(1, 30))

    again = start(server.uri, *trackers)
    again.finish()
    assert any("resuming at step 24 of 37" in line for line in again.lines), "steps 25 to 29 are computed twice"
    points = assert_complete(server.uri, run.out)
    assert decided_points(points) == expected
    last = run_of(server.uri, run.out)
    assert (last.info.run_id, last.info.status) == (first.info.run_id, "FINISHED")
    assert points_in_offline_runs(run.out) == points
    assert points_in_event_files(run.out) == as_float32(points)


def test_a_run_without_a_server_is_complete_after_sync_which_can_be_repeated(
    tmp_path: Path, start: Callable[..., Run], server: Server, expected: dict
) -> None:
    run = start(f"http://127.0.0.1:{free_port()}", gates="30")
    run.wait_for_line("training continues, the record stays in its folder")
    run.open(30)
    run.finish()
    assert "the record is incomplete; `python -m recor_dist.track sync out=out to=mlflow` sends the rest" in "".join(
        run.lines
    )

    for _ in range(2):
        done = sync("out", server.uri, tmp_path)
        assert done.returncode == 0, done.stderr
        points = assert_complete(server.uri, run.out)
        assert decided_points(points) == expected
    whole = run_of(server.uri, run.out)
    assert whole.info.status == "FINISHED"
    assert whole.data.tags["weights_sha256"] == json.loads((run.out / "result.json").read_text())["weights_sha256"]


@pytest.mark.parametrize("lost", ["how much it sent", "the id of the run", "the times"])
def test_a_sender_that_lost_its_state_sends_nothing_twice(
    lost: str, tmp_path: Path, start: Callable[..., Run], server: Server
) -> None:
    run = start(server.uri)
    run.finish()
    before = assert_complete(server.uri, run.out)
    state = open_file((run.out / "track.json").read_bytes())
    (store,) = state["stores"].values()
    store["sent"] = 0
    if lost == "the id of the run":
        store.clear()
    if lost == "the times":  # as if the last lines were lost with a machine, and their steps computed again later
        lines = [open_line(line) for line in (run.out / "metrics.jsonl").read_bytes().splitlines(keepends=True)]
        later = [seal_line({**line, "time": line["time"] + 60}) for line in lines]
        (run.out / "metrics.jsonl").write_bytes(b"".join(later))
    (run.out / "track.json").write_text(json.dumps(state))
    done = sync("out", server.uri, tmp_path)
    assert done.returncode == 0, done.stderr
    assert points_in_store(server.uri, run.out) == before


class Hung:
    """A server that accepts connections and never responds."""

    def __init__(self, asked: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.asked, self.connections = asked, []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            if connection.recv(1):  # a request has begun
                self.asked.touch()

    def close(self) -> None:
        for connection in [self.listener, *self.connections]:
            connection.close()


def test_no_step_runs_tracking_code_while_a_server_never_responds(
    tmp_path: Path, start: Callable[..., Run], server: Server, expected: dict
) -> None:
    """Between its first step and its last, the training thread runs no code of MLflow, and none of our code that
    talks to it; MLflow is not even imported by then."""
    hung = Hung(tmp_path / "gate-5")  # from step 5 on the sender waits for a response
    try:
        trackers = ["track.tensorboard=true", "track.wandb=true"]
        run = start(hung.uri, *trackers, "track.wait=3", gates="5", FILES="files.json")
        run.finish()
    finally:
        hung.close()
    assert "the record is incomplete" in "".join(run.lines)
    ran = json.loads((tmp_path / "files.json").read_text())
    ours = ("track.py", "record/sending.py", "record/delivery.py", "record/journal_copy.py", "subprocess.py")
    assert not [file for file in ran["files"] if "/mlflow/" in file or file.endswith(ours)]
    assert [file for file in ran["files"] if file.endswith("record/journal.py")], "the steps were recorded"
    assert not {"mlflow", "tensorboard", "wandb"} & set(ran["modules"])
    assert decided_points(points_in_journal(run.out)) == expected

    assert sync("out", server.uri, tmp_path).returncode == 0
    assert_complete(server.uri, run.out)
    listed = client_of(server.uri).list_artifacts(run_of(server.uri, run.out).info.run_id)
    assert {file.path for file in listed} == {"orders.json", "pictures", "replay.html", "result.json"}
