"""The paper's ablations as prepared sweeps: every combination can run, at every scale and for every task."""

import json
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from data.tasks import TASKS
from recor_dist.core.compose import CONF, compose
from recor_dist.core.config import Config
from recor_dist.core.method_settings import RecorConfig
from recor_dist.core.setting import Mistake

SWEEPS = sorted(path.stem for path in (CONF / "sweep").glob("*.yaml"))


def combinations(sweep: str, task: str, scale: str) -> list[Config]:
    """The configuration of every run that Hydra would start."""
    overrides = [
        f"task={task}",
        f"scale={scale}",
        f"+sweep={sweep}",
        *(["data.source=rows"] if task == "custom" else []),
    ]
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        settings = hydra.compose("config", overrides=overrides, return_hydra_config=True).hydra
        assert settings.mode == RunMode.MULTIRUN, "no need to type --multirun"
        params = [f"{key}={value}" for key, value in settings.sweeper.params.items()]
        parsed = OverridesParser.create().parse_overrides([*params, *overrides])
        (jobs,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    return [compose(list(job)) for job in jobs]


def methods(configs: list[Config]) -> list[RecorConfig]:
    return [config.method for config in configs if isinstance(config.method, RecorConfig)]


def test_the_sweeps_are_the_papers() -> None:
    assert SWEEPS == ["exploration", "objective", "order_queries", "token_queries"]
    at_paper = {sweep: methods(combinations(sweep, "sudoku", "paper")) for sweep in SWEEPS}
    assert [(m.token_queries, m.order_queries) for m in at_paper["token_queries"]] == [(1, 8), (2, 8), (4, 8), (8, 8)]
    assert [(m.token_queries, m.order_queries) for m in at_paper["order_queries"]] == [(8, C) for C in (0, 1, 2, 4, 8)]
    explored = [(m.exploration, m.alpha) for m in at_paper["exploration"]]
    assert explored == [("entropy", 0.01), ("entropy", 0.1), ("entropy", 1.0), ("uniform", 0.1), ("topk", 0.1)]
    assert [(m.reward, m.algorithm) for m in at_paper["objective"]] == [
        ("sparse", "sql_bce"),
        ("dense", "sql_bce"),
        ("dense", "sql_mse"),
        ("dense", "ppo"),
    ]
    assert {(m.token_queries, m.order_queries) for m in at_paper["exploration"] + at_paper["objective"]} == {(8, 8)}


@pytest.mark.parametrize(("task", "scale"), [("arg", "smoke"), ("mul", "laptop")])
def test_a_short_answer_gets_no_more_queries_than_it_has_slots(task: str, scale: str) -> None:
    fixed = combinations("order_queries", task, scale)
    slots = fixed[0].task.slots()
    assert slots < 8
    assert {method.token_queries for method in methods(fixed)} == {slots}
    assert [method.token_queries for method in methods(combinations("token_queries", task, scale))] == [1, 2, 4]
    # compose() has validated all of them


@pytest.mark.slow  # composes about 270 configurations
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_combination_is_valid(sweep: str, task: str, scale: str) -> None:
    configs = combinations(sweep, task, scale)
    assert len(configs) >= 3
    assert len({json.dumps(vars(config.method), sort_keys=True) for config in configs}) == len(configs)


def test_a_sweep_is_one_command(tmp_path: Path) -> None:
    overrides = ["+sweep=token_queries", "task=arg", "scale=smoke", "engine=local", "track.enabled=false"]
    command = [sys.executable, "-m", "recor_dist.run", *overrides]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    settings = [json.loads(path.read_text())["settings"] for path in tmp_path.glob("runs/*/run.json")]
    assert sorted(s["method.token_queries"] for s in settings) == [1, 2, 4]
    assert {s["method.order_queries"] for s in settings} == {8}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+sweep=token_querys"], "allowed: exploration, objective, order_queries, token_queries; did you mean token"),
        (["sweep=token_queries"], "write +sweep=NAME"),
        (["+sweep=objective", "method=mdm"], "the prepared sweeps are for method=recor"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line_with_the_remedy(overrides: list[str], message: str) -> None:
    with pytest.raises(Mistake) as refused:
        compose(overrides)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
