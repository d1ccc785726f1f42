"""The log of a run names the line of code in which a process hung, and what it had to do."""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recor_dist.core.config import Config
from recor_dist.core.device import fingerprint
from recor_dist.core.messages import Hello
from recor_dist.engine import crew
from recor_dist.engine.crew import Crew, Handle, RemoteActor, RemoteLearner
from recor_dist.engine.loop import train
from recor_dist.engine.placement import examine
from recor_dist.methods import make_learner
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.snapshot import PERIOD, Snapshot, describe, read_snapshot
from tests.cluster.faulty import faulty_worker, stuck_learner
from tests.cluster.test_leading import wait_for_actors

Configure = Callable[..., Config]
RAY = ["engine=ray", "device=cpu", "precision=float32", "deadline.answer=6"]
# Much longer than it takes, because a busy machine must not fail a test.
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "PATIENCE_WITH_STACKS", PATIENCE)
    monkeypatch.setitem(PERIOD, "disk", 0.5)


def line_of(text: str) -> int:
    """The line of tests/cluster/faulty.py with this text."""
    lines = Path(__file__).with_name("faulty.py").read_text().splitlines()
    return 1 + next(index for index, line in enumerate(lines) if line.strip() == text)


def report_of(member: str, caplog: pytest.LogCaptureFixture) -> str:
    """What the log has on a process that hung; on the first, because two actors may meet the fault at once."""
    found = [message for message in caplog.messages if message.startswith(member) and " hangs: " in message]
    print(*found, sep="\n")
    return found[0]


@contextmanager
def snapshots_of(out: Path) -> Iterator[list[Snapshot]]:
    """Collects what others can see of a run."""
    seen: list[Snapshot] = []
    over = threading.Event()

    def collect() -> None:
        while not over.wait(0.2):
            if out.exists() and (snapshot := read_snapshot(RunFolder.open(str(out)))):
                seen.append(snapshot)

    collecting = threading.Thread(target=collect)
    collecting.start()
    try:
        yield seen
    finally:
        over.set()
        collecting.join()


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize(
    ("fault", "gradients", "state", "function", "line"),
    [
        ("stop once", False, "stopped by a signal", "_stop", "time.sleep(600)  # until it is stopped"),
        # Slow because it is another run on Ray that waits for a deadline.
        pytest.param("deadlock once", True, "sleeping", "_deadlock", "lock.acquire()", marks=pytest.mark.slow),
    ],
    ids=["stopped", "deadlocked"],
)
def test_the_log_names_the_line_of_code_in_which_an_actor_hung(
    fault: str,
    gradients: bool,
    state: str,
    function: str,
    line: str,
    config_in: Configure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With batches, the driver notices; with gradients, the learner."""
    whole = train(config_in(f"out={tmp_path}/whole"))
    marks = tmp_path / "marks"
    marks.mkdir()

    def start(crew: Crew) -> Handle:
        make = partial(faulty_worker, crew.config, fault, marks)
        return RemoteActor.options(num_cpus=1).remote(partial(fingerprint, crew.config), make)

    monkeypatch.setattr(Crew, "start_actor", start)
    wait_for_actors(monkeypatch, 2)
    with caplog.at_level(logging.INFO), snapshots_of(tmp_path / "out") as seen:
        result = train(config_in(*RAY, "actors.count=2", f"actors.gradients={str(gradients).lower()}"))
    report = report_of("actor", caplog)
    assert re.match(r"actor \d \(pid \d+ on \S+\) hangs: computes Ticket\(step=5, group=\d, version=5\); ", report)
    assert f"; {state}, " in report
    assert re.search(r", \d+ MB, ", report)
    (found,) = re.findall(rf"in {function}, tests/cluster/faulty.py:(\d+)\n", report)
    assert line_of(line) - (state == "stopped by a signal") <= int(found) <= line_of(line)
    assert " in watch\n" not in report, "only threads that have to do something"
    assert result["weights_sha256"] == whole["weights_sha256"]
    # While it hung, everyone could see it.
    name, ticket = re.findall(r"(actor \d) .* hangs: computes (Ticket\(.*?\))", report)[0]
    texts = [describe(snapshot, snapshot.written) for snapshot in seen]
    assert any(re.search(rf"{name} .* computes {re.escape(ticket)}, for 0:0[2-9]", text) for text in texts), texts
    assert any(re.search(r"learner .* waits for Ticket\(step=5, .*, which actor \d has, for 0:0\d", t) for t in texts)
    assert any(name in fault and "hangs" in fault for fault in seen[-1].faults), seen[-1].faults


@pytest.mark.slow  # further runs on Ray that wait for a deadline
@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("gradients", [False, True], ids=["batches", "gradients"])
def test_the_log_names_the_line_of_code_in_which_the_learner_was_stuck(
    gradients: bool,
    config_in: Configure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    marks = tmp_path / "marks"
    marks.mkdir()

    def start(crew: Crew) -> Handle:
        make = partial(stuck_learner, partial(make_learner, crew.config, crew.data.shape, crew.steps), marks)
        return RemoteLearner.options(num_cpus=1).remote(partial(fingerprint, crew.config), make)

    monkeypatch.setattr(Crew, "start_learner", start)
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=1", f"actors.gradients={str(gradients).lower()}"))
    report = report_of("learner", caplog)
    has_to_do = "leads, has all gradients of" if gradients else r"takes (ticket|tickets 0 to) 1 of"
    assert re.match(rf"learner \(pid \d+ on \S+\) hangs: {has_to_do} step 5 with v_5; running, ", report), report
    assert re.search(r"in _loop, tests/cluster/faulty.py:\d+\n", report)
    assert result["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.slow  # starts a cluster of two nodes
def test_a_process_on_another_node_is_examined_there_and_one_that_is_gone_is_called_so(
    cluster: Callable[..., Cluster], config_in: Configure
) -> None:
    made = cluster({"num_cpus": 1}, {"num_cpus": 1})
    ray.init(address=made.address, log_to_driver=False)
    here = ray.get_runtime_context().get_node_id()
    (other,) = [node["NodeID"] for node in ray.nodes() if node["NodeID"] != here]
    where = NodeAffinitySchedulingStrategy(other, soft=False)
    make = partial(fingerprint, config_in(*RAY))
    actor = RemoteActor.options(num_cpus=1, scheduling_strategy=where).remote(make, None)
    hello: Hello = ray.get(actor.hello.remote(), timeout=90)
    assert hello.node == other
    os.kill(hello.pid, signal.SIGSTOP)
    (found,) = examine([hello], PATIENCE)
    assert found.startswith("stopped by a signal, ")
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{hello.pid}/stat").read_text().split(") ")[1][0] != "T":  # as before
        assert time.monotonic() < deadline
    os.kill(hello.pid, signal.SIGKILL)
    while examine([hello], PATIENCE) != ["it is gone"]:
        assert time.monotonic() < deadline
