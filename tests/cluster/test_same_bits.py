"""One result, whatever the machines do: Ray with any number of actors ends in the weights of one process."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import ray

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
from recor_dist.engine.loop import train
from recor_dist.engine.ray_engine import RemoteActor
from recor_dist.methods import lay_out, make_worker
from tests.cluster.conftest import records
from tests.conftest import decided
from tests.test_methods import EVERY, words_of

Configure = Callable[..., Config]
WORDS = ["eval.every=5", "checkpoint.every=7", "task.test_rows=100"]  # four tickets: their sums may come in any order


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    """Ray on this machine, with pretended CPUs enough for four actors."""
    ray.init(
        address="local",
        num_cpus=5,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
    )
    try:
        yield
    finally:
        ray.shutdown()


AS_A_WHOLE = ["recor", "method.algorithm=ppo", "method.reward=dense"]  # its loss looks at all tickets of a step


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("lag", [0, 2])
def test_ray_with_1_2_and_4_actors_gives_the_weights_of_one_process(
    lag: int, tmp_path: Path, config_in: Configure
) -> None:
    local = train(config_in(f"lag={lag}", f"out={tmp_path}/local", *WORDS))
    for count in (1, 2, 4):
        out = tmp_path / f"ray{count}"
        result = train(config_in(f"lag={lag}", f"out={out}", "engine=ray", f"actors.count={count}", *WORDS))
        assert result["weights_sha256"] == local["weights_sha256"]
        assert (result["val"], result["test"]) == (local["val"], local["test"])
        ours, theirs = ({_key(r): decided(r) for r in records(folder)} for folder in (out, tmp_path / "local"))
        assert ours == theirs, "the same figures of every step and every validation"
        assert len(records(out)) == len(theirs), "each once"


def _key(record: dict) -> tuple:
    return record["step"], *(key for key in record if key.startswith("eval/"))


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("method", [*EVERY, AS_A_WHOLE], ids=" ".join)
def test_every_method_gives_on_ray_what_it_gives_in_one_process(
    method: list[str], tmp_path: Path, config_in: Configure
) -> None:
    words = [*words_of(method), "lag=1", "eval.every=5", "task.test_rows=30"]
    local = train(config_in(*words, f"out={tmp_path}/local"))
    result = train(config_in(*words, "engine=ray", "actors.count=2"))
    for one in (local, result):
        del one["seconds_of_last_start"]
    assert result == local


@pytest.mark.usefixtures("one_ray")
def test_pretended_gpus_are_scheduled_by_fraction_and_the_learner_takes_a_whole_one(
    tmp_path: Path, config_in: Configure
) -> None:
    local = train(config_in(f"out={tmp_path}/local"))
    words = ["engine=ray", "actors.count=auto", "actors.num_cpus=0", "actors.num_gpus=0.5", "learner.num_gpus=1"]
    result = train(config_in(*words))
    assert result["weights_sha256"] == local["weights_sha256"]
    assert max(r["engine/actors_alive"] for r in records(tmp_path / "out") if "loss/lm" in r) == 2


@pytest.mark.usefixtures("one_ray")
def test_every_step_says_where_its_time_went_and_the_last_line_what_to_change(
    tmp_path: Path, config_in: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_in("engine=ray", "actors.count=2", "lag=1", "epochs=25")
    with caplog.at_level(logging.INFO):
        train(config)
    assert re.search(r"the learner waited \d+% of the time, the actors \d+%: ", caplog.text)
    steps = [record for record in records(tmp_path / "out") if "loss/lm" in record]
    assert len(steps) == 468
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
    # A step told together with the one before shows no publishing of its own, and not every step sees a pull.
    for name in ("publish_seconds", "pull_seconds"):
        assert sum(record[f"engine/{name}"] for record in steps) > 0


@pytest.mark.usefixtures("one_ray")
def test_the_thread_that_computes_tickets_gives_way_to_the_learner(config_in: Configure) -> None:
    config = config_in("device=cpu", "precision=float32")
    dataset = open_data(config, task_of(config))
    actor = RemoteActor.options(num_cpus=1).remote(partial(fingerprint, config), partial(make_worker, config))
    weights = [ray.put(lay_out(config, dataset.shape).weights())]
    try:
        ray.get(actor.begin.remote(dataset, None), timeout=90)
        pid = ray.get(actor.hello.remote(), timeout=90).pid
        before = _cpu_of_threads(pid)
        for step in range(10):
            ray.get(actor.roll_out.remote(Ticket(step, 0, 0), weights)[0], timeout=90)
        spent = {thread: cpu - before.get(thread, 0) for thread, cpu in _cpu_of_threads(pid).items()}
        at_work = max(spent, key=spent.get)
        niceness = os.getpriority(os.PRIO_PROCESS, pid)  # of its first thread, as Ray started it: the learner's
        assert os.getpriority(os.PRIO_PROCESS, at_work) == min(19, niceness + NICENESS)
    finally:
        ray.kill(actor)


def _cpu_of_threads(pid: int) -> dict[int, int]:
    """Nanoseconds so far."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return {int(file.parent.name): int(file.read_text().split()[0]) for file in files}


@pytest.mark.usefixtures("one_ray")
def test_inside_a_ray_worker_the_packages_are_this_projects() -> None:
    @ray.remote
    def places() -> list[str]:
        import actors
        import data
        import learner
        import recor_dist

        return [package.__file__ for package in (actors, data, learner, recor_dist)]

    here = [package.__file__ for package in (actors, data, learner, recor_dist)]
    assert ray.get(places.remote(), timeout=60) == here
