"""The table of tasks: what every row promises, and the worked example of the docs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.path import PathConfig, sample
from data.task_type import TaskType
from data.tasks import TASKS, task_of
from recor_dist.core.config import SCHEMAS, Config
from recor_dist.engine.loop import train

ROOT = Path(__file__).parents[2]
GENERATED = [name for name, row in TASKS.items() if not row.read_source]


def test_every_row_of_the_table_is_a_choice_of_the_command_line() -> None:
    assert SCHEMAS["task"] == {name: row.schema for name, row in TASKS.items()}
    for name, row in TASKS.items():
        assert row.schema().name == name


@pytest.mark.parametrize("name", GENERATED)
def test_rows_have_the_lengths_and_tokens_that_the_task_says(name: str, config_in: Callable[..., Config]) -> None:
    config = config_in(f"task={name}")
    task, row = task_of(config), TASKS[name]
    rows = task.make_shard("test", 0)
    assert rows.prompts.shape[1] == task.N
    assert rows.responses.shape[1] == task.M == config.task.slots()
    assert max(rows.prompts.max(), rows.responses.max()) < len(task.vocabulary.tokens)
    for coordinate in row.coordinates(config.task).values():
        assert coordinate.shape == (task.M,)


def test_no_code_outside_a_tasks_file_asks_which_task_it_has() -> None:
    schemas = "|".join(row.schema.__name__ for row in TASKS.values())
    sources = [path for top in ("recor_dist", "actors", "learner", "data") for path in (ROOT / top).rglob("*.py")]
    asking = {
        str(path.relative_to(ROOT))
        for path in sources
        if re.search(rf"isinstance\([^)]*\b({schemas})\b", path.read_text())
    }
    assert not asking


def slow_path(prompt: list[int]) -> list[int]:
    """Walks back from the goal along the only edge that ends in each node."""
    *edges, start, goal = prompt
    parents = {child: parent for parent, child in zip(edges[::2], edges[1::2], strict=True)}
    path = [goal]
    while path[0] != start:
        path.insert(0, parents[path[0]])
    return path


@pytest.mark.parametrize(("arms", "length"), [(2, 1), (3, 4), (5, 7)])
def test_a_path_leads_from_the_center_to_the_goal(arms: int, length: int) -> None:
    rows = sample(PathConfig(arms=arms, length=length), np.random.default_rng(0), 200)
    goals = set()
    for prompt, response in zip(rows.prompts.tolist(), rows.responses.tolist(), strict=True):
        assert slow_path(prompt) == response
        assert prompt[:-2].count(prompt[-2]) == arms, "the start is the center"
        assert prompt[:-2].count(prompt[-1]) == 1, "the goal is the end of an arm"
        goals.add(prompt[:-2].index(prompt[-1]))
    assert len(goals) > min(10, arms * length - 1), "the edges are in random order"


def page() -> list[tuple[str, str]]:
    """The files that docs/adding_a_task.md shows, and the code it shows of each."""
    text = (ROOT / "docs/adding_a_task.md").read_text()
    return re.findall(r"^`([\w/.]+)`\n\n```\w*\n(.*?)```", text, re.M | re.S)


def test_the_worked_example_is_the_code_that_runs() -> None:
    shown = page()
    places = ["data/path.py", "data/tasks.py", "recor_dist/conf/laptop.yaml", "recor_dist/conf/smoke.yaml"]
    assert [path for path, _ in shown] == places
    for path, code in shown:
        assert code in (ROOT / path).read_text(), f"{path} differs from the page"
    assert (ROOT / "data/path.py").read_text() == shown[0][1], "the page shows the whole file"
    assert len(shown[0][1].splitlines()) <= 60


def test_the_worked_example_runs_from_the_page_alone(
    config_in: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(page()[0][1], "docs/adding_a_task.md", "exec"), namespace)
    row = namespace["TASK"]
    assert isinstance(row, TaskType)
    monkeypatch.setitem(TASKS, "path", row)
    result = train(config_in("task=path", "task.train_rows=64", "epochs=1", "device=cpu", "precision=float32"))
    assert result["steps"] == 4
    assert result["test"]["rows"] == 40
