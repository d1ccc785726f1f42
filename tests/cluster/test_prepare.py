"""A cluster makes the same shards as one process."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from data import over_cluster
from data.over_cluster import make_over_cluster, rows_of_shard
from data.prepare import prepare
from data.tasks import task_of
from recor_dist.core.config import Config
from recor_dist.core.messages import Rows
from recor_dist.core.setting import Mistake
from tests.cluster.conftest import add_node

OVERRIDES = ["task=zebra", "task.train_rows=1200", "data.shard_rows=100"]


def test_a_cluster_makes_the_same_rows_as_one_process_even_if_a_node_is_lost(
    cluster: Callable[..., Cluster], config_in: Callable[..., Config], tmp_path: Path
) -> None:
    made = cluster({"num_cpus": 1})
    second = add_node(made, num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    config = config_in(*OVERRIDES, f"data.dir={tmp_path}/cluster")
    shards = 0

    def lose_a_node(jobs: list) -> object:
        nonlocal shards
        for one in make_over_cluster(jobs):
            shards += 1
            if shards == 2:
                made.remove_node(second, allow_graceful=False)
            yield one

    here = config_in(*OVERRIDES, "data.jobs=1", f"data.dir={tmp_path}/alone")
    assert prepare(config, task_of(config), lose_a_node).manifest == prepare(here, task_of(here)).manifest
    assert shards == 14
    again = config_in(*OVERRIDES, "task.prompt_length=10", f"data.dir={tmp_path}/cluster")
    with pytest.raises(Mistake, match=r"task\.prompt_length=10: none of"):
        prepare(again, task_of(again), make_over_cluster)


@pytest.mark.slow  # starts a cluster
def test_the_command_uses_a_running_cluster(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    made = cluster({"num_cpus": 2})
    command = [sys.executable, "-m", "data.prepare", *OVERRIDES, "scale=smoke", f"data.dir={tmp_path}/shards"]
    environment = {**os.environ, "RAY_ADDRESS": made.address}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert re.search(r"using the Ray cluster at \S+", done.stderr)
    assert "1,200 train" in done.stdout


@pytest.mark.slow  # starts a cluster
def test_data_jobs_limits_a_cluster_and_a_process_that_is_killed_every_time_is_a_mistake(
    cluster: Callable[..., Cluster], config_in: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cluster({"num_cpus": 2})
    ray.init(address=made.address, log_to_driver=False)
    busy, tries = tmp_path / "busy", tmp_path / "tries"

    def alone(config: Config, split: str, index: int) -> Rows:
        busy.touch(exist_ok=False)  # fails if another shard is being made
        time.sleep(0.2)
        rows = rows_of_shard(config, split, index)
        busy.unlink()
        return rows

    def killed(*_: object) -> Rows:
        with tries.open("a") as file:
            file.write("x")
        os._exit(1)

    config = config_in("task=zebra", "data.jobs=1")
    monkeypatch.setattr(over_cluster, "rows_of_shard", alone)
    assert prepare(config, task_of(config), make_over_cluster).rows_of("train") == 600
    monkeypatch.setattr(over_cluster, "rows_of_shard", killed)
    again = config_in("task=zebra", "data.jobs=1", f"data.dir={tmp_path}/other")
    with pytest.raises(Mistake, match=r"was killed repeatedly, perhaps .* the same command resumes"):
        prepare(again, task_of(again), make_over_cluster)
    assert tries.read_text() == "xxxx"
