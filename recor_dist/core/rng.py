"""Random numbers that depend on nothing but their key.

Every draw in a run comes from NumPy's Philox on the CPU, keyed by (seed, purpose, counters). There is no global
generator and therefore no random state to save, and a ticket draws the same numbers wherever and however often it is
computed.
"""

import zlib

import numpy as np


def rng(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """The generator for one purpose at one point of the run, for example rng(seed, "rollout", step, group).

    A purpose always has the same number of counters: SeedSequence pads with zeros, so (1,) and (1, 0) would collide.
    """
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *counters]))
    )


def gumbel(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard Gumbel noise, float64, from one uniform number per entry; a uniform 0 is raised to keep it finite."""
    return -np.log(-np.log(np.maximum(random.random(shape), 1e-300)))
