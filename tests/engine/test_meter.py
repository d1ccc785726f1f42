"""The metrics of each step, and the line at the end of a run that names the bottleneck."""

import pytest

from recor_dist.core.messages import Receipt
from recor_dist.engine.meter import Meter


@pytest.mark.parametrize(
    ("lag", "starved", "idle", "told"),
    [
        (1, 6, 0, "the learner waited 60% of the time, the actors 0%: rollouts are the bottleneck; add actors"),
        (1, 0, 5, "the actors 50%: the learner is the bottleneck; 2 of 4 actors would be enough; give it a"),
        (0, 4, 4, "they wait for each other; try lag=1 (which changes the result), or a smaller rollout_size"),
        (2, 4, 4, "they wait for each other; try a larger lag, or a smaller rollout_size"),
        (1, 0, 0, "the learner waited 0% of the time, the actors 0%: both are busy"),
    ],
)
def test_the_side_that_does_not_wait_is_the_bottleneck(lag: int, starved: int, idle: int, told: str) -> None:
    """Ten seconds with four actors. In some of them the learner, or all actors, had nothing to do."""
    meter = Meter(batch_size=64, groups=4, lag=lag, gradients=False, now=100.0)
    meter.passed(103.0, present=0, idle=0, learning=False)  # nothing counts before the first actor
    for second in range(10):
        meter.passed(104.0 + second, present=4, idle=4 * (second < idle), learning=second >= starved)
    assert told in meter.advice()


@pytest.mark.parametrize(
    ("groups", "adding", "idle", "told"),
    [
        (8, 0, 0, "the actors waited 0% of the time, the learner added gradients 0%: the actors are busy; add actors"),
        (4, 1, 1, "the actors are busy; each has one ticket per step"),
        (8, 3, 4, "adding gradients and publishing weights is the bottleneck; try a larger rollout_size"),
        (6, 1, 4, "6 tickets per step leave some of 4 actors without work at its end"),
    ],
)
def test_advice_if_actors_compute_gradients(groups: int, adding: int, idle: int, told: str) -> None:
    meter = Meter(batch_size=64, groups=groups, lag=0, gradients=True, now=0.0)
    for second in range(10):
        meter.passed(1.0 + second, present=4, idle=4 * (second < idle), learning=second < adding)
    assert told in meter.advice()


def test_the_metrics_of_a_step_do_not_include_the_step_before() -> None:
    meter = Meter(batch_size=64, groups=4, lag=1, gradients=False, now=0.0)
    meter.passed(4.0, present=2, idle=1, learning=False)
    meter.answered(Receipt(seconds=1.0, moved_seconds=0.5, moved_bytes=400))
    meter.answered(Receipt(seconds=1.0, moved_seconds=0.0, moved_bytes=0))  # it had the weights
    meter.took(Receipt(seconds=1.5, moved_seconds=0.25, moved_bytes=30, metrics={}), seconds=2.0)
    first = meter.stepped(present=2, reissued=3)
    assert first == {
        "engine/examples_per_second": 16.0,
        "engine/learner_starved": 1.0,
        "engine/actors_idle": 0.5,
        "engine/actors_alive": 2,
        "engine/tickets_reissued": 3,
        "engine/publish_seconds": 0.25,
        "engine/pull_seconds": 0.5,
        "engine/bytes_moved": 430,
        "engine/lag": 1,
    }
    meter.passed(6.0, present=2, idle=0, learning=True)
    second = meter.stepped(present=2, reissued=3)
    assert second["engine/examples_per_second"] == 32.0
    assert second["engine/learner_starved"] == second["engine/actors_idle"] == second["engine/bytes_moved"] == 0
