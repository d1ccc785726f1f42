"""The report: which runs are put together, what its tables say, and the same from folders and from MLflow."""

import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recor_dist.core.command import compose
from recor_dist.core.config import Mistake, flatten, unflatten
from recor_dist.engine.loop import train
from recor_dist.figures.curves import ABLATIONS, find_series, spread, training_lines
from recor_dist.figures.page import to_page
from recor_dist.figures.tables import (
    PAPER,
    cell,
    compute_table,
    conditions,
    costs,
    differences,
    find,
    group_runs,
    paper_figure,
)
from recor_dist.record.runs import Run, once, read_folder, read_run
from recor_dist.report import main, read_words, write


def made_up(*words: str, accuracy: float | None = 0.5, **more: Any) -> Run:
    """A run that was never computed: its settings, and figures for each of its decoders."""
    config = compose(["scale=smoke", "device=cpu", "precision=float32", *words])
    from recor_dist.methods import METHODS

    decoders = {
        name: {"exact_match": accuracy, "flops": 1000.0 * decoder.passes, "forward_passes": decoder.passes}
        for name, decoder in METHODS[config.method.name].decoders(config.method).items()
    }
    run = Run(
        place=more.pop("place", " ".join(words)),
        settings=flatten(config),
        data=more.pop("data", "0123456789"),
        status="running" if accuracy is None else "finished",
        decoders={} if accuracy is None else decoders,
        validation=[(10, 0.1), (18, accuracy or 0.0)],
        steps=18,
        weights="ff" * 32,
    )
    return replace(run, **more)


def rows_of(markdown: list[str] | str) -> dict[str, list[str]]:
    """The rows of Markdown tables by their first cell."""
    lines = markdown.splitlines() if isinstance(markdown, str) else markdown
    cells = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: row[1:] for row in cells}


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["task=zebra", "task.houses=3"], ["method=mdm", "method.suffix=true"], ["lag=2"]])
def test_settings_come_back_from_their_flat_view_and_from_mlflows_text(words: list[str]) -> None:
    config = compose(["scale=smoke", *words])
    flat = flatten(config)
    assert unflatten(flat) == config
    assert unflatten({key: "null" if value is None else str(value) for key, value in flat.items()}) == config
    assert unflatten({**flat, "no.such": 1}) == config
    del flat["lag"]
    assert unflatten(flat).lag == 0


# --- which runs belong together --------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_seed_alone_are_one_group() -> None:
    runs = [made_up(f"seed={seed}", accuracy=seed / 10) for seed in (2, 0, 1)]
    runs += [made_up("seed=0", "engine=local", "eval.every=3", accuracy=0.9, place="where it ran changes nothing")]
    (group,) = group_runs(once(runs))
    assert [run.config.seed for run in group.runs] == [0, 1, 2]
    assert group.accuracy("recor") == [0.0, 0.1, 0.2]
    assert (group.common, group.own) == ((), ())


@pytest.mark.parametrize(
    ("words", "common", "own"),
    [
        (["epochs=2"], ("epochs=2.0",), ()),
        (["method.token_queries=2"], (), ("method.token_queries=2",)),
        (["threads=2", "method.alpha=0.5"], ("threads=2",), ("method.alpha=0.5",)),
        (["method=mdm", "method.suffix=true"], (), ()),
        (["data.dir=elsewhere", "engine=local"], (), ()),
    ],
)
def test_settings_that_are_not_the_scales_are_named(
    words: list[str], common: tuple[str, ...], own: tuple[str, ...]
) -> None:
    (group,) = group_runs([made_up(*words)])
    assert (group.common, group.own) == (common, own)


def test_nothing_is_mixed() -> None:
    pairs = [
        (made_up("scale=smoke"), made_up("scale=laptop")),
        (made_up(), made_up("epochs=2")),
        (made_up("method=mdm"), made_up("method=mdm", "method.suffix=true")),
        (made_up(data="aaaa"), made_up(data="bbbb")),
        (made_up(), made_up("precision=bfloat16")),
        (made_up(), replace(made_up(), settings={**made_up().settings, "method.of_a_later_version": 1})),
    ]
    for a, b in pairs:
        groups = group_runs([a, b])
        assert len(groups) == 2
        names = {(g.condition, g.own, g.runs[0].config.method.name, tuple(g.runs[0].decoders)) for g in groups}
        assert len(names) == 2, "and they are told apart"
        for g in groups:
            decoder = next(iter(g.runs[0].decoders))
            if not g.own:
                assert len(find(groups, g.condition, decoder)) == 1


def test_methods_on_other_rows_or_devices_do_not_stand_side_by_side() -> None:
    for other in (made_up("method=clm", data="bbbb"), made_up("method=clm", "precision=bfloat16")):
        assert len(conditions(group_runs([made_up(data="aaaa"), other]))) == 2
    assert len(conditions(group_runs([made_up(), made_up("method=clm")]))) == 1


def test_a_run_found_twice_counts_once_and_other_weights_are_told(caplog: pytest.LogCaptureFixture) -> None:
    first, again = made_up(place="a"), made_up(place="b")
    assert [run.place for run in once([first, again])] == ["a"]
    assert not caplog.text
    assert [run.place for run in once([made_up(place="going on", accuracy=None), again])] == ["b"]
    assert [run.place for run in once([first, replace(again, weights="00")])] == ["a"]
    assert "a and b: same settings, other weights" in caplog.text


def test_custom_rows_are_named_after_their_file_and_content() -> None:
    words = ["task=custom", "data.source=/some/where/rows.jsonl"]
    assert differences(made_up(*words, data="abcdef0123")) == ["data.source=rows.jsonl (abcdef01)"]


# --- tables ----------------------------------------------------------------------------------------------------------


def test_a_cell_has_mean_deviation_and_the_number_of_seeds() -> None:
    values = [0.25, 0.5, 0.9]
    assert cell(values) == f"{sum(values) / 3:.3f} ± {statistics.stdev(values):.3f} (3)"
    assert cell([0.25]) == "0.250 (1)"
    assert cell([]) == "not run"


def test_the_papers_figures_are_those_of_its_tables() -> None:
    printed = {
        "arg": "0.994 0.987 0.017 0.035 0.174 0.174 0.040 0.536 0.536",
        "mul": "0.999 0.964 0.594 0.943 0.951 0.951",
        "sudoku": "0.8718 0.9017 0.0973 0.0688 - 0.8949",
        "zebra": "0.9117 0.9905 0.8031 0.769 0.985 -",
    }
    decoders = [
        "ar_gt",
        "recor",
        "clm",
        "mdm",
        "adamdm_prob",
        "adamdm_margin",
        "sufmdm",
        "adasufmdm_prob",
        "adasufmdm_margin",
    ]
    for task, figures in printed.items():
        for decoder, figure in zip(decoders, figures.split(), strict=False):
            assert paper_figure(task, decoder).split(" ")[0] == figure.replace("-", ""), (task, decoder)
    assert paper_figure("arg", "adasufmdm_prob_T2") == "0.028 ± 0.009"
    assert paper_figure("mul", "adamdm_margin_T2") == "0.875 ± 0.043"
    assert (
        paper_figure("arg", "adamdm_prob_T2") == paper_figure("custom", "recor") == paper_figure("arg", "ao_arm") == ""
    )
    assert set(PAPER) == set(printed)


def test_the_main_table_says_what_was_run_and_what_was_not() -> None:
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
    assert "4 finished runs. Unfinished, and counted nowhere: 1." in report
    assert rows_of(report[report.index("## All runs") :])["`method=ar_gt`"][4:6] == ["running", "18"]


def test_equal_compute_is_told_against_recor() -> None:
    groups = group_runs([made_up(accuracy=0.9), made_up("method=mdm", accuracy=0.3), made_up("method=clm")])
    ((_, _, _), *none) = conditions(groups)
    assert not none
    rows = rows_of(compute_table(groups, conditions(groups)[0]))
    assert rows["ReCOR"] == ["2", "0.00", "1.00", "0.900 (1)", "*0.987 ± 0.007*"]
    assert rows["CLM"][2] == "0.50"
    assert rows["MDM, T=2"][:3] == ["2", "0.00", "1.00"]
    assert rows["AdaMDM, top margin"][0::2] == ["20", "10.00", "*0.174 ± 0.036*"]
    without = compute_table(group_runs([made_up("method=clm")]), conditions(groups)[0])
    assert rows_of(without)["CLM"][2] == "–"
    assert "What an answer of ReCOR costs is not recorded here." in without


def test_costs_of_other_settings_are_points_of_their_own() -> None:
    words = [["seed=0"], ["seed=1"], ["method.eta=0.5"], ["method.order_queries=2"]]
    runs = [made_up(*line, accuracy=i / 10) for i, line in enumerate(words)]
    found = {point.name: (point.flops, point.accuracy) for point in costs(group_runs(runs))}
    assert found == {
        "ReCOR": (2000.0, [0.0, 0.1]),
        "ReCOR, method.eta=0.5": (2000.0, [0.2]),
        "ReCOR, method.order_queries=2": (4000.0, [0.3]),
    }
    unknown = replace(runs[0], decoders={"recor": {"exact_match": 1.0}})
    assert costs(group_runs([unknown])) == []


# --- curves and ablations --------------------------------------------------------------------------------------------


def test_curves_of_several_seeds_are_joined_where_all_have_points() -> None:
    assert spread([[(10, 0.2), (20, 0.4)], [(10, 0.4), (20, 0.5), (30, 0.9)]]) == [
        (10, pytest.approx(0.3), 0.2, 0.4),
        (20, pytest.approx(0.45), 0.4, 0.5),
    ]
    groups = group_runs([made_up(accuracy=0.5), made_up("seed=1", accuracy=0.7), made_up("method=mdm", accuracy=0.1)])
    lines = training_lines(groups, conditions(groups)[0])
    assert lines["recor"] == [(10, 0.1, 0.1, 0.1), (18, pytest.approx(0.6), 0.5, 0.7)]
    assert list(lines) == ["recor", "adamdm_prob"], "under the decoder that validates"
    begun = group_runs([made_up("seed=2", accuracy=None), made_up("method=clm", accuracy=None), made_up()])
    assert list(training_lines(begun, conditions(begun)[0])) == ["recor"], "an unfinished run has no curve"
    assert [len(g.runs) for g in begun] == [1]


def test_ablations_are_found_among_the_runs() -> None:
    words = [f"method.token_queries={K} method.order_queries=2" for K in (4, 1)]
    words += [f"method.exploration=entropy method.alpha={alpha}" for alpha in (1, 0.01)] + ["method.exploration=topk"]
    words += ["method.reward=dense", "method.reward=dense method.algorithm=ppo", "method=clm", "task=mul", "epochs=2"]
    groups = group_runs([made_up(*line.split()) for line in [*words, ""]])
    found = {name: find_series(groups, ablation) for name, ablation in ABLATIONS.items()}
    by_queries = {series.fixed: list(series.groups) for series in found["token_queries"]}
    assert by_queries == {("method.order_queries=2",): ["K=1", "K=4"]}
    assert [list(series.groups) for series in found["order_queries"]] == [["main stream", "C=2"]]
    assert [list(s.groups) for s in found["exploration"]] == [["uniform", "top-K", "alpha=0.01", "alpha=1"]]
    assert [list(s.groups) for s in found["objective"]] == [
        ["sparse, soft Q (BCE)", "dense, soft Q (BCE)", "dense, PPO-like"]
    ]


def test_an_ablation_never_run_is_said_with_its_command() -> None:
    report = "\n".join(write([made_up()], ["here"]).lines)
    assert report.count("Never run: `python -m recor_dist.run +sweep=") == 4


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_holds_everything_and_names_nothing_outside() -> None:
    report = write([made_up(accuracy=0.9), made_up("method=clm", place="<script>alert(1)</script>|x")], ["here"])
    page = to_page("\n".join(report.lines), report.figures)
    assert len(report.figures) == 2
    assert page.count("data:image/svg+xml;base64,") == len(report.figures)
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "<script" not in page
    assert '<td style="text-align:right" class="none">not run</td>' in page
    assert write([made_up(accuracy=0.9)], ["here"]).figures == write([made_up(accuracy=0.9)], ["here"]).figures


# --- real runs, through the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smoke runs of several methods, seeds and settings, a custom task, and one that was stopped."""
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
    about = json.loads((folder / "runs/stopped/run.json").read_text())
    (folder / "runs/stopped/run.json").write_text(json.dumps({**about, "status": "stopped"}))
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


def test_a_folder_that_holds_no_run_or_half_of_one(
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


def test_without_words_the_report_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(Mistake, match="write runs=FOLDER or mlflow=URI"):
        read_words([])
    (tmp_path / "runs").mkdir()
    assert read_words(["out=x"]) == (["runs"], [], "x")
    (tmp_path / "mlflow.db").touch()
    assert read_words([]) == (["runs"], ["sqlite:///mlflow.db"], "report")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert read_words([]) == (["runs"], ["http://127.0.0.1:1"], "report")
    assert read_words(["runs=a", "runs=b"]) == (["a", "b"], [], "report")
    for word in ("run=a", "a", "runs="):
        with pytest.raises(Mistake, match=f"{word}: not a setting; write runs=FOLDER"):
            read_words([word])


# --- MLflow ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def to_mlflow(tmp_path: Path) -> Callable[[list[Run]], str]:
    """Records runs as track.py does, in a store of the test's own."""

    def record(runs: list[Run]) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        uri = f"sqlite:///{tmp_path}/mlflow.db"
        client = MlflowClient(uri)
        experiment = client.create_experiment("recor_dist")
        client.create_run(experiment, tags={"sweep": "seed=0,1"})  # a parent, which is no run of ours
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
            client.set_terminated(made, "FINISHED" if run.finished else "KILLED")
        return uri

    return record


@pytest.mark.filterwarnings("ignore")  # MLflow's and SQLAlchemy's own
def test_mlflow_and_folders_tell_the_same(
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
    assert len(once([*runs, *found])) == len(runs), "a run that is in both counts once"

    main([f"runs={recorded}/runs", f"mlflow={uri}", f"out={tmp_path}/both"])
    assert (tmp_path / "both/report.html").exists()


def test_a_server_that_is_not_there_is_a_mistake() -> None:
    command = [sys.executable, "-m", "recor_dist.report", "mlflow=http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: mlflow=http://127.0.0.1:9: cannot be read")
    assert "Traceback" not in done.stderr


def test_a_run_of_another_version_is_read(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded / "runs/clm", tmp_path / "old", ignore=shutil.ignore_patterns("checkpoints"))
    for name, drop in (("run.json", ("status", "data")), ("result.json", ())):
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
