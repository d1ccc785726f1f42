"""A sweep is a parent of its runs, and has the mean and deviation of each setting."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recor_dist.record.sweep import Sweep, summary
from tests.mlflow_store import assert_complete, client_of, run_of


def test_mean_and_deviation_over_the_seeds() -> None:
    runs = [{"eval/test/exact_match": value, "flops": 3.0} for value in (0.2, 0.4, 0.9)] + [{"flops": 3.0}]
    assert summary("method:recor", runs[:3]) == {
        "method:recor/eval/test/exact_match/mean": pytest.approx(0.5),
        "method:recor/eval/test/exact_match/deviation": pytest.approx(statistics.stdev([0.2, 0.4, 0.9])),
        "method:recor/flops/mean": 3.0,
        "method:recor/flops/deviation": 0.0,
    }
    assert summary("", runs) == {"flops/mean": 3.0, "flops/deviation": 0.0}, "only what all runs have"
    assert summary("lag:1", runs[:1]) == {"lag:1/eval/test/exact_match/mean": 0.2, "lag:1/flops/mean": 3.0}


def test_a_setting_is_everything_swept_except_the_seed(tmp_path: Path) -> None:
    sweep = Sweep(str(tmp_path / "sweep"))
    jobs = [["task=arg", f"+sweep/x={m}", f"lag={lag}", f"seed={s}"] for m in "ab" for lag in (0, 1) for s in (0, 1)]
    sweep.swept = {"sweep/x", "lag", "seed"}
    labels = [sweep._setting(job) for job in jobs]
    assert labels[::2] == labels[1::2] == [f"sweep.x:{m} lag:{n}" for m in "ab" for n in (0, 1)]


def run_sweep(folder: Path, *overrides: str) -> subprocess.CompletedProcess:
    fixed = ["--multirun", "scale=smoke", "engine=local", "track.wait=120"]
    command = [sys.executable, "-m", "recor_dist.run", *fixed, *overrides]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)


@pytest.mark.slow  # three runs, each with a sender
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # MLflow's
def test_a_sweep_is_a_parent_of_its_runs_and_survives_a_setting_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    overrides = ["method=clm", "seed=0,1", "batch_size=33,32"]  # 33 is not a multiple of rollout_size
    done = run_sweep(tmp_path, *overrides)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("batch_size=33: must be a multiple of rollout_size=16") == 2
    assert "error: 2 of 4 settings failed" in done.stderr
    (folder,) = tmp_path.glob("runs/sweep-*")
    outs = [Path(run["out"]) for run in json.loads((folder / "sweep.json").read_text())["runs"]]
    assert len(outs) == 2

    def look() -> Any:
        parent, children = run_of(uri, folder), [run_of(uri, out) for out in outs]
        assert {child.data.tags["mlflow.parentRunId"] for child in children} == {parent.info.run_id}
        assert {child.info.status for child in children} == {"FINISHED"}
        for out in (folder, *outs):
            assert_complete(uri, out)
        experiment = client_of(uri).get_experiment_by_name("recor_dist").experiment_id
        assert len(client_of(uri).search_runs([experiment])) == 3
        pictures = client_of(uri).list_artifacts(parent.info.run_id, "pictures")
        assert [picture.path for picture in pictures] == ["pictures/flops_accuracy.png"]
        return parent

    parent = look()
    assert parent.info.status == "FAILED"
    assert parent.data.params == {"method": "clm", "seed": "0,1", "batch_size": "33,32"} | {
        "scale": "smoke",
        "engine": "local",
        "track.wait": "120",
    }
    accuracies = [json.loads((out / "result.json").read_text())["test"]["token_accuracy"] for out in outs]
    assert parent.data.metrics["batch_size:32/eval/test/token_accuracy/mean"] == pytest.approx(
        statistics.fmean(accuracies)
    )
    assert parent.data.metrics["batch_size:32/eval/test/token_accuracy/deviation"] == pytest.approx(
        statistics.stdev(accuracies)
    )

    again = run_sweep(tmp_path, *overrides)
    assert again.stderr.count("this run is finished") == 2
    assert look().info.run_id == parent.info.run_id, "the same command resumes under the same parent"
