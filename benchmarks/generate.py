"""`python -m benchmarks.generate`: how fast the puzzle generators are, compared with their targets.

Targets: 1,400 minimal unique 9x9 Sudokus per second and core (the rate of a plain compiled generator), 200 Zebra
puzzles of six houses and six attributes per second, and the paper's data sets within an hour on two cores. Runs in one
process and measures CPU seconds, so a busy machine does not distort the result. The maximum clue length is over all 6x6
puzzles made here.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from data.sudoku_rules import dig, geometry, random_grids
from data.tasks import TASKS
from data.zebra_clues import FORMATS
from data.zebra_rules import MOST_CLUES, explain_puzzles, make_puzzles
from recor_dist.core.messages import Rows
from recor_dist.core.rng import rng

PAPER = {"sudoku": {"train": 1_800_000, "test": 100_000}, "zebra": {"train": 1_500_000, "test": 100_000}}


def rate(make: Callable[[int], object], warm: int, rows: int) -> float:
    """Rows per CPU second, after a first call that compiles."""
    make(warm)
    began = time.process_time()
    make(rows)
    return rows / (time.process_time() - began)


def minimal_sudokus(size: int) -> Callable[[int], None]:
    def make(rows: int) -> None:
        seeds = rng(0, "benchmark", rows).integers(0, 2**64, size=(2, rows), dtype=np.uint64)
        grids, puzzles = np.empty((2, rows, size**2), dtype=np.uint8)
        random_grids(geometry(size), seeds[0], grids)
        dig(geometry(size), seeds[1], grids, puzzles)

    return make


def zebras(size: int, lengths: list[int]) -> Callable[[int], None]:
    def make(rows: int) -> None:
        seeds = rng(0, "benchmark", rows).integers(0, 2**64, size=rows, dtype=np.uint64)
        tables = np.empty((rows, size + 1, size), dtype=np.int8)
        clues = np.empty((rows, MOST_CLUES, 7), dtype=np.int8)
        orders = np.empty((rows, (size + 1) * size), dtype=np.int16)
        make_puzzles(seeds, (size, size), (size, size), tables, clues)
        explain_puzzles(tables, clues, orders, np.empty(orders.shape, dtype=np.uint8))
        lengths.extend(FORMATS["public"].lengths(clues).tolist())

    return make


def shards(name: str, split: str) -> Callable[[int], Rows]:
    make, task = TASKS[name].shard, TASKS[name].schema()
    assert make is not None
    return lambda rows: make(task, split, rng(0, "benchmark", rows), rows)


def main(scale: float) -> None:
    """`scale` multiplies the length of every measurement; 1 takes about a minute."""

    def rows(count: int) -> int:
        return max(64, int(count * scale))

    lengths: list[int] = []
    print(f"{'one process':<52}{'rows/CPU s':>10}{'target':>8}{'ratio':>8}")
    targets = {
        "minimal unique Sudokus, 9x9": (minimal_sudokus(9), 20_000, 1_400),
        "minimal unique Sudokus, 6x6": (minimal_sudokus(6), 50_000, None),
        "minimal unique Sudokus, 4x4": (minimal_sudokus(4), 100_000, None),
        "Zebra puzzles with their order, 6x6": (zebras(6, lengths), 20_000, 200),
        "Zebra puzzles with their order, 3x3": (zebras(3, []), 50_000, None),
    }
    for name, (make, count, target) in targets.items():
        found = rate(make, 64, rows(count))
        print(f"{name:<52}{found:>10,.0f}{target or '':>8}{f'{found / target:.1f}' if target else '':>8}")
    seconds = {}
    for name, splits in PAPER.items():
        for split, wanted in splits.items():
            found = rate(shards(name, split), 64, rows(10_000 if split == "train" else 3_000))
            seconds[name, split] = wanted / found
            print(f"{f'{split} rows of {name} at paper scale':<52}{found:>10,.0f}")
    for name in PAPER:
        two_cores = (seconds[name, "train"] + seconds[name, "test"]) / 2 / 60
        print(f"the paper's {name} on two cores, extrapolated: {two_cores:.0f} min, {two_cores / 60:.2f} of the target")
    print(f"clue tokens of {len(lengths):,} 6x6 Zebras: mean {np.mean(lengths):.0f}, maximum {max(lengths)}; N is 455")


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
