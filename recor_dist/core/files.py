"""Files in a folder that may be anywhere pyarrow can reach: this disk, s3://, gs://."""

import errno
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyarrow import fs

from recor_dist.core.config import Mistake

log = logging.getLogger(__name__)
LOCK = ".lock"
BEAT = 5.0  # seconds between the signs of life of whoever holds the lock of an object store
SILENCE = 4  # beats without a sign after which it is taken for dead


def join(uri: str, *parts: str) -> str:
    """What lies below a folder; options that a URI may carry (`?endpoint_override=...`) stay at its end."""
    place, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return "/".join([place.rstrip("/"), *parts]) + mark + options


def split_name(uri: str) -> tuple[str, str]:
    """The folder that a file or folder lies in, and its name there."""
    place, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    parent, _, name = place.rstrip("/").rpartition("/")
    return (parent or ("/" if uri.startswith("/") else ".")) + mark + options, name


def is_relative(uri: str) -> bool:
    """Whether it means another place wherever one stands."""
    return "://" not in uri and not os.path.isabs(os.path.expanduser(uri))


def open_folder(uri: str, *, create: bool = False) -> fs.SubTreeFileSystem:
    """A file system whose root is this folder."""
    try:
        if "://" in uri:
            filesystem, path = fs.FileSystem.from_uri(uri)
        else:
            filesystem, path = fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
        if filesystem.get_file_info(path).type == fs.FileType.File:
            raise Mistake(f"{uri}: is a file, and a folder is wanted")
        if create:
            filesystem.create_dir(path, recursive=True)
    except Mistake:
        raise
    except (OSError, ValueError) as error:
        raise Mistake(f"{uri}: cannot be used as a folder ({str(error).splitlines()[0]})") from None
    return fs.SubTreeFileSystem(path, filesystem)


def write_atomically(folder: fs.SubTreeFileSystem, name: str, content: bytes) -> None:
    """Writes a file so that its name only ever stands for complete content."""
    local = isinstance(folder.base_fs, fs.LocalFileSystem)
    # Object stores show a file when its upload is complete; on a disk the rename does that.
    written = f"{name}.partial" if local else name
    try:
        with folder.open_output_stream(written) as stream:
            stream.write(content)
        if local:
            _to_disk(folder, written)
            folder.move(written, name)
            _to_disk(folder, os.path.dirname(name))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        place = folder.base_path.rstrip("/")
        raise Mistake(f"{place}: the disk is full; make room, and the same command goes on from there") from None


def _to_disk(folder: fs.SubTreeFileSystem, name: str) -> None:
    """Asks the operating system to keep a file, or a folder's list of names, through a power cut."""
    descriptor = os.open(os.path.join(folder.base_path, name), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(folder: fs.SubTreeFileSystem, name: str, content: Any) -> None:
    write_atomically(folder, name, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def read_bytes(folder: fs.SubTreeFileSystem, name: str) -> bytes:
    with folder.open_input_file(name) as stream:
        return stream.read()


def read_json(folder: fs.SubTreeFileSystem, name: str) -> Any:
    return json.loads(read_bytes(folder, name))


def exists(folder: fs.SubTreeFileSystem, name: str) -> bool:
    return folder.get_file_info(name).type != fs.FileType.NotFound


@contextmanager
def exclusive(folder: fs.SubTreeFileSystem, doing: str, *, wait: bool = False) -> Iterator[None]:
    """Keeps a second process out of a folder: on a disk one of this machine, in an object store one of any machine.
    Whoever was killed lets go: on a disk at once, in an object store after some beats of silence."""
    keep_out = _lock_file if isinstance(folder.base_fs, fs.LocalFileSystem) else _lock_object
    with keep_out(folder, doing, wait):
        yield


@contextmanager
def _lock_file(folder: fs.SubTreeFileSystem, doing: str, wait: bool) -> Iterator[None]:
    with open(os.path.join(folder.base_path, LOCK), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            place = folder.base_path.rstrip("/")
            if not wait:
                raise Mistake(f"{place}: another process is {doing} there; wait for it, or stop it") from None
            log.info("waiting: another process is %s in %s", doing, place)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _lock_object(folder: fs.SubTreeFileSystem, doing: str, wait: bool) -> Iterator[None]:
    """Object stores have no locks. The holder changes an object with every beat; who finds one watches it for a while,
    by its own clock alone. Two that start in the same moment both write, and the later one stays."""
    me = {"host": socket.gethostname(), "pid": os.getpid(), "key": secrets.token_hex(8)}
    while True:
        _wait_for_silence(folder, doing, wait)
        write_json(folder, LOCK, {**me, "beat": 0})
        time.sleep(BEAT / 5)
        if _holder(folder).get("key") == me["key"]:
            break
    released = threading.Event()
    beating = threading.Thread(target=_beat, args=(folder, me, doing, released), daemon=True)
    beating.start()
    try:
        yield
    finally:
        released.set()
        beating.join()
        with suppress(OSError):  # then others have to wait for the silence
            if _holder(folder).get("key") == me["key"]:
                folder.delete_file(LOCK)


def _holder(folder: fs.SubTreeFileSystem) -> dict[str, Any]:
    """Who holds the lock; nothing if nobody does."""
    for tries in (2, 1, 0):
        try:
            return read_json(folder, LOCK)
        except FileNotFoundError:
            break
        except (OSError, ValueError):  # it changed between the look at its size and its reading
            if not tries:
                raise
    return {}


def _wait_for_silence(folder: fs.SubTreeFileSystem, doing: str, wait: bool) -> None:
    """Returns when nobody holds the lock any more; raises Mistake when somebody gives a sign of life, unless told to
    wait for its end."""
    place, seen, since = folder.base_path.rstrip("/"), _holder(folder), time.monotonic()
    if seen:
        log.info("waiting: %s was left locked by pid %s on %s; does it live?", place, seen["pid"], seen["host"])
    while seen and time.monotonic() - since < SILENCE * BEAT:
        time.sleep(BEAT / 5)
        found = _holder(folder)
        if found and found != seen:
            if not wait:
                who = f"pid {found['pid']} on {found['host']}"
                raise Mistake(f"{place}: another process is {doing} there ({who}); wait for it, or stop it")
            since = time.monotonic()
        seen = found


def _beat(folder: fs.SubTreeFileSystem, me: dict[str, Any], doing: str, released: threading.Event) -> None:
    beat = 0
    while not released.wait(BEAT):
        beat += 1
        try:
            holder = _holder(folder)
            if holder and holder["key"] != me["key"]:  # it took us for dead: this machine slept
                log.error("pid %s on %s is %s here now: stopping", holder["pid"], holder["host"], doing)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            write_json(folder, LOCK, {**me, "beat": beat})
        except (OSError, ValueError) as error:  # the next beat may get through
            log.warning("%s: no sign of life could be left (%s)", folder.base_path, str(error).splitlines()[0])
