"""Reads untrusted pickles of plain containers, numbers, strings and integer arrays, and refuses all others.

A pickle is a program that may call anything it names. Here it can name only the few functions and classes with which
NumPy writes an array, and even those are replaced by our own harmless classes, because NumPy's trust their input.
"""

import io
import math
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

DEEPEST = 8  # nested lists; a table has two


class RefusedPickle(ValueError):
    """Why a pickle was not read."""


class _Dtype:
    """Replaces numpy.dtype: integers only."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
            raise RefusedPickle(f"it holds an array of {code!r}; only integers are read")
        self.code, self.byte_order = code, "<"

    def __setstate__(self, state: Any) -> None:
        self.byte_order = ">" if isinstance(state, tuple) and len(state) > 1 and state[1] == ">" else "<"

    def read(self, content: Any) -> np.ndarray:
        if not isinstance(content, bytes):
            raise RefusedPickle("it holds an array without content")
        return np.frombuffer(content, dtype=np.dtype(self.byte_order + self.code))


class _Array:
    """Replaces numpy.ndarray and the functions that create arrays and scalars."""

    def __init__(self, *_: Any) -> None:
        self.values = np.empty(0, dtype=np.int64)

    def __setstate__(self, state: Any) -> None:
        match state:
            case (_, tuple() as shape, _Dtype() as dtype, bool() as fortran, content):
                self.values = _shaped(dtype.read(content), shape, fortran)
            case _:
                raise RefusedPickle("it holds an array that NumPy would not write")


class _FromBuffer(_Array):
    def __init__(self, content: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray):
            raise RefusedPickle("it holds an array that NumPy would not write")
        self.values = _shaped(dtype.read(bytes(content)), shape, order == "F")


class _Scalar(_Array):
    def __init__(self, dtype: Any, content: Any) -> None:
        if not isinstance(dtype, _Dtype):
            raise RefusedPickle("it holds a number of an unknown type")
        self.values = _shaped(dtype.read(content), (), False)


class _Encode:
    """Replaces the function with which older pickles write bytes; returns bytes."""

    def __new__(cls, text: Any, encoding: Any = None) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise RefusedPickle("it encodes something that is not text")
        return text.encode("latin1")

    def __setstate__(self, _: Any) -> None:
        raise RefusedPickle("it sets the state of bytes")


def _shaped(values: np.ndarray, shape: Any, fortran: bool) -> np.ndarray:
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise RefusedPickle("it holds an array with an invalid shape")
    if math.prod(shape) != len(values):
        raise RefusedPickle("it holds an array whose shape does not match its content")
    return values.reshape(shape, order="F" if fortran else "C")


_WORDS = {("numpy", "dtype"): _Dtype, ("numpy", "ndarray"): _Array, ("_codecs", "encode"): _Encode}
for _core in ("numpy.core", "numpy._core"):  # before NumPy 2, and since
    _WORDS[f"{_core}.multiarray", "_reconstruct"] = _Array
    _WORDS[f"{_core}.multiarray", "scalar"] = _Scalar
    _WORDS[f"{_core}.numeric", "_frombuffer"] = _FromBuffer


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _WORDS:
            raise RefusedPickle(f"it names {module}.{name}; only containers, numbers, strings and arrays are read")
        return _WORDS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedPickle("it refers to something outside it; only containers, numbers, strings and arrays are read")


def load(content: bytes) -> Any:
    """The content of a pickle, with NumPy's arrays and scalars as objects with `values`. RefusedPickle if not plain."""
    try:
        with _memory_in_proportion(len(content)):
            return _Unpickler(io.BytesIO(content)).load()
    except RefusedPickle:
        raise
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, MemoryError,
        OverflowError, RecursionError, ImportError,
    ) as error:  # fmt: skip
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise RefusedPickle(f"it is damaged or truncated ({why})") from None


@contextmanager
def _memory_in_proportion(size: int) -> Iterator[None]:
    """Lets this process use only so much more memory, because nine bytes can make it ask for 32 GB. On Linux;
    elsewhere memory is not limited."""
    usage = Path("/proc/self/statm")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if not usage.exists():
        yield
        return
    used = int(usage.read_text().split()[0]) * resource.getpagesize()
    limit = used + 2**29 + 128 * size  # an empty list is 2 bytes there, and 80 here
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft < 0 else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def plain(value: Any, deepest: int = DEEPEST) -> Any:
    """A value with its arrays and scalars as lists and ints. RefusedPickle if it is nested too deeply, for example in
    a list that contains itself."""
    if isinstance(value, _Array):
        return value.values.tolist()
    if isinstance(value, list | tuple):
        if not deepest:
            raise RefusedPickle(f"nests lists more than {DEEPEST} deep; does one contain itself?")
        return [plain(item, deepest - 1) for item in value]
    return value
