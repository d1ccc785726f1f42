"""Run folders, checkpoints and packaged models of version 0.1, made before the modules moved into layers, still work.

layout_0.1.tar.xz holds a finished smoke run, the same run killed after its first checkpoint (`scale=smoke
method.order_queries=2 checkpoint.every=6`), and the finished run as an MLflow model, which carries the code of 0.1.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from recor_dist.answers.answering import plain_answers
from recor_dist.answers.solver import load_solver
from recor_dist.core.compose import compose
from recor_dist.core.device import fingerprint
from recor_dist.engine.loop import train
from recor_dist.packaged import load_packaged
from recor_dist.record.runs import read_run

OVERRIDES = ["scale=smoke", "engine=local", "device=cpu", "precision=float32", "method.order_queries=2"]
PROMPTS = ["0123", "4321", "0000"]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(Path(__file__).with_name("layout_0.1.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_a_killed_run_resumes(before: Path, tmp_path: Path) -> None:
    out = before / "stopped"
    config = compose([*OVERRIDES, "checkpoint.every=6", f"data.dir={tmp_path}/shards", f"out={out}"])
    about = json.loads((out / "run.json").read_text())
    same_machine = about["machine"] == fingerprint(config)
    (out / "run.json").write_text(json.dumps({**about, "machine": fingerprint(config)}))  # another CPU would be refused
    result = train(config)
    assert (result["steps"], result["reproducible"]) == (18, True)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sorted(line["step"] for line in lines if "loss/lm" in line) == list(range(1, 19))
    if same_machine:  # elsewhere the last digits differ
        finished = json.loads((before / "finished/result.json").read_text())
        assert result["weights_sha256"] == finished["weights_sha256"]


def test_a_finished_run_prints_its_result_and_is_reported(before: Path, tmp_path: Path) -> None:
    out = before / "finished"
    written = json.loads((out / "result.json").read_text())
    assert train(compose([*OVERRIDES, f"data.dir={tmp_path}/shards", f"out={out}"])) == written
    run = read_run(str(out))
    assert run.finished
    assert run.weights == written["weights_sha256"]
    assert run.decoders["recor"]["exact_match"] == written["test"]["exact_match"]
    assert run.config.method.name == "recor"


def test_a_packaged_model_answers_as_its_run_does(before: Path) -> None:
    run, model = load_solver(str(before / "finished")), load_packaged(str(before / "model"))
    ids = run.encode(PROMPTS, str)
    expected = plain_answers(run, run.answer(ids))
    assert plain_answers(model, model.answer(model.encode(PROMPTS, str))) == expected
    program = (
        "import json, sys, mlflow.pyfunc, pandas as pd; "
        "model = mlflow.pyfunc.load_model(sys.argv[1]); "
        "print(json.dumps(model.predict(pd.DataFrame({'prompt': sys.argv[2:]}))['response'].tolist()))"
    )
    command = [sys.executable, "-c", program, str(before / "model"), *PROMPTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [answer["response"] for answer in expected]
