"""Random numbers that depend on nothing but their names.

Every draw in a run comes from NumPy's Philox, keyed by (seed, purpose, counters), on the CPU. There is no global
generator, hence no random state to save, and a ticket draws the same numbers wherever and however often it is computed.
"""

import zlib

import numpy as np


def rng(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """The generator for one purpose at one place of the run, for example rng(seed, "rollout", step, group).

    A purpose always comes with the same number of counters, so that no two keys meet in SeedSequence's zero padding.
    """
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *counters]))
    )
