"""The top-level packages have generic names; they must resolve to this project in any working directory."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("recor_dist", "actors", "learner", "data")


def test_the_packages_resolve_to_this_project_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()  # a common name for a folder
    program = f"import {', '.join(PACKAGES)}; print(*({', '.join(f'{p}.__file__' for p in PACKAGES)}), sep='\\n')"
    for folder in (ROOT, tmp_path):
        command = [sys.executable, "-c", program]
        shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
        assert shown.splitlines() == [str(ROOT / package / "__init__.py") for package in PACKAGES]


def test_pyproject_lists_every_folder_with_modules_and_ships_every_other_file() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    files = {file for package in PACKAGES for file in (ROOT / package).rglob("*.*") if "__pycache__" not in file.parts}
    modules = {file for file in files if file.suffix == ".py"}
    folders = {file.parent for file in modules}
    assert sorted(setuptools["packages"]) == sorted(".".join(folder.relative_to(ROOT).parts) for folder in folders)
    assert all((folder / "__init__.py").is_file() for folder in folders)
    shipped = {
        file
        for package, patterns in setuptools["package-data"].items()
        for pattern in patterns
        for file in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    assert shipped == files - modules


def test_constraints_pin_every_dependency_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["dependencies"] + project["optional-dependencies"]["dev"]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert pinned["torch"] == "2.13.0"
    for requirement in named:
        assert requirement.split(">=")[0].split("[")[0] in pinned
