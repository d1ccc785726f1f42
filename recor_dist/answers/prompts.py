"""Prompts and responses as people write them, and as token ids.

Where every token is one character, text is read character by character, and white space between them is passed over.
Other vocabularies are written with spaces between the tokens, or as a JSON list: `["left of", "b"]`. Some tasks allow
more: a blank cell of a Sudoku is `.` or 0, the factor of `1234*5` needs neither its leading zeros nor the `=`.
"""

import json
from collections.abc import Sequence

import numpy as np

from data import zebra
from data.mul import MulConfig
from data.sudoku import SudokuConfig
from data.vocab import PAD, Vocabulary
from data.zebra import ZebraConfig
from recor_dist.core.config import Mistake, TaskConfig

Text = str | Sequence[str | int]  # as people write it, or token by token
MOST_SHOWN = 24  # tokens of a vocabulary that an error line lists


def encode_prompt(task: TaskConfig, vocabulary: Vocabulary, N: int, prompt: Text) -> np.ndarray:
    """Ids (N,) of a prompt. Raises Mistake that names the token or the length that cannot be."""
    if isinstance(prompt, str) and isinstance(task, SudokuConfig):
        prompt = prompt.replace(".", "0")
    if isinstance(prompt, str) and isinstance(task, MulConfig) and prompt.count("*") == 1:
        x, y = "".join(prompt.split()).removesuffix("=").split("*")
        prompt = f"{x}*{y.zfill(task.factor_digits)}="
    tokens = tokens_of(vocabulary, prompt)
    ids = _encode(vocabulary, N, tokens)
    if isinstance(task, ZebraConfig):
        _check_clues(task, [token for token in tokens if token != PAD])
    return ids


def encode_response(vocabulary: Vocabulary, M: int, response: Text) -> np.ndarray:
    """Ids (M,) of a response. Raises Mistake that names the token or the length that cannot be."""
    return _encode(vocabulary, M, tokens_of(vocabulary, response))


def decode(vocabulary: Vocabulary, ids: np.ndarray) -> str:
    """A response as text; PADs at its end are left out."""
    tokens = vocabulary.decode(ids)
    while tokens and tokens[-1] == PAD:
        tokens.pop()
    return join(vocabulary, tokens)


def join(vocabulary: Vocabulary, tokens: Sequence[str]) -> str:
    if _characters(vocabulary):
        return "".join(tokens)
    spaced = all(token and not token.startswith("[") and token.split() == [token] for token in tokens)
    return " ".join(tokens) if spaced else json.dumps(list(tokens), ensure_ascii=False)


def tokens_of(vocabulary: Vocabulary, text: Text) -> list[str]:
    if isinstance(text, list | tuple):
        return [str(token) for token in text]
    if not isinstance(text, str):
        raise Mistake("is missing, or neither text nor a list of tokens")
    if _characters(vocabulary):
        blanks = any(token.isspace() for token in vocabulary.tokens)
        return list(text) if blanks else list("".join(text.split()))
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError:
            raise Mistake("begins with [ and is no JSON list of tokens") from None
        return [str(token) for token in listed]
    return text.split()


def how_written(vocabulary: Vocabulary) -> str:
    """In a line, for those who have the model and not this file."""
    if _characters(vocabulary):
        return "as text, a character a token"
    return "tokens with spaces between them, or as a JSON list"


def _characters(vocabulary: Vocabulary) -> bool:
    return all(len(token) == 1 for token in vocabulary.tokens if token != PAD)


def _encode(vocabulary: Vocabulary, length: int, tokens: list[str]) -> np.ndarray:
    for number, token in enumerate(tokens, 1):
        if token not in vocabulary.ids:
            known = [repr(t) if t.strip() != t or not t else t for t in vocabulary.tokens]
            more = f" and {len(known) - MOST_SHOWN} more" if len(known) > MOST_SHOWN else ""
            raise Mistake(
                f"token {number}, {token!r}, is unknown to this model; known: {' '.join(known[:MOST_SHOWN])}{more}"
            )
    if len(tokens) > length or (len(tokens) < length and PAD not in vocabulary.ids):
        most = "at most " if PAD in vocabulary.ids else ""
        raise Mistake(f"has {len(tokens)} token{'s' * (len(tokens) != 1)}, and this model takes {most}{length}")
    return vocabulary.encode(tokens, length)


def _check_clues(task: ZebraConfig, tokens: list[str]) -> None:
    try:
        clues = zebra.parse(tokens)
    except ValueError as error:
        raise Mistake(f"is not made of clues: {error}") from None
    if not clues:
        raise Mistake("has no clues")
    houses, attributes = zebra.size(clues)
    most = task.range_of("houses")[1], task.range_of("attributes")[1]
    if houses > most[0] or attributes > most[1]:
        raise Mistake(
            f"tells of {houses} houses and {attributes} attributes, and this model knows {most[0]} and {most[1]}"
        )
