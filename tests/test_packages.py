"""The four folders have generic names; they must be this project's, wherever Python was started."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("recor_dist", "actors", "learner", "data")


def test_the_packages_are_this_projects_in_any_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()  # people have folders of that name
    program = f"import {', '.join(PACKAGES)}; print(*({', '.join(f'{p}.__file__' for p in PACKAGES)}), sep='\\n')"
    for folder in (ROOT, tmp_path):
        command = [sys.executable, "-c", program]
        shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
        assert shown.splitlines() == [str(ROOT / package / "__init__.py") for package in PACKAGES]


def test_pyproject_lists_the_packages_one_by_one_and_ships_the_configuration() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["packages"] == list(PACKAGES)
    assert project["tool"]["setuptools"]["package-data"] == {"recor_dist": ["conf/**/*.yaml", "pages/*.html"]}


def test_constraints_pin_every_dependency_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["dependencies"] + project["optional-dependencies"]["dev"]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert pinned["torch"] == "2.13.0"
    for requirement in named:
        assert requirement.split(">=")[0].split("[")[0] in pinned


def test_no_module_of_the_data_package_imports_the_model_or_the_learner() -> None:
    """Imports point one way: config, messages <- model <- decode <- {data, actors, learner} <- methods <- loop."""
    forbidden = {
        "data": ("actors", "learner", "recor_dist.model.transformer", "recor_dist.engine.loop", "torch"),
        "actors": ("learner", "recor_dist.engine.loop", "recor_dist.methods"),
        "learner": ("actors", "data", "recor_dist.engine.loop", "recor_dist.methods"),
    }
    for package, names in forbidden.items():
        for file in (ROOT / package).glob("*.py"):
            imports = [
                line.split()[1] for line in file.read_text().splitlines() if line.startswith(("import ", "from "))
            ]
            for name in names:
                assert not [i for i in imports if i == name or i.startswith(f"{name}.")], f"{file} imports {name}"
