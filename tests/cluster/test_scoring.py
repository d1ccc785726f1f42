"""Scoring on Ray gives the figures of one process."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from recor_dist.evaluate import EvaluateConfig, evaluate


@pytest.mark.usefixtures("one_ray")
def test_ray_scores_like_one_process(trained: Callable[..., Path], tmp_path: Path) -> None:
    told = []
    for engine in ("local", "ray"):
        out = shutil.copytree(trained("method=ao_arm", "eval.size=16"), tmp_path / engine)
        lines = evaluate(
            EvaluateConfig(str(out), "threshold:0.3/0.9,information_gain,ao_arm", split="val", engine=engine)
        )
        told.append([{key: value for key, value in line.items() if key != "time"} for line in lines])
    assert told[0] == told[1]
    assert len(told[0]) == 4
