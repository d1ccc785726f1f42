"""A single flipped bit anywhere in a record shows, or changes nothing."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from recor_dist.core.sealed import Damaged, open_file, open_line, seal_file, seal_line

RECORD = {"step": 12, "loss/lm": 1.636124610900879, "eval/val/exact_match": 0.5, "time": 1794963584.631}
CONTENT = {"settings": {"seed": 0, "out": None}, "vocabulary": ["0", "é"], "reproducible": True, 3: (1, 2)}


def test_a_sealed_record_is_read_as_it_was_written() -> None:
    assert open_line(seal_line(RECORD)) == RECORD
    assert json.loads(seal_line(RECORD)).items() > RECORD.items(), "any program can read it"
    content = seal_file(CONTENT)
    assert open_file(json.dumps(content, indent=4, sort_keys=True).encode()) == json.loads(json.dumps(CONTENT))


def test_records_of_earlier_versions_are_read() -> None:
    assert open_line(json.dumps(RECORD).encode() + b"\n") == RECORD
    assert open_file(b'{"steps": 3}') == {"steps": 3}


@pytest.mark.parametrize(
    ("content", "read"),
    [(seal_line(RECORD), open_line), (json.dumps(seal_file(CONTENT), indent=2).encode() + b"\n", open_file)],
)
def test_every_flipped_bit_shows_or_changes_nothing(content: bytes, read: Callable[[bytes], dict[str, Any]]) -> None:
    whole = read(content)
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            with contextlib.suppress(Damaged):
                assert read(bytes(damaged)) == whole, damaged


@pytest.mark.parametrize("content", [b"", b"[1]", b"null", b'"x"', b"{", b"[" * 100_000, b"\xff", b"1" * 5000])
def test_what_is_no_object_is_damaged(content: bytes) -> None:
    with pytest.raises(Damaged):
        open_file(content)
    with pytest.raises(Damaged):
        open_line(content + b"\n")
