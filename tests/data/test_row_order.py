"""Properties of the row order: a pure function of (seed, position), with each row once per epoch."""

from collections import Counter
from itertools import chain, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data.row_order import RowOrder

shards = st.lists(st.integers(1, 12), min_size=1, max_size=5).map(tuple)
seeds = st.integers(0, 2**32)


def stream(order: RowOrder, start: int, count: int) -> list[tuple[int, int]]:
    return [(shard, int(row)) for shard, rows in order.locate(start, count) for row in rows]


@given(seeds, shards, st.integers(0, 5))
def test_each_row_appears_exactly_once_per_epoch(seed: int, sizes: tuple[int, ...], epoch: int) -> None:
    total = sum(sizes)
    seen = Counter(stream(RowOrder(seed, sizes), epoch * total, total))
    assert seen == Counter((shard, row) for shard, size in enumerate(sizes) for row in range(size))


@given(seeds, shards, st.integers(0, 100), st.integers(1, 40), st.integers(1, 7))
def test_the_stream_does_not_depend_on_how_readers_share_it(
    seed: int, sizes: tuple[int, ...], start: int, count: int, piece: int
) -> None:
    """A batch read as a whole equals the same batch read in tickets, each by an independent reader."""
    whole = stream(RowOrder(seed, sizes), start, count)
    assert len(whole) == count
    pieces = [
        stream(RowOrder(seed, sizes), s, min(piece, start + count - s)) for s in range(start, start + count, piece)
    ]
    assert list(chain.from_iterable(pieces)) == whole


@given(seeds, shards, st.lists(st.integers(0, 200), min_size=1, max_size=8))
def test_a_position_is_the_same_row_whatever_was_read_before(
    seed: int, sizes: tuple[int, ...], positions: list[int]
) -> None:
    one = RowOrder(seed, sizes)
    asked = {p: stream(one, p, 1) for p in positions}
    for p in sorted(positions):
        assert stream(RowOrder(seed, sizes), p, 1) == asked[p]


@given(seeds, st.integers(0, 3))
def test_rows_of_a_shard_stay_together(seed: int, epoch: int) -> None:
    """A reader needs only a few shards at a time."""
    sizes = (7, 5, 9)
    shards_in_order = [shard for shard, _ in stream(RowOrder(seed, sizes), epoch * 21, 21)]
    changes = sum(a != b for a, b in pairwise(shards_in_order))
    assert changes == 2


def test_seeds_epochs_and_shards_are_shuffled_independently() -> None:
    sizes = (50, 50)
    order = RowOrder(0, sizes)
    epochs = [stream(order, e * 100, 100) for e in range(6)]
    assert len({tuple(e) for e in epochs}) == 6
    assert stream(RowOrder(1, sizes), 0, 100) != epochs[0]
    assert {e[0][0] for e in epochs} == {0, 1}, "the order of the shards is shuffled too"
    rows = {shard: np.array([r for s, r in epochs[0] if s == shard]) for shard in (0, 1)}
    assert not np.array_equal(rows[0], rows[1])
