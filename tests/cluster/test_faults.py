"""What goes wrong is answered, and told; what goes wrong every time ends the run with its cause."""

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
import safetensors.numpy
from ray._private.utils import get_system_memory, get_used_memory
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.pool import Learn
from actors.ray_actor import StoredShards, WeightsLost
from data.prepare import open_data
from data.shards import Dataset
from data.tasks import task_of
from learner.learner import initial_state
from recor_dist.core.config import Config, Mistake
from recor_dist.core.device import fingerprint
from recor_dist.core.messages import Rows, Ticket
from recor_dist.engine import ray_engine
from recor_dist.engine.loop import train
from recor_dist.engine.ray_engine import RayEngine, RunFailed
from recor_dist.methods import lay_out, make_learner
from tests.cluster.conftest import Run, add_node, is_on, records
from tests.cluster.faulty import faulty_worker

Configure = Callable[..., Config]
RAY = ["engine=ray", "device=cpu", "precision=float32"]


@pytest.fixture
def with_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Gives every actor a fault; returns the folder in which it leaves its marks."""

    def install(fault: str) -> Path:
        marks = tmp_path / "marks"
        marks.mkdir()

        def hire(engine: RayEngine) -> ray.actor.ActorHandle:
            make = partial(faulty_worker, engine.config, fault, marks)
            return ray_engine.RemoteActor.options(num_cpus=1).remote(partial(fingerprint, engine.config), make)

        monkeypatch.setattr(RayEngine, "hire_actor", hire)
        return marks

    return install


def test_a_bug_in_the_rollout_ends_the_run_after_three_actors_with_its_traceback_and_ticket(
    config_in: Configure, with_fault: Callable[[str], Path], tmp_path: Path
) -> None:
    marks = with_fault("raise")
    with pytest.raises(RunFailed) as failure:
        train(config_in(*RAY, "actors.count=3", "rollout_size=32"))
    told = str(failure.value)
    assert told.startswith("Ticket(step=5, group=0, version=5) failed on 3 actors")
    assert "in faulty\n" in told and "Bug: the order was lost" in told, "the original traceback"
    assert len({mark.name.split("-")[0] for mark in marks.iterdir()}) == 3, "on different actors"
    assert len(list(marks.iterdir())) == 3
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "failed"


def test_an_exception_that_passes_is_survived_and_told(
    config_in: Configure, with_fault: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    with_fault("raise once")
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=2"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert re.search(
        r"Ticket\(step=5, group=\d, version=5\) failed on actor \d .* and is issued again: .*Bug", caplog.text
    )
    last = [record for record in records(tmp_path / "out") if "loss/lm" in record][-1]
    assert last["engine/tickets_reissued"] >= 1


def test_a_mistake_found_by_an_actor_is_the_users_one_line(
    config_in: Configure, with_fault: Callable[[str], Path]
) -> None:
    marks = with_fault("mistake")
    with pytest.raises(Mistake, match="task=arg: this is the user's, with a remedy"):
        train(config_in(*RAY, "actors.count=1", "rollout_size=32"))
    assert len(list(marks.iterdir())) == 1, "trying again would not help"


@pytest.mark.slow  # takes some gigabytes
def test_an_actor_that_takes_too_much_memory_is_ended_by_ray_and_its_ticket_issued_again(
    config_in: Configure,
    with_fault: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    threshold = (get_used_memory() + 4e9) / get_system_memory()
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{threshold:.3f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "50")
    marks = with_fault("hoard once")
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=1"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert len(list(marks.iterdir())) == 1
    (told,) = [line for line in caplog.messages if "was lost" in line]
    assert re.search(r"memory", told) and re.search(r"Ticket\(step=5, group=0, version=5\).* is issued again", told), (
        told
    )


@pytest.mark.slow  # five actors start one after the other
def test_a_ticket_that_takes_every_actor_down_ends_the_run(
    config_in: Configure, with_fault: Callable[[str], Path]
) -> None:
    marks = with_fault("die")
    with pytest.raises(RunFailed, match=r"Ticket\(step=5, group=0, version=5\) failed on 5 actors"):
        train(config_in(*RAY, "actors.count=1", "rollout_size=32"))
    assert len(list(marks.iterdir())) == 5


def test_an_actor_of_another_kind_of_machine_is_turned_away(
    config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hire = RayEngine.hire_actor

    def mixed(engine: RayEngine) -> ray.actor.ActorHandle:
        if engine.hired != 1:
            return hire(engine)
        make = partial(ray_engine.make_worker, engine.config)
        odd = {**fingerprint(engine.config), "torch": "9.9"}
        return ray_engine.RemoteActor.options(num_cpus=1).remote(lambda: odd, make)

    monkeypatch.setattr(RayEngine, "hire_actor", mixed)
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=2"))
    assert re.search(
        r"actor 1 \(pid \d+ on .*\) is turned away, it would compute other bits: torch 9\.9 instead of", caplog.text
    )
    assert result["reproducible"] is True
    assert {r["engine/actors_alive"] for r in records(tmp_path / "out") if "loss/lm" in r} == {1}
    mixture = train(config_in(*RAY, "actors.count=2", "allow_mixed=true", f"out={tmp_path}/mixed"))
    assert mixture["reproducible"] is False


def test_actors_without_a_place_are_told_of_and_the_run_goes_on(
    config_in: Configure,
    tmp_path: Path,
    cluster: Callable[..., Cluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ray.init(address=cluster({"num_cpus": 2}).address, log_to_driver=False)
    monkeypatch.setattr(ray_engine, "PATIENCE_WITH_PLACEMENT", 1.0)
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=4", "epochs=10"))
    assert result["steps"] == 187
    assert "3 of 4 actors are not there yet: each wants 1 CPU, and there are 1 node with 2 CPU and 0 GPU" in caplog.text
    with pytest.raises(Mistake, match=r"deadline\.join=3: the learner did not start in that time: it wants 3 CPU"):
        train(config_in(*RAY, "learner.num_cpus=3", "deadline.join=3", f"out={tmp_path}/learner"))
    # Long enough for the learner to start on a busy machine.
    with pytest.raises(
        Mistake, match=r"deadline\.join=30: no actor could be had in that time: each wants 1 CPU and 1 GPU"
    ):
        train(config_in(*RAY, "actors.num_gpus=1", "deadline.join=30", f"out={tmp_path}/actors"))


def test_a_node_that_joins_in_the_middle_takes_tickets(
    cluster: Callable[..., Cluster], run: Callable[..., Run], config_in: Configure, tmp_path: Path
) -> None:
    made = cluster({"num_cpus": 2})
    words = ["epochs=40", "eval.every=0", "checkpoint.every=1000"]
    whole = train(config_in(*words, f"out={tmp_path}/whole"))
    started = run("engine=ray", *words, address=made.address)
    started.wait_for_step(5)
    add_node(made, num_cpus=1)
    assert started.sha256() == whole["weights_sha256"]
    assert "putting the shards into the object store" in started.log
    steps = [record for record in records(tmp_path / "out") if "loss/lm" in record]
    assert steps[0]["engine/actors_alive"] == 1
    assert steps[-1]["engine/actors_alive"] == 2, "without a restart"
    shares = dict(re.findall(r"(actor \d+) \(pid \d+ on \S+\) computed (\d+) tickets", started.log))
    assert int(shares["actor 2"]) > 0
    assert sum(map(int, shares.values())) == 2 * whole["steps"] + 2 + 2, "of training, validation and test"


def test_a_killed_learner_finds_a_place_in_a_full_cluster(
    cluster: Callable[..., Cluster], run: Callable[..., Run], config_in: Configure, tmp_path: Path
) -> None:
    """More actors are wanted than there is room for: the place of the dead must not go to one of those."""
    words = ["epochs=20", "eval.every=50", "checkpoint.every=20"]
    whole = train(config_in(*words, f"out={tmp_path}/whole"))
    started = run("engine=ray", "actors.count=3", *words, address=cluster({"num_cpus": 2}).address)
    started.wait_for_step(60)
    (pid,) = re.findall(r"learner \(pid (\d+) on \S+\) is there", started.log)
    os.kill(int(pid), signal.SIGKILL)
    assert started.sha256() == whole["weights_sha256"]
    assert re.search(
        rf"learner \(pid {pid} on \S+\) was lost at step \d+: .*; a new one goes on from step \d+", started.log
    )
    assert "deadline.join" not in started.log


def test_a_hung_learner_is_ended_and_a_new_one_goes_on(
    run: Callable[..., Run], config_in: Configure, tmp_path: Path
) -> None:
    words = ["epochs=20", "eval.every=50", "checkpoint.every=20"]
    whole = train(config_in(*words, f"out={tmp_path}/whole"))
    started = run("engine=ray", "actors.count=1", "deadline.answer=6", *words)
    started.wait_for_step(60)
    (pid,) = re.findall(r"learner \(pid (\d+) on \S+\) is there", started.log)
    os.kill(int(pid), signal.SIGSTOP)
    lost = rf"learner \(pid {pid} on \S+\) was lost at step \d+: no answer before its deadline"
    (went_on,) = started.wait_for(rf"{lost}; a new one goes on from step (\d+)")
    assert int(went_on) >= 60
    assert started.sha256() == whole["weights_sha256"]
    assert not _is_left(int(pid))


def test_what_went_down_with_a_node_is_named(cluster: Callable[..., Cluster], config_in: Configure) -> None:
    """A batch that the learner cannot have any more, and weights that an actor cannot."""
    made = cluster({"num_cpus": 2})
    doomed = add_node(made, num_cpus=1, resources={"doomed": 1})
    ray.init(address=made.address, log_to_driver=False)

    @ray.remote(num_cpus=0)
    def block() -> np.ndarray:
        return np.ones(1_000_000, dtype=np.float32)

    kept, lost = block.remote(), block.options(resources={"doomed": 0.1}, max_retries=0).remote()
    ray.wait([kept, lost], num_returns=2, timeout=60, fetch_local=False)
    made.remove_node(doomed, allow_graceful=False)
    config = config_in(*RAY)
    data = open_data(config, task_of(config))
    learner = ray_engine.RemoteLearner.options(num_cpus=1).remote(
        partial(ray_engine._introduce, config), partial(make_learner, config, data.shape, 10)
    )
    ray.get(learner.begin.remote(initial_state(lay_out(config, data.shape), 0)), timeout=90)
    receipt, weights, _ = ray.get(learner.update.remote(0, 0, [kept, lost], last=True, with_state=False), timeout=90)
    assert receipt.lost == (1,)
    assert weights is None
    actor = ray_engine.RemoteActor.options(num_cpus=1).remote(
        partial(fingerprint, config), partial(ray_engine.make_worker, config)
    )
    ray.get(actor.begin.remote(data, None), timeout=90)
    with pytest.raises(ray.exceptions.RayTaskError) as refused:
        ray.get(actor.roll_out.remote(Ticket(3, 0, 3), [lost]), timeout=90)
    assert isinstance(refused.value.cause, WeightsLost)


def test_batches_that_go_down_with_a_node_are_computed_again(
    cluster: Callable[..., Cluster],
    run: Callable[..., Run],
    config_in: Configure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One actor is held up, so that the learner cannot take what the other has finished; then its node is lost."""
    words = ["epochs=40", "eval.every=0", "checkpoint.every=1000", "lag=2"]
    whole = train(config_in(*words, f"out={tmp_path}/whole"))
    monkeypatch.setenv("RAY_max_direct_call_object_size", "1000")  # or small batches come with their receipts
    made = cluster({"num_cpus": 2})
    doomed = add_node(made, num_cpus=1)
    started = run("engine=ray", "actors.count=2", "deadline.answer=120", *words, address=made.address)
    pids = map(int, started.wait_for(r"actor \d+ \(pid (\d+) on \S+\) joined", count=2))
    (held_up,) = [pid for pid in pids if not is_on(doomed, pid)]
    os.kill(held_up, signal.SIGSTOP)
    steps, since = -1, time.monotonic()
    while time.monotonic() - since < 3:  # until the other one has done all that it can
        seen = len(records(tmp_path / "out"))
        steps, since = seen, time.monotonic() if seen != steps else since
        time.sleep(0.1)
    made.remove_node(doomed, allow_graceful=False)
    started.wait_for(r"actor \d+ \(pid \d+ on \S+\) was lost")
    os.kill(held_up, signal.SIGCONT)
    assert started.sha256() == whole["weights_sha256"]
    assert re.search(r"the batch of .* was lost with its node; it is issued again", started.log), started.log


def test_answers_of_the_learner_that_overtake_each_other_are_taken_in_order(
    config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray answers every call by itself, so that of a later step may be seen first."""
    words = ["method=clm", "epochs=6", "track.enabled=false"]
    expected = train(config_in(*words))["weights_sha256"]
    wait, learned = ray.wait, ray_engine.RayEngine._learned
    overtaken: list[Learn] = []

    def last_first(refs: list, **options: object) -> tuple[list, list]:
        if options.get("num_returns"):  # the engine takes all that are there
            ready, rest = wait(refs, **options)
            return ready[::-1], rest
        time.sleep(0.2)  # so that several are there
        ready, _ = wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        if not ready:
            return wait(refs, **options)
        return ready[-1:], [ref for ref in refs if ref is not ready[-1]]

    def watched(self: ray_engine.RayEngine, call: ray_engine.Call, *rest: object) -> None:
        overtaken.extend([call.part] if call.part != self.pool.in_hand[0] else [])
        learned(self, call, *rest)

    monkeypatch.setattr(ray, "wait", last_first)
    monkeypatch.setattr(ray_engine.RayEngine, "_learned", watched)
    result = train(config_in(*words, *RAY, "actors.count=3", f"out={tmp_path}/overtaken"))
    assert overtaken, "the test wants answers in the wrong order"
    assert result["weights_sha256"] == expected


def test_shards_reach_a_node_that_cannot_reach_their_folder(
    cluster: Callable[..., Cluster], config_in: Configure, tmp_path: Path
) -> None:
    made = cluster({"num_cpus": 1}, {"num_cpus": 1})
    ray.init(address=made.address, log_to_driver=False)
    config = config_in(*RAY)
    data = open_data(config, task_of(config))
    stored = StoredShards.put(data)
    nowhere = Dataset(f"{tmp_path}/nowhere", data.manifest, data.remedy)

    @ray.remote(num_cpus=1)
    def read(data: Dataset, stored: StoredShards) -> tuple[str, Rows]:
        rows = data.read_from(stored).take(data.row_order(0), 590, 20)  # across an epoch's end
        return ray.get_runtime_context().get_node_id(), rows

    other = next(node["NodeID"] for node in ray.nodes() if node["NodeID"] != ray.get_runtime_context().get_node_id())
    where = NodeAffinitySchedulingStrategy(other, soft=False)
    node, rows = ray.get(read.options(scheduling_strategy=where).remote(nowhere, stored), timeout=60)
    assert node == other
    expected = data.take(data.row_order(0), 590, 20)
    assert (rows.prompts == expected.prompts).all() and (rows.responses == expected.responses).all()


@pytest.mark.parametrize("method", ["recor", "clm"])  # whose tickets need weights, and do not
def test_a_stopped_run_leaves_a_checkpoint_says_so_and_goes_on(
    method: str, run: Callable[..., Run], tmp_path: Path
) -> None:
    number = signal.SIGTERM
    words = [
        f"method={method}",
        "engine=ray",
        "actors.count=1",
        "epochs=300",
        "checkpoint.every=100000",
        "eval.every=3",
    ]
    stopped = run(*words)
    stopped.wait_for_step(10)
    asked = time.monotonic()
    stopped.process.send_signal(number)
    while json.loads((tmp_path / "out/run.json").read_text())["status"] != "stopped":
        assert time.monotonic() - asked < 30
        time.sleep(0.02)
    print(f"checkpoint and mark after {time.monotonic() - asked:.2f} s")
    stopped.finish()
    assert stopped.process.returncode == 128 + number
    assert "Traceback" not in stopped.log
    (left,) = (tmp_path / "out/checkpoints").iterdir()
    step = int(left.name.removeprefix("step-"))
    assert step >= 10
    assert f"stopped by SIGTERM at step {step}; the same command goes on from there" in stopped.log
    again = run(*words)
    again.wait_for(rf"resuming at step {step} of \d+")
    again.wait_for_step(step + 10)
    again.process.send_signal(number)
    again.finish()
    validated = [r["step"] for r in records(tmp_path / "out") if "eval/val/exact_match" in r]
    assert sorted(set(validated)) == sorted(validated), "each validation once"
    left = max((tmp_path / "out/checkpoints").iterdir())
    last = int(left.name.removeprefix("step-"))
    kept = safetensors.numpy.load_file(left / "state.safetensors")
    to_come = {last, *(int(name.removeprefix("version.")) for name in kept if name.startswith("version."))}
    assert set(range(3, last + 1, 3)) <= {*validated, *to_come}, "and none forgotten"


def test_the_driver_killed_and_the_command_repeated_gives_the_same_bits(
    run: Callable[..., Run], tmp_path: Path, config_in: Configure
) -> None:
    words = ["epochs=20", "lag=2", "checkpoint.every=20", "eval.every=25"]
    whole = train(config_in(*words, f"out={tmp_path}/whole"))
    killed = run("engine=ray", "actors.count=2", *words)
    killed.wait_for_step(70)
    children = killed.descendants()
    killed.process.send_signal(signal.SIGKILL)
    killed.finish()
    assert not (tmp_path / "out/result.json").exists()
    deadline = time.monotonic() + 60
    while left := [pid for pid in children if _is_left(pid)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
    again = run("engine=ray", "actors.count=1", *words)
    assert again.sha256() == whole["weights_sha256"]
    resumed = int(re.findall(r"resuming at step (\d+) of 375", again.log)[0])
    assert resumed >= 60
    ours, theirs = (
        sorted({(r["step"], r.get("loss/lm"), r.get("eval/val/exact_match")) for r in records(tmp_path / o)}, key=str)
        for o in ("out", "whole")
    )
    assert ours == theirs


def _is_left(pid: int) -> bool:
    """Whether a process still runs. Ray's agents of a node notice after a minute or so that their raylet is gone."""
    try:
        agents = ("DashboardAgent", "RuntimeEnvAgent")
        about, command = Path(f"/proc/{pid}/status").read_text(), Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "zombie" not in about and not any(agent in command for agent in agents)
