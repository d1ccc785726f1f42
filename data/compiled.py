"""Compiled functions, and the random numbers they draw.

Machine code is kept where numba can write, beside the source or in the user's cache; elsewhere every process compiles
anew. numba renews a kept function when its own file changes, not when this one does: whoever changes `draw` clears the
cache.
"""

from collections.abc import Callable

import numpy as np
from numba import njit


def compiled(function: Callable) -> Callable:
    """Compiles a function at its first call; a later process finds it compiled where a cache can be written."""
    try:
        return njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder to write into
        return njit(error_model="numpy")(function)


@compiled
def draw(state: np.ndarray, below: int) -> int:
    """A number from 0 to below - 1. `state` (1,) uint64 is splitmix64's, whatever it is seeded with."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    # The upper 32 bits, scaled: for the small ranges here the bias is below one in a hundred million.
    return np.int64(((z >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32))


@compiled
def shuffle(state: np.ndarray, items: np.ndarray) -> None:
    """Fisher and Yates, in place."""
    for i in range(len(items) - 1, 0, -1):
        j = draw(state, i + 1)
        items[i], items[j] = items[j], items[i]
