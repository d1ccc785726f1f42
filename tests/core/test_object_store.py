"""A run with its data and results in an object store: the same weights, and a kill at any time leaves a checkpoint."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import boto3
import numpy as np
import pytest

from data.prepare import open_data, prepare
from data.shards import BadShard
from data.tasks import task_of
from recor_dist.core import locks
from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.model.decoding import generate
from recor_dist.record.checkpoint import load_model, sha256_of
from recor_dist.record.warm_start import read_source
from tests.object_store import keys, unfinished_uploads

Configure = Callable[..., Config]


@pytest.fixture(autouse=True)
def _fast_beats(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.2)


@pytest.fixture
def in_store(tmp_path: Path) -> tuple[str, str]:
    """The overrides that put a run of this test into the store."""
    return f"out=s3://bucket/{tmp_path.name}/out", f"data.dir=s3://bucket/{tmp_path.name}/shards"


def stored(tmp_path: Path, name: str) -> dict:
    return json.loads(boto3.client("s3").get_object(Bucket="bucket", Key=f"{tmp_path.name}/{name}")["Body"].read())


def test_a_run_in_an_object_store_ends_in_the_weights_of_one_on_a_disk(
    config_in: Configure, in_store: tuple[str, str], tmp_path: Path
) -> None:
    local = train(config_in())
    result = train(config_in(*in_store))
    assert {**result, "seconds_of_last_start": 0} == {**local, "seconds_of_last_start": 0}
    assert sha256_of(read_source(in_store[0][4:]).named) == result["weights_sha256"], "another run could start from it"
    there = keys(f"{tmp_path.name}/out")
    assert stored(tmp_path, "out/result.json").items() >= result.items()
    assert stored(tmp_path, "out/run.json")["status"] == "finished"
    commits = [key for key in there if key.endswith("checkpoint.json")]
    assert len(commits) == 2, "old checkpoints are removed there as well"
    assert stored(tmp_path, "out/snapshot.json")["pid"] == os.getpid(), "what it does can be seen from anywhere"
    assert not [key for key in there if key.endswith((".lock", ".partial"))]
    assert train(config_in(*in_store)) == result, "a finished run shows its result"
    with pytest.raises(Mistake, match="exists, and resume=never"):
        train(config_in(*in_store, "resume=never"))
    with pytest.raises(Mistake, match=r"holds a run with different settings: seed \(was 0, now 1\)"):
        train(config_in(*in_store, "seed=1"))
    prompts = open_data(config_in(*in_store), task_of(config_in(*in_store))).read_split("test", 0, 5).prompts
    ours, theirs = (generate(load_model(place)[0], prompts) for place in (in_store[0][4:], f"{tmp_path}/out"))
    assert np.array_equal(ours.responses, theirs.responses)


@pytest.mark.slow  # needs files that are large enough to be uploaded in parts
@pytest.mark.parametrize("file", ["model.safetensors", "state.safetensors", "checkpoint.json"])
def test_a_kill_in_the_middle_of_an_upload_leaves_the_last_complete_checkpoint(
    file: str, config_in: Configure, in_store: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Wide enough that the largest file is uploaded in parts: the store has some of them when the process dies.
    overrides = [
        "model.layers=1",
        "model.width=512",
        "model.heads=8",
        "checkpoint.every=1",
        "epochs=0.25",
        "eval.every=0",
    ]
    overrides += ["task.test_rows=2", "task.val_rows=2", "scale=smoke"]
    command = [sys.executable, "-m", "tests.killed_run", f"upload:3:{file}", *overrides, *in_store]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    steps = {key.split("/")[3] for key in keys(f"{tmp_path.name}/out/checkpoints") if key.endswith("checkpoint.json")}
    assert steps == {"step-00000001", "step-00000002"}
    if file == "state.safetensors":  # the others are too small to have parts
        assert any(key.endswith(file) for key in unfinished_uploads()), "the kill came in the middle"
    assert stored(tmp_path, "out/run.json")["status"] == "running"

    with caplog.at_level("INFO"):
        result = train(config_in(*overrides, *in_store))
    assert re.search("resuming at step 2 of 4", caplog.text)
    assert result["weights_sha256"] == train(config_in(*overrides, f"out={tmp_path}/local"))["weights_sha256"]


def test_shards_in_an_object_store_are_made_verified_and_repaired_as_on_a_disk(
    config_in: Configure, in_store: tuple[str, str], tmp_path: Path
) -> None:
    config = config_in(in_store[1], "task.train_rows=600", "data.shard_rows=250")
    data, local = (open_data(c, task_of(c)) for c in (config, config_in("task.train_rows=600", "data.shard_rows=250")))
    assert data.manifest == local.manifest
    (bad,) = [key for key in keys(f"{tmp_path.name}/shards") if key.endswith("train-00001.parquet")]
    boto3.client("s3").put_object(Bucket="bucket", Key=bad, Body=b"PAR1")
    with pytest.raises(BadShard, match=r"train-00001\.parquet is corrupt .* rebuilds only that shard"):
        open_data(config, task_of(config)).read_split("train", 250, 1)
    (manifest,) = [key for key in keys(f"{tmp_path.name}/shards") if key.endswith("manifest.json")]
    boto3.client("s3").delete_object(Bucket="bucket", Key=manifest)
    assert prepare(config, task_of(config)).manifest == local.manifest
    assert np.array_equal(data.read_split("train", 0, 600).prompts, local.read_split("train", 0, 600).prompts)


def test_custom_rows_are_read_from_an_object_store(
    config_in: Configure, in_store: tuple[str, str], tmp_path: Path
) -> None:
    rows = "".join(json.dumps({"prompt": f"{n:03d}", "response": f"{n:03d}"[::-1]}) + "\n" for n in range(300))
    (tmp_path / "rows.jsonl").write_text(rows)
    boto3.client("s3").put_object(Bucket="bucket", Key=f"{tmp_path.name}/rows.jsonl", Body=rows)
    there, here = (
        train(config_in("task=custom", f"data.source={source}/rows.jsonl", *overrides))
        for source, overrides in ((f"s3://bucket/{tmp_path.name}", in_store), (tmp_path, ()))
    )
    assert there["weights_sha256"] == here["weights_sha256"]
