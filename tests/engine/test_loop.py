"""The promise: a run is a pure function of its configuration, whether it is killed and resumed or undisturbed."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.worker import Worker
from data.prepare import open_data
from data.tasks import task_of
from learner.learner import Learner, initial_state
from recor_dist.core.config import Config, total_steps
from recor_dist.core.messages import Ticket
from recor_dist.core.setting import Mistake
from recor_dist.engine import loop
from recor_dist.engine.events import Evaluated, Event
from recor_dist.engine.local_engine import LocalEngine
from recor_dist.engine.loop import Stopped, train
from recor_dist.engine.observer import Observer
from recor_dist.methods import lay_out
from recor_dist.model.decoding import generate
from recor_dist.record import identity
from recor_dist.record.checkpoint import load_model
from tests.conftest import decided, edit

Configure = Callable[..., Config]


def test_the_loop_without_ray_does_not_wait_for_its_import() -> None:
    code = "import sys, recor_dist.engine.loop; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_event_of_an_engine_is_a_sign_of_life(config_in: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also each ticket of a long evaluation, so that it is not taken for a driver that hangs."""
    reported, heard = list[Event](), list[Observer]()
    events = LocalEngine.events

    def report(self: LocalEngine, stopping: Callable[[], bool]) -> Iterator[Event]:
        for event in events(self, stopping):
            reported.append(event)
            yield event

    monkeypatch.setattr(LocalEngine, "events", report)
    monkeypatch.setattr(Observer, "heard", lambda self: heard.append(self))
    train(config_in("eval.size=10"))
    assert len(heard) == len(reported)
    assert any(isinstance(event, Evaluated) and event.done < event.total for event in reported)


def run_until_killed(when: str, overrides: list[str]) -> None:
    """Runs training in another process, which is killed on the way."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed_run", when, *overrides], timeout=120, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


# 600 rows in batches of 32: an epoch ends inside step 18.
KILLS = {
    "in the middle of a step": ("step:25", 24),
    "just before an epoch's end": ("step:18", 16),
    "just after a checkpoint": ("step:16", 16),
    "while a checkpoint's weights are written": ("save:24:900", 16),
    "while a checkpoint's moments are written": ("save:24:30000", 16),
    "while old checkpoints are removed": ("remove:24", 24),
}


QUICK = ("in the middle of a step", "while a checkpoint's weights are written", "while old checkpoints are removed")


@pytest.mark.parametrize(
    ("lag", "kill"),
    [  # pairs of runs
        pytest.param(lag, kill, marks=[] if lag == 0 and kill in QUICK else pytest.mark.slow)
        for lag in (0, 2)
        for kill in KILLS
    ],
)
def test_a_killed_and_resumed_run_ends_in_the_same_bits(
    kill: str, lag: int, tmp_path: Path, config_in: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = [f"lag={lag}", "epochs=2", "checkpoint.every=8", "eval.every=0"]
    whole = train(config_in(*overrides, f"out={tmp_path}/whole"))
    assert whole["steps"] == 37
    when, resumed_at = KILLS[kill]
    run_until_killed(when, ["scale=smoke", f"data.dir={tmp_path}/shards", f"out={tmp_path}/out", *overrides])
    assert not (tmp_path / "out/result.json").exists()
    with caplog.at_level(logging.INFO):
        result = train(config_in(*overrides))
    assert f"resuming at step {resumed_at} of 37" in caplog.text
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert result["test"] == whole["test"]
    metrics = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert list(map(decided, metrics)) == list(map(decided, expected)), "each step is recorded once, with equal metrics"


def test_the_same_seed_gives_the_same_weights_and_another_seed_does_not(tmp_path: Path, config_in: Configure) -> None:
    hashes = [train(config_in(f"seed={s}", f"out={tmp_path}/{i}"))["weights_sha256"] for i, s in enumerate((0, 0, 1))]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_tickets_are_computed_with_the_weights_of_their_version(lag: int, config_in: Configure) -> None:
    config = config_in(f"lag={lag}", "device=cpu", "precision=float32", "eval.every=1")
    data = open_data(config, task_of(config))
    engine = LocalEngine(config, data, 10, initial_state(lay_out(config, data.shape), config.seed), [])
    published = {0: engine.learner.versions[0]}
    used = []
    roll_out = engine.worker.roll_out

    def spy(ticket: Ticket) -> Any:
        assert np.array_equal(engine.worker.model.weights(), published[ticket.version])
        used.append((ticket.step, ticket.group, ticket.version))
        batch = roll_out(ticket)
        assert batch.version == ticket.version
        return batch

    engine.worker.roll_out = spy
    for n in range(6):
        engine.step()
        published[n + 1] = engine.learner.versions[n + 1]
        list(engine.evaluate(n + 1))  # uses the newest weights, and must not affect the tickets
    assert used == [(n, g, max(0, n - lag)) for n in range(6) for g in range(2)]


def test_lag_is_part_of_the_result(tmp_path: Path, config_in: Configure) -> None:
    results = {train(config_in(f"lag={lag}", f"out={tmp_path}/{lag}"))["weights_sha256"] for lag in (0, 1)}
    assert len(results) == 2


def test_validation_and_checkpoints_do_not_change_the_weights(tmp_path: Path, config_in: Configure) -> None:
    often = train(config_in("eval.every=1", "checkpoint.every=1", f"out={tmp_path}/often"))
    never = train(config_in("eval.every=0", "checkpoint.every=1000", f"out={tmp_path}/never"))
    assert often["weights_sha256"] == never["weights_sha256"]


@pytest.mark.parametrize("method", ["algorithm=sql_bce", "algorithm=sql_mse", "algorithm=ppo"])
def test_every_algorithm_trains_with_all_streams(method: str, tmp_path: Path, config_in: Configure) -> None:
    sparse = method == "algorithm=sql_bce"
    overrides = [f"method.{method}", f"method.reward={'sparse' if sparse else 'dense'}", "method.order_queries=2"]
    overrides += ["method.token_queries=2", "method.exploration=entropy", "method.include_greedy=true"]
    overrides += [] if "ppo" in method else ["method.gamma=0.5"]
    result = train(config_in(*overrides))
    metrics = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    metrics = [record for record in metrics if "loss/lm" in record]
    assert len(metrics) == result["steps"] == 18
    for record in metrics:
        assert np.isfinite([record["loss/lm"], record["loss/order"]]).all()
        assert record["learner/gradient_norm"] > 0
    assert metrics[-1]["loss/lm"] < metrics[0]["loss/lm"]


def test_mul_trains(config_in: Configure) -> None:
    result = train(config_in("task=mul"))
    assert len(result["test"]["mean_step"]) == 5
    assert -1 <= result["test"]["kendall_tau"] <= 1


def test_a_finished_run_returns_its_result(config_in: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(config_in())
    monkeypatch.setattr(Learner, "update", lambda *_: pytest.fail("a finished run must not train"))
    assert train(config_in()) == first


def test_a_finished_run_needs_no_data_and_can_be_moved(tmp_path: Path, config_in: Configure) -> None:
    first = train(config_in())
    shutil.move(tmp_path / "out", tmp_path / "moved")
    shutil.rmtree(tmp_path / "shards")
    assert train(config_in(f"out={tmp_path}/moved")) == first
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize("content", ["", "{", "\0\0\0\n"])
def test_damaged_records_are_repaired_or_reported(content: str, tmp_path: Path, config_in: Configure) -> None:
    first = train(config_in())
    (tmp_path / "out/result.json").write_text(content)
    with (tmp_path / "out/metrics.jsonl").open("a") as journal:
        journal.write(content)
    again = train(config_in())
    assert (again["test"], again["weights_sha256"]) == (first["test"], first["weights_sha256"])
    steps = [json.loads(x)["step"] for x in (tmp_path / "out/metrics.jsonl").read_text().splitlines() if "loss/lm" in x]
    assert steps == list(range(1, 19))
    (tmp_path / "out/run.json").write_text(content)
    with pytest.raises(Mistake, match=r"run\.json: is damaged"):
        train(config_in())


def test_checkpoints_without_their_run_are_not_resumed(tmp_path: Path, config_in: Configure) -> None:
    train(config_in())
    (tmp_path / "out/run.json").unlink()
    (tmp_path / "out/result.json").unlink()
    with pytest.raises(Mistake, match=r"holds checkpoints or a result, but no run\.json"):
        train(config_in("seed=5"))


def test_other_rows_under_the_same_settings_are_refused(tmp_path: Path, config_in: Configure) -> None:
    """Another version of numpy may draw them from the same seed."""
    overrides = ["checkpoint.every=5"]
    run_until_killed("step:9", ["scale=smoke", f"data.dir={tmp_path}/shards", f"out={tmp_path}/out", *overrides])
    edit(tmp_path / "out/run.json", data="0" * 64)
    with pytest.raises(Mistake, match="was started with different rows than"):
        train(config_in(*overrides))


def test_a_finished_run_shows_its_result_on_any_machine(config_in: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(config_in())
    monkeypatch.setattr(loop, "fingerprint", lambda _: {"torch": "9.9"})
    assert train(config_in()) == first


def test_auto_keeps_its_meaning_from_the_first_start(tmp_path: Path, config_in: Configure) -> None:
    first = train(config_in("precision=bfloat16", "task.train_rows=64"))
    assert train(config_in("task.train_rows=64")) == first, "precision=auto is what the run was started with"
    with pytest.raises(Mistake, match=r"precision \(was bfloat16, now float32\)"):
        train(config_in("task.train_rows=64", "precision=float32"))


def test_a_trained_model_can_be_loaded_and_answers(tmp_path: Path, config_in: Configure) -> None:
    config = config_in("method.order_queries=2", "eval.size=40")
    result = train(config)
    model, vocabulary = load_model(f"{tmp_path}/out")
    rows = open_data(config, task_of(config)).read_split("test", 0, 40)
    answers = generate(model, rows.prompts)
    assert (answers.responses == rows.responses).mean() == pytest.approx(result["test"]["token_accuracy"])
    assert vocabulary.tokens == tuple("01234")
    with pytest.raises(Mistake, match="holds no run"):
        load_model(f"{tmp_path}/nowhere")


def test_a_run_that_died_before_its_result_finishes_without_training(tmp_path: Path, config_in: Configure) -> None:
    first = train(config_in())
    (tmp_path / "out/result.json").unlink()
    second = train(config_in())
    assert second["weights_sha256"] == first["weights_sha256"]
    assert second["test"] == first["test"]


def test_another_identity_is_refused_with_the_keys_that_differ(tmp_path: Path, config_in: Configure) -> None:
    train(config_in())
    with pytest.raises(
        Mistake, match=r"learner\.lr \(was 0\.002, now 0\.001\); seed \(was 0, now 1\); choose another out"
    ):
        train(config_in("seed=1", "learner.lr=1e-3"))
    with pytest.raises(Mistake, match=r"data \(was [0-9a-f]{64}, now [0-9a-f]{64}\); task\.seed"):
        train(config_in("task.seed=1", f"data.dir={tmp_path}/unused"))
    assert not (tmp_path / "unused").exists(), "it is refused before anything starts"
    with pytest.raises(Mistake, match=r"threads \(was 1, now 2\)"):
        train(config_in("threads=2"))


def test_another_placement_is_accepted(tmp_path: Path, config_in: Configure) -> None:
    first = train(config_in())
    moved = config_in("eval.every=3", "checkpoint.keep=5", f"data.dir={tmp_path}/elsewhere")
    assert train(moved) == first


def test_resume_never_refuses_an_existing_out(tmp_path: Path, config_in: Configure) -> None:
    train(config_in("resume=never"))
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "out").rglob("*"))
    with pytest.raises(Mistake, match="exists, and resume=never"):
        train(config_in("resume=never"))
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "out").rglob("*")) == before, "nothing is changed"


def test_another_machine_is_refused_unless_a_mixture_is_allowed(
    config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["checkpoint.every=5"]
    run_until_killed("step:9", ["scale=smoke", f"data.dir={tmp_path}/shards", f"out={tmp_path}/out", *overrides])
    machine = loop.fingerprint(config_in(*overrides, "device=cpu", "precision=float32"))
    monkeypatch.setattr(loop, "fingerprint", lambda _: {**machine, "torch": "9.9"})
    with pytest.raises(Mistake, match=r"a different kind of machine: torch \(was .*, now 9\.9\); allow_mixed=true"):
        train(config_in(*overrides))
    assert train(config_in(*overrides, "allow_mixed=true"))["reproducible"] is False


def test_a_second_process_cannot_train_the_same_run(tmp_path: Path, config_in: Configure) -> None:
    import fcntl

    (tmp_path / "out").mkdir()
    with (tmp_path / "out/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Mistake, match="another process is training there"):
            train(config_in())


def test_a_signal_saves_a_checkpoint_and_the_run_resumes_from_it(
    tmp_path: Path, config_in: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    update = Learner.update

    def interrupted(learner: Learner, batches: list) -> dict[str, float]:
        if learner.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(learner, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", interrupted)
        with pytest.raises(Stopped, match="stopped by SIGTERM at step 7"):
            train(config_in("checkpoint.every=1000"))
    assert [p.name for p in (tmp_path / "out/checkpoints").iterdir()] == ["step-00000007"]
    assert train(config_in())["weights_sha256"] == whole["weights_sha256"]


def test_a_signal_is_obeyed_between_two_tickets_of_the_first_step(
    tmp_path: Path, config_in: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step may be large, and take hours."""
    roll_out, tickets = Worker.roll_out, []

    def interrupted(worker: Worker, ticket: Ticket) -> Any:
        tickets.append(ticket)
        os.kill(os.getpid(), signal.SIGTERM)
        return roll_out(worker, ticket)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "roll_out", interrupted)
        with pytest.raises(Stopped, match="stopped by SIGTERM at step 0"):
            train(config_in())
    assert tickets == [Ticket(0, 0, 0)], "its second ticket is not computed"
    assert train(config_in())["weights_sha256"] == train(config_in(f"out={tmp_path}/whole"))["weights_sha256"]


def test_steps_are_counted_with_exact_arithmetic(config_in: Configure) -> None:
    assert total_steps(config_in("epochs=0.29", "batch_size=1", "rollout_size=1"), 100) == 29
    with pytest.raises(Mistake, match="600 training rows do not fill one batch of 32"):
        config_in("epochs=0.01")


def test_default_out_is_named_after_the_identity_not_the_time(config_in: Configure) -> None:
    names = []
    for overrides in ([], ["eval.every=7"], ["seed=1"]):
        config = config_in(*overrides)
        names.append(identity.default_out(config, task_of(config)))
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("runs/arg-recor-smoke-seed0-")
