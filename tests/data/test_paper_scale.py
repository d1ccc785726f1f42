"""The paper's puzzles and model at full size: a few steps with a small batch, on any machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow  # half a minute each: the paper's model and its 81 or 42 steps on a CPU
@pytest.mark.parametrize(("task", "N", "M"), [("sudoku", 81, 81), ("zebra", 455, 42)])
def test_a_small_batch_of_the_papers_puzzles_runs_and_is_saved(task: str, N: int, M: int, tmp_path: Path) -> None:
    overrides = [f"task={task}", "scale=paper", "batch_size=4", "rollout_size=4", "epochs=1", "track.enabled=false"]
    cut = ["task.train_rows=12", "task.val_rows=4", "task.test_rows=4", "eval.size=4", "out=out", "data.jobs=1"]
    command = [sys.executable, "-m", "recor_dist.run", *overrides, *cut]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=280)
    about = json.loads((tmp_path / "out/run.json").read_text())
    assert (about["shape"]["N"], about["shape"]["M"]) == (N, M)
    assert json.loads((tmp_path / "out/result.json").read_text())["steps"] == 3
    assert (tmp_path / "out/checkpoints/step-00000003/model.safetensors").exists()
