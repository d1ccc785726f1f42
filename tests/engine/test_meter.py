"""The metrics of each step, and the line at the end of a run that names the bottleneck."""

import pytest

from recor_dist.core.messages import LedStep, Receipt
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
    ("groups", "waited", "busy", "told"),
    [
        (8, 0, 20, "the learner waited 0% of the time, the actors 0%: all are busy; add actors (actors.count, or more"),
        (2, 1, 18, "the learner waited 10% of the time, the actors 10%: all are busy; no ticket is left for more"),
        (1, 0, 5, "a step has 1 tickets, so 1 actors would be enough"),
        (5, 5, 12, "5 tickets per step leave some of 2 actors without work at its end"),
        (6, 3, 12, "sending weights and gradients, and adding them, takes the rest; try a larger rollout_size"),
    ],
)
def test_advice_if_actors_compute_gradients(groups: int, waited: int, busy: int, told: str) -> None:
    """A step of ten seconds with two actors."""
    meter = Meter(batch_size=64, groups=groups, lag=0, gradients=True, now=0.0)
    meter.led(LedStep(10.0, 0.0, waited, 2, busy, 0.0, {}, 0, {}))
    assert told in meter.advice()


def test_the_metrics_of_a_step_that_the_learner_led() -> None:
    meter = Meter(batch_size=64, groups=4, lag=0, gradients=True, now=0.0)
    led = LedStep(
        seconds=4.0, computed=2.0, waited=1.0, actors=2, busy=6.0, pulled=0.5, tickets={}, moved_bytes=7, metrics={}
    )
    meter.led(led)
    step = meter.stepped(present=3, reissued=0)
    assert step["engine/examples_per_second"] == 16
    assert step["engine/learner_starved"] == step["engine/actors_idle"] == step["engine/pull_seconds"] == 0.25
    assert step["engine/publish_seconds"] == 1, "sending, adding, and the optimizer's step"
    assert (step["engine/bytes_moved"], step["engine/actors_alive"]) == (7, 3)
    meter.led_between(4.0, actors=2)
    meter.led(led)
    after_trouble = meter.stepped(present=2, reissued=1)
    assert after_trouble["engine/examples_per_second"] == 8
    assert after_trouble["engine/learner_starved"] == after_trouble["engine/actors_idle"] == 5 / 8


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
