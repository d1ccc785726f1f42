"""What a run on Ray shows when it is asked to: a profile of its processes, and metrics for Prometheus."""

import gzip
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import ray

from recor_dist.core import tracing
from recor_dist.core.config import Config
from recor_dist.engine import prometheus
from recor_dist.engine.loop import train
from recor_dist.engine.profile import STEPS
from recor_dist.engine.profiling import Profiling
from recor_dist.engine.prometheus import COUNTERS, GAUGES
from tests.cluster.test_leading import wait_for_actors

Configure = Callable[..., Config]
RAY = ["engine=ray", "device=cpu", "precision=float32", "epochs=4"]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    """Ray that sends its metrics more often."""
    ray.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_metrics_report_interval_ms", "500")
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


# With batches it is slow because it is another run on Ray.
@pytest.mark.parametrize(
    "gradients", [pytest.param("false", marks=pytest.mark.slow), "true"], ids=["batches", "gradients"]
)
def test_a_profile_shows_driver_learner_and_an_actor_and_changes_no_bit(
    gradients: str, config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole", "epochs=4"))
    wait_for_actors(monkeypatch, 1)
    result = train(config_in(*RAY, "actors.count=1", f"actors.gradients={gradients}", "profile=true"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    events = json.loads(gzip.decompress((tmp_path / "out/profile.json.gz").read_bytes()))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [re.sub(r"\d+ on .*", "", name) for name in names.values()] == ["driver", "learner (pid ", "actor 1 (pid "]
    spans = {who: [e for e in events if e.get("cat") == tracing.SPAN and e["pid"] == pid] for pid, who in names.items()}
    driver, learner, actor = spans.values()
    assert sum(span["name"] == "optimizer" for span in learner) >= (STEPS if gradients == "true" else STEPS - 2)
    assert any(span["name"] == "roll out" for span in actor)
    assert any(span["name"] == "wait for answers" for span in driver)
    # On one clock: the learner's work lies in the time that the driver was recording.
    first, last = min(s["ts"] for s in driver), max(s["ts"] + s["dur"] for s in driver)
    inside = [span for span in learner if first <= span["ts"] and span["ts"] + span["dur"] <= last]
    assert len(inside) >= len(learner) / 2


@pytest.mark.slow  # another run on Ray, which waits for a deadline
def test_an_actor_that_hangs_when_a_profile_begins_costs_the_profile_and_no_other_process(
    config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole", "epochs=4", "lag=2"))
    begin = Profiling.begin
    hanging: list[str] = []

    def begin_late(self: Profiling, actor: str, step: int) -> None:
        """After all deadlines, with an actor that does not answer. With a lag, others have tickets then."""
        assert self.patience == 1.5, "a quarter of the deadline"
        hello = self.crew.member(actor).hello
        assert hello is not None
        hanging.append(str(self.crew.member(actor)))
        os.kill(hello.pid, signal.SIGSTOP)
        time.sleep(7)
        begin(self, actor, step)

    monkeypatch.setattr(Profiling, "begin", begin_late)
    wait_for_actors(monkeypatch, 2)
    settings = ["lag=2", "actors.count=2", "actors.gradients=false", "deadline.answer=6", "profile=true"]
    result = train(config_in(*RAY, *settings))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert "no profile: no answer in 1.5 s" in caplog.messages
    lost = [message.split(" was lost")[0] for message in caplog.messages if " was lost" in message]
    assert lost == hanging
    assert not tracing.running()


@pytest.mark.slow  # waits for Ray to send the metrics
def test_prometheus_gets_the_metrics_of_a_run(
    config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "PERIOD", 0.0)
    result = train(config_in(*RAY, "epochs=20", "actors.count=1", "actors.gradients=false", "eval.every=0"))
    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    wanted = [f"ray_{name}_total" for name in COUNTERS if "reissued" not in name] + [f"ray_{name}" for name in GAUGES]
    deadline = time.monotonic() + 60
    while True:
        with urlopen(address, timeout=10) as page:
            text = page.read().decode()
        lines = [line for line in text.splitlines() if 'run="out"' in line]
        found = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
        if set(wanted) <= set(found):
            break
        assert time.monotonic() < deadline, f"{set(wanted) - set(found)} missing in:\n" + "\n".join(lines)
        time.sleep(0.5)
    print(*lines, sep="\n")
    assert 0 < found["ray_recor_dist_steps_total"] <= result["steps"]
    assert found["ray_recor_dist_bytes_moved_total"] > 0
    assert found["ray_recor_dist_examples_per_second"] >= 0
    assert 0 <= found["ray_recor_dist_learner_starved"] <= 1
