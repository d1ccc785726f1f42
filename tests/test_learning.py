"""It learns: the answers, and the order."""

from collections.abc import Callable

import pytest

from recor_dist.config import Config, compose
from recor_dist.loop import train


def test_a_tiny_arg_is_learned_in_reverse_order(config_in: Callable[..., Config]) -> None:
    result = train(
        config_in(
            "task.length=5", "task.modulus=5", "task.train_rows=2800", "model.width=32", "batch_size=64", "rollout_size=64",
            "epochs=16", "learner.lr=5e-3", "method.include_greedy=true", "method.focal=2", "eval.every=0",
            "checkpoint.every=1000", "task.test_rows=200",
        )
    )  # fmt: skip
    assert result["test"]["exact_match"] >= 0.5
    assert result["test"]["kendall_tau"] >= 0.5


@pytest.mark.slow  # some minutes: the whole demo of `make run`
@pytest.mark.timeout(2400)
def test_the_demo_is_solved_in_reverse_order(tmp_path: object) -> None:
    result = train(compose(["task=arg", "scale=laptop", f"data.dir={tmp_path}/shards", f"out={tmp_path}/out"]))
    assert result["test"]["exact_match"] >= 0.95
    assert result["test"]["kendall_tau"] >= 0.9
