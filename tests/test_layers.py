"""Imports point one way: every package may import the layers below it and nothing else.

The imports are read from the source, so those inside functions and under `TYPE_CHECKING` count too.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("recor_dist", "actors", "learner", "data")

# What each layer may import besides itself, lowest layer first. `methods` is recor_dist/methods.py, `commands` are the
# other modules directly in recor_dist/, and `core`, `model`, `record`, `engine`, `answers`, `figures` are its folders.
PARTS = ("core", "model", "data", "actors", "learner")
LAYERS: dict[str, tuple[str, ...]] = {
    "core": (),
    "model": ("core",),
    "data": ("core",),
    "actors": ("core", "model", "data"),
    "learner": ("core", "model"),
    "methods": PARTS,
    "record": (*PARTS, "methods"),
    "engine": (*PARTS, "methods", "record"),
    "answers": (*PARTS, "methods", "record"),
    "figures": (*PARTS, "methods", "record"),
    "commands": (*PARTS, "methods", "record", "engine", "answers", "figures"),
}


def layer_of(module: str) -> str | None:
    """The layer of a dotted name; None for other projects and for recor_dist/__init__.py.

    `tests` and `benchmarks` are in no layer's row: nothing may import them.
    """
    package, *rest = module.split(".")
    if package != "recor_dist":
        return package if package in (*PACKAGES, "tests", "benchmarks") else None
    path = ROOT.joinpath("recor_dist", *rest[:1])
    if rest[:1] == ["methods"] or (rest and path.is_dir()):
        return rest[0]
    return "commands" if path.with_suffix(".py").is_file() else None


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(source: str, file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that the source of a file imports, anywhere in it."""
    parents = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        if isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else ()
            package = ".".join((*base, *((node.module,) if node.module else ())))
            # `from recor_dist import methods` imports recor_dist.methods, `from data.vocab import X` data.vocab.
            yield from ((node.lineno, f"{package}.{n.name}" if package in PACKAGES else package) for n in node.names)


def wrong_imports(source: str, file: Path) -> list[str]:
    """One line for each import that points against the layers."""
    layer = layer_of(module_of(file))
    allowed = LAYERS.get(layer, ()) if layer else ()
    wrong = [(line, name) for line, name in imports(source, file) if layer_of(name) not in (None, layer, *allowed)]
    rule = f"{layer or 'recor_dist/__init__.py'} may import {', '.join(allowed) or 'nothing else of this project'}"
    return [f"{file.relative_to(ROOT)}:{line} imports {name}; {rule}" for line, name in dict.fromkeys(wrong)]


FOREIGN = {"data": ("torch", "matplotlib", "mlflow"), "core": ("matplotlib", "mlflow")}  # too heavy, or of upper layers


def test_no_lower_layer_imports_the_libraries_of_an_upper_one() -> None:
    for file in sources():
        layer = layer_of(module_of(file)) or ""
        for line, name in imports(file.read_text(), file):
            assert name.split(".")[0] not in FOREIGN.get(layer, ()), f"{file.relative_to(ROOT)}:{line} imports {name}"


def sources() -> list[Path]:
    return [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]


def test_no_import_points_against_the_layers() -> None:
    wrong = [line for file in sources() for line in wrong_imports(file.read_text(), file)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_two_packages_import_each_other() -> None:
    below: dict[str, set[str]] = {}
    for file in sources():
        layer = layer_of(module_of(file))
        if layer:
            targets = {layer_of(name) for _, name in imports(file.read_text(), file)}
            below.setdefault(layer, set()).update(target for target in targets if target not in (None, layer))
    TopologicalSorter(below).prepare()  # raises CycleError, which lists the cycle
    assert below.keys() == LAYERS.keys(), "a folder of recor_dist/ without a row in LAYERS, or a row without a folder"
    assert all("core" in below[layer] for layer in LAYERS if layer != "core")  # imports were found everywhere


def test_a_module_directly_in_recor_dist_is_a_command_or_the_table_of_methods() -> None:
    others = [
        f"{file.relative_to(ROOT)} has no `if __name__ == '__main__'`; move it into a layer: {', '.join(LAYERS)}"
        for file in sorted((ROOT / "recor_dist").glob("*.py"))
        if file.name not in ("__init__.py", "methods.py") and not is_command(file.read_text())
    ]
    assert not others, "\n" + "\n".join(others)


def is_command(source: str) -> bool:
    tests = [ast.unparse(node.test) for node in ast.parse(source).body if isinstance(node, ast.If)]
    return "__name__ == '__main__'" in tests


# --- the check itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "import recor_dist.engine.loop",
        "import numpy, recor_dist.engine.loop as loop",
        "from recor_dist.engine.loop import train",
        "from recor_dist.engine import loop",
        "from recor_dist import engine",
        "from .engine.loop import train",
        "from . import engine",
        "def later():\n    from recor_dist.engine import loop",
        "if TYPE_CHECKING:\n    from recor_dist.engine import loop",
        "class A:\n    def f(self):\n        try:\n            import recor_dist.engine\n        finally: ...",
        "import recor_dist.run",
        "from recor_dist import run",
        "from tests import slow_model",
    ],
)
def test_every_kind_of_wrong_import_is_found(source: str) -> None:
    (found,) = wrong_imports(source, ROOT / "recor_dist/methods.py")
    line = 1 + [" import " in f" {text}" for text in source.splitlines()].index(True)
    assert found.startswith(f"recor_dist/methods.py:{line} imports ")
    assert found.endswith("; methods may import core, model, data, actors, learner")


def test_imports_of_lower_layers_and_of_other_projects_are_allowed() -> None:
    source = "import os, torch, datasets, recor_dist\nfrom recor_dist import __doc__, core\nfrom data import vocab"
    assert wrong_imports(source, ROOT / "recor_dist/methods.py") == []
    assert wrong_imports("from . import vocab\nfrom .vocab import Vocabulary", ROOT / "data/shards.py") == []
    assert wrong_imports("from . import loop", ROOT / "recor_dist/engine/events.py") == []
    assert wrong_imports("from ..model import decoding", ROOT / "recor_dist/engine/events.py") == []
    assert len(wrong_imports("from ..figures import style", ROOT / "recor_dist/engine/events.py")) == 1


def test_the_table_lists_lower_layers_first() -> None:
    names = list(LAYERS)
    assert all(set(allowed) <= set(names[:place]) for place, allowed in enumerate(LAYERS.values()))


def test_commands_and_other_modules_are_distinguished() -> None:
    assert is_command('if __name__ == "__main__":\n    main()')
    assert not is_command('def main():\n    """Not `if __name__ == "__main__"`."""')
