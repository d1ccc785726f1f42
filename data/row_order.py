"""The order of the training rows: a pure function of (seed, position).

Rows form one endless stream, epoch after epoch. Each epoch shuffles the shards, and the rows within each shard.
Position n B + i of the stream is row i of step n's batch. Each row appears exactly once per epoch. Readers need not
know about each other, and there is no position to save.
"""

from functools import lru_cache

import numpy as np

from recor_dist.core.rng import rng


class RowOrder:
    def __init__(self, seed: int, shard_rows: tuple[int, ...]) -> None:
        """`shard_rows`: the number of rows of each training shard."""
        self.seed, self.shard_rows, self.rows = seed, np.array(shard_rows), sum(shard_rows)
        self._shards = lru_cache(maxsize=2)(self._shuffle_shards)
        self._rows = lru_cache(maxsize=4)(self._shuffle_rows)

    def _shuffle_shards(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards of an epoch in order, and the offset of each."""
        shards = rng(self.seed, "shards", epoch).permutation(len(self.shard_rows))
        return shards, np.concatenate([[0], np.cumsum(self.shard_rows[shards])])

    def _shuffle_rows(self, epoch: int, shard: int) -> np.ndarray:
        return rng(self.seed, "rows", epoch, shard).permutation(self.shard_rows[shard])

    def locate(self, start: int, count: int) -> list[tuple[int, np.ndarray]]:
        """Positions start .. start + count - 1 of the stream as runs of (shard, rows of that shard), in order."""
        runs = []
        while count:
            epoch, offset = divmod(start, self.rows)
            shards, begins = self._shards(epoch)
            place = int(np.searchsorted(begins, offset, side="right")) - 1
            first = offset - int(begins[place])
            rows = self._rows(epoch, int(shards[place]))[first : first + count]
            runs.append((int(shards[place]), rows))
            start, count = start + len(rows), count - len(rows)
        return runs
