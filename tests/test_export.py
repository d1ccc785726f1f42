"""An exported folder answers like the checkpoint where nothing but torch, NumPy and safetensors is installed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from recor_dist.answers.solver import load_solver
from recor_dist.core.setting import Mistake
from recor_dist.export import export

ALLOWED = ("torch", "numpy", "safetensors")
# Python without site-packages, and with the folder of the allowed packages instead.
PROGRAM = """
import runpy, sys
sys.path.append(sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
others = {"recor_dist", "data", "mlflow", "omegaconf", "pyarrow", "numba", "pandas"}
print(sorted(others & {module.split(".")[0] for module in sys.modules}))
"""


def with_requirements(names: tuple[str, ...]) -> Iterator[metadata.Distribution]:
    """The installed distributions of these names, and those that pip would install with them."""
    seen, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            found = metadata.distribution(name)
            yield found
            needed = [Requirement(text) for text in found.requires or []]
            waiting += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but links to the allowed packages."""
    folder = tmp_path_factory.mktemp("bare")
    for distribution in with_requirements(ALLOWED):
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def answer_in_bare_python(bare: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(bare), *words]
    return subprocess.run(command, cwd=bare, capture_output=True, text=True, timeout=200)


def test_an_exported_model_answers_with_torch_numpy_and_safetensors_alone(
    bare: Path, trained: Callable[..., Path], tmp_path: Path
) -> None:
    out = trained("method=mdm")
    command = [sys.executable, "-m", "recor_dist.export", f"out={out}", "folder=made"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "exported to made; `python made/answer.py PROMPT` answers\n", done.stderr
    solver, prompts, code = load_solver(str(out)), ["0123", "4321", "0000"], f"{tmp_path}/made/answer.py"
    done = answer_in_bare_python(bare, code, *prompts)
    assert done.returncode == 0, done.stderr
    *lines, ours = done.stdout.splitlines()
    assert ours == "[]", "nothing of this project, and none of its other dependencies"
    told = zip(prompts, solver.answers(prompts), strict=True)
    assert [json.loads(line) for line in lines] == [{"prompt": p, **a, "decoder": "adamdm_prob"} for p, a in told]
    refused = answer_in_bare_python(bare, code, "0123", "01x3", "decoder=mdm")
    assert refused.stderr == "error: prompt 2: token 3, 'x', is not in the vocabulary; known: 0 1 2 3 4\n"
    assert refused.returncode == 2
    silent = answer_in_bare_python(bare, code)
    assert (silent.returncode, silent.stderr) == (2, f"usage: python {code} [decoder=NAME] PROMPT ...\n")
    assert subprocess.run([sys.executable, "-I", "-S", "-c", "import torch"], capture_output=True).returncode == 1


def test_the_folder_has_weights_code_results_and_no_path_of_this_machine(
    trained: Callable[..., Path], tmp_path: Path
) -> None:
    out, folder = trained("method=recor"), tmp_path / "made"
    for _ in range(2):  # an export is replaced
        export(str(out), str(folder))
    made = {path.name for path in folder.iterdir()}
    assert made == {"model.safetensors", "config.json", "answer.py", "README.md", "order_map.png"}
    card, result = (folder / "README.md").read_text(), json.loads((out / "result.json").read_text())
    assert result["weights_sha256"] in card
    assert f"| ReCOR | 40 | {result['test']['exact_match']:.4f} |" in card
    assert json.loads((out / "run.json").read_text())["data"] in card
    for name in made - {"model.safetensors", "order_map.png"}:
        text = (folder / name).read_text()
        assert str(out.parent) not in text and os.path.expanduser("~") + "/" not in text
    unfinished = Path(shutil.copytree(out, tmp_path / "unfinished"))
    (unfinished / "orders.json").unlink()
    export(str(unfinished), str(folder))
    assert not (folder / "order_map.png").exists() and "order_map" not in (folder / "README.md").read_text()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/answer.py").write_text("years of work")
    with pytest.raises(Mistake, match="thesis: holds files, but no exported model; choose another folder"):
        export(str(out), f"{tmp_path}/thesis")
    with pytest.raises(Mistake, match="/proc/none: cannot be used as a folder"):
        export(str(out), "/proc/none")
