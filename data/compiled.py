"""Functions compiled with numba, and the random numbers they draw.

numba caches machine code beside the source or in the user's cache folder; if it can write to neither, every process
compiles again. numba recompiles a cached function when the function's own file changes, not when this file does: clear
the cache after changing `draw`.
"""

from collections.abc import Callable

import numpy as np
from numba import njit


def compiled(function: Callable) -> Callable:
    """Compiles a function on its first call, and caches the machine code for later processes if possible."""
    try:
        return njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no writable folder
        return njit(error_model="numpy")(function)


@compiled
def draw(state: np.ndarray, below: int) -> np.int64:
    """A random integer from 0 to below - 1. `state` (1,) uint64 is the state of splitmix64; any seed will do."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    # Scales the upper 32 bits; for the small ranges used here the bias is below 1e-8.
    return np.int64(((z >> np.uint64(32)) * np.uint64(below)) >> np.uint64(32))


@compiled
def shuffle(state: np.ndarray, items: np.ndarray) -> None:
    """Fisher-Yates shuffle, in place."""
    for i in range(len(items) - 1, 0, -1):
        j = draw(state, i + 1)
        items[i], items[j] = items[j], items[i]
