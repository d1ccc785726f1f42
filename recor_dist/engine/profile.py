"""A profile: a trace of its processes on one clock, and a table of where their time goes."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from recor_dist.core import tracing
from recor_dist.core.messages import Trace

WARM_UP = 5  # steps before the profile: the first ones allocate memory
STEPS = 10
INCOMPLETE = "no profile: the run ended before the profile was complete"
OPERATORS = 5  # per process in the table
NANO = 1e9


def shifted(trace: Trace, seconds: float) -> Trace:
    events = tuple({**event, "ts": event["ts"] + round(seconds * NANO)} for event in trace.events)
    return replace(trace, began=trace.began + seconds, events=events)


def chrome_trace(traces: Mapping[str, Trace]) -> bytes:
    """One compressed file for ui.perfetto.dev or chrome://tracing, with a row of tracks for each process."""
    zero = round(min(trace.began for trace in traces.values()) * NANO)
    events: list[dict[str, Any]] = []
    for pid, (name, trace) in enumerate(traces.items(), start=1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})
        for event in trace.events:
            events.append(
                {**event, "ph": "X", "pid": pid, "ts": (event["ts"] - zero) / 1000, "dur": event["dur"] / 1000}
            )
    return gzip.compress(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode(), compresslevel=6)


def table(traces: Mapping[str, Trace]) -> str:
    """What each process did, as shares of its time: first the spans, then the operators with the most time of their
    own."""
    lines = []
    for name, trace in traces.items():
        spans = Counter[str]()
        for event in trace.events:
            if event["cat"] == tracing.SPAN:
                spans[event["name"]] += event["dur"] / NANO
        lines.append(f"{name}: {trace.seconds:.2f} s")
        lines += _shares(spans.most_common(), trace.seconds)
        lines += _shares([("waiting, and anything else", max(0.0, trace.seconds - spans.total()))], trace.seconds)
        lines += _shares(Counter(own_times(trace.events)).most_common(OPERATORS), trace.seconds, indent=4)
    return "\n".join(lines)


def _shares(seconds: Iterable[tuple[str, float]], of: float, indent: int = 2) -> Iterator[str]:
    for name, part in seconds:
        yield f"{' ' * indent}{name:<{60 - indent}} {part / of:6.1%}"


def own_times(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds that each operator took itself, without the operators that it called."""
    own: dict[str, float] = {}
    by_thread: dict[Any, list[Mapping[str, Any]]] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if event["cat"] == tracing.SPAN:
            continue
        callers = by_thread.setdefault(event["tid"], [])
        while callers and callers[-1]["ts"] + callers[-1]["dur"] <= event["ts"]:
            callers.pop()
        if callers:
            own[callers[-1]["name"]] -= event["dur"] / NANO
        own[event["name"]] = own.get(event["name"], 0.0) + event["dur"] / NANO
        callers.append(event)
    return own
