"""Another process finds out where one hangs, whatever it hangs in."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recor_dist.core.stacks import examine, innermost

SOURCE = """
import os, sys, threading, time
from recor_dist.core.stacks import prepare

def watch():
    threading.Event().wait()

def deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # forever

def loop():
    while True: pass

def wait():
    time.sleep(600)

threading.Thread(target=watch, daemon=True).start()
print(os.getpid(), threading.get_native_id(), prepare(), flush=True)
globals()[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    ("how", "stop", "state", "line"),
    [
        ("deadlock", False, "sleeping", "    lock.acquire()  # forever"),
        ("loop", False, "running", "    while True: pass"),
        ("wait", True, "stopped by a signal", "    time.sleep(600)"),
    ],
)
def test_the_line_in_which_a_process_hangs_is_found(
    how: str, stop: bool, state: str, line: str, tmp_path: Path
) -> None:
    file = tmp_path / "hangs.py"
    file.write_text(SOURCE)
    process = subprocess.Popen([sys.executable, file, how], stdout=subprocess.PIPE, text=True)
    try:
        pid, thread, path = process.stdout.readline().split()
        time.sleep(0.5)
        if stop:
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
        report = examine(int(pid), int(thread), path)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    number = SOURCE.splitlines().index(line) + 1
    assert report.startswith(f"{state}, "), report
    assert f"in {how}, " in report and f"hangs.py:{number}\n" in report, report
    assert " in watch" not in report, "a thread that only waits for the end"
    assert examine(int(pid), int(thread), path) == "it is gone"


def test_the_innermost_line_of_our_code_is_the_one_below_the_standard_library() -> None:
    import threading

    thread = f'Thread 0x1:\n  File "{threading.__file__}", line 7 in wait\n  File "{os.getcwd()}/x/y.py", line 3 in f\n'
    assert innermost(thread).startswith("f, ") and innermost(thread).endswith("x/y.py:3")
    assert innermost("Thread 0x1:\n  <no Python frame>") == "no Python code"
