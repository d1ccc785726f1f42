"""The numbers of order maps and boards."""

from collections.abc import Callable

import numpy as np

from recor_dist.core.config import Config
from recor_dist.figures.order_map import Board, shares
from recor_dist.model.evaluation import mean_steps


def test_the_order_map_holds_shares_and_mean_steps() -> None:
    steps = np.array([[1, 2, 3], [1, 3, 2], [2, 1, 3], [1, 2, 3]])  # three slots in four answers
    fills = np.zeros((3, 3), dtype=np.int64)
    for row in steps:
        for slot, step in enumerate(row):
            fills[slot, step - 1] += 1
    assert shares(fills, 4).tolist() == [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]]
    assert mean_steps(fills, 4).tolist() == steps.mean(axis=0).tolist()


def test_boards_of_puzzles_have_their_rows_and_columns(config_in: Callable[..., Config]) -> None:
    for overrides, shape in {
        ("task=sudoku", "task.size=6"): (6, 6),
        ("task=zebra", "task.houses=3-5", "task.attributes=4"): (5, 5),
    }.items():
        board = Board.of(config_in(*overrides).task)
        assert board is not None
        assert board.place(np.arange(len(board.row))).tolist() == np.arange(shape[0] * shape[1]).reshape(shape).tolist()
    assert Board.of(config_in("task=arg").task) is None
