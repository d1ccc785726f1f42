"""JSON that shows whether it was damaged: each object carries a checksum of everything else in it.

A file is sealed by its content, so it may be formatted anew. A line of a journal is sealed by its bytes, which is
faster to check. Records of earlier versions have no checksum and are read as they are.
"""

import json
import re
import zlib
from typing import Any

from recor_dist.core.config import digest

OF_FILE, OF_LINE = "checksum", "crc32"
MARK = f', "{OF_LINE}": "'.encode()  # what comes between a line's content and its checksum


class Damaged(ValueError):
    """Not what was written."""


def seal_file(content: dict[str, Any]) -> dict[str, Any]:
    plain = json.loads(json.dumps(content))  # as it will be read: names are text, tuples are lists
    return {**plain, OF_FILE: digest(plain)[:16]}


def open_file(text: bytes) -> dict[str, Any]:
    content = _object(text)
    if OF_FILE in content:
        checksum = content.pop(OF_FILE)
        if checksum != digest(content)[:16]:
            raise Damaged("its content does not match its checksum")
    elif any(value == digest({k: v for k, v in content.items() if k != key})[:16] for key, value in content.items()):
        raise Damaged("the name of its checksum was changed")
    return content


def seal_line(record: dict[str, Any]) -> bytes:
    content = json.dumps(record).encode().removesuffix(b"}")
    return content + MARK + f'{zlib.crc32(content):08x}"}}\n'.encode()


def open_line(line: bytes) -> dict[str, Any]:
    """The record in a line that has its end."""
    content, mark, checksum = line.rpartition(MARK)
    if mark and checksum != f'{zlib.crc32(content):08x}"}}\n'.encode():
        raise Damaged("a line does not match its checksum")
    record = _object(content + b"}" if mark else line)
    if not isinstance(record.get("step"), int):
        raise Damaged("a line holds no step")
    last = next(reversed(record.values()))
    if not mark and isinstance(last, str) and re.fullmatch("[0-9a-f]{8}", last):
        raise Damaged("the name of its checksum was changed")
    return record


def _object(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged("it is not JSON") from None
    if not isinstance(content, dict):
        raise Damaged("it is not an object")
    return content
