"""Compiled functions that cannot be cached, and the random numbers that compiled functions draw."""

import numpy as np

from data.compiled import compiled, draw, shuffle


def test_a_function_that_cannot_be_cached_is_compiled_anyway() -> None:
    scope: dict = {}
    exec("def twice(x):\n    return 2 * x", scope)  # not from a file, so numba has nowhere to cache it
    assert compiled(scope["twice"])(21) == 42


def test_draws_match_splitmix64_and_are_uniform() -> None:
    """The first outputs of splitmix64 for seed 0 are known; a draw below 2^32 is the upper half of an output."""
    state = np.zeros(1, dtype=np.uint64)
    assert [draw(state, 2**32) for _ in range(3)] == [0xE220A839, 0x6E789E6A, 0x06C45D18]
    counts = np.bincount([draw(state, 6) for _ in range(6000)], minlength=6)
    np.testing.assert_allclose(counts, 1000, atol=150)


def test_a_shuffle_reaches_every_order() -> None:
    state, seen = np.zeros(1, dtype=np.uint64), set()
    for _ in range(200):
        items = np.arange(3)
        shuffle(state, items)
        seen.add(tuple(items.tolist()))
    assert len(seen) == 6
