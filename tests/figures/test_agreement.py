"""Agreement of orders against slow plain code, on made-up orders and on real runs."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.figures.agreement import (
    agreement,
    agreement_by,
    agreement_over_training,
    answer_runs,
    footrule,
    training_table,
)
from recor_dist.figures.answered import answer_test, checkpoints_of
from recor_dist.record.runs import read_run
from recor_dist.report import write

Trained = Callable[..., Path]


def slow_ranks(steps: list[int]) -> list[float]:
    """Slots sorted by step; those that share a step share the mean of the places they take."""
    places = {step: [i + 1 for i, s in enumerate(sorted(steps)) if s == step] for step in steps}
    return [sum(places[step]) / len(places[step]) for step in steps]


@pytest.mark.parametrize("M", [2, 5, 8])
def test_the_footrule_adds_up_distances_between_ranks(M: int) -> None:
    random = np.random.default_rng(M)
    a, b = random.integers(1, M + 1, (50, M)), np.stack([random.permutation(M) + 1 for _ in range(50)])
    most = sum(abs(i - (M + 1 - i)) for i in range(1, M + 1))
    expected = [
        sum(abs(x - y) for x, y in zip(slow_ranks(one), slow_ranks(two), strict=True)) / most
        for one, two in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert footrule(a, b) == pytest.approx(np.array(expected))
    forth = np.arange(1, M + 1)[None]
    assert footrule(forth, forth).tolist() == [0.0]
    assert footrule(forth, forth[:, ::-1]).tolist() == [1.0]


def test_unrelated_orders_have_a_tau_of_0_and_a_footrule_of_two_thirds() -> None:
    random = np.random.default_rng(0)
    a, b = (random.permuted(np.tile(np.arange(40), (2000, 1)), axis=1) for _ in range(2))
    found = agreement(a, b)
    assert found.tau == pytest.approx(0, abs=0.01)
    assert found.footrule == pytest.approx(2 / 3, abs=0.01)


def test_agreement_by_difficulty_is_that_of_the_rows_of_each_difficulty() -> None:
    a = np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]])
    b = np.array([[1, 2, 3], [3, 2, 1], [1, 2, 3], [1, 3, 2]])
    found = agreement_by(np.array([2, 7, 2, 7]), a, b)
    assert {key: (part.tau, part.rows) for key, part in found.items()} == {
        2: (1.0, 2),
        7: (pytest.approx((-1 + 1 / 3) / 2), 2),
    }


def test_orders_of_earlier_checkpoints_are_compared_with_the_last(config_in: Callable[..., Config]) -> None:
    config = config_in("checkpoint.every=6", "checkpoint.keep=9", "eval.every=0", "epochs=2")
    train(config)
    assert checkpoints_of(config.out) == [6, 12, 18, 24, 30, 36, 37]
    found = agreement_over_training(config.out, rows=20)
    assert list(found) == checkpoints_of(config.out)
    assert found[37].tau == 1.0 and found[37].rows == 20
    early, last = answer_test(config.out, 20, step=6), answer_test(config.out, 20)
    assert (last.steps == answer_test(config.out, 20, step=37).steps).all()
    assert (early.model.weights() != last.model.weights()).any()
    assert found[6] == agreement(early.steps, last.steps)
    with pytest.raises(Mistake, match=r"^step=7: the run in .* has checkpoints of 6, 12, .*; checkpoint.keep=N keeps"):
        answer_test(config.out, 20, step=7)


def test_the_report_has_a_line_for_each_checkpoint_that_still_exists(config_in: Callable[..., Config]) -> None:
    config = config_in("checkpoint.every=6", "checkpoint.keep=9", "eval.every=0")
    train(config)
    answered = answer_runs([read_run(config.out)])
    found = agreement_over_training(config.out)
    lines = []
    for step, one in answered["recor"].items():
        assert one.known_steps is not None
        known, last = (f"{p.tau:.3f}, {p.footrule:.3f}" for p in (agreement(one.steps, one.known_steps), found[step]))
        lines.append(f"| ReCOR | {step} | {known} | {last if step < 18 else ''} |")
    assert list(answered["recor"]) == checkpoints_of(config.out) == [6, 12, 18]
    assert training_table(answered)[4:-1] == lines
    newest = {name: {18: by_step[18]} for name, by_step in answered.items()}
    assert not training_table(newest), "no earlier one was kept"


def test_the_report_compares_the_orders_of_runs_with_each_other_and_with_the_solvers(
    config_in: Callable[..., Config], tmp_path: Path
) -> None:
    outs = []
    for method in ("recor", "clm"):
        config = config_in("task=sudoku", f"method={method}", f"out={tmp_path}/{method}", "epochs=1", "eval.every=0")
        train(config)
        outs.append(config.out)
    text = "\n".join(write([read_run(out) for out in outs], outs).lines)
    recor, clm = (answer_test(out) for out in outs)
    assert recor.known_steps is not None
    both, solver = agreement(recor.steps, clm.steps), agreement(recor.steps, recor.known_steps)
    assert "|  | known order | ReCOR | CLM |" in text
    assert f"| ReCOR | {solver.tau:.3f}, {solver.footrule:.3f} |  | {both.tau:.3f}, {both.footrule:.3f} |" in text
    givens = recor.notes["givens"]
    assert len(givens) == 40, "from the shards, for each test row"
    for names, theirs in {"ReCOR | known order": recor.known_steps, "CLM | ReCOR": clm.steps}.items():
        by_givens = agreement_by(givens, recor.steps, theirs)
        assert len(by_givens) > 1
        cells = (f"{part.tau:.3f}, {part.footrule:.3f}" for part in by_givens.values())
        assert f"| {names} | {' | '.join(cells)} |" in text
    assert re.findall(r"!\[Step by step, Sudoku, .*, (\w+)\]", text) == ["ReCOR", "CLM"]


def test_runs_whose_rows_are_gone_are_left_out_of_the_comparison(
    config_in: Callable[..., Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_in("method=clm", f"data.dir={tmp_path}/elsewhere", "eval.every=0")
    train(config)
    (tmp_path / "elsewhere").rename(tmp_path / "gone")
    with caplog.at_level("INFO"):
        report = write([read_run(config.out)], [config.out])
    assert "Agreement of orders" not in "\n".join(report.lines)
    assert "is not compared with other orders: data.dir=" in caplog.text
