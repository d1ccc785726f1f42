"""The code of a model as one file answers like the solver, for every method and every task."""

import ast
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from data.tasks import TASKS, task_of
from recor_dist.answers.one_file import Code, Module, describe_model, write_one_file
from recor_dist.answers.prompts import join
from recor_dist.answers.solver import Solver
from recor_dist.core.compose import compose
from recor_dist.core.config import flatten
from recor_dist.core.decoder_text import Parameter
from recor_dist.core.messages import Shape
from recor_dist.core.setting import Mistake
from recor_dist.methods import METHODS, lay_out
from recor_dist.model.decoding import Family
from recor_dist.model.denoising import mdm_decoders

METHOD_WORDS = {
    "recor": ["method=recor", "method.order_queries=2"],
    "coordinates": ["method=recor", "model.positions=coordinates", "model.loops=2"],
    "clm": ["method=clm"],
    "ar_gt": ["method=ar_gt"],
    "mdm": ["method=mdm", "method.rewrite=true"],
    "sufmdm": ["method=mdm", "method.suffix=true"],
    "ao_arm": ["method=ao_arm"],
}
TASK_WORDS = {
    "mul": ["task=mul", "model.positions=coordinates"],
    "sudoku": ["task=sudoku", "model.positions=coordinates"],
    "zebra": ["task=zebra"],
    "compact": ["task=zebra", "task.tokens=compact", "task.prompt_length=92", "method=mdm"],
    "path": ["task=path"],
}
PROMPTS = {  # as people may write them; generating puzzles takes long
    "mul": ["123*4", "987*0="],
    "sudoku": ["1...2....3....4.", "1000 2000 0300 0040"],
    "zebra": ["= LHS c 0 2 RHS n 0 1 CLUE_END nbr LHS c 0 0 RHS c 1 1 CLUE_END", "= a2 h2 -"],
    "compact": ["= a2 h2 - nbr a0 b1 -", "= LHS c 0 2 RHS n 0 1 CLUE_END"],
}


def untrained(*words: str) -> Solver:
    """A solver with random weights, large enough that answers differ."""
    config = compose(["scale=smoke", "engine=local", "model.deviation=0.5", *words])
    task = task_of(config)
    shape = Shape(task.N, task.M, len(task.vocabulary.tokens))
    model = lay_out(config, shape)
    model.initialise(seed=3)
    return Solver({"settings": flatten(config), "vocabulary": list(task.vocabulary.tokens)}, model)


def load(solver: Solver, folder: Path) -> Any:
    """The model as it is loaded from its file."""
    weights = solver.model.named_weights(solver.model.weights())
    safetensors.numpy.save_file({name: value.copy() for name, value in weights.items()}, folder / "model.safetensors")
    (folder / "about.json").write_text(json.dumps(describe_model(solver)))
    (folder / "answer.py").write_text(write_one_file(solver, "A model.", "about.json"))
    spec = importlib.util.spec_from_file_location("answer", folder / "answer.py")
    assert spec and spec.loader
    module = sys.modules["answer"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def prompts_for(solver: Solver, name: str) -> list[str]:
    row = TASKS[solver.config.task.name]
    if name in PROMPTS or row.sample is None:
        return PROMPTS[name]
    ids = row.sample(solver.config.task, np.random.default_rng(0), 5).prompts
    return [join(solver.vocabulary, solver.vocabulary.decode(prompt)) for prompt in ids]


@pytest.mark.parametrize("name", [*METHOD_WORDS, *TASK_WORDS])
def test_one_file_answers_as_the_solver_does(name: str, tmp_path: Path) -> None:
    solver = untrained(*(METHOD_WORDS | TASK_WORDS)[name])
    model, prompts = load(solver, tmp_path), prompts_for(solver, name)
    assert list(model.decoders) == list(solver.decoders)
    assert list(model.families) == list(solver.families)
    several = [f"{decoder}:0.5" for decoder in solver.families if "threshold" in decoder]
    for decoder in (None, *solver.decoders, *solver.families, *several):
        expected = solver.answers(prompts, decoder)
        assert model.answers(prompts, decoder) == expected
    for bad in (["", "x"], ["0" * 999], [None]):
        with pytest.raises(Mistake) as said:
            solver.answers(bad)
        with pytest.raises(ValueError) as same:
            model.answers(bad)
        assert (type(same.value).__name__, str(same.value)) == ("Mistake", str(said.value))


def test_a_decoder_that_a_model_does_not_have_is_refused_alike(tmp_path: Path) -> None:
    solver = untrained("method=clm")
    model = load(solver, tmp_path)
    with pytest.raises(Mistake) as said:
        solver.choose("cml")
    with pytest.raises(ValueError, match=r"^decoder=cml: this model has clm; did you mean clm") as same:
        model.choose("cml")
    assert str(same.value) == str(said.value)


def test_every_method_is_tried() -> None:
    assert {words[0].removeprefix("method=") for words in METHOD_WORDS.values()} == METHODS.keys()
    tried = {words[0].removeprefix("task=") for words in TASK_WORDS.values()}
    assert tried | {"arg", "custom"} == TASKS.keys()


def test_the_file_has_what_answering_needs_and_no_more(tmp_path: Path) -> None:
    text = write_one_file(untrained("task=zebra"), "A model.", "about.json")
    tree = ast.parse(text)
    imported = {
        name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    imported |= {str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    foreign = {"torch", "numpy", "safetensors"}
    assert imported - foreign <= set(sys.stdlib_module_names)
    assert foreign <= imported
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert {"generate", "check_prompt", "Model"} <= defined
    absent = {
        "rollout",
        "Learner",
        "make_puzzles",
        "sample",
        "denoise_vanilla",
        "unflatten",
        "RunFolder",
        "LocalEngine",
    }
    assert not absent & defined
    assert "def generate(" in text and "# (R,)" in text, "comments come along"


def test_a_definition_that_cannot_be_taken_out_is_refused() -> None:
    with pytest.raises(ValueError, match="give it a name with def"):
        Code().write(lambda text: text)
    with pytest.raises(ValueError, match="cannot be exported"):
        Code().write(np.zeros(3))
    code = Code()
    code.add("data.mul", "read_prompt")
    with pytest.raises(ValueError, match=r"read_prompt: is defined in data.sudoku and in data.mul; rename one of them"):
        code.add("data.sudoku", "read_prompt")


def test_a_decoder_without_a_name_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    solver = untrained("method=mdm")
    always_the_same = solver.decoders["mdm"]
    solver.families = {
        **solver.families,
        "plain": Family(lambda _: always_the_same),  # no parameter, so its one decoder is written down
        "nameless": Family(lambda value: always_the_same, Parameter("T", 2, at_least=1)),
    }
    model = load(solver, tmp_path)
    assert list(model.families) == [name for name in solver.families if name != "nameless"]
    assert "lacks the decoder nameless" in caplog.text
    assert model.answers(["0123"], "plain") == solver.answers(["0123"], "plain")


def test_annotations_pull_nothing_in() -> None:
    assert "Model" not in Module("recor_dist.model.decoding").mentioned_by("generate")
    code = Code()
    assert code.write(mdm_decoders(compose(["method=mdm", "scale=smoke"]).method)["mdm"]).startswith("Decoder(answer=p")
    assert ("recor_dist.model.transformer", "Model") not in code.needed
