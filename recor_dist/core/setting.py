"""What a setting is: a dataclass field with a sentence, a range and choices. And a Mistake: what a user can correct."""

import difflib
from collections.abc import Iterable
from dataclasses import Field, field, fields, is_dataclass
from typing import Any


class Mistake(ValueError):
    """Something the user can correct. Its text is one line that names the remedy; commands print it and exit with 2."""


def setting(
    default: Any,
    about: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
    placement: bool = False,
    newer: bool = False,
    key: str | None = None,
    may_be_empty: bool = False,
) -> Any:
    """A dataclass field that carries its own sentence and range.

    `placement`: it changes where and how a result is computed, but not the result.
    `newer`: at its default it is not part of a run's identity, so that runs started before it existed keep theirs.
    `key`: how a plain command (see command.py) writes it, if not as its name; for example `data.dir` for `data_dir`.
    `may_be_empty`: a plain command accepts `name=` with nothing after it.
    """
    metadata = {
        "about": about,
        "limits": {"at least": at_least, "at most": at_most, "above": above, "below": below},
        "choices": choices,
        "placement": placement,
        "newer": newer,
        "key": key,
        "may_be_empty": may_be_empty,
    }
    return field(default=default, metadata=metadata)


LARGEST = 2**63 - 1  # of whole numbers, as in NumPy
MEETS = {
    "at least": lambda value, limit: value >= limit,
    "at most": lambda value, limit: value <= limit,
    "above": lambda value, limit: value > limit,
    "below": lambda value, limit: value < limit,
}


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Raises Mistake for a value that its setting does not allow."""
    for f in fields(settings):
        key, value = f.metadata.get("key") or f"{prefix}{f.name}", getattr(settings, f.name)
        if is_dataclass(value):
            check_ranges(value, f"{key}.")
        elif isinstance(value, str):
            _check_choice(f, key, value)
        elif isinstance(value, int | float):
            _check_limits(f, key, value)


def _check_choice(f: Field, key: str, value: str) -> None:
    choices, limits = f.metadata["choices"], _limits(f)
    if choices and value not in choices:
        allowed = [*choices, f"a number, {_in_words(limits)}"] if limits else choices
        raise Mistake(f"{key}={value}: allowed: {', '.join(allowed)}{nearest(value, choices)}")


def _check_limits(f: Field, key: str, value: float) -> None:
    limits = _limits(f)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise Mistake(f"{key}={str(value)[:20]}...: must be at most {LARGEST}")
    # `not all` instead of `any` of the opposites, so that NaN is refused, too.
    if not all(MEETS[word](value, limit) for word, limit in limits.items()) or value == float("inf"):
        raise Mistake(f"{key}={value}: must be {_in_words(limits) or 'finite'}")


def _limits(f: Field) -> dict[str, float]:
    return {word: limit for word, limit in f.metadata["limits"].items() if limit is not None}


def _in_words(limits: dict[str, float]) -> str:
    return " and ".join(f"{word} {limit}" for word, limit in limits.items())


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error line: "; did you mean X?" if one of the known names is similar, else nothing."""
    known = list(known)
    by_ending = {key.rsplit(".", 1)[-1]: key for key in known}
    by_name = by_ending | {key: key for key in known}
    near = difflib.get_close_matches(word.rsplit(".", 1)[-1], by_ending, n=1, cutoff=0.75)
    near = near or difflib.get_close_matches(word, by_name, n=1, cutoff=0.5)
    return f"; did you mean {by_name[near[0]]}?" if near else ""
