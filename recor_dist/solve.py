"""`python -m recor_dist.solve model=runs/... prompt=...`: answers with a trained model, and shows the order it chose.

In a terminal the answer is filled in step by step, coloured by confidence. Elsewhere the answer and its order are
printed as text or JSON. With `input`, all prompts of a file are answered.
"""

import json
import sys
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from omegaconf import MISSING
from rich.console import Console

from recor_dist.answers.answering import plain_answers
from recor_dist.answers.prompt_files import check_ending, read_prompts, write_answers
from recor_dist.answers.solver import Solver, load_solver
from recor_dist.answers.terminal import fill_in
from recor_dist.core.command import plain_command
from recor_dist.core.files import exists
from recor_dist.core.progress import progress_bar, set_up_logging
from recor_dist.core.setting import Mistake, setting
from recor_dist.record.delivery import MLFLOW_SCHEMES, download_model
from recor_dist.record.run_folder import RunFolder

ABOUT = [
    "Answers prompts with a trained model, and shows the order in which it filled the slots.",
    "",
    "  python -m recor_dist.solve model=runs/arg-... prompt=001232104321",
    "  python -m recor_dist.solve model=runs/mul-... prompt='1234*05='",
    "  python -m recor_dist.solve model=runs/sudoku-... prompt=132......21.....",
    "  python -m recor_dist.solve model=runs/sudoku-mdm-... prompt=132......21..... decoder=threshold:0.9",
    "  python -m recor_dist.solve model=runs:/RUN_ID/model input=puzzles.txt output=answers.jsonl",
    "",
    "Tokens longer than one character are separated by spaces, or given as a JSON list. A .txt file has one prompt",
    "per line; .jsonl and .parquet files have a column `prompt`, and with a column `response` the accuracy is printed.",
]


@dataclass
class SolveConfig:
    """The model and its prompts."""

    model: str = setting(MISSING, "folder of a run or of an MLflow model, or its URI: runs:/ID/model, models:/NAME/1")
    prompt: str | None = setting(None, "the prompt", may_be_empty=True)
    input: str | None = setting(None, "a .parquet, .jsonl or .txt file of prompts, instead of `prompt`")
    output: str | None = setting(None, "a .parquet, .jsonl or .txt file for the answers; by default they are printed")
    decoder: str | None = setting(
        None, "decoder, such as threshold:0.9; by default the one that gives the method's headline metrics"
    )
    format: str = setting("text", "how answers are printed", choices=("text", "json"))
    batch_size: int = setting(256, "prompts answered together", at_least=1)


def open_solver(model: str) -> Solver:
    """From a run's folder, an MLflow model's folder, or any model URI that MLflow knows."""
    if model.startswith(MLFLOW_SCHEMES):
        return _from_mlflow(model)
    folder = RunFolder.open(model)
    if folder.has_run():
        return load_solver(model)
    if exists(folder.files, "MLmodel"):
        return _from_mlflow(model)
    raise Mistake(f"model={model}: holds neither a run nor an MLflow model; give the folder that a run was saved in")


def _from_mlflow(model: str) -> Solver:
    folder = download_model("model", model)
    from recor_dist.packaged import load_packaged  # here, because a run's folder does not need MLflow

    return load_packaged(folder)


# --- one prompt ------------------------------------------------------------------------------------------------------


def solve_one(solver: Solver, prompt: str, decoder: str, as_json: bool) -> None:
    """Prints the answer and its order."""
    ids = solver.encode([prompt], lambda _: f"prompt={prompt}")
    generation = solver.answer(ids, decoder)
    answer = plain_answers(solver, generation)[0]
    if as_json:
        print(json.dumps({"prompt": prompt, **answer, "decoder": decoder}, ensure_ascii=False))
        return
    if Console().is_terminal:
        fill_in(solver, ids[0], generation)
    print(answer["response"])
    if not Console().is_terminal:
        print("order", *(",".join(str(slot + 1) for slot in slots) for slots in _by_step(answer)))


def _by_step(answer: dict[str, Any]) -> list[list[int]]:
    """The slots filled at each step, without steps that fill none."""
    return [list(slots) for _, slots in groupby(answer["order"], key=lambda slot: answer["steps"][slot])]


# --- a file of prompts -----------------------------------------------------------------------------------------------


def solve_many(solver: Solver, config: SolveConfig, decoder: str) -> None:
    """Answers the prompts of `config.input`; prints or writes the answers, and prints a summary."""
    assert config.input is not None
    if config.output:
        check_ending("output", config.output)
    file = read_prompts(config.input)
    ids = solver.encode(file.prompts, file.name_row)
    truth = solver.encode_responses(file.responses, file.name_row) if file.responses else None
    answers: list[dict[str, Any]] = []
    responses: list[np.ndarray] = []
    with progress_bar(f"answering {config.input}", len(ids)) as advance:
        for generation in solver.answer_all(ids, decoder, config.batch_size):
            answers += plain_answers(solver, generation)
            responses.append(generation.responses)
            advance(len(generation.responses))
    rows = [{"prompt": prompt, **answer} for prompt, answer in zip(file.prompts, answers, strict=True)]
    summary: dict[str, Any] = {"rows": len(rows), "decoder": decoder}
    if truth is not None:
        right = np.concatenate(responses) == truth
        summary |= {"exact_match": float(right.all(1).mean()), "token_accuracy": float(right.mean())}
    if config.output:
        write_answers(config.output, rows)
        summary["output"] = config.output
    else:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False) if config.format == "json" else row["response"])
    # The summary must not mix with answers on stdout.
    stream = sys.stdout if config.output else sys.stderr
    print(json.dumps(summary) if config.format == "json" else _in_words(summary), file=stream)


def _in_words(summary: dict[str, Any]) -> str:
    lines = [f"{summary['rows']:,} answers by {summary['decoder']}"]
    if "exact_match" in summary:
        lines.append(f"exact match {summary['exact_match']:.4f}, token accuracy {summary['token_accuracy']:.4f}")
    if "output" in summary:
        lines.append(f"saved in {summary['output']}")
    return "\n".join(lines)


def main(config: SolveConfig) -> None:
    set_up_logging()
    if (config.prompt is None) == (config.input is None):
        raise Mistake("prompt: write prompt=... for one answer, or input=FILE for many")
    if config.output and config.input is None:
        raise Mistake("output: needs input=FILE; a single answer is printed")
    solver = open_solver(config.model)
    decoder = solver.choose(config.decoder)
    if config.input is not None:
        solve_many(solver, config, decoder)
    else:
        assert config.prompt is not None
        solve_one(solver, config.prompt, decoder, config.format == "json")


if __name__ == "__main__":
    plain_command(SolveConfig, main, ABOUT)
