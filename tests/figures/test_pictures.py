"""The numbers that pictures draw, against slow ones; and that the pictures of real runs are there."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recor_dist.core.config import Config
from recor_dist.engine.loop import train
from recor_dist.figures.pictures import (
    board_of,
    curves,
    draw_pictures,
    draw_sweep,
    has_q,
    mean_steps,
    q_against_truth,
    reliability,
    running_mean,
    shares,
)
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, State

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_order_map_holds_shares_and_mean_steps() -> None:
    steps = np.array([[1, 2, 3], [1, 3, 2], [2, 1, 3], [1, 2, 3]])  # of three slots in four answers
    fills = np.zeros((3, 3), dtype=np.int64)
    for row in steps:
        for slot, step in enumerate(row):
            fills[slot, step - 1] += 1
    assert shares(fills, 4).tolist() == [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]]
    assert mean_steps(fills, 4).tolist() == steps.mean(axis=0).tolist()


def test_puzzles_lie_on_their_boards(config_in: Callable[..., Config]) -> None:
    assert board_of(config_in("task=sudoku", "task.size=6")) == (6, 6)
    assert board_of(config_in("task=zebra", "task.houses=3-5", "task.attributes=4")) == (5, 5)
    assert board_of(config_in("task=arg")) is None


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 12),
)
def test_reliability_is_what_counting_one_by_one_gives(predictions: list[tuple[float, bool]], bins: int) -> None:
    found = reliability(np.array([p for p, _ in predictions]), np.array([r for _, r in predictions]), bins)
    gaps = 0.0
    for index in range(bins):
        inside = [(p, r) for p, r in predictions if min(int(p * bins), bins - 1) == index]
        assert found.counts[index] == len(inside)
        if not inside:
            assert np.isnan(found.expected[index]) and np.isnan(found.right[index])
            continue
        expected, right = sum(p for p, _ in inside) / len(inside), sum(r for _, r in inside) / len(inside)
        assert found.expected[index] == pytest.approx(expected)
        assert found.right[index] == pytest.approx(right)
        gaps += abs(expected - right) * len(inside)
    assert found.error == pytest.approx(gaps / len(predictions))


@pytest.mark.parametrize("C", [0, 2])
@pytest.mark.parametrize("algorithm", ["sql_bce", "sql_mse"])
def test_exp_q_is_held_against_the_first_choice_at_every_unfilled_slot(C: int, algorithm: str) -> None:
    model, rows = small_model(C), random_rows(6)
    slow = SlowModel(model)
    expected = []
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        state = State(tuple(prompt.tolist()))
        for _ in range(4):
            z = slow.order_logits(state)
            left = [slot for slot in range(4) if slot not in state.filled]
            chosen = max(left, key=lambda slot: z[slot])
            for slot in left:
                exp_q = 1 / (1 + np.exp(-z[slot])) if algorithm == "sql_bce" else min(1.0, np.exp(z[slot]))
                right = slow.token_logits(state, slot).argmax() == response[slot]
                expected.append((exp_q, right, slot == chosen))
            state = state.write(chosen, int(slow.token_logits(state, chosen).argmax()))
    exp_q, right, chosen_slots = q_against_truth(model, rows, algorithm)
    assert len(exp_q) == 6 * (4 + 3 + 2 + 1)
    assert exp_q == pytest.approx(np.array([e for e, _, _ in expected]), rel=1e-4)
    assert right.tolist() == [r for _, r, _ in expected]
    assert chosen_slots.tolist() == [c for _, _, c in expected]


def test_a_policy_gradient_has_no_q(config_in: Callable[..., Config]) -> None:
    assert has_q(config_in())
    assert not has_q(config_in("method.algorithm=ppo", "method.reward=dense"))
    assert not has_q(config_in("method=ar_gt"))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.integers(1, 40))
def test_the_running_mean_looks_back_so_far_and_no_further(values: list[float], window: int) -> None:
    slow = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    assert running_mean(np.array(values), window) == pytest.approx(np.array(slow), abs=1e-9)


def test_curves_are_in_the_order_of_steps_though_evaluations_come_late() -> None:
    records = [{"step": 1, "loss/lm": 2.0}, {"step": 3, "loss/lm": 1.0}, {"step": 2, "eval/val/exact_match": 0.5}]
    records.append({"step": 2, "loss/lm": 1.5})
    assert curves(records) == {"loss/lm": [(1, 2.0), (2, 1.5), (3, 1.0)], "eval/val/exact_match": [(2, 0.5)]}


# --- real runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["task=sudoku"], {"order_board"}),
        (["task=zebra", "method=mdm"], {"order_board"}),
        (["task=arg", "method.algorithm=ppo", "method.reward=dense"], set()),
        (["task=arg", "method=clm"], set()),
    ],
)
def test_a_run_has_its_pictures(words: list[str], more: set[str], config_in: Callable[..., Config]) -> None:
    config = config_in(*words)
    result = train(config)
    out = Path(config.out)
    orders = json.loads((out / "orders.json").read_text())
    assert set(orders) == set(result["test"]["decoders"])
    for decoder, figures in result["test"]["decoders"].items():
        fills, rows = np.array(orders[decoder]["fills"]), orders[decoder]["rows"]
        assert rows == figures["rows"]
        assert (fills.sum(axis=1) == rows).all(), "every answer fills every slot once"
        assert mean_steps(fills, rows) == pytest.approx(np.array(figures["mean_step"]))
    drawn = draw_pictures(config.out)
    assert {Path(path).stem for path in drawn} == {"order_map", "calibration", "curves"} | more
    assert {path.stem for path in (out / "pictures").iterdir()} == {Path(path).stem for path in drawn}
    for path in drawn:
        content = Path(path).read_bytes()
        assert content.startswith(PNG)


def test_what_is_missing_is_left_out_and_said(
    config_in: Callable[..., Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_in("method=clm", f"data.dir={tmp_path}/elsewhere")
    train(config)
    (tmp_path / "elsewhere").rename(tmp_path / "gone")
    (Path(config.out) / "orders.json").unlink()
    caplog.set_level("INFO")
    assert [Path(path).stem for path in draw_pictures(config.out)] == ["curves"]
    assert "no picture of the calibration: data.dir=" in caplog.text
    assert "no map of the order" in caplog.text
    assert not (tmp_path / "elsewhere").exists(), "nothing is prepared for a picture"


def test_a_sweep_has_a_picture_for_each_task(config_in: Callable[..., Config], tmp_path: Path) -> None:
    outs = []
    for index, words in enumerate((["method=clm"], ["method=mdm", "method.steps=3"], ["task=mul", "method=clm"])):
        config = config_in(*words, f"out={tmp_path}/{index}")
        train(config)
        outs.append(config.out)
    unfinished = tmp_path / "1/result.json"
    assert [Path(path).name for path in draw_sweep(outs[:2], f"{tmp_path}/one")] == ["flops_accuracy.png"]
    drawn = draw_sweep(outs, f"{tmp_path}/two")
    assert [Path(path).name for path in drawn] == ["flops_accuracy.png", "flops_accuracy_2.png"]
    assert all(Path(path).read_bytes().startswith(PNG) for path in drawn)
    unfinished.unlink()
    assert len(draw_sweep(outs[:2], f"{tmp_path}/three")) == 1
