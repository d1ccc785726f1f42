"""Zebra: clues against their words, uniqueness against z3, every recorded fill against slow deduction."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import zebra
from data.shards import NotedRows
from data.splits import SPLITS
from data.zebra import ZebraConfig
from data.zebra_clues import FORMATS, PADDING
from data.zebra_rules import (
    ENTITIES,
    KINDS,
    MOST_CLUES,
    _draw_clue,
    _narrow,
    _tells,
    explain_puzzles,
    holds,
    make_puzzles,
)
from recor_dist.core.rng import rng
from recor_dist.core.setting import Mistake
from tests.data.slow_zebra import RELATIONS, Clue, Solver, all_solutions, next_fill, satisfied, supported

WIDE = 6
EACH = 200  # puzzles of a size that are checked


@pytest.fixture(scope="module")
def puzzles() -> NotedRows:
    """EACH of every size from 3 x 3 to 6 x 6."""
    rows = zebra.shard(ZebraConfig(), "train", rng(3, "test", 0), 16 * EACH * 3 // 2)
    sizes = rows.notes["houses"].astype(np.int64) * 10 + rows.notes["attributes"]
    chosen = np.concatenate([np.flatnonzero(sizes == size)[:EACH] for size in np.unique(sizes)])
    assert len(chosen) == 16 * EACH
    notes = {name: column[chosen] for name, column in rows.notes.items()}
    return NotedRows(rows.prompts[chosen], rows.responses[chosen], rows.orders[chosen], notes)


def clues_of(prompt: np.ndarray, tokens: str = "public") -> list[Clue]:
    form = FORMATS[tokens]
    return [(KINDS[kind], entities) for kind, entities in form.parse(form.vocabulary.decode(prompt[prompt != PADDING]))]


def table_of(response: np.ndarray, wide: int = WIDE) -> list[list[int]]:
    rows = [[int(value) for value in row if value != PADDING] for row in response.reshape(-1, wide)]
    return [row for row in rows if row]


def bits(houses: set[int]) -> int:
    return sum(1 << house for house in houses)


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, int, list[set[int]]]:
    """A number of houses, a kind of clue, and where each of its entities may be."""
    n = draw(st.integers(3, 6))
    kind = draw(st.integers(0, len(KINDS) - 1))
    sets = st.sets(st.integers(0, n - 1), min_size=1)
    return n, kind, [draw(sets) for _ in range(ENTITIES[kind])]


@settings(max_examples=600, deadline=None)
@given(situations())
def test_a_clue_rules_out_exactly_the_houses_that_its_words_rule_out(
    situation: tuple[int, int, list[set[int]]],
) -> None:
    n, kind, possible = situation
    masks = [*(bits(houses) for houses in possible), 1, 1][:3]
    left = _narrow(kind, *masks, n)
    expected = supported((KINDS[kind], []), n, possible)
    assert [mask & ((1 << n) - 1) for mask in left[: len(possible)]] == [bits(houses) for houses in expected]


@settings(max_examples=300, deadline=None)
@given(situations())
def test_a_clue_is_informative_if_some_houses_break_it(situation: tuple[int, int, list[set[int]]]) -> None:
    n, kind, possible = situation
    masks = [*(bits(houses) for houses in possible), 1, 1][:3]
    choices = np.stack(np.meshgrid(*(sorted(s) for s in possible), indexing="ij"), -1).reshape(-1, len(possible))
    broken = [houses for houses in choices.tolist() if not RELATIONS[KINDS[kind]](n, *houses)]
    assert _tells(kind, *masks, n) == bool(broken)
    for houses in choices.tolist():
        assert holds(kind, *[*houses, 0, 0][:3], n) == (houses not in broken)


def test_clues_are_true_of_the_table_and_their_size_is_recorded(puzzles: NotedRows) -> None:
    kinds = dict.fromkeys(KINDS, 0)
    for i, (prompt, response) in enumerate(zip(puzzles.prompts, puzzles.responses, strict=True)):
        table, clues = table_of(response), clues_of(prompt)
        n, m = len(table[0]), len(table) - 1
        assert (n, m) == (puzzles.notes["houses"][i], puzzles.notes["attributes"][i])
        assert len(clues) == puzzles.notes["clues"][i]
        assert table[0] == list(range(n))
        assert all(sorted(row) == list(range(n)) for row in table)
        assert all(satisfied(clue, table) for clue in clues)
        assert 1 + max(value for _, entities in clues for _, value in entities) == n, "the clues reveal n"
        assert {row for _, entities in clues for row, _ in entities} >= set(range(1, m + 1))
        for kind, _ in clues:
            kinds[kind] += 1
    assert all(kinds.values())


@pytest.mark.parametrize("each", [EACH // 8, pytest.param(EACH, marks=pytest.mark.slow)])  # z3: a minute or two
def test_no_other_table_fits_the_clues(each: int, puzzles: NotedRows) -> None:
    solver = lru_cache(Solver)
    for prompt, response in zip(puzzles.prompts[:: EACH // each], puzzles.responses[:: EACH // each], strict=True):
        table = table_of(response)
        assert solver(len(table[0]), len(table) - 1).is_unique(clues_of(prompt), table)


def test_with_three_houses_no_other_table_fits() -> None:
    task = ZebraConfig(houses="3", attributes="3", prompt_length=100)
    rows = zebra.shard(task, "train", rng(4, "test", 0), 60)
    assert not (rows.responses == PADDING).any()
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        assert all_solutions(clues_of(prompt), 3, 3) == [table_of(response, wide=3)]


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])  # slow deduction, in Python
def test_every_fill_is_the_easiest_deduction_from_the_cells_before_it(puzzles: NotedRows, every: int) -> None:
    columns = puzzles.prompts, puzzles.responses, puzzles.orders, puzzles.notes["rounds"]
    for prompt, response, order, rounds in zip(*(column[::every] for column in columns), strict=True):
        clues, table = clues_of(prompt), table_of(response)
        n, m = len(table[0]), len(table) - 1
        free = [slot for slot in range(42) if slot // WIDE in (0, *range(m + 1, 7)) or slot % WIDE >= n]
        assert order[: len(free)].tolist() == free, "house numbers and PADs come first, in reading order"
        assert not rounds[: len(free)].any()
        filled: dict[tuple[int, int], int] = {}
        for slot, took in zip(order[len(free) :], rounds[len(free) :], strict=True):
            cell = divmod(int(slot), WIDE)
            value = table[cell[0]][cell[1]]
            assert next_fill(clues, filled, n, m) == (took, cell, value)
            filled[cell] = value
        assert len(filled) == n * m


def test_every_clue_is_used_and_none_occurs_twice(puzzles: NotedRows) -> None:
    """A clue is used if, in repeated passes over all clues, it rules out something that nothing before it did."""
    for prompt, response in zip(puzzles.prompts[::10], puzzles.responses[::10], strict=True):
        clues, table = clues_of(prompt), table_of(response)
        n, m = len(table[0]), len(table) - 1
        possible = {(row, v): set(range(n)) if row else {v} for row in range(m + 1) for v in range(n)}
        used, before = set(), None
        while before != possible:
            before = {entity: set(houses) for entity, houses in possible.items()}
            for row in range(1, m + 1):
                _settle(possible, row, n)
            for i, clue in enumerate(clues):
                left = supported(clue, n, [possible[entity] for entity in clue[1]])
                for entity, houses in zip(clue[1], left, strict=True):
                    if not possible[entity] <= houses:
                        used.add(i)
                        possible[entity] &= houses
        assert used == set(range(len(clues)))
        assert len({str(clue) for clue in clues}) == len(clues)


def _settle(possible: dict[tuple[int, int], set[int]], row: int, n: int) -> None:
    for _ in range(2 * n):
        for value in range(n):
            others = [possible[row, other] for other in range(n) if other != value]
            for houses in others:
                if len(houses) == 1:
                    possible[row, value] -= houses
            alone = possible[row, value] - set().union(*others)
            if alone:
                possible[row, value] &= alone


def test_clues_are_drawn_true_and_by_the_weights_of_their_kinds() -> None:
    state, clue = np.zeros(1, dtype=np.uint64), np.empty(7, dtype=np.int8)
    table = np.array([[0, 1, 2, 3], [2, 0, 3, 1], [1, 2, 3, 0], [3, 1, 0, 2]], dtype=np.int8)
    kinds = np.zeros(7)
    for _ in range(7000):
        _draw_clue(state, table, 4, 3, clue)
        entities = [(int(row), int(value)) for row, value in zip(clue[1::2], clue[2::2], strict=True) if row >= 0]
        assert satisfied((KINDS[clue[0]], entities), table.tolist())
        assert sum(row == 0 for row, _ in entities) <= 1
        kinds[clue[0]] += 1
    weights = {"=": 4, "!=": 1, "nbr": 2, "ends": 2, "immediate-left": 2, "left-of": 2, "inbetween": 1}
    np.testing.assert_allclose(kinds / 500, [weights[kind] for kind in KINDS], rtol=0.2)


def test_a_puzzle_is_a_function_of_its_seed_alone() -> None:
    def make(seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        R = len(seeds)
        tables, clues = np.empty((R, 7, 6), dtype=np.int8), np.empty((R, MOST_CLUES, 7), dtype=np.int8)
        orders, rounds = np.empty((R, 42), dtype=np.int16), np.empty((R, 42), dtype=np.uint8)
        make_puzzles(seeds, (3, 6), (3, 6), tables, clues)
        explain_puzzles(tables, clues, orders, rounds)
        return tables, clues, orders

    seeds = np.arange(9, dtype=np.uint64)
    together, alone = make(seeds), make(seeds[5:6])
    for a, b in zip(together, alone, strict=True):
        assert np.array_equal(a[5], b[0])


def test_a_split_does_not_depend_on_the_order_of_clues_and_sides() -> None:
    clues = np.full((3, MOST_CLUES, 7), -1, dtype=np.int8)
    clues[0, :2] = [0, 1, 2, 3, 0, -1, -1], [5, 2, 1, 1, 0, -1, -1]
    clues[1, :2] = [5, 2, 1, 1, 0, -1, -1], [0, 3, 0, 1, 2, -1, -1]
    clues[2, :2] = [0, 1, 2, 3, 0, -1, -1], [5, 1, 0, 2, 1, -1, -1]  # left-of is not the same from both sides
    keys = list(zebra.keys(clues, np.array([3, 3, 3]), np.array([3, 3, 3])))
    assert keys[0] == keys[1] != keys[2]


def test_splits_share_no_puzzle_whatever_the_seed() -> None:
    task = ZebraConfig(houses="3", attributes="3", prompt_length=100)
    seen = {}
    for split in SPLITS:
        parts = [zebra.shard(task, split, rng(seed, "test", 0), 400) for seed in (0, 1)]
        seen[split] = {str(sorted(map(str, clues_of(prompt)))) for part in parts for prompt in part.prompts}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["val"]
    assert not seen["val"] & seen["test"]


def test_puzzles_that_are_too_long_are_dropped_and_counted() -> None:
    short = zebra.shard(ZebraConfig(houses="3", attributes="3", prompt_length=55), "train", rng(0, "test", 0), 200)
    assert (short.prompts.shape, short.left_out > 50) == ((200, 55), True)
    with pytest.raises(Mistake, match=r"task\.prompt_length=20: none of .* puzzles fits; the last 512 had"):
        zebra.shard(ZebraConfig(houses="3", prompt_length=20), "train", rng(0, "test", 0), 1)


# --- hints -----------------------------------------------------------------------------------------------------------

SMALL = {"houses": "3-4", "attributes": "3", "prompt_length": 160}


@pytest.mark.parametrize("tokens", FORMATS)
def test_hints_are_cells_of_the_table_among_the_clues_of_the_same_puzzles(tokens: str) -> None:
    plain = zebra.shard(ZebraConfig(**SMALL), "train", rng(7, "test", 0), 700)
    hinted = zebra.shard(ZebraConfig(**SMALL, tokens=tokens, hints=4), "train", rng(7, "test", 0), 700)
    np.testing.assert_array_equal(plain.responses, hinted.responses)
    given, places = [], []
    for row, response in enumerate(plain.responses):
        before, after = clues_of(plain.prompts[row]), clues_of(hinted.prompts[row], tokens)
        table = table_of(response, wide=4)
        direct = [("=", [(row, table[row][house]), (0, house)]) for row in (1, 2, 3) for house in range(len(table[0]))]
        hints = [clue for clue in after if clue not in before]
        assert all(hint in direct for hint in hints)
        assert not any((kind, entities[::-1]) in before for kind, entities in hints), "no clue is given twice"
        assert [clue for clue in after if clue in before] == before, "the clues keep their order"
        assert hinted.notes["clues"][row] == len(before) + len(hints) == len(after)
        given.append(len(hints))
        places += [after.index(hint) / (len(after) - 1) for hint in hints]
    assert np.bincount(given, minlength=5) / 700 == pytest.approx([0.2] * 5, abs=0.06)
    assert np.mean(places) == pytest.approx(0.5, abs=0.03)
    assert {0.0, 1.0} <= set(places), "also before the first clue and after the last"


def test_the_order_of_a_row_with_hints_is_the_easiest_deduction_from_all_of_its_clues() -> None:
    rows = zebra.shard(ZebraConfig(**SMALL, hints=6), "train", rng(8, "test", 0), 60)
    for prompt, response, order, rounds in zip(
        rows.prompts, rows.responses, rows.orders, rows.notes["rounds"], strict=True
    ):
        clues, table = clues_of(prompt), table_of(response, wide=4)
        n, filled = len(table[0]), {}
        free = 16 - 3 * n
        for slot, took in zip(order[free:], rounds[free:], strict=True):
            cell = divmod(int(slot), 4)
            value = table[cell[0]][cell[1]]
            assert next_fill(clues, filled, n, 3) == (took, cell, value)
            filled[cell] = value


def test_validation_and_test_rows_get_no_hints() -> None:
    for split in ("val", "test"):
        plain, hinted = (
            zebra.shard(ZebraConfig(**SMALL, hints=hints), split, rng(7, "test", 0), 50) for hints in (0, 9)
        )
        np.testing.assert_array_equal(plain.prompts, hinted.prompts)
        np.testing.assert_array_equal(plain.orders, hinted.orders)


@pytest.mark.parametrize(("tokens", "length", "size"), [("public", 60, 10), ("compact", 36, 4)])
def test_a_row_gets_no_more_hints_than_its_prompt_has_room_for(tokens: str, length: int, size: int) -> None:
    task = {"houses": "3", "attributes": "3", "prompt_length": length, "tokens": tokens}
    plain, hinted = (
        zebra.shard(ZebraConfig(**task, hints=hints), "train", rng(7, "test", 0), 400) for hints in (0, 36)
    )
    np.testing.assert_array_equal(plain.responses, hinted.responses)
    room = (plain.prompts == PADDING).sum(axis=1) // size
    given = hinted.notes["clues"].astype(int) - plain.notes["clues"]
    assert (given <= room).all()
    assert (given[room > 0] == room[room > 0]).mean() > 0.5
    said = [clues_of(prompt, tokens) for prompt in hinted.prompts]
    assert [len(clues) for clues in said] == hinted.notes["clues"].tolist(), "no clue is cut off"


def test_a_training_row_with_hints_never_has_the_clues_of_another_split() -> None:
    rows = zebra.shard(ZebraConfig(**SMALL, hints=9), "train", rng(7, "test", 0), 800)
    clues = np.full((800, MOST_CLUES, 7), -1, dtype=np.int8)
    for row, prompt in enumerate(rows.prompts):
        said = clues_of(prompt)
        for i, (kind, entities) in enumerate(said):
            clues[row, i, : 1 + 2 * len(entities)] = [KINDS.index(kind), *np.ravel(entities)]
    assert (zebra.splits(clues, rows.notes["houses"], rows.notes["attributes"]) == SPLITS.index("train")).all()


def test_a_row_that_no_hints_keep_in_its_split_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zebra, "TRIES", 1)
    rows = {hints: zebra.shard(ZebraConfig(**SMALL, hints=hints), "train", rng(7, "test", 0), 800) for hints in (0, 9)}
    none = rows[9].notes["clues"] == rows[0].notes["clues"]
    assert none.mean() == pytest.approx(1 / 10 + 9 / 10 * 2 / 16, abs=0.05)
