"""Actors read their shards from S3, and the driver writes its checkpoints there."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from ray.cluster_utils import Cluster

from recor_dist.core.config import Config
from recor_dist.engine.loop import train
from tests.cluster.conftest import Run
from tests.object_store import keys, s3_server


@pytest.fixture(autouse=True)
def _s3() -> Iterator[None]:
    with s3_server():
        yield


@pytest.mark.slow  # two starts on two nodes
@pytest.mark.timeout(900)
def test_a_run_on_ray_is_stopped_and_resumed_on_s3(
    cluster: Callable[..., Cluster], run: Callable[..., Run], config_in: Callable[..., Config], tmp_path: Path
) -> None:
    places = ["out=s3://bucket/runs/one", "data.dir=s3://bucket/shards"]
    overrides = ["engine=ray", "actors.count=2", "epochs=25", "lag=1"]
    made = cluster({"num_cpus": 2}, {"num_cpus": 1})  # the second node can only read from S3
    first = run(*overrides, *places, address=made.address)
    first.wait_for(r"actor \d+ \(.*\) joined", seconds=240, count=2)
    first.wait_for(r"step \d+/", seconds=120)
    first.process.send_signal(signal.SIGTERM)
    first.finish()
    assert first.process.returncode == 128 + signal.SIGTERM, first.log
    (step,) = re.findall(r"stopped by SIGTERM at step (\d+)", first.log)
    about = boto3.client("s3").get_object(Bucket="bucket", Key="runs/one/run.json")["Body"].read()
    assert json.loads(about)["status"] == "stopped"
    assert f"runs/one/checkpoints/step-{int(step):08d}/checkpoint.json" in keys("runs/one")
    assert "runs/one/.lock" not in keys("runs/one")

    again = run(*overrides, *places, address=made.address)
    weights = again.sha256()
    assert f"resuming at step {step} of" in again.log
    assert "putting the shards into the object store" not in first.log + again.log, "S3 can be reached from every node"
    assert weights == train(config_in("epochs=25", "lag=1"))["weights_sha256"]
