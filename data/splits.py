"""A hash of the prompt decides whether a row is for training, validation or test.

The hash depends on neither seed nor shard, so rows that were generated on different machines or with different seeds
never overlap across splits: a prompt always belongs to the same split.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

SPLITS = ("train", "val", "test")
SHARE = 16  # one sixteenth of all prompts is for validation, another for the test


def split_of(keys: Iterable[bytes]) -> np.ndarray:
    """The split of each key (a canonical prompt, as bytes), as an index into SPLITS."""
    hashes = (hashlib.blake2b(key, digest_size=4, person=b"recor_dist").digest()[0] % SHARE for key in keys)
    place = np.fromiter(hashes, dtype=np.uint8)
    return np.where(place == 0, 2, np.where(place == 1, 1, 0))


class Classes(NamedTuple):
    """Hashes of the canonical prompts of rows: enough to split them, and to find duplicates."""

    split: np.ndarray  # (R,) index into SPLITS
    mark: (
        np.ndarray
    )  # (R,) uint64; among two million different prompts, the chance of a collision is one in ten million

    @staticmethod
    def of(keys: Iterable[bytes]) -> "Classes":
        keys = list(keys)
        digests = b"".join(hashlib.blake2b(key, digest_size=8, person=b"recor_mark").digest() for key in keys)
        return Classes(split_of(keys), np.frombuffer(digests, dtype="<u8"))

    @staticmethod
    def concatenate(parts: "Iterable[Classes]") -> "Classes":
        return Classes(*(np.concatenate(column) for column in zip(*parts, strict=True)))
