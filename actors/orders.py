"""Training batches in an order that needs no policy: left to right, as recorded, or random.

They are functions of rows and random numbers alone. They need no weights, so actors may run ahead of the learner.
"""

import numpy as np

from recor_dist.core.messages import OrderBatch, Rows
from recor_dist.core.method_settings import AoArmConfig, ArGtConfig, ClmConfig
from recor_dist.model.transformer import Model


def in_order(rows: Rows, order: np.ndarray, version: int) -> OrderBatch:
    """Rows written in `order` (R, M)."""
    return OrderBatch(version, rows.prompts, np.take_along_axis(rows.responses, order, axis=1), order.astype(np.int16))


def left_to_right(_: ClmConfig, __: Model, rows: Rows, random: np.random.Generator, version: int) -> OrderBatch:
    return in_order(rows, np.broadcast_to(np.arange(rows.responses.shape[1]), rows.responses.shape), version)


def known_order(_: ArGtConfig, __: Model, rows: Rows, random: np.random.Generator, version: int) -> OrderBatch:
    assert rows.orders is not None, "check_order refuses tasks without a known order"
    return in_order(rows, rows.orders, version)


def random_order(_: AoArmConfig, __: Model, rows: Rows, random: np.random.Generator, version: int) -> OrderBatch:
    order = np.tile(np.arange(rows.responses.shape[1]), (len(rows), 1))
    return in_order(rows, random.permuted(order, axis=1), version)
