"""Accuracy by difficulty, against plain counting."""

from collections.abc import Callable

import numpy as np
import pytest

from recor_dist.core.config import Config
from recor_dist.engine.loop import train
from recor_dist.figures.answered import answer_test
from recor_dist.figures.difficulty import Share, difficulties, difficulty_tables, shares


def test_what_varies_among_rows_is_a_difficulty_and_the_largest_step_counts() -> None:
    notes = {
        "rounds": np.array([[0, 3, 1], [0, 0, 2]], dtype=np.uint8),
        "clues": np.array([7, 9], dtype=np.uint8),
        "houses": np.array([3, 3], dtype=np.uint8),
        "technique": np.array([[2, 3], [2, 2]], dtype=np.uint8),
    }
    found = difficulties(notes)
    assert {name: values.tolist() for name, values in found.items()} == {"rounds of deduction": [3, 2], "clues": [7, 9]}
    assert difficulties({}) == {}


def test_shares_count_the_rows_of_each_value() -> None:
    random = np.random.default_rng(0)
    values, right = random.integers(0, 4, 50), random.random(50) < 0.5
    found = shares(values, right)
    for value in range(4):
        rows = [bool(r) for v, r in zip(values, right, strict=True) if v == value]
        assert found[value] == Share(sum(rows), len(rows))


def test_the_interval_is_wilsons() -> None:
    assert Share(8, 10).interval == pytest.approx((0.490, 0.943), abs=5e-4)  # as textbooks print it
    assert Share(0, 20).interval == pytest.approx((0.0, 0.161), abs=5e-4)
    assert Share(20, 20).interval == pytest.approx((0.839, 1.0), abs=5e-4)


def test_the_report_has_the_accuracy_of_puzzles_by_difficulty(config_in: Callable[..., Config]) -> None:
    config = config_in("task=sudoku", "method=clm", "epochs=1", "eval.every=0")
    train(config)
    answered = answer_test(config.out)
    text = "\n".join(difficulty_tables({"clm": answered}))
    right, givens = (answered.generation.responses == answered.rows.responses).all(1), answered.notes["givens"]
    cells = [f"{right[givens == value].mean():.3f}" for value in np.unique(givens)]
    assert len(cells) > 1
    assert f"| CLM | {' | '.join(cells)} |" in text.split("By givens:")[1]
