"""Sudoku: uniqueness against z3, every recorded fill against slow rules that see only the board before it."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

from data import sudoku
from data.shards import NotedRows
from data.splits import SPLITS
from data.sudoku import SudokuConfig
from data.sudoku_rules import SEARCH, dig, geometry, random_grids, solve
from recor_dist.core.config import Config
from recor_dist.core.rng import rng
from recor_dist.core.setting import Mistake
from tests.data.slow_sudoku import Rules, Solver

Configure = Callable[..., Config]
SIZES = (4, 6, 9)
ROWS = 200


@pytest.fixture(scope="module", params=SIZES)
def puzzles(request: pytest.FixtureRequest) -> NotedRows:
    """Random puzzles of a size, a quarter of them beyond the seven techniques if such puzzles exist."""
    task = SudokuConfig(size=request.param)
    if request.param == 4:
        return sudoku.shard(task, "train", rng(5, "test", 0), ROWS)
    easy = sudoku.shard(task, "train", rng(5, "test", 0), ROWS * 3 // 4)
    hard = sudoku.shard(SudokuConfig(size=request.param, hard="all"), "train", rng(5, "test", 1), ROWS // 4)
    notes = {name: np.concatenate([easy.notes[name], hard.notes[name]]) for name in easy.notes}
    prompts, responses, orders = (
        np.concatenate([getattr(easy, name), getattr(hard, name)]) for name in ("prompts", "responses", "orders")
    )
    return NotedRows(prompts, responses, orders, notes)


def size_of(rows: NotedRows) -> int:
    return round(rows.prompts.shape[1] ** 0.5)


def test_every_puzzle_has_its_solution_and_no_other(puzzles: NotedRows) -> None:
    n = size_of(puzzles)
    rules, solver = Rules(n), Solver(n)
    for puzzle, solution in zip(puzzles.prompts.tolist(), puzzles.responses.tolist(), strict=True):
        assert rules.is_solution(rules.board(solution))
        assert all(given in (0, value) for given, value in zip(puzzle, solution, strict=True))
        assert solver.is_unique(puzzle, solution)


def test_every_given_is_needed(puzzles: NotedRows) -> None:
    solver = Solver(size_of(puzzles))
    for puzzle, solution in zip(puzzles.prompts[:5].tolist(), puzzles.responses[:5].tolist(), strict=True):
        for cell in np.flatnonzero(puzzle):
            without = [0 if i == cell else value for i, value in enumerate(puzzle)]
            assert not solver.is_unique(without, solution)


def test_every_fill_follows_from_the_board_before_it_by_its_technique_and_by_none_simpler(puzzles: NotedRows) -> None:
    check_fills(puzzles)


def check_fills(puzzles: NotedRows) -> None:
    n = size_of(puzzles)
    rules = Rules(n)
    for i in range(len(puzzles)):
        puzzle, solution = puzzles.prompts[i], puzzles.responses[i]
        order, techniques = puzzles.orders[i], puzzles.notes["technique"][i]
        assert sorted(order) == list(range(n * n))
        givens = np.flatnonzero(puzzle)
        assert order[: len(givens)].tolist() == givens.tolist(), "the givens come first, in reading order"
        assert not techniques[: len(givens)].any()
        board = rules.board(puzzle.tolist())
        for slot, technique in zip(order[len(givens) :], techniques[len(givens) :], strict=True):
            cell, value = divmod(int(slot), n), int(solution[slot])
            if technique > 2:
                assert not rules.singles_with(board, int(technique) - 1), "a simpler technique would have been enough"
            if technique != SEARCH:
                assert (cell, value) in rules.singles_with(board, int(technique))
            board[cell] = value


def test_difficulty_is_recorded(puzzles: NotedRows) -> None:
    assert puzzles.notes["givens"].tolist() == (puzzles.prompts > 0).sum(1).tolist()
    assert puzzles.notes["hardest"].tolist() == puzzles.notes["technique"].max(1).tolist()
    hard = puzzles.notes["hardest"] == SEARCH
    assert hard.sum() == (0 if size_of(puzzles) == 4 else ROWS // 4)


def test_all_seven_techniques_occur() -> None:
    rows = sudoku.shard(SudokuConfig(), "train", rng(0, "test", 0), 1500)
    assert set(np.unique(rows.notes["technique"])) == {0, 2, 3, 4, 5, 6, 7, 8}
    assert 20 <= rows.notes["givens"].min() <= rows.notes["givens"].max() <= 32


def test_the_solver_distinguishes_no_one_and_several_solutions() -> None:
    board, solution = geometry(4), np.zeros(16, dtype=np.uint8)
    grid = np.array([1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1], dtype=np.uint8)
    assert solve(board, grid, solution, 1_000) == 1
    assert solution.tolist() == grid.tolist()
    assert solve(board, np.zeros(16, dtype=np.uint8), solution, 1_000) == 2
    assert solve(board, np.array([1, 1, *[0] * 14], dtype=np.uint8), solution, 1_000) == 0
    assert solve(board, np.array([1, 2, 3, 0, 0, 0, 0, 4, *[0] * 8], dtype=np.uint8), solution, 1_000) == 0
    rectangle = np.where(np.isin(np.arange(16), (0, 1, 8, 9)), 0, grid)  # 1 and 2 can be swapped
    assert solve(board, rectangle, solution, 1_000) == 2


def test_a_search_ends_when_its_nodes_are_used_up() -> None:
    board, solution = geometry(9), np.zeros(81, dtype=np.uint8)
    puzzle = sudoku.shard(SudokuConfig(hard="all"), "train", rng(5, "test", 1), 1).prompts[0]
    assert solve(board, puzzle, solution, 1) == -1
    assert not solution.any()
    assert solve(board, puzzle, solution, 10_000) == 1
    assert np.array_equal(solution[puzzle > 0], puzzle[puzzle > 0])


def test_a_puzzle_is_a_function_of_its_seed_alone() -> None:
    board, seeds = geometry(9), np.arange(6, dtype=np.uint64)
    grids, puzzles = np.empty((6, 81), dtype=np.uint8), np.empty((6, 81), dtype=np.uint8)
    random_grids(board, seeds, grids)
    dig(board, seeds, grids, puzzles)
    alone, puzzle = np.empty((1, 81), dtype=np.uint8), np.empty((1, 81), dtype=np.uint8)
    random_grids(board, seeds[4:5], alone)
    dig(board, seeds[4:5], alone, puzzle)
    assert np.array_equal(alone[0], grids[4])
    assert np.array_equal(puzzle[0], puzzles[4])
    assert len({grid.tobytes() for grid in grids}) == 6


def test_renaming_the_digits_keeps_a_grid_in_its_split() -> None:
    grids = np.empty((200, 36), dtype=np.uint8)
    random_grids(geometry(6), np.arange(200, dtype=np.uint64), grids)
    expected = sudoku.splits(grids, grids)
    assert set(expected) == {0, 1, 2}
    for names in list(permutations(range(1, 7)))[::97]:
        assert np.array_equal(sudoku.splits(grids, np.array([0, *names], dtype=np.uint8)[grids]), expected)


@pytest.mark.parametrize("size", SIZES)
def test_splits_share_no_solution_and_at_4x4_no_puzzle_for_any_seed_or_renaming(size: int) -> None:
    task = SudokuConfig(size=size)
    seen: dict[str, set[bytes]] = {}
    for split in SPLITS:
        parts = [sudoku.shard(task, split, rng(seed, "test", 0), 300) for seed in (0, 1)]
        column = "prompts" if size == 4 else "responses"
        seen[split] = {key.tobytes() for part in parts for key in sudoku.canonical(getattr(part, column))}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["val"]
    assert not seen["val"] & seen["test"]


def test_the_hard_set_defeats_the_seven_techniques_and_can_be_limited_to_the_test_split() -> None:
    task = SudokuConfig(size=6, hard="test")
    assert (sudoku.shard(task, "test", rng(0, "test", 0), 20).notes["hardest"] == SEARCH).all()
    assert (sudoku.shard(task, "train", rng(0, "test", 0), 20).notes["hardest"] < SEARCH).all()


def test_4x4_has_no_hard_set() -> None:
    with pytest.raises(Mistake, match=r"task\.hard=all: .* 4x4 grids gave no such puzzle"):
        sudoku.shard(SudokuConfig(size=4, hard="all"), "train", rng(0, "test", 0), 1)


@pytest.mark.parametrize("size", SIZES)
def test_extra_givens_are_cells_of_the_solution_of_the_same_puzzles(size: int) -> None:
    plain, more = (
        sudoku.shard(SudokuConfig(size=size, extra_givens=extra), "train", rng(5, "test", 0), 700) for extra in (0, 4)
    )
    np.testing.assert_array_equal(plain.responses, more.responses)
    kept = plain.prompts > 0
    np.testing.assert_array_equal(more.prompts[kept], plain.prompts[kept])
    assert ((more.prompts == 0) | (more.prompts == more.responses)).all()
    added = more.notes["givens"].astype(int) - plain.notes["givens"]
    assert np.bincount(added, minlength=5) / 700 == pytest.approx([0.2] * 5, abs=0.06)
    chances = ((more.prompts > 0) & ~kept).sum(axis=0) / (~kept).sum(axis=0)
    assert chances == pytest.approx(added.mean() / (~kept).sum(axis=1).mean(), abs=0.1), "any blank may be given"
    same = added == 0
    np.testing.assert_array_equal(more.orders[same], plain.orders[same])
    np.testing.assert_array_equal(more.notes["technique"][same], plain.notes["technique"][same])


@pytest.mark.parametrize("size", SIZES)
def test_the_order_of_a_row_with_extra_givens_is_that_of_its_own_puzzle(size: int) -> None:
    rows = sudoku.shard(SudokuConfig(size=size, extra_givens=9), "train", rng(5, "test", 0), 40)
    check_fills(rows)
    assert rows.notes["givens"].tolist() == (rows.prompts > 0).sum(1).tolist()
    assert rows.notes["hardest"].tolist() == rows.notes["technique"].max(1).tolist()


def test_all_blanks_may_be_given_and_validation_and_test_rows_get_none() -> None:
    full = sudoku.shard(SudokuConfig(size=4, extra_givens=81), "train", rng(5, "test", 0), 300)
    assert (full.prompts == full.responses).all(axis=1).any()
    for split in ("val", "test"):
        plain, more = (
            sudoku.shard(SudokuConfig(size=4, extra_givens=extra), split, rng(5, "test", 0), 50) for extra in (0, 9)
        )
        np.testing.assert_array_equal(plain.prompts, more.prompts)
        np.testing.assert_array_equal(plain.orders, more.orders)


def test_a_4x4_puzzle_with_extra_givens_is_none_of_another_split() -> None:
    task = SudokuConfig(size=4, extra_givens=6)
    seen = {
        split: {key.tobytes() for key in sudoku.canonical(sudoku.shard(task, split, rng(5, "test", 0), 3000).prompts)}
        for split in SPLITS
    }
    assert not seen["train"] & (seen["val"] | seen["test"])
