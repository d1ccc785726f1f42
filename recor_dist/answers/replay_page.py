"""The replay page: one HTML file that replays test answers step by step.

The answers are those of the run's own test: the same tickets, the same random numbers. The page is self-contained and
shows several methods or decoders side by side. replay_page.html is its template; the data goes in as JSON.
"""

import json
import logging
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np

from data.tasks import TASKS, task_of
from recor_dist.answers.rows_to_score import read_split
from recor_dist.answers.solver import Solver, load_solver
from recor_dist.core.config import Config
from recor_dist.core.decoder_text import SWEEP, find_name
from recor_dist.core.device import resolve_or_use_cpu, set_up_torch
from recor_dist.core.files import join, open_folder, split_name, write_atomically
from recor_dist.core.messages import Generation, Rows
from recor_dist.core.names import name_of
from recor_dist.core.progress import progress_bar
from recor_dist.core.setting import Mistake, nearest
from recor_dist.methods import find_decoders, parameters_of
from recor_dist.model.answering import answer_tickets, whole_tickets
from recor_dist.model.decoding import Decoder
from recor_dist.record.evaluations import TEST_ROWS, read_evaluations
from recor_dist.record.run_folder import REPLAY, RunFolder

log = logging.getLogger(__name__)


def write_replay(
    out: str | list[str], *, decoders: list[str] | None = None, rows: int = 12, file: str | None = None
) -> str:
    """Writes the page of one run, or of several side by side; returns its path.

    `decoders`: those to show, by default each run's headline decoder. `file`: by default replay.html in the first run.
    """
    outs = [out] if isinstance(out, str) else out
    solvers = [load_solver(one) for one in outs]
    chosen = _choose_decoders(solvers, decoders)
    tests = [read_test_rows(solver.config, rows) for solver in solvers]
    _check_comparable(outs, solvers, tests)
    panels, seeds = [], []
    for one, solver, test, names in zip(outs, solvers, tests, chosen, strict=True):
        resolve_or_use_cpu(solver.config)
        set_up_torch(solver.config)
        panels += [_panel(solver, name, decoder, test, rows, _accuracy(one, name)) for name, decoder in names.items()]
        seeds += [solver.config.seed] * len(names)
    _tell_apart(panels, seeds)
    page = _page(solvers[0], tests[0].select(np.arange(min(rows, len(tests[0])))), panels)
    place = file or join(outs[0], REPLAY)
    parent, name = split_name(place)
    write_atomically(open_folder(parent, create=True), name, page.encode())
    if place == join(outs[0], REPLAY):
        RunFolder.open(outs[0]).note_artifact(REPLAY)
    return place


def _choose_decoders(solvers: list[Solver], wanted: list[str] | None) -> list[dict[str, Decoder]]:
    """The decoders to show, by run: those of `wanted` that the run has, or its headline decoder if it has none."""
    tables = [parameters_of(solver.config) for solver in solvers]
    for word in wanted or []:
        if word != SWEEP and not any(find_name(word, table) for table in tables):
            known = list(dict.fromkeys(name for part in (*[s.decoders for s in solvers], *tables) for name in part))
            raise Mistake(f"decoders={word}: no such decoder; allowed: {', '.join(known)}{nearest(word, known)}")
    chosen = []
    for solver, table in zip(solvers, tables, strict=True):
        words = [word for word in wanted or [] if word == SWEEP or find_name(word, table)]
        chosen.append(find_decoders(solver.config, "decoders", ",".join(words)) if words else dict([solver.find(None)]))
    return chosen


def read_test_rows(config: Config, rows: int) -> Rows:
    """The test tickets that hold the first `rows` rows."""
    task = task_of(config)
    return read_split(config, task, "test", whole_tickets(config, rows, sum(task.sizes["test"])))


def _check_comparable(outs: list[str], solvers: list[Solver], tests: list[Rows]) -> None:
    """Refuses runs that were tested on different rows than the first."""
    for out, solver, test in zip(outs, solvers, tests, strict=True):
        if not _same(tests[0], test) or solver.vocabulary != solvers[0].vocabulary:
            raise Mistake(
                f"beside={out}: was tested on different rows than {outs[0]}; give runs with the same task settings"
            )


def _same(a: Rows, b: Rows) -> bool:
    count = min(len(a), len(b))
    return all(np.array_equal(x[:count], y[:count]) for x, y in ((a.prompts, b.prompts), (a.responses, b.responses)))


def _panel(solver: Solver, name: str, decoder: Decoder, test: Rows, rows: int, accuracy: str) -> dict[str, Any]:
    """A decoder's answers to the first test rows."""
    answers: list[dict[str, Any]] = []
    with progress_bar(f"answering with {name_of(name)}", len(test)) as advance:
        for generation in answer_tickets(solver.config, solver.model, name, decoder, test, "test"):
            count = len(generation.steps)
            answers += [_answer(solver, generation, row) for row in range(count)]
            advance(count)
    shown = answers[:rows]
    steps = max(answer["last"] for answer in shown)
    return {"name": name_of(name), "figures": accuracy, "steps": steps, "answers": shown}


def _answer(solver: Solver, generation: Generation, row: int) -> dict[str, Any]:
    return {
        "tokens": solver.vocabulary.decode(generation.responses[row]),
        "steps": generation.steps[row].tolist(),
        "last": int(generation.last_steps[row]),
        "confidences": [round(float(value), 4) for value in generation.confidences[row]],
    }


def _accuracy(out: str, decoder: str) -> str:
    """The decoder's test accuracy in words; empty if the run's test did not measure it, nor `recor_dist.evaluate`."""
    folder = RunFolder.open(out)
    result = folder.read_result() or {"test": {}}
    further = {line["decoder"]: line for line in read_evaluations(folder) if line["name"] == TEST_ROWS}
    figures = result["test"].get("decoders", {}).get(decoder) or further.get(decoder)
    return f"{figures['exact_match']:.1%} of {figures['rows']:,} test answers exact" if figures else ""


def _tell_apart(panels: list[dict[str, Any]], seeds: list[int]) -> None:
    """Adds the seed to panels of the same name, and a number if that is not enough."""
    names = [panel["name"] for panel in panels]
    for panel, seed in zip(panels, seeds, strict=True):
        if names.count(panel["name"]) > 1:
            panel["name"] += f", seed {seed}"
    names = [panel["name"] for panel in panels]
    for index, panel in enumerate(panels):
        if names.count(names[index]) > 1:
            panel["name"] += f" ({names[: index + 1].count(names[index])})"


def _page(solver: Solver, rows: Rows, panels: list[dict[str, Any]]) -> str:
    """The template with the content that its script reads: examples, and answers by panel."""
    task = solver.config.task
    row = TASKS[task.name]

    def names(tokens: list[str]) -> list[str]:
        return [row.display_name(task, slot, token) for slot, token in enumerate(tokens)]

    examples = []
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        truth = solver.vocabulary.decode(response)
        layout = row.layout(task, solver.vocabulary.decode(prompt), len(response), truth)
        examples.append({"layout": asdict(layout), "truth": truth, "names": names(truth)})
    for panel in panels:
        for answer in panel["answers"]:
            answer["names"] = names(answer["tokens"])
    content = {"task": row.title, "examples": examples, "panels": panels}
    template = (files("recor_dist.answers") / "replay_page.html").read_text(encoding="utf-8")
    return template.replace("__CONTENT__", as_script(content))


def as_script(content: Any) -> str:
    """JSON that no token can break out of: ASCII, without the characters that begin or end a tag."""
    escaped = {sign: f"\\u{ord(sign):04x}" for sign in "<>&"}
    return json.dumps(content, separators=(",", ":")).translate(str.maketrans(escaped))
