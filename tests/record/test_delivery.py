"""The record in MLflow, in a real store on disk: what it has of a run, and that it has everything once."""

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from learner.learner import Learner
from recor_dist import track
from recor_dist.answers.answering import plain_answers
from recor_dist.answers.solver import load_solver
from recor_dist.core.config import Config, flatten
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.packaged import save_model
from recor_dist.record import delivery as delivering
from recor_dist.record.delivery import Delivery, legal_name, without_password
from recor_dist.record.evaluations import add_evaluation
from recor_dist.record.journal import Journal, JournalReader, read_metrics
from recor_dist.record.logged_model import linked_models
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.runs import read_mlflow
from tests.mlflow_store import assert_complete, client_of, points_in_store, run_of

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Creating its tables takes seconds, so the tests share them."""
    folder = tmp_path_factory.mktemp("store")
    with contextlib.chdir(folder):  # MLflow puts artifacts here
        client_of(f"sqlite:///{folder}/mlflow.db").search_experiments()
    return f"sqlite:///{folder}/mlflow.db"


@pytest.fixture
def store(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.chdir(tmp_path)
    return database


@pytest.fixture
def folder(tmp_path: Path, config_in: Callable[..., Config]) -> Callable[..., Path]:
    """Makes the folder of a run, as training leaves it."""

    def make(*records: dict[str, Any], status: str = "finished", **more: Any) -> Path:
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        about = {"settings": flatten(config_in()), "reproducible": True, "status": status, "data": "d" * 64}
        (out / "run.json").write_text(json.dumps({**about, "code": [{"git_commit": "c" * 40}], **more}))
        lines = [json.dumps({"step": n + 1, "time": 1000.0 + n, **record}) for n, record in enumerate(records)]
        (out / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return out

    return make


def deliver(out: Path, **options: Any) -> Delivery:
    delivery = Delivery(str(out), **options)
    delivery.send()
    delivery.finish()
    return delivery


# --- what is delivered -----------------------------------------------------------------------------------------------


def test_a_run_is_delivered_with_its_settings_and_provenance(store: str, folder: Callable[..., Path]) -> None:
    out = folder({"loss/lm": 2.0}, {"loss/lm": 1.0, "eval/val/exact_match": 0.5}, engine="ray")
    (out / "result.json").write_text(json.dumps({"weights_sha256": "a" * 64}))
    deliver(out, experiment="whole")
    assert_complete(store, out)
    run = run_of(store, out)
    settings = json.loads((out / "run.json").read_text())["settings"]
    assert run.data.params == {key: "null" if value is None else str(value) for key, value in settings.items()}
    tags = {"task": "arg", "method": "recor", "scale": "smoke", "engine": "ray", "lag": "0", "data": "d" * 64}
    tags |= {"git_commit": "c" * 40, "mlflow.source.git.commit": "c" * 40, "weights_sha256": "a" * 64}
    assert tags.items() <= run.data.tags.items()
    assert (run.info.run_name, run.info.start_time, run.info.end_time) == ("out", 1_000_000, 1_001_000)
    assert client_of(store).get_experiment(run.info.experiment_id).name == "whole"


def test_what_was_evaluated_after_the_run_is_sent_once_to_the_same_run(store: str, folder: Callable[..., Path]) -> None:
    out = folder({"loss/lm": 1.0, "eval/test/recor/exact_match": 0.25})
    deliver(out, experiment="later")
    before = run_of(store, out).data.metrics
    about = {"name": "test", "rows_sha256": "0", "weights_sha256": "a", "step": 1, "rows": 40, "mean_step": [1.0, 2.0]}
    for name, accuracy in {"recor_confidence": 0.5, "recor_threshold_tau0.9": 0.75}.items():
        line = about | {"decoder": name, "exact_match": accuracy, "forward_passes": 3.5}
        add_evaluation(RunFolder.open(str(out)), line)
        add_evaluation(RunFolder.open(str(out)), line | {"exact_match": 0.0})  # the same decoder, rows and weights
        deliver(out, experiment="later")
    run = run_of(store, out)
    assert before.items() <= run.data.metrics.items()
    assert run.info.status == "FINISHED"
    for name, accuracy in {"recor_confidence": 0.5, "recor_threshold_tau0.9": 0.75}.items():
        history = client_of(store).get_metric_history(run.info.run_id, f"evaluate/test/{name}/exact_match")
        assert [(point.step, point.value) for point in history] == [(1, accuracy)]
    (found,) = (found for found in read_mlflow(store) if found.place == f"runs:/{run.info.run_id}")
    assert list(found.decoders) == ["recor"]
    assert found.further["recor_confidence"] == {"exact_match": 0.5, "forward_passes": 3.5, "rows": 40}

    (out / "evaluations.jsonl").write_bytes((out / "evaluations.jsonl").read_bytes()[9:])  # its first line is damaged
    add_evaluation(RunFolder.open(str(out)), about | {"decoder": "recor_information_gain", "exact_match": 0.5})
    deliver(out, experiment="later")
    assert "evaluate/test/recor_information_gain/exact_match" in run_of(store, out).data.metrics


@pytest.mark.parametrize(
    ("status", "shown"), [("finished", "FINISHED"), ("failed", "FAILED"), ("stopped", "KILLED"), ("running", "KILLED")]
)
def test_the_status_is_that_of_the_run(status: str, shown: str, store: str, folder: Callable[..., Path]) -> None:
    """A run that is `running` without a process was killed."""
    error = {"error": "ZeroDivisionError: division by zero"} if status == "failed" else {}
    out = folder({"loss/lm": 2.0}, status=status, **error)
    deliver(out)
    run = run_of(store, out)
    assert run.info.status == shown
    assert run.data.tags.get("error") == error.get("error")

    folder({"loss/lm": 2.0}, {"loss/lm": 1.0}, status="running")  # it is resumed
    delivery = Delivery(str(out))
    delivery.send()
    assert run_of(store, out).info.status == "RUNNING"
    folder({"loss/lm": 2.0}, {"loss/lm": 1.0}, status="finished")
    delivery.finish()
    again = run_of(store, out)
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    assert "error" not in again.data.tags
    assert_complete(store, out)


def test_a_run_that_fails_has_its_error_as_a_tag(
    store: str, tmp_path: Path, config_in: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no more memory\nat all")

    monkeypatch.setattr(Learner, "update", fail)
    with pytest.raises(RuntimeError):
        train(config_in())
    deliver(tmp_path / "out")
    run = run_of(store, tmp_path / "out")
    assert (run.info.status, run.data.tags["error"]) == ("FAILED", "RuntimeError: no more memory\nat all")


def test_settings_and_metrics_may_be_numerous_long_and_unusual(store: str, folder: Callable[..., Path]) -> None:
    strange = {f"key.{n}": n for n in range(250)} | {"a=b(c)/../é": "x" * 9000, "empty": "", "list": [1, None]}
    figures = {f"loss/{n}": float(n) for n in range(1200)}
    figures |= {
        "nan": math.nan,
        "inf": math.inf,
        "-inf": -math.inf,
        "loss=/../$x": 1.0,
        "whole": 3,
    }
    out = folder(figures, figures)
    about = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**about, "settings": {**about["settings"], **strange}}))
    deliver(out)
    run = run_of(store, out)
    assert run.data.params["key.249"] == "249"
    assert run.data.params["list"] == "[1, None]"
    assert run.data.params["a_b_c_/_"].startswith("xxx")
    assert len(run.data.params["a_b_c_/_"]) == 6000
    last = run.data.metrics
    assert len(last) == 1205
    assert [last[f"loss/{n}"] for n in range(1200)] == list(range(1200))
    assert math.isnan(last["nan"])
    assert (last["inf"] > 1e308, last["-inf"] < -1e308, last["whole"], last["loss_/_x"]) == (True, True, 3.0, 1.0)
    for key in ("loss/1199", "nan"):
        assert [point.step for point in client_of(store).get_metric_history(run.info.run_id, key)] == [1, 2]


@given(st.text(max_size=400))
def test_every_name_becomes_one_that_mlflow_accepts(name: str) -> None:
    from mlflow.utils.validation import _validate_length_limit, _validate_metric_name, _validate_param_name

    legal = legal_name(name)
    _validate_metric_name(legal)
    _validate_param_name(legal)
    _validate_length_limit("name", 250, legal)


@pytest.mark.parametrize(
    "name", ["loss/lm", "eval/test/adamdm_prob_T2/exact_match", "method:recor lag:1/eval/val/rows/mean"]
)
def test_our_own_names_are_not_changed(name: str) -> None:
    assert legal_name(name) == name


def test_a_point_that_mlflow_rejects_does_not_hold_up_the_others(
    store: str, folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(delivering, "legal_name", lambda key: key)
    out = folder({"loss/lm": 2.0, "a//b": 1.0, "reward/mean": 0.5}, {"loss/lm": 1.0})
    deliver(out)
    assert {key: len(values) for key, values in points_in_store(store, out).items()} == {"loss/lm": 2, "reward/mean": 1}
    assert "rejected by MLflow and skipped: a//b of step 1" in capfd.readouterr().out


# --- everything, once ------------------------------------------------------------------------------------------------


def test_a_sender_continues_where_the_last_one_ended(store: str, folder: Callable[..., Path]) -> None:
    records = [{"loss/lm": float(n)} for n in range(30)]
    for count in (10, 10, 25, 30):
        out = folder(*records[:count], status="running")
        deliver(out)
        assert_complete(store, out)
    state = json.loads((out / "track.json").read_text())
    assert state["stores"][store]["sent"] == 30


def test_a_batch_whose_response_was_lost_is_not_sent_again(
    store: str, folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has it, and the sender does not know. The times then differ, so the store would keep both."""
    from mlflow import MlflowClient

    out = folder({"loss/lm": 2.0}, {"loss/lm": 1.0})
    log_batch = MlflowClient.log_batch

    def lose_the_response(client: Any, run_id: str, metrics: tuple = (), **more: Any) -> None:
        log_batch(client, run_id, metrics=metrics, **more)
        if metrics:
            raise ConnectionError("no response")

    delivery = Delivery(str(out))
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", lose_the_response)
        with pytest.raises(ConnectionError):
            delivery.send()
    before = points_in_store(store, out)
    assert before["loss/lm"] == [(1, 2.0, 1_000_000), (2, 1.0, 1_001_000)]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (out / "metrics.jsonl").write_text("".join(json.dumps({**x, "time": x["time"] + 9}) + "\n" for x in lines))
    delivery.send()
    assert points_in_store(store, out) == before


def test_a_journal_that_was_rewritten_in_another_order_loses_no_point(store: str, folder: Callable[..., Path]) -> None:
    """The machine with the first journal was lost; in the second, an evaluation came later."""

    def line(step: int, name: str, life: int) -> str:
        return json.dumps({"step": step, name: float(step), "time": 1000.0 * life + step}) + "\n"

    out = folder(status="running")
    steps = [line(n, "loss/lm", 1) for n in (1, 2, 3)]
    (out / "metrics.jsonl").write_text("".join([*steps[:2], line(2, "eval/val/exact_match", 1), steps[2]]))
    deliver(out)
    steps = [line(n, "loss/lm", 2) for n in (1, 2, 3, 4, 5)]
    (out / "metrics.jsonl").write_text("".join([*steps[:4], line(2, "eval/val/exact_match", 2), steps[4]]))
    deliver(out)
    points = points_in_store(store, out)
    assert [step for step, _, _ in points["loss/lm"]] == [1, 2, 3, 4, 5]
    assert [step for step, _, _ in points["eval/val/exact_match"]] == [2]


def test_a_run_that_was_deleted_in_mlflow_is_delivered_again(store: str, folder: Callable[..., Path]) -> None:
    out = folder({"loss/lm": 2.0}, {"loss/lm": 1.0})
    first = deliver(out).run_id
    client_of(store).delete_run(first)
    assert deliver(out).run_id != first
    assert_complete(store, out)


def test_another_store_gets_the_whole_record(
    store: str, folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder({"loss/lm": 2.0}, {"loss/lm": 1.0})
    deliver(out)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    deliver(out)
    for uri in (store, f"sqlite:///{tmp_path}/other.db"):
        assert_complete(uri, out)
    assert set(json.loads((out / "track.json").read_text())["stores"]) == {store, f"sqlite:///{tmp_path}/other.db"}


def test_a_password_is_never_shown() -> None:
    assert without_password("https://me:secret@host:5000/x?y=1") == "https://host:5000/x?y=1"
    assert without_password("sqlite:////folder/mlflow.db") == "sqlite:////folder/mlflow.db"


def test_artifacts_resume_at_the_one_that_failed_and_the_model_is_registered_once(
    store: str, folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    from mlflow import MlflowClient

    out = folder({"loss/lm": 2.0})
    for name in ("result.json", "replay.html", "pictures/order.png", "pictures/curves.png"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(json.dumps({"weights_sha256": name}))
    (tmp_path / "echo.py").write_text(
        "import mlflow\n"
        "class Echo(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, context, model_input):\n"
        "        return model_input\n"
        "mlflow.models.set_model(Echo())\n"
    )
    mlflow.pyfunc.save_model(str(out / "model"), python_model=str(tmp_path / "echo.py"), pip_requirements=["mlflow"])
    sent: list[str] = []
    log_artifact = MlflowClient.log_artifact

    def unless_third(client: Any, run_id: str, path: str, artifact_path: str | None = None) -> None:
        if len(sent) == 2:
            sent.append("failed")
            raise ConnectionError("no response")
        log_artifact(client, run_id, path, artifact_path)
        sent.append(f"{artifact_path or '.'}/{Path(path).name}")

    monkeypatch.setattr(MlflowClient, "log_artifact", unless_third)
    with pytest.raises(ConnectionError):
        deliver(out, register="orders")
    assert sent == ["./result.json", "./replay.html", "failed"]
    deliver(out, register="orders")
    deliver(out, register="orders")
    assert len(set(sent)) == len(sent), "each is sent once"
    assert set(sent) == {"./result.json", "./replay.html", "failed", "pictures/curves.png", "pictures/order.png"}
    run = run_of(store, out).info.run_id
    (version,) = client_of(store).search_model_versions("name = 'orders'")
    assert version.run_id == run
    mlflow.set_tracking_uri(store)
    for uri in (f"runs:/{run}/model", "models:/orders/1"):
        assert mlflow.pyfunc.load_model(uri).predict({"a": [1]}) == {"a": [1]}


# --- the model and the rows ------------------------------------------------------------------------------------------


def package(trained: Callable[..., Path], tmp_path: Path) -> Path:
    """A finished run with its model, in a folder of the test's own."""
    out = tmp_path / "trained"
    shutil.copytree(trained("method=recor"), out)
    save_model(str(out), f"{out}/model")
    return out


def test_a_trained_model_is_a_logged_model_of_its_run_with_its_test_metrics(
    store: str, trained: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    from mlflow import MlflowClient

    out = package(trained, tmp_path)
    log_files, failed = MlflowClient.log_model_artifacts, []

    def fail_once(client: Any, *arguments: Any) -> None:
        if not failed:
            failed.append(True)
            raise ConnectionError("no response")
        log_files(client, *arguments)

    monkeypatch.setattr(MlflowClient, "log_model_artifacts", fail_once)
    with pytest.raises(ConnectionError):
        deliver(out, experiment="models", register="registered")
    for _ in range(2):
        deliver(out, experiment="models", register="registered")
    run, client = run_of(store, out), client_of(store)
    points = assert_complete(store, out)  # linking the metrics to the model has not doubled them
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert (model.name, model.source_run_id, model.model_type) == ("model", run.info.run_id, "recor")
    assert model.status == "READY"
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert (model.params["task.length"], model.params["seed"]) == ("4", "0")
    assert model.tags["weights_sha256"] == json.loads((out / "result.json").read_text())["weights_sha256"]
    shown = {metric.key: metric.value for metric in model.metrics}
    assert shown == {key: values[-1][1] for key, values in points.items() if "/test/" in key}
    assert "eval/test/recor/exact_match" in shown
    (version,) = client.search_model_versions("name = 'registered'")
    assert version.run_id == run.info.run_id

    mlflow.set_tracking_uri(store)
    solver = load_solver(str(out))
    expected = [answer["response"] for answer in plain_answers(solver, solver.answer(solver.encode(["0123"], str)))]
    for uri in (f"models:/{model.model_id}", f"runs:/{run.info.run_id}/model", "models:/registered/1"):
        assert list(mlflow.pyfunc.load_model(uri).predict({"prompt": ["0123"]})["response"]) == expected
    loaded = mlflow.pyfunc.load_model(f"models:/{model.model_id}")
    assert (loaded.metadata.run_id, loaded.metadata.model_id) == (run.info.run_id, model.model_id)

    client.delete_logged_model(model.model_id)
    deliver(out, experiment="models")
    (again,) = client.search_logged_models([run.info.experiment_id])
    assert again.model_id != model.model_id


def test_a_run_that_no_model_was_linked_to_has_none() -> None:
    from mlflow.entities import Run, RunData, RunInfo

    info = RunInfo("1", "1", "me", "RUNNING", start_time=0, end_time=None, lifecycle_stage="active")
    assert linked_models(Run(info, RunData())) == set()


def test_the_rows_are_a_dataset_of_the_run_with_their_checksum(store: str, folder: Callable[..., Path]) -> None:
    import mlflow.data

    out = folder({"loss/lm": 2.0}, shape={"N": 4, "M": 4, "V": 5})
    for _ in range(2):
        deliver(out, experiment="rows")
    (row,) = run_of(store, out).inputs.dataset_inputs
    assert (row.dataset.name, row.dataset.digest) == ("arg", "d" * 32)
    assert {tag.key: tag.value for tag in row.tags} == {"mlflow.data.context": "training"}
    assert json.loads(row.dataset.profile) == {"num_rows": 600, "N": 4, "M": 4, "V": 5, "sha256": "d" * 64}
    source = mlflow.data.get_source(row.dataset).to_dict()["tags"]
    assert (source["task.modulus"], source["data.shard_rows"]) == ("5", "250")


# --- the journal -----------------------------------------------------------------------------------------------------


def test_a_half_written_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    lines = JournalReader(RunFolder.open(str(tmp_path)), None)
    journal = tmp_path / "metrics.jsonl"
    journal.write_bytes(b'{"step": 1}\n{"ste')
    assert lines.read() == [{"step": 1}]
    assert lines.read() == []
    with journal.open("ab") as file:
        file.write(b'p": 2}\n\0\0\n{"step": 3}\n')
    assert lines.read() == [{"step": 2}, {"step": 3}], "and garbage is skipped"


def test_the_journal_of_an_object_store_is_uploaded_before_each_checkpoint_and_at_the_end() -> None:
    store = fs._MockFileSystem()
    store.create_dir("bucket")
    out = RunFolder("mock://bucket", fs.SubTreeFileSystem("bucket", store))

    def uploaded() -> list[int]:
        return [record["step"] for record in read_metrics(out)]

    with Journal(out) as journal:
        lines = JournalReader(out, journal.path)
        journal.step(1, {"loss/lm": 2.0})
        journal.keep()
        journal.step(2, {"loss/lm": 1.0})
        assert uploaded() == [1]
        assert [record["step"] for record in lines.read()] == [1, 2], "the sender reads the local copy"
        journal.step(3, {"loss/lm": 0.5})
    assert uploaded() == [1, 2, 3]
    assert not Path(journal.path).exists()
    assert [record["step"] for record in lines.read()] == [3], "and continues with the uploaded one"
    with Journal(out) as journal:
        journal.step(3, {"loss/lm": 0.5})
        journal.step(4, {"loss/lm": 0.1})
    assert uploaded() == [1, 2, 3, 4]


# --- the commands ----------------------------------------------------------------------------------------------------


def test_a_run_does_not_import_mlflow_at_its_start() -> None:
    program = "import sys, recor_dist.run; print('mlflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "error: action: missing; write ACTION"),
        (["sync"], "error: out: missing; write out=..."),
        (["sink", "out=x"], "error: action=sink: allowed: sync, send"),
        (["sync", "out=nowhere"], "nowhere: holds neither a run nor a sweep; give the folder that it was saved in"),
        (["sync", "out=x", "wait=3"], "wait=3.0: is for send only; omit it"),
        (["sync", "out=x", "uri=y"], "uri: no such setting"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(words: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recor_dist.track", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr


def test_sync_shows_a_run_that_is_training_as_running(store: str, folder: Callable[..., Path]) -> None:
    out = folder({"loss/lm": 2.0}, status="running")
    with RunFolder.open(str(out)).training_lock():
        track.sync(str(out))
        assert run_of(store, out).info.status == "RUNNING"
        with (
            RunFolder.open(str(out)).sender_lock(),
            pytest.raises(Mistake, match="another process is sending the record there"),
        ):
            track.sync(str(out))
    track.sync(str(out))
    assert run_of(store, out).info.status == "KILLED"


def test_sync_reports_that_a_server_is_down(folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    with pytest.raises(
        Mistake, match=r"^http://127\.0\.0\.1:9: fails \(.*refused.*run the same command again to send the rest"
    ) as mistake:
        track.sync(str(folder({"loss/lm": 2.0})))
    assert "secret" not in str(mistake.value)


@pytest.mark.slow  # MLflow creates the tables of a new store
def test_a_run_is_recorded_in_the_store_that_mlflow_ui_shows_in_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    command = [sys.executable, "-m", "recor_dist.run", "scale=smoke", "engine=local", "out=out", "track.wait=120"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    points = assert_complete(uri, tmp_path / "out")
    assert {key.split("/")[0] for key in points} == {"loss", "reward", "eval", "order", "learner", "system"}
    run = run_of(uri, tmp_path / "out")
    assert run.info.status == "FINISHED"
    assert run.info.artifact_uri.startswith(f"{tmp_path}/mlruns/")
    assert "git_commit" in run.data.tags or "source_sha256" in run.data.tags
    listed = {artifact.path for artifact in client_of(uri).list_artifacts(run.info.run_id)}
    assert listed == {"orders.json", "pictures", "replay.html", "result.json"}
    drawn = {artifact.path for artifact in client_of(uri).list_artifacts(run.info.run_id, "pictures")}
    assert drawn == {f"pictures/{name}.png" for name in ("calibration", "curves", "order_map", "steps")}
    answers = [
        subprocess.run(
            [sys.executable, "-m", "recor_dist.solve", f"model={model}", "prompt=0120", "format=json"],
            cwd=tmp_path, env={**os.environ, "MLFLOW_TRACKING_URI": uri}, capture_output=True, text=True, timeout=600,
        )
        for model in (f"runs:/{run.info.run_id}/model", "out")
    ]  # fmt: skip
    assert [answer.returncode for answer in answers] == [0, 0], answers[0].stderr
    assert answers[0].stdout == answers[1].stdout != ""
