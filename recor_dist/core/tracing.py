"""Where time goes in a process: torch's operators and spans of our own, while a profile is made."""

import json
import os
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from recor_dist.core.messages import Trace

SPAN = "user_annotation"  # torch's category for `span`
_NOTHING = nullcontext()
_profiles: list[tuple[profile, float]] = []  # the one that is being made, and since when


def span(name: str) -> AbstractContextManager[Any]:
    """Marks what a block does. Costs nothing unless a profile is made. Spans of a process do not overlap, so that their
    shares of the time add up."""
    return record_function(name) if _profiles else _NOTHING


def start() -> None:
    """Starts the profile of the calling thread."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler prints lines among those of our log
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    made = profile(activities=activities)
    made.start()
    _profiles.append((made, time.time()))


def stop() -> Trace:
    """Ends the profile; to be called in the thread that started it."""
    made, began = _profiles.pop()
    seconds = time.time() - began
    made.stop()
    with tempfile.TemporaryDirectory() as folder:
        made.export_chrome_trace(os.path.join(folder, "trace.json"))
        with open(os.path.join(folder, "trace.json")) as file:
            trace = json.load(file)
    zero = trace.get("baseTimeNanoseconds", 0)
    complete = [event for event in trace["traceEvents"] if event.get("ph") == "X" and not _is_torchs_own(event)]
    return Trace(began, seconds, tuple(_event(event, zero) for event in complete))


def _event(event: dict[str, Any], zero: int) -> dict[str, Any]:
    """An event of torch's trace, whose microseconds have three decimals."""
    times = {"ts": zero + round(event["ts"] * 1000), "dur": round(event["dur"] * 1000)}
    return {"name": event["name"], "cat": event["cat"], "tid": event["tid"], **times}


def _is_torchs_own(event: dict[str, Any]) -> bool:
    """Spans that torch adds: of the whole profile, and of an optimizer's step."""
    return event.get("cat") == "Trace" or event["name"].startswith("Optimizer.")


def running() -> bool:
    return bool(_profiles)
