"""`python -m recor_dist.solve model=runs/... prompt=...`: a trained model answers, and shows the order it took.

On a terminal the answer is filled in step by step, coloured by how sure the model was. Elsewhere the answer and its
order are printed plainly, or as JSON. Many prompts come from a file and go into one.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import MISSING
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text as Styled

from data.zebra import letter
from recor_dist.answers.prompts import Text, encode_response
from recor_dist.answers.solver import Solver, load_solver, plain_answers
from recor_dist.answers.views import called, layout
from recor_dist.core.command import plain_command
from recor_dist.core.config import Mistake, setting
from recor_dist.core.files import exists, open_folder, split_name, write_atomically
from recor_dist.core.messages import Generation
from recor_dist.core.progress import progress_bar, set_up_logging
from recor_dist.record.identity import FILE as RUN_FILE
from recor_dist.track import prepare_mlflow

ENDINGS = (".parquet", ".jsonl", ".txt")
SECONDS_A_STEP = 0.35  # of showing, where there are few
SECONDS = 8.0  # of showing, at most
SURE, UNSURE = 0.9, 0.5  # confidences from which a token is green, or yellow
ABOUT = [
    "A trained model answers, and shows the order it took.",
    "",
    "  python -m recor_dist.solve model=runs/arg-... prompt=00123210",
    "  python -m recor_dist.solve model=runs/mul-... prompt='1234*05='",
    "  python -m recor_dist.solve model=runs/sudoku-... prompt=.3.4..2.1...4...",
    "  python -m recor_dist.solve model=runs:/RUN_ID/model input=puzzles.txt output=answers.jsonl",
    "",
    "Tokens longer than a character are written with spaces between them, or as a JSON list. Files have a prompt a",
    "line (.txt) or a column `prompt` (.jsonl, .parquet); where they have a column `response`, the accuracy is told.",
]


@dataclass
class SolveConfig:
    """What is asked, of whom."""

    model: str = setting(MISSING, "folder of a run or of an MLflow model, or its URI: runs:/ID/model, models:/NAME/1")
    prompt: str | None = setting(None, "the prompt")
    input: str | None = setting(None, "a .parquet, .jsonl or .txt file of prompts, in place of one")
    output: str | None = setting(None, "a .parquet, .jsonl or .txt file for their answers; by default they are printed")
    decoder: str | None = setting(None, "which decoder of the method answers; by default that of its headline figures")
    format: str = setting("text", "how answers are printed", choices=("text", "json"))
    batch_size: int = setting(256, "prompts that are answered together", at_least=1)


def open_solver(model: str) -> Solver:
    """From a run's folder, an MLflow model's folder, or whatever URI MLflow knows."""
    if model.startswith(("runs:/", "models:/", "mlflow-artifacts:/")):
        return _from_mlflow(model)
    folder = open_folder(model)
    if exists(folder, RUN_FILE):
        return load_solver(model)
    if exists(folder, "MLmodel"):
        return _from_mlflow(model)
    raise Mistake(f"model={model}: holds neither a run nor an MLflow model; give the folder a run said it was saved in")


def _from_mlflow(model: str) -> Solver:
    prepare_mlflow()
    import mlflow.artifacts  # here, as it takes seconds, and a run's folder needs none of it
    from mlflow.exceptions import MlflowException

    from recor_dist.packaged import load_packaged

    try:
        return load_packaged(mlflow.artifacts.download_artifacts(artifact_uri=model))
    except (MlflowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise Mistake(f"model={model}: MLflow at {mlflow.get_tracking_uri()} does not give it: {reason}") from None


# --- one prompt ------------------------------------------------------------------------------------------------------


def solve_one(solver: Solver, prompt: str, decoder: str, as_json: bool) -> None:
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
    """The slots of each step that filled any."""
    return [list(slots) for _, slots in groupby(answer["order"], key=lambda slot: answer["steps"][slot])]


def fill_in(solver: Solver, prompt: np.ndarray, generation: Generation) -> None:
    """Shows on the terminal how an answer was written."""
    console = Console()
    shown = layout(solver.config.task, solver.vocabulary.decode(prompt), generation.responses.shape[1])
    tokens = solver.vocabulary.decode(generation.responses[0])
    steps, confidences = generation.steps[0], generation.confidences[0]
    pause = min(SECONDS_A_STEP, SECONDS / generation.last_step)
    for number, clue in enumerate(shown.get("clues", []), start=1):
        console.print(Styled(f"{number:3}. {clue['text']}", style="dim"))
    with Live(console=console, auto_refresh=False) as live:
        for step in range(generation.last_step + 1):
            cells = []
            for slot, token in enumerate(tokens):
                if steps[slot] <= step:
                    now = "bold reverse " if steps[slot] == step else ""
                    cells.append(Styled(called(shown, slot, token), now + _style(float(confidences[slot]))))
                elif slot in shown.get("givens", ()):
                    cells.append(Styled(solver.vocabulary.tokens[prompt[slot]], "bold"))
                else:
                    cells.append(Styled("·", "dim"))
            count = f"step {step} of {generation.last_step}"
            live.update(Group(draw(shown, cells), Styled(count, "dim")), refresh=True)
            if step < generation.last_step:
                time.sleep(pause)
    sure, unsure = (f"sure ({SURE} and more)", "green"), (f"unsure (below {UNSURE})", "red")
    console.print(Styled.assemble(sure, "  ", ("less sure", "yellow"), "  ", unsure))


def _style(confidence: float) -> str:
    return "green" if confidence >= SURE else "yellow" if confidence >= UNSURE else "red"


def draw(shown: dict[str, Any], cells: list[Styled]) -> Table:
    """Cells as a line, a board with its boxes, or a table of houses."""
    if shown["kind"] == "sudoku":
        return _draw_sudoku(shown, cells)
    if shown["kind"] == "zebra":
        return _draw_zebra(shown, cells)
    table = Table.grid()
    table.add_column(style="dim")
    table.add_column()
    if shown["prompt"]:
        # Where prompt and response go together token by token, they stand one above the other.
        widths = [max(len(t), len(c)) if shown["paired"] else len(t) for t, c in _pairs(shown["prompt"], cells)]
        table.add_row("prompt ", " ".join(t.rjust(w) for t, w in zip(shown["prompt"], widths, strict=True)))
        if shown["paired"]:
            for cell, width in zip(cells, widths, strict=True):
                cell.align("right", width)
    table.add_row("answer ", Styled(" ").join(cells))
    return table


def _pairs(prompt: list[str], cells: list[Styled]) -> Iterator[tuple[str, str]]:
    for index, token in enumerate(prompt):
        yield token, cells[index].plain if index < len(cells) else ""


def _draw_sudoku(shown: dict[str, Any], cells: list[Styled]) -> Table:
    size, (high, wide) = shown["size"], shown["box"]
    table = Table.grid()
    for start in range(0, size * size, size):
        row = start // size
        groups = [Styled(" ").join(cells[start + g : start + g + wide]) for g in range(0, size, wide)]
        if row and row % high == 0:
            table.add_row(Styled("─┼─".join("─" * (2 * wide - 1) for _ in groups), style="dim"))
        table.add_row(Styled(" │ ").join(groups))
    return table


def _draw_zebra(shown: dict[str, Any], cells: list[Styled]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 1))
    for row in range(shown["attributes"] + 1):
        first = row * shown["wide"]
        table.add_row(letter(row) if row else "house", *cells[first : first + shown["houses"]])
    return table


# --- many prompts ----------------------------------------------------------------------------------------------------


def solve_many(solver: Solver, config: SolveConfig, decoder: str) -> None:
    assert config.input is not None
    if config.output and not config.output.endswith(ENDINGS):
        raise Mistake(f"output={config.output}: must end in {', '.join(ENDINGS)}")
    where, prompts, responses = read_prompts(config.input)
    ids = solver.encode(prompts, where)
    truth = _encode_responses(solver, responses, where) if responses else None
    answers: list[dict[str, Any]] = []
    right: list[np.ndarray] = []
    with progress_bar(f"answering {config.input}", len(ids)) as advance:
        for generation in solver.answer_all(ids, decoder, config.batch_size):
            if truth is not None:
                right.append(generation.responses == truth[len(answers) : len(answers) + len(generation.responses)])
            answers += plain_answers(solver, generation)
            advance(len(generation.responses))
    summary: dict[str, Any] = {"rows": len(answers), "decoder": decoder}
    if right:
        every = np.concatenate(right)
        summary |= {"exact_match": float(every.all(1).mean()), "token_accuracy": float(every.mean())}
    rows = [{"prompt": prompt, **answer} for prompt, answer in zip(prompts, answers, strict=True)]
    if config.output:
        write_answers(config.output, rows)
        summary["output"] = config.output
    else:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False) if config.format == "json" else row["response"])
    # Where the answers themselves are printed, what is told of them must not stand among them.
    told = sys.stdout if config.output else sys.stderr
    print(json.dumps(summary) if config.format == "json" else _in_words(summary), file=told)


def _in_words(summary: dict[str, Any]) -> str:
    lines = [f"{summary['rows']:,} answers of {summary['decoder']}"]
    if "exact_match" in summary:
        lines.append(f"exact match {summary['exact_match']:.4f}, token accuracy {summary['token_accuracy']:.4f}")
    return "\n".join(lines + [f"saved in {summary['output']}"] * ("output" in summary))


def _encode_responses(solver: Solver, responses: list[Text], where: Any) -> np.ndarray:
    encoded = np.empty((len(responses), solver.model.shape.M), dtype=np.int64)
    for index, response in enumerate(responses):
        try:
            encoded[index] = encode_response(solver.vocabulary, solver.model.shape.M, response)
        except Mistake as mistake:
            raise Mistake(f"the response in {where(index)}: {mistake}") from None
    return encoded


def read_prompts(path: str) -> tuple[Any, list[Text], list[Text]]:
    """How to name a row, the prompts of a file, and its responses where every row has one."""
    if not path.endswith(ENDINGS):
        raise Mistake(f"input={path}: must end in {', '.join(ENDINGS)}")
    parent, name = split_name(path)
    try:
        with open_folder(parent).open_input_file(name) as stream:
            content = stream.read()
    except OSError as error:
        raise Mistake(f"input={path}: cannot be read ({str(error).splitlines()[0]})") from None
    try:
        numbered = _rows(path, content)
    except UnicodeDecodeError:
        raise Mistake(f"input={path}: is not text in UTF-8") from None
    if not numbered:
        raise Mistake(f"input={path}: has no rows")
    numbers = [number for number, _ in numbered]
    have = sum(row.get("response") is not None for _, row in numbered)
    if 0 < have < len(numbered):
        raise Mistake(f"input={path}: {len(numbered) - have} rows lack the `response` that others have")
    responses = [row["response"] for _, row in numbered] if have else []
    return lambda index: f"row {numbers[index]} of {path}", [row["prompt"] for _, row in numbered], responses


def _rows(path: str, content: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Rows with their numbers: those of the lines, or of the table, from 1."""
    if path.endswith(".txt"):
        return [
            (i, {"prompt": line.rstrip("\r")}) for i, line in enumerate(content.decode().split("\n"), 1) if line.strip()
        ]
    if path.endswith(".parquet"):
        try:
            table = pq.read_table(pa.BufferReader(content))
        except (pa.ArrowInvalid, OSError) as error:
            raise Mistake(f"input={path}: is not a Parquet file ({str(error).splitlines()[0]})") from None
        if "prompt" not in table.column_names:
            raise Mistake(f"input={path}: has no column `prompt`; it has {', '.join(table.column_names)}")
        columns = [name for name in ("prompt", "response") if name in table.column_names]
        return list(enumerate(table.select(columns).to_pylist(), 1))
    rows = []
    for number, line in enumerate(content.decode().split("\n"), 1):  # not splitlines: JSON may hold U+2028
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise Mistake(f"input={path}: row {number} is not JSON") from None
            if not isinstance(row, dict) or "prompt" not in row:
                raise Mistake(f"input={path}: row {number} is not an object with a `prompt`")
            rows.append((number, row))
    return rows


def write_answers(path: str, rows: list[dict[str, Any]]) -> None:
    """All columns, or for .txt the responses alone, a line each."""
    if path.endswith(".parquet"):
        sink = pa.BufferOutputStream()
        try:
            table = pa.Table.from_pylist(rows)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise Mistake(
                f"output={path}: a Parquet column holds prompts of one kind; write to a .jsonl file"
            ) from None
        pq.write_table(table, sink)
        content = sink.getvalue().to_pybytes()
    elif path.endswith(".jsonl"):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    else:
        content = "".join(row["response"] + "\n" for row in rows).encode()
    parent, name = split_name(path)
    write_atomically(open_folder(parent, create=True), name, content)


def main(config: SolveConfig) -> None:
    set_up_logging()
    if (config.prompt is None) == (config.input is None):
        raise Mistake("prompt: write prompt=... for one answer, or input=FILE for many")
    if config.output and config.input is None:
        raise Mistake("output: belongs to input=FILE; one answer is printed")
    solver = open_solver(config.model)
    decoder = solver.choose(config.decoder)
    if config.input is not None:
        solve_many(solver, config, decoder)
    else:
        assert config.prompt is not None
        solve_one(solver, config.prompt, decoder, config.format == "json")


if __name__ == "__main__":
    plain_command(SolveConfig, main, ABOUT)
