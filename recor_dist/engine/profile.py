"""A profile of ten steps: a trace of driver, learner and one actor on one clock, and a table of where time goes."""

import gzip
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import ray

from recor_dist.core import tracing
from recor_dist.core.messages import Trace
from recor_dist.engine.crew import Crew, Member

log = logging.getLogger(__name__)
WARM_UP = 5  # steps before the profile: the first ones allocate memory
STEPS = 10
PINGS = 5  # to compare two clocks
OPERATORS = 5  # per process in the table
NANO = 1e9


# --- making it -------------------------------------------------------------------------------------------------------


class Profiling:
    """Profiles the processes of a run on Ray. Promises to change no result: it only asks processes to record."""

    def __init__(self, crew: Crew, step: int, patience: float) -> None:
        self.crew, self.patience = crew, patience
        self.until = step + WARM_UP  # the step at which it begins, then the one at which it ends
        self.members: list[Member] = []  # that are recording

    def begin(self, actor: str, step: int) -> None:
        self.members = [self.crew.learner, self.crew.member(actor)]
        self.until = step + STEPS
        ray.get([member.handle.start_profile.remote() for member in self.members], timeout=self.patience)
        tracing.start()

    def end(self) -> dict[str, Trace]:
        """The traces, by process, on the driver's clock."""
        traces = {"driver": tracing.stop()}
        asked = [member.handle.stop_profile.remote() for member in self.members]
        for member, trace in zip(self.members, ray.get(asked, timeout=self.patience), strict=True):
            assert member.hello is not None
            ahead = 0.0 if member.hello.node == self.crew.node else self._ahead(member)
            traces[str(member)] = shifted(trace, -ahead)
        return traces

    def abandon(self) -> None:
        """Ends the recording, wherever it goes on."""
        for member in self.members:
            member.handle.stop_profile.remote()
        self.members = []
        if tracing.running():
            tracing.stop()

    def _ahead(self, member: Member) -> float:
        """Seconds by which the clock of another machine is ahead of ours, from the fastest of a few answers."""
        found = []
        for _ in range(PINGS):
            began = time.time()
            asked: ray.ObjectRef[float] = member.handle.clock.remote()
            there = ray.get(asked, timeout=self.patience)
            took = time.time() - began
            found.append((took, there - (began + took / 2)))
        return min(found)[1]


def shifted(trace: Trace, seconds: float) -> Trace:
    events = tuple({**event, "ts": event["ts"] + round(seconds * NANO)} for event in trace.events)
    return replace(trace, began=trace.began + seconds, events=events)


# --- showing it ------------------------------------------------------------------------------------------------------


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
