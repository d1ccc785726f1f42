"""Batches in a given order: the right token at every step, and uniformly distributed random orders."""

from itertools import permutations

import numpy as np
import pytest

from actors.orders import known_order, left_to_right, random_order
from recor_dist.core.messages import OrderBatch, Rows
from recor_dist.core.method_settings import AoArmConfig, ArGtConfig, ClmConfig
from recor_dist.core.rng import rng
from tests.conftest import random_rows

ORDERS = np.array([[3, 1, 0, 2], [0, 1, 2, 3], [2, 3, 1, 0]], dtype=np.int16)
PLAIN = random_rows(3)
ROWS = Rows(PLAIN.prompts, PLAIN.responses, ORDERS)


def check(batch: OrderBatch, order: np.ndarray) -> None:
    assert batch.version == 7
    np.testing.assert_array_equal(batch.prompts, ROWS.prompts)
    np.testing.assert_array_equal(batch.order, order)
    for b in range(3):
        assert [batch.tokens[b, t] for t in range(4)] == [ROWS.responses[b, slot] for slot in order[b]]


def test_left_to_right_is_the_reading_order() -> None:
    check(left_to_right(ClmConfig(), None, ROWS, rng(0, "rollout", 0, 0), 7), np.tile(np.arange(4), (3, 1)))


def test_the_known_order_is_that_of_each_row() -> None:
    check(known_order(ArGtConfig(), None, ROWS, rng(0, "rollout", 0, 0), 7), ORDERS)


def test_a_random_order_is_a_permutation_that_depends_only_on_the_ticket() -> None:
    a, b, c = (random_order(AoArmConfig(), None, ROWS, rng(0, "rollout", 0, g), 7) for g in (0, 0, 1))
    check(a, a.order)
    assert (np.sort(a.order, axis=1) == np.arange(4)).all()
    np.testing.assert_array_equal(a.order, b.order)
    assert (a.order != c.order).any()


def test_random_orders_are_uniformly_distributed() -> None:
    rows = random_rows(24_000)
    orders = random_order(AoArmConfig(), None, rows, rng(0, "rollout", 0, 0), 0).order
    counts = np.array([(orders == order).all(axis=1).sum() for order in permutations(range(4))])
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 49.7, "23 degrees of freedom, p = 0.001"


def test_a_batch_holds_small_integers() -> None:
    batch = left_to_right(ClmConfig(), None, ROWS, rng(0, "rollout", 0, 0), 0)
    assert (batch.prompts.dtype, batch.tokens.dtype, batch.order.dtype) == (np.uint8, np.uint8, np.int16)


def test_rows_without_an_order_fail_an_assertion() -> None:
    with pytest.raises(AssertionError, match="check_order"):
        known_order(ArGtConfig(), None, PLAIN, rng(0, "rollout", 0, 0), 0)
