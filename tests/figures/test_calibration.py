"""The numbers of calibration diagrams, against slow ones."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recor_dist.core.config import Config
from recor_dist.figures.calibration import has_q, q_against_truth, reliability
from recor_dist.model.decoding import generate
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, State


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 12),
)
def test_reliability_is_the_same_as_counting_one_by_one(predictions: list[tuple[float, bool]], bins: int) -> None:
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
def test_exp_q_is_compared_with_the_first_choice_at_every_unfilled_slot(C: int, algorithm: str) -> None:
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
    exp_q, right, chosen_slots = q_against_truth(model, rows, generate(model, rows.prompts), algorithm)
    assert len(exp_q) == 6 * (4 + 3 + 2 + 1)
    assert exp_q == pytest.approx(np.array([e for e, _, _ in expected]), rel=1e-4)
    assert right.tolist() == [r for _, r, _ in expected]
    assert chosen_slots.tolist() == [c for _, _, c in expected]


def test_a_policy_gradient_has_no_q(config_in: Callable[..., Config]) -> None:
    assert has_q(config_in().method)
    assert not has_q(config_in("method.algorithm=ppo", "method.reward=dense").method)
    assert not has_q(config_in("method=ar_gt").method)
