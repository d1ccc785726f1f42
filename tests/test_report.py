"""The report: what it says about runs, and that it says the same from folders and from MLflow."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recor_dist.core.command import read_settings
from recor_dist.core.compose import compose
from recor_dist.core.config import flatten, unflatten
from recor_dist.core.sealed import OF_FILE
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.figures.groups import conditions, differences, group_runs
from recor_dist.figures.report_page import report_page
from recor_dist.figures.tables import cell, compute_table
from recor_dist.record.runs import Run, deduplicate, read_folder, read_mlflow, read_run
from recor_dist.report import ReportConfig, find_places, main, write
from recor_dist.solve import open_solver
from tests.conftest import edit
from tests.figures.made_up import made_up, rows_of

# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides", [["task=zebra", "task.houses=3"], ["method=mdm", "method.suffix=true"], ["lag=2"]]
)
def test_settings_are_read_back_from_flat_form_and_from_mlflows_text(overrides: list[str]) -> None:
    config = compose(["scale=smoke", *overrides])
    flat = flatten(config)
    assert unflatten(flat) == config
    assert unflatten({key: "null" if value is None else str(value) for key, value in flat.items()}) == config
    assert unflatten({**flat, "no.such": 1}) == config
    del flat["lag"]
    assert unflatten(flat).lag == 0


# --- duplicate runs --------------------------------------------------------------------------------------------------


def test_a_run_found_twice_counts_once_and_different_weights_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    first, again = made_up(place="a"), made_up(place="b")
    assert [run.place for run in deduplicate([first, again])] == ["a"]
    assert not caplog.text
    assert [run.place for run in deduplicate([made_up(place="unfinished", accuracy=None), again])] == ["b"]
    assert [run.place for run in deduplicate([first, replace(again, weights="00")])] == ["a"]
    assert "a and b: same settings but different weights" in caplog.text


# --- what the report says --------------------------------------------------------------------------------------------


def test_the_main_table_lists_what_was_run_and_what_was_not() -> None:
    runs = [made_up("method=clm", f"seed={seed}", accuracy=accuracy) for seed, accuracy in enumerate((0.2, 0.4))]
    runs += [made_up("method=mdm", accuracy=0.3), made_up("method=clm", "epochs=2", accuracy=0.7)]
    runs += [made_up("method=ar_gt", accuracy=None)]
    report = "\n".join(write(runs, ["here"]).lines)
    table = report[report.index("### `scale=smoke`") : report.index("## Accuracy at equal compute")]
    rows = rows_of(table)
    assert rows[""] == [
        "ARG",
        "the paper",
        "ARG, `epochs=2.0`",
        "MUL",
        "the paper",
        "Sudoku",
        "the paper",
        "Zebra",
        "the paper",
    ]
    assert rows["CLM"][:4] == ["0.300 ± 0.141 (2)", "*0.017 ± 0.002*", "0.700 (1)", "not run"]
    assert rows["MDM"][0] == "0.300 (1)"
    assert rows["AR-GT"][0] == rows["ReCOR"][0] == "not run", "an unfinished run does not count"
    assert "- ARG: ReCOR, AR-GT, AO-ARM, SufMDM" in table
    assert "- MUL: any method" in table
    assert "Nothing was run at `scale=paper` and `scale=laptop`." in table
    assert "Finished runs: 4. Not counted because unfinished: 1." in report
    assert rows_of(report[report.index("## All runs") :])["`method=ar_gt`"][4:6] == ["running", "18"]


def test_an_ablation_that_was_never_run_is_listed_with_its_command() -> None:
    report = "\n".join(write([made_up()], ["here"]).lines)
    assert report.count("Never run: `python -m recor_dist.run +sweep=") == 4


def test_the_page_is_self_contained() -> None:
    report = write([made_up(accuracy=0.9), made_up("method=clm", place="<script>alert(1)</script>|x")], ["here"])
    page = report_page("\n".join(report.lines), report.figures)
    assert len(report.figures) == 2
    assert page.count("data:image/svg+xml;base64,") == len(report.figures)
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "<script" not in page
    assert '<td style="text-align:right" class="none">not run</td>' in page
    assert write([made_up(accuracy=0.9)], ["here"]).figures == write([made_up(accuracy=0.9)], ["here"]).figures


# --- real runs, through the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smoke runs of several methods, seeds and settings, of a custom task, and one that was stopped."""
    folder = tmp_path_factory.mktemp("recorded")
    rows = [{"prompt": f"{i:03d}", "response": f"{i:03d}"[::-1]} for i in range(400)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    runs = {
        "recor-0": [],
        "recor-1": ["seed=1"],
        "recor-2": ["method.token_queries=2"],
        "clm": ["method=clm"],
        "short": ["method=clm", "epochs=0.5"],
        "mdm": ["method=mdm", "method.steps=3"],
        "custom": ["task=custom", f"data.source={folder}/rows.jsonl"],
        "stopped": ["method=ar_gt"],
    }
    for name, words in runs.items():
        place = [f"out={folder}/runs/{name}", f"data.dir={folder}/shards"]
        train(compose(["scale=smoke", "engine=local", *place, *words]))
    (folder / "runs/stopped/result.json").unlink()
    edit(folder / "runs/stopped/run.json", status="stopped")
    (folder / "runs/not a run").mkdir()
    return folder


def exact(folder: Path, *names: str) -> list[float]:
    results = [json.loads((folder / "runs" / name / "result.json").read_text()) for name in names]
    return [result["test"]["exact_match"] for result in results]


def test_the_command_reports_real_runs(recorded: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recor_dist.report", f"runs={recorded}/runs", "out=told"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8 runs; told/report.html and told/report.md\n"
    text = (tmp_path / "told/report.md").read_text()
    rows = rows_of(text[text.index("### `scale=smoke`") : text.index("Never run at")])
    custom = (
        f"custom, `data.source=rows.jsonl ({json.loads((recorded / 'runs/custom/run.json').read_text())['data'][:8]})`"
    )
    assert rows[""][:3] == ["ARG", "the paper", "ARG, `epochs=0.5`"]
    assert rows[""][-1] == custom
    assert rows["ReCOR"][0] == cell(exact(recorded, "recor-0", "recor-1"))
    assert rows["ReCOR"][-1] == cell(exact(recorded, "custom"))
    assert rows["CLM"][0] == cell(exact(recorded, "clm"))
    assert rows["CLM"][2] == cell(exact(recorded, "short"))
    assert rows["AR-GT"][0] == "not run"
    assert rows["MDM"][0] == "not run", "method.steps=3 is not the default of the scale"
    others = text[text.index("## Other settings of a method") : text.index("## All runs")]
    assert "`method.steps=3` | MDM | " + cell(exact_of(recorded, "mdm", "mdm")) in others
    assert "`method.token_queries=2` | ReCOR" in others
    assert "| K=1 | " + cell(exact(recorded, "recor-0", "recor-1")) in text
    assert f"`{recorded}/runs/stopped`" in text and "| stopped |" in text
    named = re.findall(r"\]\((figures/[^)]*)\)", text)
    assert sorted(named) == sorted(f"figures/{path.name}" for path in (tmp_path / "told/figures").iterdir())
    assert all((tmp_path / "told" / name).read_text().startswith("<?xml") for name in named)
    page = (tmp_path / "told/report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == len(named)


def exact_of(folder: Path, name: str, decoder: str) -> list[float]:
    result = json.loads((folder / "runs" / name / "result.json").read_text())
    return [result["test"]["decoders"][decoder]["exact_match"]]


def test_folders_without_a_run_and_damaged_runs_are_omitted(
    recorded: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Mistake, match="holds no runs"):
        list(read_folder(str(tmp_path)))
    (run,) = read_folder(str(recorded / "runs/clm"))
    assert run.finished
    for name in ("clm", "short", "recor-0"):
        shutil.copytree(recorded / "runs" / name, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "clm/run.json").write_text('{"settings": {"task.name": "chess"}}')
    with open(tmp_path / "short/metrics.jsonl", "a") as file:
        file.write('{"step": 99, "loss')
    (tmp_path / "recor-0/result.json").write_text('{"half')
    short, recor = sorted(read_folder(str(tmp_path)), key=lambda run: run.config.method.name)
    assert "clm: cannot be read as a run" in caplog.text
    assert short.steps == 9
    assert not recor.finished


def test_by_default_the_report_reads_what_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def places(*words: str) -> tuple[list[str], list[str]]:
        return find_places(read_settings(ReportConfig, words))

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(Mistake, match="write runs=FOLDER or mlflow=URI"):
        places()
    (tmp_path / "runs").mkdir()
    assert places("out=x") == (["runs"], [])
    (tmp_path / "mlflow.db").touch()
    assert places() == (["runs"], ["sqlite:///mlflow.db"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert places() == (["runs"], ["http://127.0.0.1:1"])
    assert places("runs=a", "runs=b", "mlflow=c") == (["a", "b"], ["c"])
    assert read_settings(ReportConfig, []).out == "report"
    refused = {"run=a": "run: no such setting", "a": "a: no such setting", "runs=": "runs=: has no value"}
    for word, message in refused.items():
        with pytest.raises(Mistake, match=message):
            places(word)


# --- MLflow ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def to_mlflow(tmp_path: Path) -> Callable[[list[Run]], str]:
    """Records runs as in training, in a store for this test."""

    def record(runs: list[Run]) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        uri = f"sqlite:///{tmp_path}/mlflow.db"
        client = MlflowClient(uri)
        experiment = client.create_experiment("recor_dist")
        client.create_run(experiment, tags={"sweep": "seed=0,1"})  # the parent of a sweep, which is not a run
        for run in runs:
            tags = {"data": run.data, "reproducible": "True"} | ({"weights_sha256": run.weights} if run.weights else {})
            made = client.create_run(experiment, tags=tags).info.run_id
            params = [Param(k, "null" if v is None else str(v)) for k, v in run.settings.items()]
            metrics = [Metric("eval/val/exact_match", value, 0, step) for step, value in run.validation]
            metrics += [Metric("loss/lm", 1.0, 0, step) for step in (1, run.steps)]
            metrics += [
                Metric(f"eval/test/{decoder}/{name}", float(value), 0, run.steps)
                for decoder, figures in run.decoders.items()
                for name, value in figures.items()
                if isinstance(value, int | float)
            ]
            client.log_batch(made, params=params[:100], metrics=metrics)
            if run.orders:
                client.log_dict(made, run.orders, "orders.json")
            client.set_terminated(made, "FINISHED" if run.finished else "KILLED")
        return uri

    return record


@pytest.mark.filterwarnings("ignore")  # of MLflow and SQLAlchemy
def test_the_report_is_the_same_from_mlflow_and_from_folders(
    recorded: Path, to_mlflow: Callable[[list[Run]], str], tmp_path: Path
) -> None:
    from recor_dist.record.runs import read_mlflow

    runs = list(read_folder(str(recorded / "runs")))
    uri = to_mlflow(runs)
    found = list(read_mlflow(uri))
    assert len(found) == len(runs)
    by_folder, by_mlflow = (write(some, ["here"]) for some in (runs, found))
    cut = by_folder.lines.index("## All runs")
    assert by_mlflow.lines[:cut] == by_folder.lines[:cut]
    assert by_mlflow.figures == by_folder.figures
    unfinished = [run for run in found if not run.finished]
    assert [(run.status, run.steps) for run in unfinished] == [("killed", 18)]
    assert len(deduplicate([*runs, *found])) == len(runs), "a run in both counts once"

    main(ReportConfig((f"{recorded}/runs",), (uri,), f"{tmp_path}/both"))
    assert (tmp_path / "both/report.html").exists()


@pytest.mark.filterwarnings("ignore")  # MLflow's
def test_a_damaged_database_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlflow.db").write_bytes(bytes(range(256)) * 16)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for key, read in {
        "mlflow": lambda: list(read_mlflow(uri)),
        "model": lambda: open_solver("runs:/0123/model"),
    }.items():
        with pytest.raises(Mistake, match=f"^{key}=.*: cannot be .*file is not a database") as error:
            read()
        assert "\n" not in str(error.value)


def test_a_server_that_does_not_answer_is_a_mistake() -> None:
    command = [sys.executable, "-m", "recor_dist.report", "mlflow=http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: mlflow=http://127.0.0.1:9: cannot be read")
    assert "Traceback" not in done.stderr


def test_a_run_of_another_version_is_read(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded / "runs/clm", tmp_path / "old", ignore=shutil.ignore_patterns("checkpoints"))
    for name, drop in (("run.json", ("status", "data", OF_FILE)), ("result.json", (OF_FILE,))):
        content = {k: v for k, v in json.loads((tmp_path / "old" / name).read_text()).items() if k not in drop}
        if name == "result.json":
            del content["test"]["decoders"]
        (tmp_path / "old" / name).write_text(json.dumps(content))
    about = json.loads((tmp_path / "old/run.json").read_text())
    about["settings"] |= {"method.decides": None, "place.does_not": 1}
    about["identity"] |= {"method.decides": None}
    (tmp_path / "old/run.json").write_text(json.dumps(about))
    run = read_run(str(tmp_path / "old"))
    assert differences(run) == ["method.decides=null"]
    assert run.finished
    assert run.decoders["clm"]["exact_match"] == exact(recorded, "clm")[0]
    assert "0.00" not in "\n".join(compute_table(group_runs([run]), conditions(group_runs([run]))[0]))
