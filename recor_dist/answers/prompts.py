"""Prompts and responses as people write them, and as token ids.

If every token is one character, text is read character by character, and white space between them is ignored.
Tokens of other vocabularies are separated by spaces, or given as a JSON list: `["left of", "b"]`. Some tasks accept
more: a blank cell of a Sudoku is `.` or 0, the factor of `1234*5` needs neither its leading zeros nor the `=`, and the
clues of a Zebra are written in either of its two formats.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.tasks import TASKS
from data.vocab import PAD, Vocabulary
from recor_dist.core.config import TaskConfig
from recor_dist.core.setting import Mistake

Text = str | Sequence[str | int]  # as people write it, or as a list of tokens
MOST_SHOWN = 24  # tokens of a vocabulary that an error line lists


@dataclass(frozen=True)
class Reader:
    """What a task accepts as a prompt, by the functions of its `TaskType` (data/task_type.py)."""

    read_prompt: Callable[[Any, str], str] = lambda task, text: text
    read_tokens: Callable[[Any, list[str]], list[str]] = lambda task, tokens: tokens
    check_prompt: Callable[[Any, list[str]], None] = lambda task, tokens: None

    def encode(self, task: Any, vocabulary: Vocabulary, N: int, prompt: Text) -> np.ndarray:
        """Ids (N,) of a prompt. Raises a Mistake that names the unknown token or the wrong length."""
        if isinstance(prompt, str):
            prompt = self.read_prompt(task, prompt)
        tokens = self.read_tokens(task, tokens_of(vocabulary, prompt))
        ids = encode_tokens(vocabulary, N, tokens)
        self.check_prompt(task, [token for token in tokens if token != PAD])
        return ids


def reader_of(task: TaskConfig) -> Reader:
    row = TASKS[task.name]
    return Reader(row.read_prompt, row.read_tokens, row.check_prompt)


def encode_prompt(task: TaskConfig, vocabulary: Vocabulary, N: int, prompt: Text) -> np.ndarray:
    """Ids (N,) of a prompt of a task."""
    return reader_of(task).encode(task, vocabulary, N, prompt)


def encode_response(vocabulary: Vocabulary, M: int, response: Text) -> np.ndarray:
    """Ids (M,) of a response. Raises a Mistake that names the unknown token or the wrong length."""
    return encode_tokens(vocabulary, M, tokens_of(vocabulary, response))


def decode(vocabulary: Vocabulary, ids: np.ndarray) -> str:
    """A response as text, without PADs at its end."""
    tokens = vocabulary.decode(ids)
    while tokens and tokens[-1] == PAD:
        tokens.pop()
    return join(vocabulary, tokens)


def join(vocabulary: Vocabulary, tokens: Sequence[str]) -> str:
    """Tokens as text that `tokens_of` reads back."""
    if _characters(vocabulary):
        return "".join(tokens)
    spaced = all(token and not token.startswith("[") and token.split() == [token] for token in tokens)
    return " ".join(tokens) if spaced else json.dumps(list(tokens), ensure_ascii=False)


def tokens_of(vocabulary: Vocabulary, text: Text) -> list[str]:
    """The tokens of a text, known or not. Raises a Mistake for anything that is not text."""
    if isinstance(text, list | tuple):
        return [str(token) for token in text]
    if not isinstance(text, str):
        raise Mistake("is missing, or is neither text nor a list of tokens")
    if _characters(vocabulary):
        blanks = any(token.isspace() for token in vocabulary.tokens)
        return list(text) if blanks else list("".join(text.split()))
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError:
            raise Mistake("begins with [ but is not a JSON list of tokens") from None
        return [str(token) for token in listed]
    return text.split()


def how_written(vocabulary: Vocabulary) -> str:
    """How to write a prompt, in one line, for users of a packaged model."""
    if _characters(vocabulary):
        return "text, one character per token"
    return "tokens separated by spaces, or a JSON list of tokens"


def _characters(vocabulary: Vocabulary) -> bool:
    return all(len(token) == 1 for token in vocabulary.tokens if token != PAD)


def encode_tokens(vocabulary: Vocabulary, length: int, tokens: list[str]) -> np.ndarray:
    for number, token in enumerate(tokens, 1):
        if token not in vocabulary.ids:
            known = [repr(t) if t.strip() != t or not t else t for t in vocabulary.tokens]
            more = f" and {len(known) - MOST_SHOWN} more" if len(known) > MOST_SHOWN else ""
            raise Mistake(
                f"token {number}, {token!r}, is not in the vocabulary; known: {' '.join(known[:MOST_SHOWN])}{more}"
            )
    if len(tokens) > length or (len(tokens) < length and PAD not in vocabulary.ids):
        most = "at most " if PAD in vocabulary.ids else ""
        raise Mistake(f"has {len(tokens)} token{'s' * (len(tokens) != 1)}, but this model takes {most}{length}")
    return vocabulary.encode(tokens, length)
