"""Exact match, token accuracy, and agreement with the known order."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recor_dist.core.messages import Cost, Generation, Rows
from recor_dist.model.evaluation import (
    add_by_decoder,
    headline,
    kendall_tau,
    pad_rows,
    score,
    summarise,
    summarise_by_decoder,
)


def answers(responses: list[list[int]], steps: list[list[int]]) -> Generation:
    return Generation(np.array(responses), np.array(steps), np.ones(np.shape(steps), np.float32), len(steps[0]))


def tau_by_hand(a: list[int], b: list[int]) -> float:
    """Concordant minus discordant pairs of slots, over all pairs; a pair filled at the same step is neither."""
    pairs = list(combinations(range(len(a)), 2))
    agree = sum((a[i] - a[j]) * (b[i] - b[j]) > 0 for i, j in pairs)
    differ = sum((a[i] - a[j]) * (b[i] - b[j]) < 0 for i, j in pairs)
    return (agree - differ) / len(pairs)


@given(
    st.integers(2, 7).flatmap(
        lambda m: st.tuples(st.lists(st.integers(1, m), min_size=m, max_size=m), st.permutations(range(m)))
    )
)
def test_kendalls_tau_counts_pairs(steps: tuple[list[int], list[int]]) -> None:
    a, b = steps
    assert kendall_tau(np.array([a]), np.array([b]))[0] == pytest.approx(tau_by_hand(a, b))


def test_slots_filled_at_the_same_step_are_not_ordered() -> None:
    assert kendall_tau(np.array([[1, 1, 1, 1]]), np.array([[3, 1, 2, 0]])) == [0.0]
    rows = Rows(np.zeros((1, 2)), np.array([[1, 2]]), np.array([[1, 0]], dtype=np.int16))
    at_once = Generation(np.array([[1, 2]]), np.array([[3, 3]]), np.ones((1, 2), np.float32), last_step=5)
    summary = summarise(score(at_once, rows))
    assert (summary["kendall_tau"], summary["mean_step"]) == (0.0, [3.0, 3.0])


def test_tau_is_one_for_the_same_order_and_minus_one_for_the_reverse() -> None:
    steps = np.array([[2, 0, 1, 3]])
    assert kendall_tau(steps, steps) == [1.0]
    assert kendall_tau(steps, -steps) == [-1.0]


def test_metrics_of_a_split_add_up_over_tickets_without_padding() -> None:
    rows = Rows(np.zeros((3, 2)), np.array([[1, 2], [3, 4], [5, 6]]), np.array([[1, 0]] * 3, dtype=np.int16))
    last = pad_rows(rows.select(np.array([2])), 2)
    assert len(last) == 2
    assert last.responses.tolist() == [[5, 6], [5, 6]]
    first = score(answers([[1, 2], [3, 0]], [[2, 1], [1, 2]]), rows.select(np.array([0, 1])))
    padded = answers([[5, 6], [5, 6]], [[2, 1], [2, 1]])
    summary = summarise(first + score(padded, rows.select(np.array([2]))))
    assert summary == {
        "rows": 3,
        "exact_match": pytest.approx(2 / 3),
        "token_accuracy": pytest.approx(5 / 6),
        "mean_step": [pytest.approx(5 / 3), pytest.approx(4 / 3)],
        "kendall_tau": pytest.approx(1 / 3),
    }


def test_without_a_known_order_no_tau_is_reported() -> None:
    rows = Rows(np.zeros((1, 1)), np.array([[1, 2]]))
    assert "kendall_tau" not in summarise(score(answers([[1, 2]], [[1, 2]]), rows))


def test_decoders_are_added_up_and_reported_by_name_and_the_first_gives_the_headline() -> None:
    rows = Rows(np.zeros((2, 1)), np.array([[1, 2], [3, 4]]))
    steps = [[1, 2], [1, 2]]
    right, wrong = answers([[1, 2], [3, 4]], steps), answers([[0, 0], [0, 0]], steps)
    ticket = {"sure": score(right, rows), "lost": score(wrong, rows)}
    sums = add_by_decoder(ticket, ticket)
    assert headline(sums).exact == 4
    summary = summarise_by_decoder(sums, {"sure": Cost(20, 1000), "lost": Cost(2, 100)})
    assert (summary["rows"], summary["exact_match"], summary["token_accuracy"]) == (4, 1.0, 1.0)
    assert list(summary["decoders"]) == ["sure", "lost"]
    assert summary["decoders"]["lost"] == {
        "rows": 4, "exact_match": 0.0, "token_accuracy": 0.0, "mean_step": [1.0, 2.0],
        "forward_passes": 2, "flops": 100,
    }  # fmt: skip
    assert summary["decoders"]["sure"]["forward_passes"] == 20
