"""A run survives faults and logs them; a fault that occurs every time ends the run with its cause."""

import json
import logging
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import safetensors.numpy
from ray._common.utils import get_system_memory
from ray._private.utils import get_used_memory
from ray.cluster_utils import Cluster
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.pool import Learn
from actors.ray_actor import StoredShards, WeightsLost
from data.prepare import open_data
from data.shards import Dataset
from data.tasks import task_of
from learner.learner import initial_state
from recor_dist.core.config import Config
from recor_dist.core.device import fingerprint
from recor_dist.core.memory import TooSmall
from recor_dist.core.messages import Rows, Ticket
from recor_dist.core.setting import Mistake
from recor_dist.engine import crew
from recor_dist.engine.calls import UpdateCall
from recor_dist.engine.crew import Crew, Handle, RemoteActor, RemoteLearner
from recor_dist.engine.events import Event, RunFailed
from recor_dist.engine.learning import Learning
from recor_dist.engine.loop import train
from recor_dist.methods import lay_out, make_learner, make_worker
from tests.cluster.conftest import Run, add_node, is_on, records
from tests.cluster.faulty import faulty_worker

Configure = Callable[..., Config]
# With batches, all tickets come from actors. tests/cluster/test_leading.py has faults of a leading learner's actors.
RAY = ["engine=ray", "device=cpu", "precision=float32", "actors.gradients=false"]


@pytest.fixture
def with_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Gives every actor a fault; returns the folder in which it leaves its marks."""

    def install(fault: str) -> Path:
        marks = tmp_path / "marks"
        marks.mkdir()

        def start(crew: Crew) -> Handle:
            make = partial(faulty_worker, crew.config, fault, marks)
            return RemoteActor.options(num_cpus=1).remote(partial(fingerprint, crew.config), make)

        monkeypatch.setattr(Crew, "start_actor", start)
        return marks

    return install


@pytest.mark.usefixtures("one_ray")
def test_a_bug_in_the_rollout_ends_the_run_after_three_actors_with_its_traceback_and_ticket(
    config_in: Configure, with_fault: Callable[[str], Path], tmp_path: Path
) -> None:
    marks = with_fault("raise")
    with pytest.raises(RunFailed) as failure:
        train(config_in(*RAY, "actors.count=3", "rollout_size=32"))
    text = str(failure.value)
    assert text.startswith("Ticket(step=5, group=0, version=5) failed on 3 actors")
    assert "in faulty\n" in text and "Bug: the order was lost" in text, "the original traceback"
    assert len({mark.name.split("-")[0] for mark in marks.iterdir()}) == 3, "on different actors"
    assert len(list(marks.iterdir())) == 3
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "failed"


@pytest.mark.usefixtures("one_ray")
def test_a_run_survives_an_exception_that_occurs_once(
    config_in: Configure, with_fault: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    with_fault("raise once")
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=2"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert re.search(r"Ticket\(step=5, group=\d, version=5\) failed on actor \d .* and is reissued: .*Bug", caplog.text)
    last = [record for record in records(tmp_path / "out") if "loss/lm" in record][-1]
    assert last["engine/tickets_reissued"] >= 1


@pytest.mark.usefixtures("one_ray")
def test_a_mistake_found_by_an_actor_ends_the_run_at_once_with_its_one_line(
    config_in: Configure, with_fault: Callable[[str], Path]
) -> None:
    marks = with_fault("mistake")
    with pytest.raises(Mistake, match="task=arg: the user can correct this"):
        train(config_in(*RAY, "actors.count=1", "rollout_size=32"))
    assert len(list(marks.iterdir())) == 1, "it is not tried again"


@pytest.mark.slow  # allocates gigabytes
def test_an_actor_that_ray_kills_for_its_memory_is_replaced_and_its_ticket_reissued(
    config_in: Configure,
    with_fault: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    threshold = (get_used_memory() + 4e9) / get_system_memory()
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{threshold:.3f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "500")  # by the next look, the killed actor's memory is free
    ray.shutdown()  # a new Ray reads these settings
    marks = with_fault("hoard once")
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=1"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert len(list(marks.iterdir())) == 1
    (line,) = [line for line in caplog.messages if "was lost" in line]
    assert re.search(r"memory.*; reissuing .*Ticket\(step=5, group=0, version=5\)", line), line


@pytest.mark.slow  # five actors start one by one
@pytest.mark.usefixtures("one_ray")
def test_a_ticket_that_kills_every_actor_ends_the_run(config_in: Configure, with_fault: Callable[[str], Path]) -> None:
    marks = with_fault("die")
    with pytest.raises(RunFailed, match=r"Ticket\(step=5, group=0, version=5\) failed on 5 actors"):
        train(config_in(*RAY, "actors.count=1", "rollout_size=32"))
    assert len(list(marks.iterdir())) == 5


@pytest.fixture
def _mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first actor pretends to have another torch."""
    start, names = Crew.start_actor, count(1)

    def mixed(crew: Crew) -> Handle:
        if next(names) != 1:
            return start(crew)
        odd = {**fingerprint(crew.config), "torch": "9.9"}
        return RemoteActor.options(num_cpus=1).remote(lambda: odd, partial(make_worker, crew.config))

    monkeypatch.setattr(Crew, "start_actor", mixed)


@pytest.mark.slow  # another run on Ray
@pytest.mark.usefixtures("one_ray", "_mixture")
def test_a_mixture_that_is_allowed_marks_the_run(config_in: Configure) -> None:
    result = train(config_in(*RAY, "actors.count=2", "allow_mixed=true"))
    assert result["reproducible"] is False


@pytest.mark.usefixtures("one_ray", "_mixture")
def test_an_actor_on_a_different_kind_of_machine_is_turned_away(
    config_in: Configure, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=2"))
    assert re.search(
        r"actor 1 \(pid \d+ on .*\) is turned away because it would compute different bits: torch 9\.9 instead of",
        caplog.text,
    )
    assert result["reproducible"] is True
    assert {r["engine/actors_alive"] for r in records(tmp_path / "out") if "loss/lm" in r} == {1}


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("small", [1, 2])
def test_an_actor_whose_machine_is_too_small_is_turned_away_and_ends_the_run_only_if_all_are(
    small: int, config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first `small` of two actors pretend that their machine has no memory."""
    start, names = Crew.start_actor, count(1)

    def begin(_: Any) -> Any:
        raise TooSmall("eval.size=9: needs at least 2.0 GB of memory, and this machine has 1.0; lower it")

    def mixed(crew: Crew) -> Handle:
        if next(names) > small:
            return start(crew)
        return RemoteActor.options(num_cpus=1).remote(partial(fingerprint, crew.config), begin)

    monkeypatch.setattr(Crew, "start_actor", mixed)
    config = config_in(*RAY, "actors.count=2")
    if small == 2:
        with pytest.raises(TooSmall, match=r"^eval\.size=9: needs at least"):
            train(config)
        return
    train(config)
    assert re.search(r"actor 1 \(pid \d+ on .*\) is turned away: eval\.size=9: needs at least 2\.0 GB", caplog.text)
    assert {r["engine/actors_alive"] for r in records(tmp_path / "out") if "loss/lm" in r} == {1}


@pytest.mark.usefixtures("one_ray")
def test_answers_of_the_learner_that_arrive_in_the_wrong_order_are_taken_in_the_right_one(
    config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray answers each call independently, so the answer to a later one may arrive first."""
    overrides = ["method=clm", "epochs=2", "track.enabled=false"]
    expected = train(config_in(*overrides))["weights_sha256"]
    wait, learned = ray.wait, Learning.learned
    overtaken: list[Learn] = []

    def last_first(refs: list, **options: object) -> tuple[list, list]:
        if options.get("num_returns"):  # the engine takes all that have arrived
            ready, rest = wait(refs, **options)
            return ready[::-1], rest
        time.sleep(0.2)  # until several have arrived
        ready, _ = wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        if not ready:
            return wait(refs, **options)
        return ready[-1:], [ref for ref in refs if ref is not ready[-1]]

    def watched(self: Learning, call: UpdateCall, *rest: Any) -> Iterator[Event]:
        overtaken.extend([call.part] if call.part != self.pool.in_hand[0] else [])
        return learned(self, call, *rest)

    monkeypatch.setattr(ray, "wait", last_first)
    monkeypatch.setattr(Learning, "learned", watched)
    result = train(config_in(*overrides, *RAY, "actors.count=3", f"out={tmp_path}/overtaken"))
    assert overtaken, "no answer arrived in the wrong order"
    assert result["weights_sha256"] == expected


@pytest.mark.slow  # waits until the missing actors are reported
def test_the_run_continues_without_actors_that_cannot_be_placed_and_says_so(
    config_in: Configure,
    tmp_path: Path,
    cluster: Callable[..., Cluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ray.init(address=cluster({"num_cpus": 2}).address, log_to_driver=False)
    monkeypatch.setattr(crew, "PATIENCE_WITH_PLACEMENT", 1.0)
    with caplog.at_level(logging.INFO):
        result = train(config_in(*RAY, "actors.count=4", "epochs=10"))
    assert result["steps"] == 187
    missing = "3 of 4 actors have not started yet: each needs 1 CPU, and the cluster has 1 node with 2 CPUs and 0 GPUs"
    assert missing in caplog.text
    with pytest.raises(Mistake, match=r"deadline\.join=3: the learner did not start in that time: it needs 3 CPUs"):
        train(config_in(*RAY, "learner.num_cpus=3", "deadline.join=3", f"out={tmp_path}/learner"))
    # Long enough for the learner to start on a busy machine.
    with pytest.raises(Mistake, match=r"deadline\.join=30: no actor began in that time: each needs 1 CPU and 1 GPU"):
        train(config_in(*RAY, "actors.num_gpus=1", "deadline.join=30", f"out={tmp_path}/actors"))


@pytest.mark.slow  # starts a cluster and a node
def test_a_node_that_joins_during_a_run_takes_tickets(
    cluster: Callable[..., Cluster], run: Callable[..., Run], config_in: Configure, tmp_path: Path
) -> None:
    made = cluster({"num_cpus": 2})
    overrides = ["epochs=40", "eval.every=0", "checkpoint.every=1000", "actors.gradients=false"]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole"))
    started = run("engine=ray", *overrides, address=made.address)
    started.wait_for_step(5)
    add_node(made, num_cpus=1)
    assert started.sha256() == whole["weights_sha256"]
    assert "putting the shards into the object store" in started.log
    steps = [record for record in records(tmp_path / "out") if "loss/lm" in record]
    assert steps[0]["engine/actors_alive"] == 1
    assert steps[-1]["engine/actors_alive"] == 2, "without a restart"
    shares = dict(re.findall(r"(actor \d+) \(pid \d+ on \S+\) computed (\d+) tickets", started.log))
    assert int(shares["actor 2"]) > 0
    assert sum(map(int, shares.values())) == 2 * whole["steps"] + 2 + 2, "those of training, validation and test"


@pytest.mark.slow  # waits until an actor makes room
def test_a_killed_learner_is_replaced_in_a_full_cluster(
    cluster: Callable[..., Cluster], run: Callable[..., Run], config_in: Configure, tmp_path: Path
) -> None:
    """More actors are wanted than fit: none of the waiting ones may take the place of the dead learner."""
    overrides = ["epochs=20", "eval.every=50", "checkpoint.every=20"]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole"))
    started = run(
        "engine=ray", "actors.count=3", "actors.gradients=false", *overrides, address=cluster({"num_cpus": 2}).address
    )
    started.wait_for_step(60)
    (pid,) = re.findall(r"learner \(pid (\d+) on \S+\) started", started.log)
    os.kill(int(pid), signal.SIGKILL)
    assert started.sha256() == whole["weights_sha256"]
    assert re.search(
        rf"learner \(pid {pid} on \S+\) was lost at step \d+: .*; a new one resumes from step \d+", started.log
    )
    assert "deadline.join" not in started.log


@pytest.mark.slow  # waits for two deadlines
def test_a_hung_learner_is_killed_and_replaced(run: Callable[..., Run], config_in: Configure, tmp_path: Path) -> None:
    overrides = ["epochs=20", "eval.every=50", "checkpoint.every=20"]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole"))
    started = run("engine=ray", "actors.count=1", "deadline.answer=6", *overrides)
    started.wait_for_step(60)
    (pid,) = re.findall(r"learner \(pid (\d+) on \S+\) started", started.log)
    os.kill(int(pid), signal.SIGSTOP)
    lost = rf"learner \(pid {pid} on \S+\) was lost at step \d+: no answer before its deadline"
    (resumed,) = started.wait_for(rf"{lost}; a new one resumes from step (\d+)")
    assert int(resumed) >= 60
    assert started.sha256() == whole["weights_sha256"]
    assert not _is_left(int(pid))


def test_shells_report_what_was_lost_with_a_node(cluster: Callable[..., Cluster], config_in: Configure) -> None:
    """A batch that the learner can no longer fetch, and weights that an actor cannot."""
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
    learner = RemoteLearner.options(num_cpus=1).remote(
        partial(fingerprint, config), partial(make_learner, config, data.shape, 10)
    )
    ray.get(learner.begin.remote(initial_state(lay_out(config, data.shape), 0)), timeout=90)
    receipt, weights, _ = ray.get(learner.update.remote(0, 0, [kept, lost], last=True, with_state=False), timeout=90)
    assert receipt.lost == (1,)
    assert weights is None
    actor = RemoteActor.options(num_cpus=1).remote(partial(fingerprint, config), partial(make_worker, config))
    ray.get(actor.begin.remote(data, None), timeout=90)
    with pytest.raises(RayTaskError) as refused:
        ray.get(actor.roll_out.remote(Ticket(3, 0, 3), [lost]), timeout=90)
    assert isinstance(refused.value.cause, WeightsLost)


@pytest.mark.slow  # waits for Ray to notice a lost node
@pytest.mark.parametrize("mode", [["lag=2"], ["actors.gradients=true"]], ids=["batches", "gradients"])
def test_results_lost_with_their_node_are_computed_again(
    mode: list[str],
    cluster: Callable[..., Cluster],
    run: Callable[..., Run],
    config_in: Configure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One actor is paused, so the learner cannot take what the other has finished; then the other's node is lost."""
    overrides = ["epochs=40", "eval.every=0", "checkpoint.every=1000", *mode]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole"))
    monkeypatch.setenv("RAY_max_direct_call_object_size", "1000")  # else small batches come with their receipts
    made = cluster({"num_cpus": 2})
    doomed = add_node(made, num_cpus=1)
    started = run("engine=ray", "actors.count=2", "deadline.answer=120", *overrides, address=made.address)
    pids = map(int, started.wait_for(r"actor \d+ \(pid (\d+) on \S+\) joined", count=2))
    (paused,) = [pid for pid in pids if not is_on(doomed, pid)]
    os.kill(paused, signal.SIGSTOP)
    steps, since = -1, time.monotonic()
    while time.monotonic() - since < 3:  # until the other one has done everything it can
        seen = len(records(tmp_path / "out"))
        steps, since = seen, time.monotonic() if seen != steps else since
        time.sleep(0.1)
    made.remove_node(doomed, allow_graceful=False)
    started.wait_for(r"actor \d+ \(pid \d+ on \S+\) was lost")
    os.kill(paused, signal.SIGCONT)
    assert started.sha256() == whole["weights_sha256"]
    # A learner that leads has fetched all gradients of the lost actor when it waits for the paused one.
    if "gradients" not in mode[0]:
        assert re.search(r"the result of .* was lost with its node; reissuing it", started.log), started.log


@pytest.mark.slow  # starts a cluster of two nodes
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


# Tickets of recor need weights, those of clm do not.
@pytest.mark.parametrize("method", ["recor", pytest.param("clm", marks=pytest.mark.slow)])
def test_a_stopped_run_saves_a_checkpoint_says_so_and_is_resumed(
    method: str, run: Callable[..., Run], tmp_path: Path
) -> None:
    number = signal.SIGTERM
    overrides = [
        f"method={method}",
        "engine=ray",
        "actors.count=1",
        "epochs=300",
        "checkpoint.every=100000",
        "eval.every=3",
    ]
    stopped = run(*overrides)
    stopped.wait_for_step(10)
    asked = time.monotonic()
    stopped.process.send_signal(number)
    while json.loads((tmp_path / "out/run.json").read_text())["status"] != "stopped":
        assert time.monotonic() - asked < 30
        time.sleep(0.02)
    print(f"checkpoint and status after {time.monotonic() - asked:.2f} s")
    stopped.finish()
    assert stopped.process.returncode == 128 + number
    assert "Traceback" not in stopped.log
    (left,) = (tmp_path / "out/checkpoints").iterdir()
    step = int(left.name.removeprefix("step-"))
    assert step >= 10
    assert f"stopped by SIGTERM at step {step}; the same command resumes from there" in stopped.log
    again = run(*overrides)
    again.wait_for(rf"resuming at step {step} of \d+")
    again.wait_for_step(step + 10)
    again.process.send_signal(number)
    again.finish()
    validated = [r["step"] for r in records(tmp_path / "out") if "eval/val/exact_match" in r]
    assert sorted(set(validated)) == sorted(validated), "no validation twice"
    left = max((tmp_path / "out/checkpoints").iterdir())
    last = int(left.name.removeprefix("step-"))
    kept = safetensors.numpy.load_file(left / "state.safetensors")
    to_come = {last, *(int(name.removeprefix("version.")) for name in kept if name.startswith("version."))}
    assert set(range(3, last + 1, 3)) <= {*validated, *to_come}, "and none is missing"


def test_a_run_whose_driver_is_killed_is_resumed_with_the_same_bits(
    run: Callable[..., Run], tmp_path: Path, config_in: Configure
) -> None:
    """With gradients before and batches after: where gradients are computed may change at every start."""
    overrides = ["epochs=8", "checkpoint.every=20", "eval.every=25"]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole"))
    killed = run("engine=ray", "actors.count=2", "actors.gradients=true", *overrides)
    killed.wait_for_step(70)
    children = killed.descendants()
    (folder,) = Path(os.environ["RAY_TMPDIR"]).glob("recor-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "only its user can open it"
    killed.process.send_signal(signal.SIGKILL)
    killed.finish()
    assert not (tmp_path / "out/result.json").exists()
    deadline = time.monotonic() + 60
    while left := [pid for pid in children if _is_left(pid)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
    assert not folder.exists()
    again = run("engine=ray", "actors.count=1", "actors.gradients=false", *overrides)
    assert again.sha256() == whole["weights_sha256"]
    resumed = int(re.findall(r"resuming at step (\d+) of 150", again.log)[0])
    assert resumed >= 60
    ours, theirs = (
        sorted({(r["step"], r.get("loss/lm"), r.get("eval/val/exact_match")) for r in records(tmp_path / o)}, key=str)
        for o in ("out", "whole")
    )
    assert ours == theirs


def _is_left(pid: int) -> bool:
    """True if a process still runs."""
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "needed",
    ["raylet", pytest.param("gcs_server", marks=pytest.mark.slow)],  # each starts Ray
)
def test_a_run_whose_ray_is_killed_ends_in_one_line(needed: str, run: Callable[..., Run], tmp_path: Path) -> None:
    killed = run("engine=ray", "actors.count=1", "epochs=100", "checkpoint.every=10")
    killed.wait_for_step(12)
    (pid,) = [pid for pid in killed.descendants() if Path(f"/proc/{pid}/exe").resolve().name == needed]
    os.kill(pid, signal.SIGKILL)
    killed.finish()
    assert killed.process.returncode == 2
    assert killed.log.splitlines()[-1].startswith(f"error: engine=ray: Ray's {needed} on this machine ended")
    assert "Traceback" not in killed.log
    assert "state-dump" not in killed.log
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "failed"
