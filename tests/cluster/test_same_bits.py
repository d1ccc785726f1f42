"""Ray with any number of actors gives the same weights as one process."""

import logging
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError

import actors
import data
import learner
import recor_dist
from actors.ray_actor import NICENESS
from data.prepare import open_data
from data.tasks import task_of
from recor_dist.core.config import Config
from recor_dist.core.device import fingerprint
from recor_dist.core.messages import Ticket
from recor_dist.engine.crew import RemoteActor, RemoteLearner
from recor_dist.engine.loop import train
from recor_dist.methods import METHODS, lay_out, make_worker
from tests.cluster.conftest import records
from tests.conftest import decided
from tests.test_methods import EVERY, overrides_of

Configure = Callable[..., Config]
OVERRIDES = [
    "eval.every=5",
    "checkpoint.every=7",
    "task.test_rows=100",
]  # four tickets, whose sums may arrive in any order


RAY = ["engine=ray", "device=cpu"]  # else every run asks Ray whether torch can use its simulated GPUs
WHOLE_STEPS = ["recor", "method.algorithm=ppo", "method.reward=dense"]  # its loss needs all tickets of a step at once

# One method per kind of batch and of loss; the others take the same ways and have their turn in `make test-slow`.
QUICK = (["recor"], ["mdm"], WHOLE_STEPS)
METHODS_ON_RAY = [
    pytest.param(method, id=" ".join(method), marks=[] if method in QUICK else pytest.mark.slow)
    for method in [*EVERY, WHOLE_STEPS]
]


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize(
    ("lag", "mode", "counts"),
    [
        (0, "false", (2,)),
        (0, "true", (3,)),
        pytest.param(0, "false", (1, 3, 4), marks=pytest.mark.slow),  # several more runs on Ray
        pytest.param(0, "true", (1, 2, 4), marks=pytest.mark.slow),
        pytest.param(2, "auto", (1, 2, 4), marks=pytest.mark.slow),
    ],
)
def test_ray_with_any_number_of_actors_gives_the_weights_of_one_process(
    lag: int, mode: str, counts: tuple[int, ...], tmp_path: Path, config_in: Configure
) -> None:
    local = train(config_in(f"lag={lag}", f"out={tmp_path}/local", *OVERRIDES))
    for count in counts:
        out = tmp_path / f"ray{count}"
        actors = [f"actors.gradients={mode}", f"actors.count={count}"]
        result = train(config_in(f"lag={lag}", f"out={out}", *RAY, *actors, *OVERRIDES))
        assert result["weights_sha256"] == local["weights_sha256"]
        assert (result["val"], result["test"]) == (local["val"], local["test"])
        ours, theirs = ({_key(r): decided(r) for r in records(folder)} for folder in (out, tmp_path / "local"))
        assert ours == theirs, "the same metrics for every step and every validation"
        assert len(records(out)) == len(theirs), "each of them once"


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("mode", ["true", "false"])
def test_muon_coordinates_loops_and_onednn_give_the_same_weights_on_ray(
    mode: str, tmp_path: Path, config_in: Configure
) -> None:
    # Tickets are large enough for oneDNN: see `operand`.
    sizes = ["task.length=6", "model.width=64", "rollout_size=32", "batch_size=64", "task.test_rows=30", "eval.every=0"]
    ours = ["learner.optimizer=muon", "model.positions=coordinates", "model.loops=2", "model.onednn=true"]
    local = train(config_in(*sizes, *ours, f"out={tmp_path}/local"))
    result = train(config_in(*sizes, *ours, *RAY, "actors.count=2", f"actors.gradients={mode}", f"out={tmp_path}/ray"))
    assert result["weights_sha256"] == local["weights_sha256"]
    mkl = train(config_in(*sizes, *ours, "model.onednn=false", f"out={tmp_path}/mkl"))
    assert mkl["weights_sha256"] != local["weights_sha256"], "oneDNN was used, and rounds differently"


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("mode", ["true", "false"])
def test_progressive_masks_and_weights_of_another_run_give_the_same_weights_on_ray(
    mode: str, tmp_path: Path, config_in: Configure, trained: Callable[..., Path]
) -> None:
    """The driver reads `init`; actors need the weights of their tickets to mask rows."""
    ours = [f"init={trained()}", "method=mdm", "method.masking=progressive", "task.test_rows=30", "eval.every=0"]
    local = train(config_in(*ours, f"out={tmp_path}/local"))
    result = train(config_in(*ours, *RAY, "actors.count=2", f"actors.gradients={mode}", f"out={tmp_path}/ray"))
    assert result["weights_sha256"] == local["weights_sha256"]


def _key(record: dict) -> tuple:
    return record["step"], *(key for key in record if key.startswith("eval/"))


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("method", METHODS_ON_RAY)
def test_every_method_gives_the_same_result_on_ray_as_in_one_process(
    method: list[str], tmp_path: Path, config_in: Configure
) -> None:
    overrides = [*overrides_of(method), "lag=1", "eval.every=5", "task.test_rows=30"]
    local = train(config_in(*overrides, f"out={tmp_path}/local"))
    result = train(config_in(*overrides, *RAY, "actors.count=2", "actors.gradients=auto"))
    for one in (local, result):
        del one["seconds_of_last_start"]
    assert result == local


@pytest.mark.slow  # eleven pairs of runs
@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("mode", ["true", "false"])
@pytest.mark.parametrize("method", EVERY, ids=" ".join)
def test_every_method_gives_the_same_result_with_gradients_and_with_batches(
    method: list[str], mode: str, tmp_path: Path, config_in: Configure
) -> None:
    """Without a lag, and with one where tickets need no weights."""
    needs_weights = METHODS[method[0]].uses_weights(config_in(*overrides_of(method)).method)
    overrides = [*overrides_of(method), f"lag={0 if needs_weights else 2}", "eval.every=5", "task.test_rows=30"]
    local = train(config_in(*overrides, f"out={tmp_path}/local"))
    result = train(config_in(*overrides, *RAY, "actors.count=3", f"actors.gradients={mode}"))
    for one in (local, result):
        del one["seconds_of_last_start"]
    assert result == local


@pytest.mark.usefixtures("one_ray")
def test_actors_share_a_gpu_and_the_learner_takes_a_whole_one(tmp_path: Path, config_in: Configure) -> None:
    long_enough = "epochs=30"  # for the second actor to join
    local = train(config_in(long_enough, f"out={tmp_path}/local"))
    overrides = [
        long_enough,
        "engine=ray",
        "device=auto",
        "actors.count=auto",
        "actors.num_cpus=0",
        "actors.num_gpus=0.5",
        "learner.num_gpus=1",
        "actors.gradients=false",
    ]
    result = train(config_in(*overrides))
    assert result["weights_sha256"] == local["weights_sha256"]
    assert max(r["engine/actors_alive"] for r in records(tmp_path / "out") if "loss/lm" in r) == 2


@pytest.mark.usefixtures("one_ray")
def test_every_step_records_where_its_time_went_and_the_last_line_gives_advice(
    tmp_path: Path, config_in: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_in(*RAY, "actors.count=2", "lag=1", "epochs=5")
    with caplog.at_level(logging.INFO):
        train(config)
    assert re.search(r"the learner waited \d+% of the time, the actors \d+%: ", caplog.text)
    steps = [record for record in records(tmp_path / "out") if "loss/lm" in record]
    assert len(steps) == 93
    shape = open_data(config, task_of(config)).shape
    rows = config.batch_size * (shape.N + shape.M)  # bytes of their tokens alone
    for record in steps:
        assert 0 <= record["engine/learner_starved"] <= 1
        assert 0 <= record["engine/actors_idle"] <= 1
        assert record["engine/bytes_moved"] > rows
        assert record["engine/lag"] == 1
        assert record["engine/tickets_reissued"] == 0
        assert record["engine/examples_per_second"] > 0
    assert steps[-1]["engine/actors_alive"] == 2
    # A step answered together with the one before shows no time for publishing, and not every step fetches weights.
    for name in ("publish_seconds", "pull_seconds"):
        assert sum(record[f"engine/{name}"] for record in steps) > 0


@pytest.mark.usefixtures("one_ray")
def test_the_thread_that_computes_tickets_yields_to_the_learner(config_in: Configure) -> None:
    config = config_in("device=cpu", "precision=float32")
    dataset = open_data(config, task_of(config))
    actor = RemoteActor.options(num_cpus=1).remote(partial(fingerprint, config), partial(make_worker, config))
    weights = [ray.put(lay_out(config, dataset.shape).weights())]
    try:
        ray.get(actor.begin.remote(dataset, None), timeout=90)
        hello: ray.ObjectRef = actor.hello.remote()
        pid = ray.get(hello, timeout=90).pid
        before = _cpu_of_threads(pid)
        for step in range(10):
            ray.get(actor.roll_out.remote(Ticket(step, 0, 0), weights)[0], timeout=90)
        spent = {thread: cpu - before.get(thread, 0) for thread, cpu in _cpu_of_threads(pid).items()}
        at_work = max(spent, key=spent.__getitem__)
        niceness = os.getpriority(os.PRIO_PROCESS, pid)  # of its main thread, as Ray started it; the learner keeps it
        assert os.getpriority(os.PRIO_PROCESS, at_work) == min(19, niceness + NICENESS)
    finally:
        ray.kill(actor)


def _cpu_of_threads(pid: int) -> dict[int, int]:
    """Nanoseconds so far, by thread id."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return {int(file.parent.name): int(file.read_text().split()[0]) for file in files}


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("shell", [RemoteActor, RemoteLearner], ids=["actor", "learner"])
def test_a_watched_process_still_answers_and_its_death_ends_the_watch(shell: Any) -> None:
    """Ray honours the concurrency group of `watch`, which both shells inherit: in any other, it would block them."""
    member = shell.options(num_cpus=1).remote(partial(dict, torch="2"), None)
    watch = member.watch.remote()
    introduced: ray.ObjectRef = member.hello.remote()
    hello = ray.get(introduced, timeout=90)
    assert hello.fingerprint == {"torch": "2"}
    assert not ray.wait([watch], timeout=0)[0]
    os.kill(hello.pid, signal.SIGKILL)
    with pytest.raises(ActorDiedError):
        ray.get(watch, timeout=90)


@pytest.mark.usefixtures("one_ray")
def test_inside_a_ray_worker_the_packages_are_this_projects() -> None:
    @ray.remote
    def places() -> list[str | None]:
        import actors
        import data
        import learner
        import recor_dist

        return [package.__file__ for package in (actors, data, learner, recor_dist)]

    here = [package.__file__ for package in (actors, data, learner, recor_dist)]
    assert ray.get(places.remote(), timeout=60) == here
