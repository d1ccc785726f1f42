"""The record is complete and without duplicates, whatever happens to the server or to the run: a real MLflow server."""

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

# Warnings are MLflow's own. Slow: a server takes ten seconds to start, and a run half a minute to be disturbed in.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]
# 37 steps; where a machine is busy, its sender may be slow to start.
WORDS = ["scale=smoke", "engine=local", "epochs=2", "checkpoint.every=8", "out=out", "track.wait=120"]


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
    """The points of a run that nothing happened to, and that was not tracked at all."""
    folder = tmp_path_factory.mktemp("whole")
    command = [sys.executable, "-m", "recor_dist.run", *WORDS, "track.enabled=false"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not (folder / "out/track.json").exists()
    return decided_points(points_in_journal(folder / "out"))


class Run:
    """A run that waits at gates, with its log lines as they come."""

    def __init__(self, folder: Path, uri: str, *words: str, gates: str = "", **environment: str) -> None:
        self.folder, self.out, self.lines = folder, folder / "out", []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.gated_run", *WORDS, *words],
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
    """Starts a run in the test's folder; it is gone after the test."""
    started: list[Run] = []

    def make(uri: str, *words: str, gates: str = "", **environment: str) -> Run:
        started.append(Run(tmp_path, uri, *words, gates=gates, **environment))
        return started[-1]

    yield make
    for run in started:
        if run.process.poll() is None:
            run.kill()


def steps_in_store(uri: str, out: Path) -> list[int]:
    return [step for step, *_ in points_in_store(uri, out)["loss/lm"]]


def test_a_server_that_was_killed_and_restarted_in_mid_run_has_every_point_once(
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
        run.wait_for_line("MLflow answers again")
        run.open(30)
        run.finish()
        points = assert_complete(server.uri, run.out)
        assert decided_points(points) == expected
        assert run_of(server.uri, run.out).info.status == "FINISHED"
    finally:
        server.kill()


def test_a_driver_that_was_killed_and_resumed_goes_on_in_its_run(
    tmp_path: Path, start: Callable[..., Run], server: Server, expected: dict
) -> None:
    run = start(server.uri, gates="30")
    until(lambda: steps_in_store(server.uri, run.out) == list(range(1, 30)))
    (sender,) = psutil.Process(run.process.pid).children()
    first = run_of(server.uri, run.out)
    assert first.info.status == "RUNNING"
    run.kill()
    until(lambda: not sender.is_running() or sender.status() == psutil.STATUS_ZOMBIE)  # of nobody, or of the system
    assert run_of(server.uri, run.out).info.status == "KILLED", (run.out / "track.log").read_text()

    again = start(server.uri)
    again.finish()
    assert any("resuming at step 24 of 37" in line for line in again.lines), "steps 25 to 29 came twice"
    points = assert_complete(server.uri, run.out)
    assert decided_points(points) == expected
    last = run_of(server.uri, run.out)
    assert (last.info.run_id, last.info.status) == (first.info.run_id, "FINISHED")


def test_a_run_without_a_server_is_complete_after_sync_and_sync_may_be_repeated(
    tmp_path: Path, start: Callable[..., Run], server: Server, expected: dict
) -> None:
    run = start(f"http://127.0.0.1:{free_port()}", gates="30")
    run.wait_for_line("training goes on, the record waits in its folder")
    run.open(30)
    run.finish()
    told = "".join(run.lines)
    assert "the record is not complete; `python -m recor_dist.track sync out=out` brings the rest" in told

    for _ in range(2):
        done = sync("out", server.uri, tmp_path)
        assert done.returncode == 0, done.stderr
        points = assert_complete(server.uri, run.out)
        assert decided_points(points) == expected
    whole = run_of(server.uri, run.out)
    assert whole.info.status == "FINISHED"
    assert whole.data.tags["weights_sha256"] == json.loads((run.out / "result.json").read_text())["weights_sha256"]


@pytest.mark.parametrize("lost", ["how far it came", "the id of the run", "the times"])
def test_nothing_is_sent_twice_by_a_sender_that_lost_its_memory(
    lost: str, tmp_path: Path, start: Callable[..., Run], server: Server
) -> None:
    run = start(server.uri)
    run.finish()
    before = assert_complete(server.uri, run.out)
    state = json.loads((run.out / "track.json").read_text())
    (store,) = state["stores"].values()
    store["sent"] = 0
    if lost == "the id of the run":
        store.clear()
    if lost == "the times":  # as of a machine whose last lines were lost, so that their steps came again later
        lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
        later = [json.dumps({**line, "time": line["time"] + 60}) for line in lines]
        (run.out / "metrics.jsonl").write_text("\n".join([*later, ""]))
    (run.out / "track.json").write_text(json.dumps(state))
    done = sync("out", server.uri, tmp_path)
    assert done.returncode == 0, done.stderr
    assert points_in_store(server.uri, run.out) == before


class Hung:
    """A server that accepts and never answers."""

    def __init__(self, told: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.told, self.connections = told, []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            if connection.recv(1):  # a request has begun
                self.told.touch()

    def close(self) -> None:
        for connection in [self.listener, *self.connections]:
            connection.close()


def test_no_step_goes_through_tracking_while_a_server_never_answers(
    tmp_path: Path, start: Callable[..., Run], server: Server, expected: dict
) -> None:
    """Of everything that the training thread ran between its first step and its last, nothing is MLflow's or ours to
    talk to it; MLflow was not even imported by then."""
    hung = Hung(tmp_path / "gate-5")  # from step 5 on the sender waits for an answer
    try:
        run = start(hung.uri, "track.wait=3", gates="5", FILES="files.json")
        run.finish()
    finally:
        hung.close()
    told = "".join(run.lines)
    assert "the record is not complete" in told
    ran = json.loads((tmp_path / "files.json").read_text())
    assert not [file for file in ran["files"] if "/mlflow/" in file or file.endswith(("track.py", "subprocess.py"))]
    assert [file for file in ran["files"] if file.endswith("recor_dist/journal.py")], "the record was written there"
    assert "mlflow" not in ran["modules"]
    assert decided_points(points_in_journal(run.out)) == expected

    assert sync("out", server.uri, tmp_path).returncode == 0
    assert_complete(server.uri, run.out)
    listed = client_of(server.uri).list_artifacts(run_of(server.uri, run.out).info.run_id)
    assert {file.path for file in listed} == {"model", "pictures", "replay.html", "result.json"}
