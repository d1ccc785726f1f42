"""Training learns the answers and the order."""

from collections.abc import Callable

import pytest

from recor_dist.core.compose import compose
from recor_dist.core.config import Config
from recor_dist.engine.loop import train


@pytest.mark.slow  # half a minute of training
def test_a_tiny_arg_is_learned_in_reverse_order(config_in: Callable[..., Config]) -> None:
    sizes = ["task.length=5", "task.train_rows=60000", "model.width=48", "model.heads=4", "batch_size=64", "epochs=1"]
    method = ["method.include_greedy=true", "method.focal=2", "method.exploration=entropy", "learner.lr=4e-3"]
    quiet = ["rollout_size=64", "eval.every=0", "checkpoint.every=1000", "learner.warmup=20", "task.test_rows=200"]
    result = train(config_in(*sizes, *method, *quiet))
    assert result["test"]["exact_match"] >= 0.7
    assert result["test"]["kendall_tau"] >= 0.7


@pytest.mark.slow  # takes minutes: the whole demo of `make run`
@pytest.mark.timeout(2400)
def test_the_demo_is_solved_in_reverse_order(tmp_path: object) -> None:
    result = train(
        compose(["task=arg", "scale=laptop", "engine=local", f"data.dir={tmp_path}/shards", f"out={tmp_path}/out"])
    )
    assert result["test"]["exact_match"] >= 0.95
    assert result["test"]["kendall_tau"] >= 0.85


@pytest.mark.slow  # takes minutes, like the demo
@pytest.mark.timeout(2400)
def test_ar_gt_solves_the_demo_in_the_order_it_was_taught(tmp_path: object) -> None:
    overrides = [
        "task=arg",
        "method=ar_gt",
        "scale=laptop",
        "engine=local",
        f"data.dir={tmp_path}/shards",
        f"out={tmp_path}/out",
    ]
    result = train(compose(overrides))
    assert result["test"]["exact_match"] >= 0.97
    assert result["test"]["kendall_tau"] == 1.0
