"""`python -m recor_dist.solve`, as people and programs use it."""

import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.mul import MulConfig
from data.zebra_clues import convert
from recor_dist.answers.prompts import decode, join
from recor_dist.answers.replay_page import read_test_rows
from recor_dist.answers.solver import load_solver
from recor_dist.core.command import plain_command
from recor_dist.packaged import save_model
from recor_dist.solve import ABOUT, SolveConfig, main


@pytest.fixture
def solve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process; returns exit code, output and errors."""
    # The command sets up logging for a separate process.
    monkeypatch.setattr(logging.getLogger(), "handlers", logging.getLogger().handlers)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["solve", *words])
        capsys.readouterr()  # the output of training
        with pytest.raises(SystemExit) as ended:
            plain_command(SolveConfig, main, ABOUT)
        code, shown = ended.value.code, capsys.readouterr()
        assert isinstance(code, int)
        return code, shown.out, shown.err

    return run


def prompts_and_responses(out: Path, rows: int = 40) -> tuple[list[str], list[str]]:
    """Test prompts and their right responses, as text."""
    solver = load_solver(str(out))
    test = read_test_rows(solver.config, rows)
    prompts = [join(solver.vocabulary, solver.vocabulary.decode(row)) for row in test.prompts]
    return prompts[:rows], [decode(solver.vocabulary, row) for row in test.responses[:rows]]


def test_one_prompt_gets_its_answer_and_order(trained: Callable[..., Path], solve: Callable) -> None:
    out = trained("method=recor")
    code, shown, errors = solve(f"model={out}", "prompt=0123")
    assert (code, errors) == (0, "")
    answer, order = shown.splitlines()
    assert re.fullmatch("[0-4]{4}", answer)
    assert sorted(order.removeprefix("order ").split()) == ["1", "2", "3", "4"]
    code, shown, errors = solve(f"model={out}", "prompt=0123", "format=json")
    told = json.loads(shown)
    assert (told["prompt"], told["response"], told["decoder"]) == ("0123", answer, "recor")
    assert [slot + 1 for slot in told["order"]] == [int(word) for word in order.split()[1:]]
    assert [told["steps"][slot] for slot in told["order"]] == [1, 2, 3, 4]
    assert all(0 < confidence <= 1 for confidence in told["confidences"])


def test_slots_filled_in_one_step_are_printed_together(trained: Callable[..., Path], solve: Callable) -> None:
    _, shown, _ = solve(f"model={trained('method=mdm')}", "prompt=0123", "decoder=mdm_T2")
    order = shown.splitlines()[1].removeprefix("order ").split()
    assert len(order) <= 2
    assert sorted(",".join(order).split(",")) == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("words", "prompt"), [(("task=mul",), "12*3"), (("task=sudoku",), ".3.4..2.1...4..."), (("task=zebra",), None)]
)
def test_prompts_of_every_task_are_understood(
    words: tuple[str, ...], prompt: str | None, trained: Callable[..., Path], solve: Callable
) -> None:
    out = trained(*words)
    solver = load_solver(str(out))
    if isinstance(solver.config.task, MulConfig):
        prompt = "7" * solver.config.task.digits + "*3"
    prompt = prompt or prompts_and_responses(out, 1)[0][0]
    code, shown, errors = solve(f"model={out}", f"prompt={prompt}")
    assert (code, errors) == (0, "")
    assert len(shown.splitlines()[1].split()) == solver.model.shape.M + 1


def test_a_model_of_compact_clues_also_reads_public_ones(
    trained: Callable[..., Path], solve: Callable, tmp_path: Path
) -> None:
    out = trained("task=zebra", "task.tokens=compact", "task.prompt_length=52")
    prompts, responses = prompts_and_responses(out, 3)
    public = [convert(prompt.split(), to="public") for prompt in prompts]
    one = solve(f"model={out}", f"prompt={prompts[0]}")
    assert one[0] == 0
    assert solve(f"model={out}", f"prompt={' '.join(public[0])}") == one
    for name, written in {"compact": prompts, "public": public}.items():
        rows = [{"prompt": p, "response": r} for p, r in zip(written, responses, strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    answers = [solve(f"model={out}", f"input={tmp_path}/{name}.jsonl") for name in ("compact", "public")]
    assert [code for code, *_ in answers] == [0, 0]
    assert answers[0][1].splitlines() == answers[1][1].splitlines()
    code, shown, errors = solve(f"model={out}", "prompt== LHS c 0 1 CLUE_END")
    assert (code, shown, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: prompt== LHS c 0 1 CLUE_END: is not made of clues: `= LHS c 0 1` does not have")


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "txt"])
def test_many_prompts_go_from_file_to_file(
    ending: str, trained: Callable[..., Path], solve: Callable, tmp_path: Path
) -> None:
    out = trained("method=recor")
    prompts, responses = prompts_and_responses(out)
    source, target = tmp_path / f"in.{ending}", tmp_path / f"made/out.{ending}"
    rows = [{"prompt": p, "response": r} for p, r in zip(prompts, responses, strict=True)]
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    elif ending == "jsonl":
        source.write_text("\n".join(json.dumps({**row, "prompt": list(row["prompt"])}) for row in rows))
    else:
        source.write_text("\n\n".join(prompts))
    code, shown, _ = solve(f"model={out}", f"input={source}", f"output={target}", "batch_size=7")
    assert code == 0
    assert shown.splitlines()[0] == "40 answers by recor"
    assert shown.splitlines()[-1] == f"saved in {target}"
    figures = json.loads((out / "result.json").read_text())["test"]
    accuracy = f"exact match {figures['exact_match']:.4f}, token accuracy {figures['token_accuracy']:.4f}"
    assert (accuracy in shown) == (ending != "txt")
    if ending == "parquet":
        answers = pq.read_table(target).to_pylist()
    elif ending == "jsonl":
        answers = [json.loads(line) for line in target.read_text().splitlines()]
    else:
        answers = [{"response": line} for line in target.read_text().splitlines()]
    solver = load_solver(str(out))
    told = solver.answer(solver.encode(prompts, str))
    assert [row["response"] for row in answers] == [decode(solver.vocabulary, row) for row in told.responses]
    if ending != "txt":
        assert [row["order"] for row in answers] == told.orders.tolist()


def test_without_output_the_answers_go_to_stdout_and_the_summary_to_stderr(
    trained: Callable[..., Path], solve: Callable, tmp_path: Path
) -> None:
    out = trained("method=recor")
    prompts, responses = prompts_and_responses(out, 3)
    source = tmp_path / "in.jsonl"
    rows = [{"prompt": p, "response": r} for p, r in zip(prompts, responses, strict=True)]
    source.write_text("\n".join(json.dumps(row) for row in rows))
    code, shown, errors = solve(f"model={out}", f"input={source}", "format=json")
    assert code == 0
    assert [json.loads(line)["prompt"] for line in shown.splitlines()] == prompts
    assert {"rows", "decoder", "exact_match", "token_accuracy"} == set(json.loads(errors.splitlines()[-1]))
    code, as_text, errors = solve(f"model={out}", f"input={source}")
    assert code == 0
    assert as_text.splitlines() == [json.loads(line)["response"] for line in shown.splitlines()]
    assert errors.splitlines()[-2] == "3 answers by recor"


def test_a_packaged_model_answers_like_its_run(trained: Callable[..., Path], solve: Callable, tmp_path: Path) -> None:
    out = trained("method=recor")
    save_model(str(out), f"{tmp_path}/model")
    assert solve(f"model={tmp_path}/model", "prompt=0123") == solve(f"model={out}", "prompt=0123")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prompt=0123"], "model: missing; write model=... (see --help)"),
        (["model=OUT"], "prompt: write prompt=... for one answer, or input=FILE for many"),
        (["model=OUT", "prompt=0", "input=x.txt"], "prompt: write prompt=... for one answer, or input=FILE for many"),
        (["model=OUT", "prompt=0123", "output=x.txt"], "output: needs input=FILE; a single answer is printed"),
        (["model=nowhere", "prompt=1"], "model=nowhere: holds neither a run nor an MLflow model; "),
        (["model=OUT", "prompt=012"], "prompt=012: has 3 tokens, but this model takes 4"),
        (["model=OUT", "prompt=01=3"], "prompt=01=3: token 3, '=', is not in the vocabulary; known: 0 1 2 3 4"),
        (["model=OUT", "prompt=0123", "decoder=clm"], "decoder=clm: this model has recor"),
        (["model=OUT", "prompt=0123", "format=xml"], "format=xml: allowed: text, json"),
        (["model=OUT", "input=IN.csv"], "input=IN.csv: must end in .parquet, .jsonl, .txt"),
        (["model=OUT", "input=IN/no.txt"], "input=IN/no.txt: cannot be read ("),
        (["model=OUT", "input=IN/a.txt"], "row 3 of IN/a.txt: has 2 tokens, but this model takes 4"),
        (["model=OUT", "input=IN/a.txt", "output=x.csv"], "output=x.csv: must end in .parquet, .jsonl, .txt"),
        (["model=OUT", "input=IN/a.jsonl"], "input=IN/a.jsonl: row 2 is not JSON"),
        (["model=OUT", "input=IN/b.jsonl"], "input=IN/b.jsonl: row 1 is not an object with a `prompt`"),
        (["model=OUT", "input=IN/c.jsonl"], "input=IN/c.jsonl: 1 rows lack the `response` that others have"),
        (
            ["model=OUT", "input=IN/d.jsonl"],
            "the response in row 1 of IN/d.jsonl: token 1, '7', is not in ",
        ),
        (["model=OUT", "input=IN/a.parquet"], "input=IN/a.parquet: is not a Parquet file ("),
        (["model=OUT", "input=IN/e.txt"], "input=IN/e.txt: has no rows"),
        (["model=OUT", "input=IN/f.txt"], "input=IN/f.txt: is not UTF-8 text"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    words: list[str], message: str, trained: Callable[..., Path], solve: Callable, tmp_path: Path
) -> None:
    files = {
        "a.txt": b"0123\n\n01\n",
        "a.jsonl": b'{"prompt": "0123"}\n{"prompt"',
        "b.jsonl": b'{"promt": "0123"}',
        "c.jsonl": b'{"prompt": "0123", "response": "0123"}\n{"prompt": "0123"}',
        "d.jsonl": b'{"prompt": "0123", "response": "7"}',
        "a.parquet": b"PAR1",
        "e.txt": b"\n",
        "f.txt": b"\xff\xfe",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    out = str(trained("method=recor"))
    code, shown, errors = solve(*(word.replace("OUT", out).replace("IN", str(tmp_path)) for word in words))
    assert (code, shown) == (2, "")
    assert errors.startswith(f"error: {message.replace('IN', str(tmp_path))}")
    assert errors.count("\n") == 1


def test_a_terminal_shows_the_filling_in_colour(trained: Callable[..., Path], tmp_path: Path) -> None:
    out = trained("task=sudoku")
    puzzle = prompts_and_responses(out, 1)[0][0]
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-m", "recor_dist.solve", f"model={out}", f"prompt={puzzle}"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=child, stderr=child, env=environment)
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # the terminal is closed when the process ends
            break
        if not piece:
            break
        shown += piece
    os.close(parent)
    assert process.wait(timeout=60) == 0
    coloured = shown.decode()
    assert re.search(r"\x1b\[1;7;3[123]m\d\x1b\[0m", coloured), "the newest token is highlighted"
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", coloured)
    assert [int(step) for step in re.findall(r"step (\d+) of 16", plain)][:17] == list(range(17))
    first = plain.split("step 0 of 16")[0].split()
    assert "".join(c for c in first if c not in "│─┼" and not c.startswith("─")) == puzzle.replace("0", "·")
    answer = load_solver(str(out))
    told = answer.answer(answer.encode([puzzle], str))
    assert plain.splitlines()[-1] == decode(answer.vocabulary, told.responses[0])
