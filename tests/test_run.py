"""The commands, as a user runs them."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FIXED = ["scale=smoke", "engine=local", "track.enabled=false"]
RUN = [sys.executable, "-m", "recor_dist.run", *FIXED]


def run(folder: Path, *overrides: str, module: str = "recor_dist.run") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", module, *FIXED, *overrides]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_run_prints_its_table_its_folder_and_its_hash(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"test\s+│\s+40 │", done.stdout)
    assert "mean step at which each slot was filled" in done.stdout
    (out,) = re.findall(r"^saved in (runs/arg-recor-smoke-seed0-[0-9a-f]{8})$", done.stdout, re.M)
    (sha,) = re.findall(r"^weights sha256 ([0-9a-f]{64})$", done.stdout, re.M)
    result = json.loads((tmp_path / out / "result.json").read_text())
    assert result["weights_sha256"] == sha
    assert re.search(r"step 18/18 .* lm \d.* order \d.* reward \d.* val \d\.\d+ .* left", done.stderr), (
        "plain log lines"
    )
    records = [json.loads(line) for line in (tmp_path / out / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "loss/lm" in r] == list(range(1, 19))
    assert [r["step"] for r in records if "eval/val/exact_match" in r][-1] == 18
    assert [r["step"] for r in records if "eval/test/exact_match" in r] == [18]

    again = run(tmp_path)
    assert again.returncode == 0
    assert "this run is finished" in again.stderr
    assert sha in again.stdout
    assert "preparing" in done.stderr
    assert "preparing" not in again.stderr

    refused = run(tmp_path, f"out={out}", "seed=1", "model.width=32")
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        f"error: out={out}: holds a run with different settings: model.width (was 16, now 32); seed"
    )
    assert len(refused.stderr.splitlines()) == 1

    never = run(tmp_path, "resume=never")
    assert never.returncode == 2
    assert f"error: out={out}: exists, and resume=never" in never.stderr


def test_the_signal_that_asks_what_a_run_does_never_ends_it(tmp_path: Path) -> None:
    """Not even after training, while pictures are made."""
    code = "import os, signal, sys; from recor_dist import run; from recor_dist.core.command import command; "
    code += "run.show = lambda result, out: os.kill(os.getpid(), signal.SIGUSR1); command(run.main)"
    done = subprocess.run([sys.executable, "-c", code, *FIXED], cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_an_mdm_run_prints_a_row_for_each_decoder(tmp_path: Path) -> None:
    done = run(tmp_path, "method=mdm", "method.suffix=true")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^│ (val|test) .*│ (\w+) +│ .*│ +(\d+) │ +(\d+\.\d\d) │$", done.stdout, re.M)
    assert [row[:3] for row in rows] == [
        ("val", "adasufmdm_prob", "20"),
        ("test", "adasufmdm_margin", "20"),
        ("test", "adasufmdm_margin_T2", "2"),
        ("test", "adasufmdm_prob", "20"),
        ("test", "adasufmdm_prob_T2", "2"),
        ("test", "sufmdm", "20"),
        ("test", "sufmdm_T2", "2"),
    ]
    assert float(rows[1][3]) == pytest.approx(10 * float(rows[2][3]), abs=0.1)
    assert run(tmp_path, "method=mdm", "method.suffix=true").stdout == done.stdout, "a finished run prints the same"


def test_scale_auto_prints_its_choice_and_the_reason(tmp_path: Path) -> None:
    overrides = ["task.train_rows=64", "task.test_rows=8", "task.val_rows=8", "epochs=2"]
    done = subprocess.run(
        [sys.executable, "-m", "recor_dist.run", "engine=local", "track.enabled=false", *overrides],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "scale=auto chose laptop: no GPU that torch can use" in done.stderr


@pytest.mark.slow  # starts the command five times; tests/cluster/test_faults.py stops and resumes a run, too
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
def test_a_stopped_command_leaves_a_checkpoint_and_resumes(number: int, code: int, tmp_path: Path) -> None:
    overrides = ["epochs=10", "out=stopped", "checkpoint.every=1000"]
    process = subprocess.Popen([*RUN, *overrides], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "stopped/metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "the same command resumes from there" in errors
    assert "Traceback" not in errors
    (left,) = (tmp_path / "stopped/checkpoints").iterdir()
    step = int(left.name.removeprefix("step-"))
    assert 3 <= step < 187
    done = run(tmp_path, *overrides)
    assert f"resuming at step {step} of 187" in done.stderr
    whole = run(tmp_path, "epochs=10", "out=whole")
    assert done.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]


def test_a_mistake_is_reported_before_torch_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['ray'] = None\n"
        "from recor_dist.run import end, main; from recor_dist.core.command import command; command(main, end)"
    )
    command = [sys.executable, "-c", program, "scale=smoke", "lag=-1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()) == (2, ["error: lag=-1: must be at least 0 and at most 64"])


def test_a_bug_keeps_its_traceback(tmp_path: Path) -> None:
    program = (
        "from recor_dist import run; from recor_dist.core.command import command; from recor_dist.engine import loop\n"
        "loop.train = lambda *_: 1 / 0; command(run.main)"
    )
    command = [sys.executable, "-c", program, "scale=smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_a_terminal_shows_one_live_line(tmp_path: Path) -> None:
    """On a pseudo-terminal, one line is overwritten: step, rate, losses, reward, accuracy and time left."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "40"}
    process = subprocess.Popen([*RUN, "epochs=8"], cwd=tmp_path, stdout=child, stderr=child, env=environment)
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # the terminal closes when the process ends
            break
        if not piece:
            break
        shown += piece
    assert process.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert re.search(r"step \d+/150  \d+\.\d/s  lm \d.*order \d.*reward \d.*val \d\.\d{3} .* \d+:\d\d left", text)
    assert text.count("\n") < 40, "one line, not one per step"


def test_prepare_makes_and_repairs_data(tmp_path: Path) -> None:
    made = run(tmp_path, module="data.prepare")
    assert made.returncode == 0, made.stderr
    assert re.search(r"600 train, 32 val, 40 test rows, N=4, M=4, V=5", made.stdout)
    (shard,) = tmp_path.glob("shards/arg-*/train-00001.parquet")
    shard.write_bytes(shard.read_bytes()[:100])
    refused = run(tmp_path)
    assert refused.returncode == 2
    (line,) = [x for x in refused.stderr.splitlines() if x.startswith("error")]
    assert "train-00001.parquet is corrupt or truncated" in line
    assert "`python -m data.prepare scale=smoke` rebuilds only that shard" in line
    repaired = run(tmp_path, module="data.prepare")
    assert "train-00001.parquet is corrupt or truncated" in repaired.stderr
    assert repaired.stdout == made.stdout
    assert run(tmp_path).returncode == 0


def test_a_run_in_rays_copy_of_a_folder_gets_a_warning(tmp_path: Path) -> None:
    """`ray job submit --working-dir` runs its command in such a copy. Absolute paths are fine."""
    copy = tmp_path / "runtime_resources/working_dir_files"
    copy.mkdir(parents=True)
    command = [sys.executable, "-m", "recor_dist.run", "scale=smoke", "engine=local", "track.enabled=false", "epochs=1"]
    safe = [f"out={tmp_path}/out", f"data.dir={tmp_path}/shards"]
    for overrides, warned in (([], True), (safe, False)):
        done = subprocess.run([*command, *overrides], cwd=copy, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert ("is Ray's copy of --working-dir" in done.stderr) is warned, done.stderr
