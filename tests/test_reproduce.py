"""The command that repeats all published runs."""

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from recor_dist.core.compose import compose
from recor_dist.core.config import digest, flatten, validate
from recor_dist.core.setting import Mistake
from recor_dist.record.published import publish, read_published
from recor_dist.reproduce import Planned, Work, planned_runs, write_page


def test_every_planned_run_is_valid_and_different() -> None:
    planned = planned_runs(())
    configs = [compose(run.command.split()) for run in planned]
    for config in configs:
        validate(config)
    identities = {digest(flatten(config, identity_only=True)) for config in configs}
    assert len(identities) == len({run.name for run in planned}) == len(planned)
    assert min(run.minutes for run in planned) > 0


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Mistake, match=r"part=agr: no such part; allowed: .*did you mean arg"):
        planned_runs(("agr",))


def test_runs_are_trained_published_and_written_to_the_page_and_repeated_runs_are_recognised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = "task=arg scale=smoke task.train_rows=500 task.test_rows=50 epochs=2 eval.every=0"
    planned = [
        Planned("arg", f"{settings} method=clm seed=0", 0.1),
        Planned("arg", f"{settings} method=recor seed=0", 0.1, decoders="confidence,threshold:0.5"),
    ]
    results = tmp_path / "docs" / "results"

    work = Work(planned, tmp_path / "runs", results, jobs=2)
    work.train_all()
    assert not work.failed
    published = {run.place: run for run in read_published(results / "arg.jsonl")}
    assert list(published) == [run.command for run in planned]
    assert not published[planned[0].command].further
    assert published[planned[1].command].further.keys() == {"recor_confidence", "recor_threshold_tau0.5"}
    assert "2 of 2 runs, 0:00 left" in caplog.text

    (results / "notes.md").write_text("What agrees.\n")
    (results / "of-an-earlier-page.svg").write_text("")
    page = write_page(results).read_text()
    assert page.index("What agrees.") < page.index("## Exact match")
    for run in published.values():
        assert run.weights and f"`{run.place}`" in page and run.weights[:8] in page
    drawn = {figure.name for figure in results.glob("*.svg")}
    assert drawn and all(f"(results/{name})" in page for name in drawn)

    caplog.clear()
    Work(planned[:1], tmp_path / "runs", results, jobs=1).train_all()
    assert "with the published weights" in caplog.text

    publish(str(tmp_path / "runs" / "arg" / planned[1].name), results / "arg.jsonl", planned[0].command)
    caplog.clear()
    Work(planned[:1], tmp_path / "runs", results, jobs=1).train_all()
    assert "other weights, on the same kind of machine" in caplog.text


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = "task=arg scale=smoke task.train_rows=500 task.test_rows=50 epochs=2 eval.every=0"
    planned = [Planned("arg", f"{settings} seed=-1", 0.1), Planned("arg", f"{settings} seed=0", 0.1)]
    work = Work(planned, tmp_path / "runs", tmp_path / "results", jobs=1)
    work.train_all()
    assert work.failed
    assert "seed=-1: exit code 2; see" in caplog.text
    assert [run.place for run in read_published(tmp_path / "results" / "arg.jsonl")] == [planned[1].command]


def test_the_plan_says_what_it_takes_and_trains_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "recor_dist.reproduce",
        "do=plan",
        "part=arg",
        f"folder={tmp_path / 'runs'}",
        "jobs=2",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "hours of one core" in done.stdout
    assert done.stdout.count("python -m recor_dist.run task=arg") == len(planned_runs(("arg",)))
    assert not (tmp_path / "runs").exists()


def test_a_stopped_command_stops_its_runs(tmp_path: Path) -> None:
    settings = ["part=arg", f"folder={tmp_path / 'runs'}", f"results={tmp_path / 'results'}", "jobs=1"]
    command = subprocess.Popen([sys.executable, "-m", "recor_dist.reproduce", *settings])
    try:
        deadline = time.monotonic() + 60
        while not any(log.read_text() for log in tmp_path.glob("runs/arg/*.log")):
            assert time.monotonic() < deadline, "no run has begun"
            time.sleep(0.1)
        runs = psutil.Process(command.pid).children(recursive=True)
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=60) == 128 + signal.SIGTERM
        assert runs and not any(run.is_running() for run in runs)
    finally:
        command.kill()
