"""`python -m recor_dist.replay out=DIR`: one HTML file that plays how test answers were written, step by step.

The answers are those of the run's own test: the same tickets, the same random numbers. The page needs nothing but
itself, and shows several methods or decoders side by side.
"""

import json
import logging
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from omegaconf import MISSING

from data.prepare import find_data
from data.tasks import task_of
from recor_dist.answers.solver import Solver, load_solver
from recor_dist.answers.views import called, layout
from recor_dist.core.command import plain_command
from recor_dist.core.config import Config, Mistake, setting
from recor_dist.core.device import autocast, resolve_device, set_up_torch
from recor_dist.core.files import exists, join, open_folder, read_json, split_name, write_atomically
from recor_dist.core.messages import Generation, Rows
from recor_dist.core.names import name_of
from recor_dist.core.progress import progress_bar, set_up_logging
from recor_dist.core.rng import rng
from recor_dist.model.evaluation import pad_rows

log = logging.getLogger(__name__)
TITLES = {
    "arg": "Autoregression",
    "mul": "Multiplication",
    "sudoku": "Sudoku",
    "zebra": "Zebra",
    "custom": "Custom rows",
}
ABOUT = [
    "Writes one HTML file that plays how test answers were written, step by step.",
    "",
    "  python -m recor_dist.replay out=runs/arg-recor-laptop-seed0-43183b57",
    "  python -m recor_dist.replay out=runs/one beside=runs/another rows=40 file=both.html",
    "  python -m recor_dist.replay out=runs/arg-mdm-... decoders=mdm,adamdm_margin",
]


@dataclass
class ReplayConfig:
    """What the page shows."""

    out: str = setting(MISSING, "folder of a run")
    beside: str | None = setting(None, "folder of another run on the same task, shown beside it")
    decoders: str | None = setting(
        None, "which decoders are shown, separated by commas; by default each run's headline"
    )
    rows: int = setting(12, "test answers on the page, the first ones", at_least=1)
    file: str | None = setting(None, "where the page goes; by default replay.html in `out`")


def write_replay(
    out: str | list[str], *, decoders: list[str] | None = None, rows: int = 12, file: str | None = None
) -> str:
    """Writes the page of one run or of several, side by side; returns where it is."""
    outs = [out] if isinstance(out, str) else out
    solvers = [load_solver(one) for one in outs]
    chosen = [[name for name in decoders or [] if name in solver.decoders] for solver in solvers]
    for name in decoders or []:
        if not any(name in names for names in chosen):
            known = ", ".join(dict.fromkeys(name for solver in solvers for name in solver.decoders))
            raise Mistake(f"decoders={name}: no such decoder; there are {known}")
    shown: Rows | None = None
    panels = []
    for one, solver, names in zip(outs, solvers, chosen, strict=True):
        config = solver.config
        _set_up(config)
        test = _test_rows(config, rows)
        if shown is None:
            shown = test
        elif not _same(shown, test) or solver.vocabulary != solvers[0].vocabulary:
            raise Mistake(
                f"beside={one}: was tested on other rows than {outs[0]}; give runs with the same task settings"
            )
        for name in names or [solver.choose(None)]:
            panels.append(_panel(solver, name, test, rows, _figures(one, name)))
    assert shown is not None
    _tell_apart(
        panels, [solver.config.seed for solver, names in zip(solvers, chosen, strict=True) for _ in names or [0]]
    )
    page = _page(solvers[0], shown.select(np.arange(min(rows, len(shown)))), panels)
    place = file or join(outs[0], "replay.html")
    parent, name = split_name(place)
    write_atomically(open_folder(parent, create=True), name, page.encode())
    return place


def _set_up(config: Config) -> None:
    """The machine of the run, as far as this one goes."""
    try:
        resolve_device(config)
    except Mistake:  # it was trained on a GPU, and here is none
        config.device, config.precision = "cpu", "float32"
    set_up_torch(config)


def _test_rows(config: Config, rows: int) -> Rows:
    """The tickets of the test that hold its first rows."""
    task = task_of(config)
    size = config.eval.size
    count = math.ceil(min(rows, sum(task.sizes["test"])) / size) * size
    data = find_data(config, task)
    if data is not None:
        return data.read_split("test", 0, count)
    log.info("there is no data in %s: making the first rows of the test again", config.data.dir)
    made = task.make_shard("test", 0)
    return made.select(np.arange(min(count, len(made))))


def _same(a: Rows, b: Rows) -> bool:
    count = min(len(a), len(b))
    return all(np.array_equal(x[:count], y[:count]) for x, y in ((a.prompts, b.prompts), (a.responses, b.responses)))


def _panel(solver: Solver, decoder: str, test: Rows, rows: int, figures: str) -> dict[str, Any]:
    """A decoder's answers to the first rows of the test."""
    answers = []
    size = solver.config.eval.size
    with progress_bar(f"answering as {name_of(decoder)}", len(test)) as advance:
        for index in range(math.ceil(len(test) / size)):
            ticket = test.select(np.arange(index * size, min(index * size + size, len(test))))
            random = rng(solver.config.seed, f"evaluate/test/{decoder}", index)
            with autocast(solver.config):
                generation = solver.decoders[decoder].answer(solver.model, pad_rows(ticket, size).prompts, random)
            answers += [_answer(solver, generation, row) for row in range(len(ticket))]
            advance(len(ticket))
    return {"name": name_of(decoder), "figures": figures, "steps": generation.last_step, "answers": answers[:rows]}


def _answer(solver: Solver, generation: Generation, row: int) -> dict[str, Any]:
    return {
        "tokens": solver.vocabulary.decode(generation.responses[row]),
        "steps": generation.steps[row].tolist(),
        "confidences": [round(float(value), 4) for value in generation.confidences[row]],
    }


def _figures(out: str, decoder: str) -> str:
    """What the test gave, in words; nothing where the run is not finished."""
    folder = open_folder(out)
    decoders = read_json(folder, "result.json")["test"].get("decoders", {}) if exists(folder, "result.json") else {}
    figures = decoders.get(decoder)
    return f"{figures['exact_match']:.1%} of {figures['rows']:,} test answers exact" if figures else ""


def _tell_apart(panels: list[dict[str, Any]], seeds: list[int]) -> None:
    """Panels of one name get what tells them apart: their seed, else a number."""
    names = [panel["name"] for panel in panels]
    for panel, seed in zip(panels, seeds, strict=True):
        if names.count(panel["name"]) > 1:
            panel["name"] += f", seed {seed}"
    names = [panel["name"] for panel in panels]
    for index, panel in enumerate(panels):
        if names.count(names[index]) > 1:
            panel["name"] += f" ({names[: index + 1].count(names[index])})"


def _page(solver: Solver, rows: Rows, panels: list[dict[str, Any]]) -> str:
    examples = []
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        truth = solver.vocabulary.decode(response)
        shown = layout(solver.config.task, solver.vocabulary.decode(prompt), len(response), truth)
        examples.append({"layout": shown, "truth": truth, "names": [called(shown, i, t) for i, t in enumerate(truth)]})
    for panel in panels:
        for answer, example in zip(panel["answers"], examples, strict=True):
            answer["names"] = [called(example["layout"], slot, token) for slot, token in enumerate(answer["tokens"])]
    content = {"task": TITLES[solver.config.task.name], "examples": examples, "panels": panels}
    template = (files("recor_dist.answers") / "replay.html").read_text(encoding="utf-8")
    return template.replace("__CONTENT__", as_script(content))


def as_script(content: Any) -> str:
    """JSON that no token can break out of: ASCII, and without the signs that end or begin a tag."""
    escaped = {sign: f"\\u{ord(sign):04x}" for sign in "<>&"}
    return json.dumps(content, separators=(",", ":")).translate(str.maketrans(escaped))


def main(config: ReplayConfig) -> None:
    set_up_logging()
    outs = [config.out] + ([config.beside] if config.beside else [])
    decoders = [name.strip() for name in config.decoders.split(",")] if config.decoders else None
    print(f"saved in {write_replay(outs, decoders=decoders, rows=config.rows, file=config.file)}")


if __name__ == "__main__":
    plain_command(ReplayConfig, main, ABOUT)
