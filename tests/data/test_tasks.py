"""The table of tasks: what every row promises, and the worked example of the docs."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.path import PathConfig, sample
from data.tasks import TASKS, task_of
from recor_dist.core.config import SCHEMAS, Config

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
    for coordinate in row.coordinates(config.task, task.N, task.M).values():
        assert coordinate.shape == (task.N + task.M,)
        assert coordinate.min() >= -1


def task_knowledge(source: str) -> list[str]:
    """Names of tasks, and their settings or modules, in code that should not know any task."""
    modules = {f"data.{name}" for name in TASKS}
    schemas = {row.schema.__name__ for row in TASKS.values()}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in TASKS:
            found.append(f"line {node.lineno}: {node.value!r}")
        elif isinstance(node, ast.ImportFrom) and (
            node.module in modules or (node.module == "data" and {name.name for name in node.names} & set(TASKS))
        ):
            found.append(f"line {node.lineno}: imports {node.module}")
        elif isinstance(node, ast.Name) and node.id in schemas:
            found.append(f"line {node.lineno}: {node.id}")
    return found


def test_no_code_outside_a_tasks_own_files_knows_a_task() -> None:
    own = re.compile(rf"data/({'|'.join(TASKS)})(_rules|_files)?\.py|data/tasks\.py")
    paper = ["recor_dist/figures/tables.py"]  # the paper's numbers, by task
    sources = [path for top in ("recor_dist", "actors", "learner", "data") for path in (ROOT / top).rglob("*.py")]
    names = {path: path.relative_to(ROOT).as_posix() for path in sources}
    outside = [path for path, name in names.items() if not own.fullmatch(name) and name not in paper]
    assert len(outside) > 60
    known = {names[path]: found for path in outside if (found := task_knowledge(path.read_text()))}
    assert not known
    for wrong in (
        'task.name == "sudoku"',
        "isinstance(task, ZebraConfig)",
        "from data.mul import TASK",
        "from data import arg",
    ):
        assert task_knowledge(wrong), "the check finds what it is for"


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


PROGRAM = """
import sys, types
import data.tasks
from recor_dist.core.config import SCHEMAS

code, folder = sys.argv[1:]
module = sys.modules["data.trail"] = types.ModuleType("data.trail")
exec(compile(code, "docs/adding_a_task.md", "exec"), vars(module))
data.tasks.TASKS["trail"] = module.TASK
SCHEMAS["task"]["trail"] = module.TASK.schema

from recor_dist.answers.replay_page import write_replay
from recor_dist.answers.solver import load_solver
from recor_dist.core.compose import compose
from recor_dist.engine.loop import train
from recor_dist.figures.run_pictures import draw_pictures
from recor_dist.record.runs import read_run
from recor_dist.report import write

rows = ["task.train_rows=64", "task.val_rows=16", "task.test_rows=16", "epochs=1"]
places = [f"data.dir={folder}/shards", f"out={folder}/out"]
out = f"{folder}/out"
result = train(compose(["task=trail", "scale=smoke", "engine=local", *rows, *places]))
solver = load_solver(out)
prompt = " ".join(solver.vocabulary.tokens[token] for token in solver.encode([["0"] * solver.model.shape.N], str)[0])
solver.answer(solver.encode([prompt], str))
draw_pictures(out)
assert "Path-finding on a star graph" in open(write_replay(out, rows=2)).read()
assert any("Path" in line for line in write([read_run(out)], [out]).lines)
print(result["steps"], result["test"]["rows"])
"""


def test_the_worked_example_runs_from_the_page_alone_as_a_task_that_nothing_knows(tmp_path: Path) -> None:
    code = page()[0][1].replace('"path"', '"trail"')
    command = [sys.executable, "-c", PROGRAM, code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "16"]
