"""Tokens and their ids."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

PAD = "<pad>"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a task; a token's id is its index. PAD, if a task needs it, is an ordinary token."""

    tokens: tuple[str, ...]

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        return np.uint8 if len(self.tokens) <= 256 else np.uint16 if len(self.tokens) <= 65536 else np.uint32

    def encode(self, tokens: Iterable[str], length: int) -> np.ndarray:
        """The ids of a sequence, padded on the right with PAD to `length`."""
        ids = [self.ids[token] for token in tokens]
        return np.array(ids + [self.ids[PAD]] * (length - len(ids)) if len(ids) < length else ids, dtype=self.dtype)

    def decode(self, ids: np.ndarray) -> list[str]:
        return [self.tokens[i] for i in ids]
