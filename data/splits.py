"""Train, validation and test are told apart by a hash of the prompt.

The hash knows neither seed nor shard, so rows that were made apart, on other machines or with other seeds, never
overlap across splits: a prompt belongs to one split for good.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

SPLITS = ("train", "val", "test")
SHARE = 16  # one sixteenth of all prompts is for validation, one for the test


def split_of(keys: Iterable[bytes]) -> np.ndarray:
    """The split of each key (a canonical prompt, as bytes), as an index into SPLITS."""
    hashes = (hashlib.blake2b(key, digest_size=4, person=b"recor_dist").digest()[0] % SHARE for key in keys)
    place = np.fromiter(hashes, dtype=np.uint8)
    return np.where(place == 0, 2, np.where(place == 1, 1, 0))


class Classes(NamedTuple):
    """What is kept of the canonical prompts of rows: enough to split them, and to find the same one elsewhere."""

    split: np.ndarray  # (R,) index into SPLITS
    mark: np.ndarray  # (R,) uint64; of two million different prompts, two are taken for the same once in ten million

    @staticmethod
    def of(keys: Iterable[bytes]) -> "Classes":
        keys = list(keys)
        digests = b"".join(hashlib.blake2b(key, digest_size=8, person=b"recor_mark").digest() for key in keys)
        return Classes(split_of(keys), np.frombuffer(digests, dtype="<u8"))

    @staticmethod
    def concatenate(parts: "Iterable[Classes]") -> "Classes":
        return Classes(*(np.concatenate(column) for column in zip(*parts, strict=True)))
