"""A profile: one file that trace viewers open, shares that add up, and the same weights."""

import gzip
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recor_dist.core import tracing
from recor_dist.core.config import Config
from recor_dist.core.messages import Trace
from recor_dist.engine.loop import train
from recor_dist.engine.profile import STEPS, WARM_UP, chrome_trace, own_times, shifted, table

Configure = Callable[..., Config]


def test_a_profiled_run_has_the_same_weights_and_a_trace_of_ten_steps(
    config_in: Configure, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    with caplog.at_level(logging.INFO):
        result = train(config_in("profile=true"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert not (tmp_path / "whole/profile.json.gz").exists()
    trace = json.loads(gzip.decompress((tmp_path / "out/profile.json.gz").read_bytes()))
    spans = Counter(event["name"] for event in trace["traceEvents"] if event.get("cat") == tracing.SPAN)
    groups = 2
    assert spans["optimizer"] == STEPS
    assert spans["roll out"] == spans["forward"] == spans["backward"] == STEPS * groups
    assert any(event["name"].startswith("aten::") for event in trace["traceEvents"])
    assert_nested([event for event in trace["traceEvents"] if event["ph"] == "X"])
    assert "profiler" not in capfd.readouterr().err, "nothing of torch's own"
    (said,) = [message for message in caplog.messages if "shows ten steps" in message]
    assert said.startswith(f"{tmp_path}/out/profile.json.gz shows ten steps")
    shares = {line.split("%")[0].rsplit(maxsplit=1)[0].strip() for line in said.splitlines()[2:]}
    assert {"roll out", "forward", "backward", "optimizer", "waiting, and anything else"} <= shares


def test_a_run_that_ends_within_its_profile_says_so_and_records_no_longer(
    config_in: Configure, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = train(config_in("profile=true", "epochs=0.5"))
    assert WARM_UP < result["steps"] < WARM_UP + STEPS
    assert "no profile: the run ended before the profile was complete" in caplog.messages
    assert not (tmp_path / "out/profile.json.gz").exists()
    assert not tracing.running()


def assert_nested(events: list[dict]) -> None:
    """Viewers require that each event of a thread lies inside or beside every other one."""
    open_until: dict[int, list[int]] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        ends, begin, end = open_until.setdefault(event["tid"], []), *whole_nanoseconds(event)
        while ends and ends[-1] <= begin:
            ends.pop()
        assert not ends or end <= ends[-1], event
        ends.append(end)


def whole_nanoseconds(event: dict) -> tuple[int, int]:
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)


def test_a_span_is_recorded_only_while_a_profile_is_made() -> None:
    with tracing.span("before"):
        pass
    tracing.start()
    with tracing.span("during"):
        torch.add(torch.ones(3), 1)
    trace = tracing.stop()
    assert not tracing.running()
    (span,) = [event for event in trace.events if event["cat"] == tracing.SPAN]
    assert span["name"] == "during"
    assert abs(span["ts"] / 1e9 - trace.began) < 60, "on the clock of time.time()"
    assert span["dur"] <= trace.seconds * 1e9
    assert {"aten::ones", "aten::add"} <= {event["name"] for event in trace.events}


def made_up(name: str, ts: int, dur: int, cat: str = "cpu_op", tid: int = 1) -> dict:
    return {"name": name, "cat": cat, "tid": tid, "ts": ts, "dur": dur}


def test_processes_share_one_clock_that_starts_with_the_first() -> None:
    driver = Trace(100.0, 1.0, (made_up("wait", 100_200_000_000, 5000, tracing.SPAN),))
    ahead = Trace(107.5, 1.0, (made_up("aten::mm", 107_700_000_000, 5000),))
    trace = json.loads(gzip.decompress(chrome_trace({"driver": driver, "actor 1": shifted(ahead, -7.5)})))
    named = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert [(named[e["pid"]], e["name"], e["ts"]) for e in trace["traceEvents"] if e["ph"] == "X"] == [
        ("driver", "wait", 200_000.0),
        ("actor 1", "aten::mm", 200_000.0),
    ]


def test_the_table_has_the_share_of_each_span_and_the_operators_own_time() -> None:
    events = (
        made_up("forward", 0, 600_000_000, tracing.SPAN),
        made_up("forward", 700_000_000, 200_000_000, tracing.SPAN),
        made_up("aten::linear", 0, 500_000_000),
        made_up("aten::mm", 100_000_000, 300_000_000),
    )
    lines = [line.split() for line in table({"driver": Trace(0.0, 1.0, events)}).splitlines()]
    assert lines == [
        ["driver:", "1.00", "s"],
        ["forward", "80.0%"],
        ["waiting,", "and", "anything", "else", "20.0%"],
        ["aten::mm", "30.0%"],
        ["aten::linear", "20.0%"],
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=12))
def test_own_times_are_those_of_every_microsecond(spans: list[tuple[int, int]]) -> None:
    """The slow way: whose is each microsecond? That of the innermost operator."""
    nested: list[tuple[int, int]] = []
    for begin, length in spans:  # operators of a thread lie inside or beside each other
        end = begin + length
        if all(end <= b or e <= begin or b <= begin < end <= e or begin <= b < e <= end for b, e in nested):
            nested.append((begin, end))
    nested = sorted(set(nested), key=lambda s: (s[0], -s[1]))
    events = [made_up(str(index), begin, end - begin) for index, (begin, end) in enumerate(nested)]
    expected = Counter[str]({event["name"]: 0 for event in events})
    for moment in range(61):
        inside = [index for index, (begin, end) in enumerate(nested) if begin <= moment < end]
        expected.update([str(inside[-1])] if inside else [])
    assert {name: round(own * 1e9) for name, own in own_times(events).items()} == dict(expected)
