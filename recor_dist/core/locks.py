"""One process at a time in a folder, on a disk or in an object store.

On a disk the lock is the operating system's, and keeps out other processes on the same machine. Object stores have no
locks: the holder rewrites an object every few seconds, and a process that finds this object waits to see if it changes.
"""

import fcntl
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

from recor_dist.core.files import is_local, read_json, write_json
from recor_dist.core.setting import Mistake

log = logging.getLogger(__name__)
LOCK = ".lock"
BEAT = 5.0  # seconds between two heartbeats of the holder, in an object store
SILENCE = 4  # beats without a heartbeat after which the holder counts as dead


@contextmanager
def exclusive(
    folder: fs.SubTreeFileSystem, doing: str, *, wait: bool = False, name: str = LOCK, disk_only: bool = False
) -> Iterator[None]:
    """Keeps a second process out of a folder: on a disk, one on this machine; in an object store, one on any machine.

    A second process gets a Mistake that says what the first is `doing`, or waits with `wait`. A killed holder releases
    the lock: on a disk at once, in an object store after SILENCE beats. `disk_only` takes no lock in an object store.
    """
    if is_local(folder):
        with _lock_file(folder, name, doing, wait):
            yield
    elif disk_only:
        yield
    else:
        with _lock_object(folder, name, doing, wait):
            yield


@contextmanager
def _lock_file(folder: fs.SubTreeFileSystem, name: str, doing: str, wait: bool) -> Iterator[None]:
    with open(os.path.join(folder.base_path, name), "w") as lock:
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
def _lock_object(folder: fs.SubTreeFileSystem, name: str, doing: str, wait: bool) -> Iterator[None]:
    """The holder rewrites an object with every beat; others watch it for a while and trust only their own clock. If two
    processes start at the same moment, both write, and the later one gets the lock."""
    me = {"host": socket.gethostname(), "pid": os.getpid(), "key": secrets.token_hex(8)}
    while True:
        _wait_for_silence(folder, name, doing, wait)
        write_json(folder, name, {**me, "beat": 0})
        time.sleep(BEAT / 5)
        if _holder(folder, name).get("key") == me["key"]:
            break
    released = threading.Event()
    beating = threading.Thread(target=_beat, args=(folder, name, me, doing, released), daemon=True)
    beating.start()
    try:
        yield
    finally:
        released.set()
        beating.join()
        with suppress(OSError):  # if this fails, others wait for the silence
            if _holder(folder, name).get("key") == me["key"]:
                folder.delete_file(name)


def _holder(folder: fs.SubTreeFileSystem, name: str) -> dict[str, Any]:
    """The content of the lock; empty if nobody holds it."""
    for tries in (2, 1, 0):
        try:
            return read_json(folder, name)
        except FileNotFoundError:
            break
        except (OSError, ValueError):  # it changed between asking for its size and reading it
            if not tries:
                raise
    return {}


def _wait_for_silence(folder: fs.SubTreeFileSystem, name: str, doing: str, wait: bool) -> None:
    """Returns when nobody holds the lock. Raises Mistake when the holder shows a heartbeat, unless told to wait."""
    place, seen, since = folder.base_path.rstrip("/"), _holder(folder, name), time.monotonic()
    if seen:
        log.info("waiting: %s is locked by pid %s on %s; checking if it is alive", place, seen["pid"], seen["host"])
    while seen and time.monotonic() - since < SILENCE * BEAT:
        time.sleep(BEAT / 5)
        found = _holder(folder, name)
        if found and found != seen:
            if not wait:
                who = f"pid {found['pid']} on {found['host']}"
                raise Mistake(f"{place}: another process is {doing} there ({who}); wait for it, or stop it")
            since = time.monotonic()
        seen = found


def _beat(folder: fs.SubTreeFileSystem, name: str, me: dict[str, Any], doing: str, released: threading.Event) -> None:
    beat = 0
    while not released.wait(BEAT):
        beat += 1
        try:
            holder = _holder(folder, name)
            if holder and holder["key"] != me["key"]:  # it took us for dead, because this machine slept
                log.error("pid %s on %s is %s here now: stopping", holder["pid"], holder["host"], doing)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            write_json(folder, name, {**me, "beat": beat})
        except (OSError, ValueError) as error:  # the next beat may succeed
            log.warning("%s: could not write a heartbeat (%s)", folder.base_path, str(error).splitlines()[0])
