"""Processes are killed at random moments, over and over: the weights are those of an undisturbed run."""

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from recor_dist.core.config import Config
from recor_dist.engine.loop import train
from tests.cluster.conftest import Run, add_node, is_on, records

OVERRIDES = ["epochs=60", "checkpoint.every=50", "eval.every=100", "rollout_size=8"]
MODES = {"batches": ["lag=1", "actors.gradients=false"], "gradients": ["lag=0", "actors.gradients=true"]}


def living(run: Run, kind: str) -> list[int]:
    """Processes of this kind that have started according to the log, and were not lost."""
    who = {"learner": "learner", "actor": r"actor \d+", "hang": r"actor \d+", ".*": r"(?:learner|actor \d+)"}[kind]
    started = re.findall(rf"{who} \(pid (\d+) on \S+\) (?:joined|started)", run.log)
    lost = set(re.findall(rf"{who} \(pid (\d+) on \S+\) was lost", run.log))
    return [int(pid) for pid in started if pid not in lost]


@pytest.mark.slow  # minutes: a dozen processes die and are replaced one by one
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mode", MODES)
def test_ten_kills_a_lost_node_and_a_hung_actor_leave_no_trace_in_the_weights(
    mode: str,
    cluster: Callable[..., Cluster],
    run: Callable[..., Run],
    config_in: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overrides = [*OVERRIDES, *MODES[mode]]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole"))
    # Keeps batches and weights in the object store, where they are lost with their node, as larger ones are.
    monkeypatch.setenv("RAY_max_direct_call_object_size", "1000")
    made = cluster({"num_cpus": 4})
    doomed = add_node(made, num_cpus=2)
    chaos = run("engine=ray", "actors.count=4", "deadline.answer=6", *overrides, address=made.address)
    chaos.wait_for(r"actor \d+ \(.*\) joined", count=4)
    dice = random.Random(7)
    faults: list[tuple[str, int]] = []
    plan = ["actor"] * 7 + ["learner"] * 3 + ["node", "hang"]
    dice.shuffle(plan)
    for number, kind in enumerate(plan):
        # At a random moment after some progress, or all kills could fall into one start of a learner.
        chaos.wait_for_step(60 * (number + 1), seconds=180)
        time.sleep(dice.uniform(0.0, 1.0))
        if kind == "node":
            while not (on_it := [pid for pid in living(chaos, ".*") if is_on(doomed, pid)]):
                time.sleep(0.1)  # its processes are just being replaced
            made.remove_node(doomed, allow_graceful=False)
            for pid in on_it:
                chaos.wait_for(rf"\(pid {pid} on \S+\) was lost", seconds=60)
            faults += [("node", pid) for pid in on_it]
            add_node(made, num_cpus=2)
            continue
        pid = 0
        while not pid:
            time.sleep(0.05)
            for candidate in dice.sample(candidates := living(chaos, kind), len(candidates)):
                with contextlib.suppress(ProcessLookupError):  # gone with its node, which is not logged yet
                    os.kill(candidate, signal.SIGSTOP if kind == "hang" else signal.SIGKILL)
                    pid = candidate
                    break
        faults.append((kind, pid))
        if kind == "hang":
            chaos.wait_for(rf"pid {pid} on \S+\) was lost: no answer in 6 s", seconds=60)
    assert chaos.sha256(seconds=900) == whole["weights_sha256"]

    assert len([kind for kind, _ in faults if kind in ("actor", "learner")]) == 10
    assert "node" in dict(faults) and "hang" in dict(faults)
    for kind, pid in faults:
        assert re.search(rf"\(pid {pid} on \S+\) was lost", chaos.log), (
            f"the loss of {kind} {pid} is not logged:\n{chaos.log}"
        )
        assert not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text()
    starts = [int(step) for step in re.findall(r"a new one resumes from step (\d+)", chaos.log)]
    assert len(starts) >= 3
    assert all(start > 0 for start in starts), "never from zero"
    assert "reissuing Ticket" in chaos.log
    ours, theirs = (
        {(r["step"], r["loss/lm"]) for r in records(tmp_path / o) if "loss/lm" in r} for o in ("out", "whole")
    )
    assert ours == theirs, "every step is recorded with the metrics of the undisturbed run"
    assert len([r for r in records(tmp_path / "out") if "loss/lm" in r]) == whole["steps"]


@pytest.mark.slow  # 2,000 steps on Ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_memory_stays_flat_over_two_thousand_steps(
    mode: str, run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Weights and gradients of this model go through the object store.
    monkeypatch.setenv("RAY_max_direct_call_object_size", "100000")
    overrides = ["epochs=150", "model.width=48", "model.heads=4", "eval.every=100", "checkpoint.every=100"]
    started = run("engine=ray", "actors.count=2", *overrides, *MODES[mode])
    started.wait_for(r"actor \d+ \(.*\) joined", count=2)
    first = 300 + max((r["step"] for r in records(started.out)), default=0) // 100 * 100
    started.wait_for_step(first, seconds=240)
    pids = {"driver": started.process.pid}
    pids |= {f"{kind} {pid}": pid for kind in ("learner", "actor") for pid in living(started, kind)}
    processes = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in started.descendants()}
    pids |= {name: processes[name] for name in ("raylet", "gcs_server")}
    assert len(pids) == 6
    samples = []
    for step in range(first, first + 1701, 100):
        started.wait_for_step(step, seconds=120)
        sizes = {name: _memory(pid) for name, pid in pids.items()}
        samples.append(sizes | {"object store": _store(pids["raylet"])})
    started.sha256()
    assert samples[0]["object store"] > 100_000, "it holds the weights"
    for name in samples[0]:
        before, after = (max(sample[name] for sample in part) for part in (samples[:6], samples[-6:]))
        print(f"{name}: {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")
        assert after - before < 8e6, f"{name} grew from {before / 1e6:.1f} to {after / 1e6:.1f} MB over 1,000 steps"


def _memory(pid: int) -> int:
    """Bytes of private memory of a process; shared memory is counted below."""
    shown = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M))
    return int(shown["RssAnon"]) * 1024


def _store(raylet: int) -> int:
    """Bytes of the object store that were ever used: leaked objects keep theirs."""
    files = [file for file in Path(f"/proc/{raylet}/fd").iterdir() if "plasma" in os.readlink(file)]
    return sum({(status := file.stat()).st_ino: 512 * status.st_blocks for file in files}.values())
