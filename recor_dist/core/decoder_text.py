"""How a decoder is written on a command line: its name, and for one with a parameter its value.

    adamdm_margin             with the parameter's default
    adamdm_margin:T=5         or adamdm_margin:5
    threshold:0.5/0.9         two decoders; the part of `mdm_threshold` behind the method's name is enough
    threshold:sweep           the usual values; `sweep` alone stands for every decoder with its usual values

Results are named NAME, or NAME_KEYVALUE: mdm_threshold_tau0.9. That form is understood, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recor_dist.core.names import split_parameter
from recor_dist.core.setting import Mistake, nearest

SWEEP = "sweep"


@dataclass(frozen=True)
class Parameter:
    """The one number that changes how a decoder works."""

    key: str
    default: float
    at_least: float
    at_most: float = float("inf")
    usual: tuple[float, ...] = ()  # what a sweep tries
    whole: bool = False
    plain_at: float | None = None  # the value at which results have the decoder's name alone

    def __post_init__(self) -> None:
        read = split_parameter(f"name_{self.key}1")
        assert read == ("name", self.key, "1"), f"{self.key}: a key has letters only, and is not v"

    def name(self, base: str, value: float) -> str:
        """The name of results."""
        if value == self.plain_at:
            return base
        return f"{base}_{self.key}{np.format_float_positional(value, trim='-')}"


Choice = tuple[str, str, float | None]  # name of results, name in the table, value of its parameter


def read_decoders(key: str, text: str, table: Mapping[str, Parameter | None]) -> list[Choice]:
    """The decoders in a text with commas, each once. `table`: those that the model has, with their parameters; `key`:
    of the setting that holds the text, for the Mistake about an unknown name or a bad value."""
    found = [choice for word in text.split(",") for choice in _read(key, word.strip(), table)]
    return list({name: (name, base, value) for name, base, value in found}.values())


def find_name(word: str, table: Mapping[str, Parameter | None]) -> str | None:
    """The name in the table that a word without its value means; None if there is none."""
    name = word.partition(":")[0]
    for known, parameter in table.items():
        if name == known or (parameter and name.startswith(f"{known}_{parameter.key}") and ":" not in word):
            return known
    short = [known for known in table if known.endswith(f"_{name}")]
    return short[0] if len(short) == 1 else None


def _read(key: str, word: str, table: Mapping[str, Parameter | None]) -> list[Choice]:
    if word == SWEEP:
        return [choice for known in table for choice in _of(key, word, known, table[known], SWEEP)]
    base = find_name(word, table)
    if base is None:
        shown = word.partition(":")[0]
        short = [known.split("_", 1)[1] for known in table if "_" in known]
        raise Mistake(f"{key}={word}: this model has {', '.join(table)}{nearest(shown, [*table, *short])}")
    name, colon, values = word.partition(":")
    parameter = table[base]
    if parameter and not colon and name.startswith(f"{base}_{parameter.key}"):
        values = name.removeprefix(f"{base}_{parameter.key}")
    elif colon and not values:
        raise Mistake(f"{key}={word}: has no value behind the colon; omit the colon, or give one")
    return _of(key, word, base, parameter, values)


def _of(key: str, word: str, base: str, parameter: Parameter | None, values: str) -> list[Choice]:
    if parameter is None:
        if values not in ("", SWEEP):
            raise Mistake(f"{key}={word}: {base} takes no value; write {key}={base}")
        return [(base, base, None)]
    if values == SWEEP:
        chosen = list(parameter.usual) or [parameter.default]
    else:
        chosen = [_number(key, word, base, parameter, value) for value in values.split("/") if values]
        chosen = chosen or [parameter.default]
    return [(parameter.name(base, value), base, value) for value in chosen]


def _number(key: str, word: str, base: str, parameter: Parameter, text: str) -> float:
    name, equals, number = text.rpartition("=")
    if equals and name != parameter.key:
        raise Mistake(f"{key}={word}: {base} has no {name}; write {base}:{parameter.key}={parameter.default:g}")
    try:
        value = int(number) if parameter.whole else float(number)
    except ValueError:
        value = None
    if value is None or not parameter.at_least <= value <= parameter.at_most or value == float("inf"):
        kind = "a whole number" if parameter.whole else "a number"
        most = f" and at most {parameter.at_most:g}" if parameter.at_most < float("inf") else ""
        raise Mistake(f"{key}={word}: {parameter.key} must be {kind}, at least {parameter.at_least:g}{most}")
    return value
