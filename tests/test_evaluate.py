"""`python -m recor_dist.evaluate`: further decoders and rows for a finished run, whose own record stays as it is."""

import json
import logging
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recor_dist import evaluate as command
from recor_dist.answers.prompts import decode, join
from recor_dist.answers.replay_page import read_test_rows, write_replay
from recor_dist.answers.rows_to_score import read_rows
from recor_dist.answers.solver import Solver, load_solver
from recor_dist.core.command import plain_command
from recor_dist.core.setting import Mistake
from recor_dist.evaluate import ABOUT, EvaluateConfig, evaluate, main
from recor_dist.figures.compute import costs
from recor_dist.figures.groups import group_runs
from recor_dist.record.published import publish, read_published
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.runs import read_run
from tests.answers.test_replay_page import content_of


@pytest.fixture
def run(trained: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a finished run, whose folder a test may change."""

    def copy(*overrides: str) -> Path:
        return Path(shutil.copytree(trained(*overrides), tmp_path / f"run-{len(list(tmp_path.iterdir()))}"))

    return copy


def score(out: Path, decoders: str, **settings: Any) -> dict[str, dict[str, Any]]:
    return {line["decoder"]: line for line in evaluate(EvaluateConfig(str(out), decoders, **settings))}


def files_of(out: Path) -> dict[str, bytes]:
    names = (path for path in out.rglob("*") if path.is_file() and "evaluations" not in path.name)
    return {str(path.relative_to(out)): path.read_bytes() for path in names}


def test_a_finished_run_is_scored_by_every_decoder_and_its_own_record_is_not_touched(run: Callable[..., Path]) -> None:
    out = run("method=mdm")
    before = files_of(out)
    lines = score(out, "threshold:0.3/1,entropy_bounded:0,information_gain,confidence,adamdm_margin:T=3")
    assert list(lines) == [
        "mdm_threshold_tau0.3", "mdm_threshold_tau1", "mdm_entropy_bounded_gamma0", "mdm_information_gain",
        "mdm_confidence", "adamdm_margin_T3",
    ]  # fmt: skip
    assert files_of(out) == before
    written = (out / "evaluations.jsonl").read_bytes()
    assert [json.loads(line)["decoder"] for line in written.splitlines()] == list(lines)
    for line in lines.values():
        assert (line["name"], line["rows"], line["step"]) == ("test", 40, 18)
        assert 0 < line["token_accuracy"] <= 1
    one, several = lines["mdm_threshold_tau1"], lines["mdm_threshold_tau0.3"]
    assert (one["forward_passes"], one["most_forward_passes"]) == (4, 4)
    assert 1 <= several["forward_passes"] <= several["most_forward_passes"] <= 4
    assert several["flops"] / several["forward_passes"] == pytest.approx(one["flops"] / 4)
    assert lines["mdm_confidence"]["exact_match"] == one["exact_match"]
    assert (lines["adamdm_margin_T3"]["forward_passes"], "most_forward_passes" in lines["adamdm_margin_T3"]) == (
        3,
        False,
    )
    assert lines["mdm_information_gain"]["most_forward_passes"] <= 8

    def never(*_: Any) -> Any:
        raise AssertionError("it is recorded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "score_here", never)
        assert score(out, "information_gain,threshold:0.3") == {
            name: lines[name] | {"time": json.loads(line)["time"]}
            for name in ("mdm_information_gain", "mdm_threshold_tau0.3")
            for line in written.splitlines()
            if json.loads(line)["decoder"] == name
        }
        assert score(out, "adamdm_prob")["adamdm_prob"]["token_accuracy"] > 0, "the run's own test has it"
    assert (out / "evaluations.jsonl").read_bytes() == written
    score(out, "mdm:1")
    assert (out / "evaluations.jsonl").read_bytes().startswith(written)


def test_the_rows_and_random_numbers_are_those_of_the_runs_own_test(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run("method=ao_arm", "eval.size=16")
    folder = RunFolder.open(str(out))
    own = folder.read_result()
    assert own is not None
    told = score(out, "ao_arm", split="val")["ao_arm"]
    assert own["val"]["decoders"]["ao_arm"].items() <= told.items()
    folder.write_result(own | {"test": {**own["test"], "decoders": {}}})  # as if its test had not measured it
    assert own["test"]["decoders"]["ao_arm"].items() <= score(out, "ao_arm")["ao_arm"].items()
    part = score(out, "confidence", rows=7)["ao_arm_confidence"]
    assert (part["name"], part["rows"]) == ("test-first-7", 7)


def test_rows_may_come_from_a_file(run: Callable[..., Path], tmp_path: Path) -> None:
    out = run("method=recor")
    solver = load_solver(str(out))
    test = read_test_rows(solver.config, 40)
    texts = [join(solver.vocabulary, solver.vocabulary.decode(row)) for row in test.prompts]
    rows = [{"prompt": p, "response": decode(solver.vocabulary, r)} for p, r in zip(texts, test.responses, strict=True)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [score(out, "confidence", input=str(tmp_path / "mine.jsonl")), score(out, "confidence")]
    mine, own = (line["recor_confidence"] for line in lines)
    assert (mine["name"], own["name"]) == (f"mine.jsonl-{mine['rows_sha256'][:8]}", "test")
    assert [mine[key] for key in ("exact_match", "token_accuracy", "flops")] == [
        own[key] for key in ("exact_match", "token_accuracy", "flops")
    ]
    assert list(read_run(str(out)).further) == ["recor_confidence"], "reports show what was measured on the test rows"


def test_a_list_of_puzzles_is_solved_to_compare_with(run: Callable[..., Path], tmp_path: Path) -> None:
    out = run("task=sudoku", "method=mdm")
    solver = load_solver(str(out))
    test = read_test_rows(solver.config, 40)
    puzzles = ["".join(solver.vocabulary.decode(row)).replace("0", ".") for row in test.prompts]
    (tmp_path / "real.txt").write_text("\n".join([*puzzles, "1" * 16]) + "\n")
    named = read_rows(solver, "test", str(tmp_path / "real.txt"), None)
    assert (named.rows.responses == test.responses).all()
    assert [line.split(":")[0] for line in named.skipped] == ["row 41 has no solution"]
    line = score(out, "threshold", input=str(tmp_path / "real.txt"))["mdm_threshold_tau0.9"]
    assert (line["name"], line["rows"]) == (f"real.txt-{line['rows_sha256'][:8]}", 40)
    assert "kendall_tau" in line, "the order of a solver by techniques is known"


def test_zebra_puzzles_are_read_as_they_are_published_with_tables_of_the_models_size(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    """Here with 3 x 3 tables; the public ones are padded to 6 x 6 for a model that knows these."""
    out = run("task=zebra")
    solver = load_solver(str(out))
    test = read_test_rows(solver.config, 40)
    assert test.orders is not None
    items = []
    for prompt, response, order in zip(test.prompts, test.responses, test.orders, strict=True):
        words, table = solver.vocabulary.decode(prompt), [int(token) for token in solver.vocabulary.decode(response)]
        cells = [(slot // 3 - 1, slot % 3, table[slot]) for slot in order.tolist() if slot >= 3]
        clues = words[: len(words) - words[::-1].index("CLUE_END")]
        tokens = [*clues, "ANSWER", *(str(number) for cell in cells for number in cell)]
        items.append([tokens, [table[start : start + 3] for start in range(0, 12, 3)], []])
    (tmp_path / "zebra.pkl").write_bytes(pickle.dumps(items))
    named = read_rows(solver, "test", f"{tmp_path}/zebra.pkl", None)
    for name in ("prompts", "responses", "orders"):
        assert (getattr(named.rows, name) == getattr(test, name)).all()
    score(out, "confidence", input=f"{tmp_path}/zebra.pkl")
    assert not read_run(str(out)).further
    assert score(out, "confidence")["recor_confidence"]["name"] == "test"
    assert list(read_run(str(out)).further) == ["recor_confidence"], "although the same rows were measured before"
    items[2][1] = [[0, 1, 2, 3]] * 4
    (tmp_path / "large.pkl").write_bytes(pickle.dumps(items))
    with pytest.raises(Mistake, match=r"row 3 has a table of 3 attributes and 4 houses; allowed: 3 to 3 and"):
        score(out, "confidence", input=f"{tmp_path}/large.pkl")


def test_a_file_that_is_called_test_is_not_the_test_split(run: Callable[..., Path], tmp_path: Path) -> None:
    out = run("task=sudoku", "method=mdm")
    solver = load_solver(str(out))
    first, second = read_test_rows(solver.config, 2).prompts[:2]
    names = []
    for folder, row in {"one": first, "two": second}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test").write_text("".join(solver.vocabulary.decode(row)) + "\n")
        names.append(score(out, "threshold", input=f"{tmp_path}/{folder}/test")["mdm_threshold_tau0.9"]["name"])
    assert len({*names, "test"}) == 3
    assert not read_run(str(out)).further


def test_missing_data_is_made_again(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    solver = load_solver(str(run("method=recor")))
    kept = read_rows(solver, "test", None, 30).rows
    monkeypatch.setattr("recor_dist.answers.rows_to_score.find_data", lambda *_: None)
    made = read_rows(solver, "test", None, 30).rows
    for name in ("prompts", "responses", "orders"):
        assert (getattr(made, name) == getattr(kept, name)).all()


def test_an_interrupted_command_resumes_and_a_damaged_line_is_measured_again(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run("method=mdm")
    real = command.score_here

    def stopped(*arguments: Any) -> Any:
        for name, sums, machine in real(*arguments):
            if name == "mdm_T3":
                raise KeyboardInterrupt
            yield name, sums, machine

    monkeypatch.setattr(command, "score_here", stopped)
    with pytest.raises(KeyboardInterrupt):
        score(out, "mdm:1,mdm:3")
    monkeypatch.setattr(command, "score_here", real)
    kept = (out / "evaluations.jsonl").read_bytes()
    assert [json.loads(line)["decoder"] for line in kept.splitlines()] == ["mdm_T1"]
    (out / "evaluations.jsonl").write_bytes(kept + b'{"decoder": "mdm_T3", "na')
    score(out, "mdm:1/3")
    lines = (out / "evaluations.jsonl").read_bytes().splitlines()
    assert (lines[0] + b"\n", json.loads(lines[2])["decoder"], len(lines)) == (kept, "mdm_T3", 3)


def test_machines_that_compute_different_bits_are_not_mixed(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = run("method=mdm", "eval.size=16"), command.score_here

    def mixed(*arguments: Any) -> Any:
        """Three tickets for each decoder, the last two of them computed elsewhere."""
        for index, (name, sums, machine) in enumerate(real(*arguments)):
            yield name, sums, machine | {"torch": "9.9" if index > 3 else "9.8"}

    monkeypatch.setattr(command, "score_here", mixed)
    with pytest.raises(Mistake, match=r"different bits: torch 9\.9 instead of 9\.8; use nodes of one kind"):
        score(out, "mdm:1/3")
    (line,) = (out / "evaluations.jsonl").read_text().splitlines()
    assert (json.loads(line)["decoder"], json.loads(line)["machine"]["torch"]) == ("mdm_T1", "9.8")


def test_reports_pages_and_published_results_have_what_was_measured(run: Callable[..., Path], tmp_path: Path) -> None:
    out = run("method=mdm")
    lines = score(out, "threshold:0.3/0.9,mdm:5")
    points = {point.decoder: point for point in costs(group_runs([read_run(str(out))]))}
    for name, line in lines.items():
        assert (points[name].flops, points[name].accuracy) == (line["flops"], [line["exact_match"]])
    assert points["mdm_threshold_tau0.3"].name == points["mdm_threshold_tau0.9"].name == "MDM, threshold"
    publish(str(out), tmp_path / "published.jsonl", "some command")
    (published,) = read_published(tmp_path / "published.jsonl")
    assert published.further == read_run(str(out)).further
    page = content_of(write_replay(str(out), decoders=["threshold:0.3", "mdm"], rows=40, file=f"{tmp_path}/page.html"))
    first, second = page["panels"]
    assert (first["name"], second["name"]) == ("MDM, threshold, tau=0.3", "MDM")
    assert first["figures"] == f"{lines['mdm_threshold_tau0.3']['exact_match']:.1%} of 40 test answers exact"
    passes = [max(answer["steps"]) for answer in first["answers"]]
    assert passes == [answer["last"] for answer in first["answers"]]
    assert sum(passes) / 40 == lines["mdm_threshold_tau0.3"]["forward_passes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["decoders=recor"], "out: missing; write out=... (see --help)"),
        (["out=nowhere", "decoders=recor"], "nowhere: holds no run; give the folder that a run was saved in"),
        (["out=RUN", "decoders=treshold"], "; did you mean threshold?"),
        (["out=RUN", "decoders=threshold:2"], "decoders=threshold:2: tau must be a number, at least 0 and at most 1"),
        (["out=RUN", "decoders=recor", "split=dev"], "split=dev: allowed: test, val, train"),
        (["out=RUN", "decoders=recor", "rows=0"], "rows=0: must be at least 1"),
        (
            ["out=RUN", "decoders=confidence", "input=rows.txt"],
            "input=rows.txt: must end in .jsonl, .parquet; task=arg",
        ),
        (["out=RUN", "decoders=confidence", "input=no.jsonl"], "input=no.jsonl: cannot be read"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    words: list[str],
    said: str,
    trained: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", logging.getLogger().handlers)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["evaluate", *(word.replace("RUN", str(trained("method=recor"))) for word in words)]
    )
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        plain_command(EvaluateConfig, main, ABOUT)
    errors = capsys.readouterr().err
    assert (ended.value.code, errors.count("\n")) == (2, 1)
    assert errors.startswith("error: ")
    assert said in errors


def test_a_run_that_is_not_finished_is_refused(run: Callable[..., Path]) -> None:
    out = run("method=recor")
    (out / "result.json").unlink()
    with pytest.raises(Mistake, match=r": this run is not finished; run its command again first$"):
        score(out, "recor")


def test_solve_and_a_solver_take_a_decoder_with_its_value(trained: Callable[..., Path]) -> None:
    solver: Solver = load_solver(str(trained("method=ao_arm")))
    prompts = read_test_rows(solver.config, 5).prompts[:5]
    assert solver.choose("threshold:0.2") == "ao_arm_threshold_tau0.2"
    whole = solver.answer(prompts, "threshold:0.2")
    for row in range(5):
        alone = solver.answer(prompts[[row]], "threshold:0.2")
        assert (alone.responses[0] == whole.responses[row]).all()
        assert (alone.steps[0] == whole.steps[row]).all()
    assert whole.last_steps.max() < 4
    with pytest.raises(Mistake, match=r"decoder=threshold:0\.2/0\.3: names 2 decoders; give one"):
        solver.answer(prompts, "threshold:0.2/0.3")
