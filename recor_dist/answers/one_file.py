"""A trained model's code as one Python file, which needs torch, NumPy and safetensors, and nothing of this project.

The file is not written twice: it consists of the definitions that answering needs, taken from our own sources with
their comments. Starting from a few functions, every top-level definition that they mention is followed, module by
module, and the rest is left out: training, generators, presets, the table of methods.

What depends on the model follows at the end, written from the objects of the run: its decoders and how its task reads
prompts.
"""

import ast
import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache, cached_property, partial
from graphlib import TopologicalSorter
from pathlib import Path
from types import FunctionType
from typing import Any

from data.tasks import TASKS
from recor_dist.answers.exported import answer_command_line, load_exported
from recor_dist.answers.solver import Solver
from recor_dist.core.config import flatten
from recor_dist.model.decoding import Family, always

log = logging.getLogger(__name__)
ROOT = Path(__file__).parents[2]
OURS = ("recor_dist", "actors", "learner", "data")

GROUPS = ("scale", "task", "method", "model", "seed")  # the settings that answering needs; no paths of this machine

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Place = tuple[str, str]  # a module and a name in it


def describe_model(solver: Solver) -> dict[str, Any]:
    """What an exported model's code reads besides the weights."""
    shape, task, settings = solver.model.shape, solver.config.task, flatten(solver.config)
    coordinates = TASKS[task.name].coordinates(task, shape.N, shape.M)
    return {
        "settings": {key: value for key, value in settings.items() if key.split(".")[0] in GROUPS},
        "shape": asdict(shape),
        "vocabulary": list(solver.vocabulary.tokens),
        "coordinates": {name: values.tolist() for name, values in coordinates.items()},
        "decoders": solver.names,
    }


def write_one_file(solver: Solver, about: str, config: str, *more: FunctionType | type, tail: str = "") -> str:
    """The source of a module with `load()`, for the model of a run; answers like `solver`.

    `about`: its docstring. `config`: the name of the JSON file next to it. `more`: what `tail`, its end, needs.
    """
    code = Code()
    decoders, families = code.write_table(solver.decoders), code.write_table(_families_of(solver))
    reader, load, main = code.write(solver.reader), code.write(load_exported), code.write(answer_command_line)
    for part in more:
        code.write(part)
    end = f'''
# --- this model ---

DECODERS = {decoders}
FAMILIES = {families}
READER = {reader}


def load(folder=Path(__file__).parent):
    """The model in a folder, by default that of this file. load().answers([prompt, ...]) answers prompts."""
    return {load}(folder, {config!r}, DECODERS, FAMILIES, READER)

{tail}
if __name__ == "__main__":
    {main}(load)
'''
    code.needed_imports.add("from pathlib import Path")
    return f'"""{about}"""\n\nfrom __future__ import annotations\n\n{code.text()}{end}'


def _families_of(solver: Solver) -> dict[str, Family]:
    """All decoders that can be written down; a warning names the others."""
    plain = {
        name: family if family.parameter else Family(partial(always, family.make(None)))
        for name, family in solver.families.items()
    }
    found = {}
    for name, family in plain.items():
        try:
            Code().write(family)
            found[name] = family
        except ValueError as error:
            log.warning("the code of the model lacks the decoder %s (%s)", name, error)
    return found


@dataclass
class Code:
    """Definitions collected from our sources."""

    modules: dict[str, "Module"] = field(default_factory=dict)  # that were read
    needed: set[Place] = field(default_factory=set)
    needed_imports: set[str] = field(default_factory=set)

    def write(self, value: Any) -> str:
        """An expression for a value, and with it all that the expression needs."""
        if isinstance(value, partial):
            self.needed_imports.add("from functools import partial")
            words = [
                *map(self.write, value.args),
                *(f"{key}={self.write(part)}" for key, part in value.keywords.items()),
            ]
            return f"partial({', '.join([self.write(value.func), *words])})"
        if isinstance(value, FunctionType | type):
            if "<" in value.__qualname__:
                raise ValueError(f"{value.__module__}.{value.__qualname__}: give it a name with def, to export it")
            if value.__module__.split(".")[0] not in OURS:
                raise ValueError(f"{value.__module__}.{value.__qualname__}: is not part of {', '.join(OURS)}")
            self.add(value.__module__, value.__qualname__)
            return value.__qualname__
        if is_dataclass(value):
            parts = {f.name: getattr(value, f.name) for f in fields(value)}
            changed = {key: part for key, part in parts.items() if not _is_default(type(value), key, part)}
            return f"{self.write(type(value))}({', '.join(self._by_name(changed))})"
        if isinstance(value, tuple):
            return f"({', '.join(map(self.write, value))},)" if value else "()"
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        raise ValueError(f"{value!r}: cannot be exported")

    def write_table(self, values: Mapping[str, Any]) -> str:
        return "{\n" + "".join(f"    {name!r}: {self.write(value)},\n" for name, value in values.items()) + "}"

    def _by_name(self, values: dict[str, Any]) -> list[str]:
        return [f"{key}={self.write(value)}" for key, value in values.items()]

    def add(self, module: str, name: str) -> None:
        """Adds a definition and everything that it mentions."""
        if (module, name) in self.needed:
            return
        source = self.modules[module] = read_module(module)
        if name in source.imports:
            origin, original = source.imports[name]
            if origin.split(".")[0] in OURS:
                if original is None or original != name:
                    raise ValueError(f"{module}: imports {origin} {original} as {name}; import the name itself")
                self.add(origin, name)
            else:
                self.needed_imports.add(_import_line(origin, original, name))
            return
        if name not in source.definitions:
            return  # a builtin, or a name of its own scope
        same = [other for other, known in self.needed if known == name]
        if same:
            raise ValueError(f"{name}: is defined in {module} and in {same[0]}; rename one of them")
        self.needed.add((module, name))
        for mentioned in source.mentioned_by(name):
            self.add(module, mentioned)

    def text(self) -> str:
        """Imports, then the definitions, those of a module after those of the modules that it imports."""
        chosen = {key: {name for place, name in self.needed if place == key} for key in sorted(self.modules)}
        below = {key: {origin for origin, _ in self.modules[key].imports.values()} & chosen.keys() for key in chosen}
        parts = [
            self.modules[key].excerpt(chosen[key]) for key in TopologicalSorter(below).static_order() if chosen[key]
        ]
        return "\n".join(sorted(self.needed_imports, key=_library_first)) + "\n\n" + "\n\n".join(parts)


class Module:
    """The source of one module, by its top-level definitions."""

    def __init__(self, name: str) -> None:
        path = ROOT.joinpath(*name.split("."))
        self.path = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        self.source = self.path.read_text()
        self.lines = self.source.splitlines()
        self.tree = ast.parse(self.source)

    @cached_property
    def imports(self) -> dict[str, tuple[str, str | None]]:
        """Imported name -> module, and the name there; None for a module itself."""
        found: dict[str, tuple[str, str | None]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                found |= {each.asname or each.name: (str(node.module), each.name) for each in node.names}
            if isinstance(node, ast.Import):
                for each in node.names:
                    found[each.asname or each.name.split(".")[0]] = (each.name, None)
        return found

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    found |= {each.id: node for each in ast.walk(target) if isinstance(each, ast.Name)}
        return found

    def mentioned_by(self, name: str) -> list[str]:
        """The names in a definition, without annotations, in order."""
        for node in ast.walk(visible := _Bare().visit(ast.parse(ast.unparse(self.definitions[name])))):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
                raise ValueError(f"{self.path.name}: {name} imports {node.module} inside; import it at the top")
        return list(dict.fromkeys(node.id for node in ast.walk(visible) if isinstance(node, ast.Name)))

    def excerpt(self, names: set[str]) -> str:
        """The definitions of these names as they stand in the source, with the comments above them."""
        about = (ast.get_docstring(self.tree) or "").split("\n")[0]
        nodes = {id(node): node for name, node in self.definitions.items() if name in names}
        text = f"# --- {self.path.relative_to(ROOT).as_posix()} ---\n# {about}\n"
        end = None
        for node in sorted(nodes.values(), key=lambda node: node.lineno):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
            while self.lines[first - 2].startswith("#") and not self.lines[first - 2].startswith("# ---"):
                first -= 1
            plain = isinstance(node, ast.Assign | ast.AnnAssign)
            text += "" if plain and end == first - 1 else "\n" if plain else "\n\n"
            text += "\n".join(self.lines[first - 1 : node.end_lineno]) + "\n"
            end = node.end_lineno
        return text


read_module = cache(Module)


class _Bare(ast.NodeTransformer):
    """Removes annotations, which nothing evaluates."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _is_default(kind: type, key: str, value: Any) -> bool:
    """True for the value that a field has by default; functions without a name are the same if their code is."""
    (default,) = (f.default for f in fields(kind) if f.name == key)
    if isinstance(value, FunctionType) and isinstance(default, FunctionType):
        return value.__code__.co_code == default.__code__.co_code and "<lambda>" in value.__qualname__
    return value is default


def _import_line(module: str, original: str | None, name: str) -> str:
    if original is not None:
        return f"from {module} import {original}" + (f" as {name}" if original != name else "")
    return f"import {module}" + (f" as {name}" if name != module.split(".")[0] else "")


def _library_first(line: str) -> tuple[bool, bool, str]:
    module = line.split()[1].split(".")[0]
    return module not in sys.stdlib_module_names, line.startswith("from"), line
