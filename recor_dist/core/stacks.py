"""Where a process is that no longer answers: its Python stacks, taken from outside it.

A process prepares once. From then on, a signal makes the interpreter itself write the stacks of all threads, even if
one of them never gives up the interpreter's lock. Unlike a debugger, this needs no rights beyond those of the process's
own user. A stopped process is continued for the moment that this takes.
"""

import ctypes
import faulthandler
import os
import re
import signal
import sys
import sysconfig
import time

import psutil

SIGNAL = signal.SIGUSR1
NAME = "recor_dist-stacks"
PATIENCE = 2.0  # seconds for the stacks to be written
_PREPARED: list[str] = []  # once per process
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or the network",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
}
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.M)
FOREIGN = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def prepare() -> str:
    """Has this process write its stacks when it gets the signal; returns the path at which others find them."""
    if not _PREPARED:
        descriptor = os.memfd_create(NAME)  # in memory, so nothing is left behind
        faulthandler.register(SIGNAL, descriptor, all_threads=True)
        _PREPARED.append(f"/proc/{os.getpid()}/fd/{descriptor}")
    return _PREPARED[0]


def examine(pid: int, thread: int, path: str) -> str:
    """What a process on this machine does: its state, memory, and the line of our code that it is in, then the stacks
    of its threads that run our code, innermost frame first. `thread`: the one that computes; `path`: what `prepare`
    returned there."""
    try:
        if NAME not in os.readlink(path):
            return "it is gone"
        state, memory = _state(pid), psutil.Process(pid).memory_info().rss
        stacks = _stacks(pid, thread, path, stopped=state == "T")
    except (OSError, psutil.Error):
        return "it is gone"
    full = psutil.virtual_memory().percent
    about = f"{STATES.get(state, state)}, {memory / 1e6:,.0f} MB, its machine's memory {full:.0f}% full"
    ours = [thread for thread in stacks if _is_ours(thread)] or stacks[:1]
    if not ours:
        return f"{about}; it wrote no stacks within {PATIENCE:g} s"
    return "\n".join([f"{about}; in {innermost(ours[0])}", *ours])


def innermost(thread: str) -> str:
    """The innermost line of our code in the stack of a thread, such as `roll_out, actors/worker.py:52`."""
    frames = list(FRAME.finditer(thread))
    frame = next((f for f in frames if not f["file"].startswith(FOREIGN)), frames[0] if frames else None)
    if frame is None:
        return "no Python code"
    return f"{frame['function']}, {_short(frame['file'])}:{frame['line']}"


def _short(file: str) -> str:
    """The path below the folder from which its package is imported."""
    roots = [f"{root}/" for root in sys.path if root and file.startswith(f"{root}/")]
    return file.removeprefix(max(roots, key=len, default=""))


def _is_ours(thread: str) -> bool:
    """True if a thread runs our code, and does not just wait for the process to end."""
    frames = [frame for frame in FRAME.finditer(thread) if not frame["file"].startswith(FOREIGN)]
    return bool(frames) and frames[0]["function"] != "watch"


def _state(pid: int) -> str:
    """The letter of /proc: running if any thread is."""
    states = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            states.add(file.read().rpartition(") ")[2][0])
    return next((letter for letter in "TtRD" if letter in states), "S")


def _stacks(pid: int, thread: int, path: str, *, stopped: bool) -> list[str]:
    """The stack of each thread. The signal goes to the thread that computes: when a stopped process continues, each
    thread receives its own signals first, so this one is still where it was stopped."""
    with open(path) as file:
        file.seek(0, os.SEEK_END)
        ctypes.CDLL(None).tgkill(pid, thread, SIGNAL)
        os.kill(pid, signal.SIGCONT)  # nothing to a process that is not stopped
        text, deadline = "", time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            time.sleep(0.1)
            more = file.read()
            if text and not more:
                break
            text += more
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    return [thread for thread in text.strip().split("\n\n") if thread]
