"""A packaged model answers like its checkpoint, in any process, and contains no pickle."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recor_dist.answers.prompts import decode, join
from recor_dist.answers.replay_page import read_test_rows
from recor_dist.answers.solver import load_solver
from recor_dist.core.setting import Mistake
from recor_dist.packaged import load_packaged, save_model
from recor_dist.record.checkpoint import sha256_of
from recor_dist.record.warm_start import read_source
from recor_dist.solve import open_solver
from tests.mlflow_store import client_of, run_of, sync

# What a user of MLflow runs, without knowing this project.
PROGRAM = """
import json, sys
import mlflow.pyfunc
import pandas as pd

request = json.load(sys.stdin)
model = mlflow.pyfunc.load_model(request["model"])
answers = [model.predict(pd.DataFrame({"prompt": request["prompts"]}), params=params) for params in request["params"]]
refused = []
for prompts in request["refused"]:
    try:
        model.predict(pd.DataFrame({"prompt": prompts}))
    except Exception as error:
        refused.append(f"{type(error).__name__}: {error}")
others = ("recor_dist", "data", "actors", "learner", "ray", "hydra", "omegaconf", "numba")
print(json.dumps({
    "answers": [table.to_dict("list") for table in answers],
    "refused": refused,
    "code": [module.__file__ for name, module in sys.modules.items() if name.startswith("recor_dist_model")],
    "imported": [name for name in others if name in sys.modules],
}))
"""


def expected(out: Path, decoder: str | None, rows: int = 20) -> tuple[list[str], dict[str, list]]:
    """Test prompts as text, and the answers of the checkpoint."""
    solver = load_solver(str(out))
    prompts = read_test_rows(solver.config, rows).prompts[:rows]
    generation = solver.answer(prompts, decoder)
    texts = [join(solver.vocabulary, solver.vocabulary.decode(row)) for row in prompts]
    answers = {
        "response": [decode(solver.vocabulary, row) for row in generation.responses],
        "order": generation.orders.tolist(),
        "steps": generation.steps.tolist(),
        "confidences": [pytest.approx(row.tolist(), rel=1e-4) for row in generation.confidences],
    }
    return texts, answers


def ask_in_a_fresh_process(folder: Path, request: dict[str, Any], **environment: str) -> dict[str, Any]:
    """Without PYTHONPATH, in an empty folder."""
    settings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=folder, env=settings, input=json.dumps(request), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_fresh_process_answers_like_the_checkpoint(trained: Callable[..., Path], tmp_path: Path) -> None:
    out, elsewhere = trained("method=mdm"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    save_model(str(out), f"{tmp_path}/model")
    (tmp_path / "model").rename(tmp_path / "moved")
    decoders = [None, "mdm", "adamdm_margin_T2", "entropy_bounded:2.5"]
    told = [expected(out, decoder) for decoder in decoders]
    params = [{"decoder": decoder} if decoder else {} for decoder in decoders]
    refused = [["0123", "01234"], ["0123", "0123", "01x3"]]
    request = {"model": f"{tmp_path}/moved", "prompts": told[0][0], "params": params, "refused": refused}
    got = ask_in_a_fresh_process(elsewhere, request)
    assert got["answers"] == [answers for _, answers in told]
    assert got["answers"][0] != got["answers"][1], "decoders differ"
    assert got["refused"] == [
        "MlflowException: the prompt in row 2: has 5 tokens, but this model takes 4",
        "MlflowException: the prompt in row 3: token 3, 'x', is not in the vocabulary; known: 0 1 2 3 4",
    ]
    (code,) = (tmp_path / "moved/code").iterdir()
    assert got["code"] == [str(code)], "it brings its own code, a single file"
    assert got["imported"] == [], "and needs nothing else of this project"
    assert not list(elsewhere.iterdir()), "it leaves nothing behind"


@pytest.mark.parametrize("words", [("method=recor",), ("method=clm",), ("method=ar_gt",), ("method=ao_arm",)])
def test_every_method_can_be_packaged(words: tuple[str, ...], trained: Callable[..., Path], tmp_path: Path) -> None:
    out = trained(*words)
    save_model(str(out), f"{tmp_path}/model")
    solver = load_packaged(f"{tmp_path}/model")
    texts, answers = expected(out, None)
    generation = solver.answer(solver.encode(texts, str))
    assert generation.steps.tolist() == answers["steps"]
    assert [decode(solver.vocabulary, row) for row in generation.responses] == answers["response"]


def test_the_folder_contains_no_pickle(trained: Callable[..., Path], tmp_path: Path) -> None:
    save_model(str(trained("method=recor")), f"{tmp_path}/model")
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {"", ".yaml", ".txt", ".json", ".safetensors", ".py"}
    for path in files:
        content = path.read_bytes()
        # A pickle of protocol 2 and later begins with \x80; torch.save, joblib and numpy begin with these.
        assert not content.startswith((b"\x80", b"PK", b"\x93NUMPY", b"\x1f\x8b", b"\x78")), path
        if path.suffix != ".safetensors":
            content.decode("utf-8")
    assert "python_model" not in (tmp_path / "model/MLmodel").read_text()


def test_a_model_is_replaced_but_nothing_else_is(trained: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(str(trained("method=recor")), str(folder))
    (folder / "left.txt").touch()
    save_model(str(trained("method=clm")), str(folder))
    assert not (folder / "left.txt").exists()
    assert list(load_packaged(str(folder)).decoders) == ["clm"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(Mistake, match="mine: holds files, but no MLflow model"):
        save_model(str(trained("method=recor")), f"{tmp_path}/mine")
    assert (tmp_path / "mine/thesis.txt").exists()
    with pytest.raises(Mistake, match="/proc/none: cannot be used as a folder"):
        save_model(str(trained("method=recor")), "/proc/none")
    with pytest.raises(Mistake, match="mine: is not a model packaged by recor_dist"):
        load_packaged(f"{tmp_path}/mine")


def test_the_command_packages_a_run(trained: Callable[..., Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recor_dist.packaged", f"out={trained('method=clm')}", "folder=made"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "saved in made\n", done.stderr
    assert list(load_packaged(f"{tmp_path}/made").decoders) == ["clm"]


def test_the_folder_contains_no_path_of_this_machine(trained: Callable[..., Path], tmp_path: Path) -> None:
    out = trained("method=recor")
    save_model(str(out), f"{tmp_path}/model")
    for name in ("MLmodel", "data/solver/about.json", "requirements.txt", "conda.yaml", "python_env.yaml"):
        assert "/tmp" not in (text := (tmp_path / "model" / name).read_text())
        assert str(out.parent) not in text


@pytest.mark.slow  # MLflow takes long to create a database
@pytest.mark.filterwarnings("ignore:.*noload")  # MLflow uses a deprecated function of SQLAlchemy
def test_a_model_logged_to_mlflow_loads_by_the_uri_of_its_run(
    trained: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, elsewhere = trained("task=sudoku"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    save_model(str(out), f"{tmp_path}/model")
    uri = f"sqlite:///{tmp_path}/store.db"
    program = f"""
from mlflow import MlflowClient
client = MlflowClient()
experiment = client.create_experiment("some", artifact_location="{tmp_path}/artifacts")
run = client.create_run(experiment)
client.log_artifacts(run.info.run_id, "{tmp_path}/model", "model")
print(run.info.run_id)
"""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-c", program]
    run_id = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()[-1]
    texts, answers = expected(out, None)
    request = {"model": f"runs:/{run_id}/model", "prompts": texts, "params": [{}], "refused": []}
    got = ask_in_a_fresh_process(elsewhere, request, MLFLOW_TRACKING_URI=uri, MLFLOW_DISABLE_TELEMETRY="true")
    assert got["answers"] == [answers]
    command = [sys.executable, "-m", "recor_dist.solve", f"model=runs:/{run_id}/model", f"prompt={texts[0]}"]
    done = subprocess.run(command, env=environment, cwd=elsewhere, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[0] == answers["response"][0], done.stderr
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    trained_weights = json.loads((out / "result.json").read_text())["weights_sha256"]
    assert sha256_of(read_source(f"runs:/{run_id}/model").named) == trained_weights, "init= reads it, too"
    with pytest.raises(
        Mistake, match=f"^model=runs:/0123/model: cannot be loaded from MLflow at {uri}: .*0123 not found"
    ):
        open_solver("runs:/0123/model")


@contextmanager
def served(model: Path | str, folder: Path, **more: str) -> Iterator[str]:
    """`mlflow models serve` as a user starts it, with more environment; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(model), "--env-manager", "local"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= more | {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "no_proxy": "127.0.0.1",
    }
    with open(folder / "log.txt", "w") as log:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, (folder / "log.txt").read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def post(address: str, content: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(address, json.dumps(content).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow  # a server has to start
def test_a_server_answers_like_the_checkpoint(trained: Callable[..., Path], tmp_path: Path) -> None:
    out = trained("method=mdm")
    save_model(str(out), f"{tmp_path}/model")
    texts, answers = expected(out, None)
    _, vanilla = expected(out, "mdm")

    def rows(answers: dict[str, list]) -> list[dict[str, Any]]:
        return [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)]

    with served(tmp_path / "model", tmp_path) as address:
        records = [{"prompt": text} for text in texts]
        assert post(address, {"dataframe_records": records}) == (200, {"predictions": rows(answers)})
        assert post(address, {"inputs": {"prompt": texts}}) == (200, {"predictions": rows(answers)})
        asked = {"dataframe_records": records, "params": {"decoder": "mdm"}}
        assert post(address, asked) == (200, {"predictions": rows(vanilla)})
        for content, said in {
            '{"dataframe_records": [{"prompt": "0123"}, {"prompt": "012"}]}': "the prompt in row 2: has 3 tokens",
            '{"inputs": {"prompt": ["9999"]}}': "the prompt in row 1: token 1, '9', is not in the vocabulary",
            '{"dataframe_records": [{"prompt": null}]}': "the prompt in row 1: is missing",
            '{"inputs": {"prompt": ["0123"]}, "params": {"decoder": "x"}}': "decoder=x: this model has adamdm_prob",
        }.items():
            status, error = post(address, json.loads(content))
            assert status == 400
            assert said in error["message"]


@pytest.mark.slow  # MLflow creates a database, and a server has to start
@pytest.mark.filterwarnings("ignore")  # MLflow's
def test_a_recorded_model_answers_the_same_by_every_way_that_mlflow_has(
    trained: Callable[..., Path], tmp_path: Path
) -> None:
    out, store = tmp_path / "run", {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/store.db"}
    shutil.copytree(trained("method=mdm"), out)
    save_model(str(out), f"{out}/model")
    assert sync(out, store["MLFLOW_TRACKING_URI"], tmp_path).returncode == 0
    run = run_of(store["MLFLOW_TRACKING_URI"], out)
    (model,) = client_of(store["MLFLOW_TRACKING_URI"]).search_logged_models([run.info.experiment_id])
    texts, answers = expected(out, None)
    for uri in (f"models:/{model.model_id}", f"runs:/{run.info.run_id}/model"):
        request = {"model": uri, "prompts": texts, "params": [{}], "refused": []}
        assert ask_in_a_fresh_process(tmp_path, request, **store)["answers"] == [answers]
        with served(uri, tmp_path, **store) as address:
            status, answer = post(address, {"inputs": {"prompt": texts}})
            assert (status, [row["response"] for row in answer["predictions"]]) == (200, answers["response"])
