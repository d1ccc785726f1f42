"""A learner that hands out tickets itself: who computes them, in which order they are taken, and what can go wrong."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.pool import Command, Pool
from learner import leading
from learner.leading import ITSELF, Leading, Terms, Troubled
from recor_dist.core.config import Config
from recor_dist.core.device import fingerprint
from recor_dist.core.messages import Receipt, Ticket, TicketGradient
from recor_dist.core.setting import Mistake
from recor_dist.engine.crew import Crew, Handle, RemoteActor
from recor_dist.engine.events import RunFailed
from recor_dist.engine.loop import train
from tests.cluster.conftest import records
from tests.cluster.faulty import faulty_worker

Configure = Callable[..., Config]
WEIGHTS = np.arange(4, dtype=np.float32)
LEAD = ["engine=ray", "device=cpu", "precision=float32", "actors.gradients=true"]


class Bug(Exception):
    """Raised by a test's actor."""


def gradient_of(ticket: Ticket, weights: np.ndarray) -> TicketGradient:
    return TicketGradient(weights + ticket.group, ticket.group, {})


def in_a_while(ticket: Ticket, weights: np.ndarray) -> TicketGradient:
    time.sleep(0.1)
    return gradient_of(ticket, weights)


@ray.remote(num_cpus=0)
class Actor:
    """Computes tickets as actors do, or goes wrong at one of them."""

    def __init__(self, seconds: float = 0.0, wrong_at: int = -1, how: str = "") -> None:
        self.seconds, self.wrong_at, self.how = seconds, wrong_at, how
        self.weights: Any = None

    @ray.method(num_returns=2)
    def differentiate(self, ticket: Ticket, weights: list) -> tuple[Receipt, TicketGradient]:
        if weights:
            self.weights = weights[0] if isinstance(weights[0], np.ndarray) else ray.get(weights[0])
        time.sleep(self.seconds)
        if ticket.group == self.wrong_at:
            if self.how == "die":
                os._exit(1)
            if self.how == "hang":
                time.sleep(60)
            raise Mistake("the user can correct this") if self.how == "mistake" else Bug("the order was lost")
        return Receipt(self.seconds, 0.0, 0), gradient_of(ticket, self.weights)


@pytest.fixture
def actors() -> Iterator[Callable[..., dict[str, Any]]]:
    """Starts actors with these arguments each; returns them by name."""
    started: list[Any] = []

    def start(*arguments: dict[str, Any]) -> dict[str, Any]:
        started.extend(Actor.remote(**each) for each in arguments)
        ray.get([actor.__ray_ready__.remote() for actor in started], timeout=60)
        return {f"actor {number}": actor for number, actor in enumerate(started, start=1)}

    yield start
    for actor in started:
        ray.kill(actor)


def take(step: Leading) -> list[int]:
    """Takes all gradients of a step, and checks them; returns their groups."""
    groups = []
    for gradient in step.gradients():
        assert np.array_equal(gradient.gradient, WEIGHTS + gradient.count)
        groups.append(gradient.count)
    return groups


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize("inline", [True, False], ids=["with the calls", "through the object store"])
def test_gradients_come_in_group_order_whoever_computes_them(
    inline: bool, actors: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "INLINE", 10**6 if inline else 0)
    step = Leading(3, WEIGHTS, actors({"seconds": 0.2}, {"seconds": 0.01}), in_a_while, Terms(24, True, 60.0, 24))
    assert take(step) == list(range(24))
    told = step.measured(1.0, {})
    assert sum(told.tickets.values()) == 24
    assert set(told.tickets) == {"actor 1", "actor 2", ITSELF}
    assert told.tickets["actor 1"] < told.tickets["actor 2"], "who is slow gets less"
    assert told.busy >= 0.2
    assert told.moved_bytes == (2 + told.tickets["actor 1"] + told.tickets["actor 2"]) * WEIGHTS.nbytes, "weights once"


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize(
    ("groups", "helpers", "takes_part"),
    [(4, 0, True), (1, 1, True), (2, 1, True), (2, 2, False), (3, 2, True), (4, 1, True), (9, 4, True), (8, 4, False)],
)
def test_the_learner_computes_tickets_only_if_the_step_then_takes_fewer_rounds(
    groups: int, helpers: int, takes_part: bool, actors: Callable[..., dict[str, Any]]
) -> None:
    step = Leading(0, WEIGHTS, actors(*[{"seconds": 0.1}] * helpers), in_a_while, Terms(groups, True, 60.0, groups))
    assert take(step) == list(range(groups))
    assert (step.tickets[ITSELF] > 0) is takes_part


@pytest.mark.usefixtures("one_ray")
def test_few_gradients_exist_at_a_time(actors: Callable[..., dict[str, Any]]) -> None:
    step = Leading(0, WEIGHTS, actors({}, {}, {}), gradient_of, Terms(9, True, 60.0, 2))
    for taken, gradient in enumerate(step.gradients()):
        assert gradient.count == taken
        assert 9 - len(step.open) <= taken + 1 + 2, "handed out, and not taken before this one"


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize(
    ("how", "cause", "raised"),
    [("raise", "Bug: the order was lost", True), ("die", "died", False), ("hang", "no answer in 6 s", False)],
)
def test_a_ticket_without_a_result_is_reported_with_its_actor(
    how: str, cause: str, raised: bool, actors: Callable[..., dict[str, Any]]
) -> None:
    helpers = actors({}, {"wrong_at": 3, "how": how}, {"wrong_at": 3, "how": how}, {"wrong_at": 3, "how": how})
    with pytest.raises(Troubled) as troubled:
        take(Leading(7, WEIGHTS, helpers, gradient_of, Terms(8, True, 6.0 if how == "hang" else 60.0, 8)))
    trouble = troubled.value.trouble
    assert (trouble.ticket, trouble.raised) == (Ticket(7, 3, 7), raised)
    assert trouble.actor in helpers
    assert cause in trouble.cause


@pytest.mark.usefixtures("one_ray")
def test_a_mistake_of_the_user_passes_through_and_the_learners_own_bug_is_a_ticket_without_a_result(
    actors: Callable[..., dict[str, Any]],
) -> None:
    with pytest.raises(Mistake, match="the user can correct this"):
        take(Leading(0, WEIGHTS, actors({"wrong_at": 0, "how": "mistake"}), gradient_of, Terms(2, False, 60.0, 2)))

    def compute(ticket: Ticket, weights: np.ndarray) -> TicketGradient:
        raise Bug("in the learner")

    with pytest.raises(Troubled) as troubled:
        take(Leading(0, WEIGHTS, {}, compute, Terms(1, True, 60.0, 1)))
    assert troubled.value.trouble.actor == ITSELF
    assert "Bug: in the learner" in troubled.value.trouble.cause


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, int], Path]:
    """Gives every actor a fault; the learner has none, and waits for the actors before it leads."""

    def install(fault: str, count: int) -> Path:
        marks = tmp_path / "marks"
        marks.mkdir()

        def start(crew: Crew) -> Handle:
            make = partial(faulty_worker, crew.config, fault, marks)
            return RemoteActor.options(num_cpus=1).remote(partial(fingerprint, crew.config), make)

        monkeypatch.setattr(Crew, "start_actor", start)
        wait_for_actors(monkeypatch, count)
        return marks

    return install


def wait_for_actors(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A learner alone would be done with a small run before the first actor joins."""
    decide = Pool.decide

    def patiently(self: Pool, now: float) -> list[Command]:
        return decide(self, now) if self.learned or len(self.actors) >= count else []

    monkeypatch.setattr(Pool, "decide", patiently)


@pytest.mark.usefixtures("one_ray")
def test_actors_and_the_learner_share_the_tickets_and_the_driver_hears_of_every_step(
    config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = ["rollout_size=8", "epochs=4", "eval.every=20", "checkpoint.every=30"]
    local = train(config_in(*overrides, f"out={tmp_path}/local"))
    wait_for_actors(monkeypatch, 2)
    with caplog.at_level(logging.INFO):
        result = train(config_in(*overrides, *LEAD, "actors.count=2"))
    assert result["weights_sha256"] == local["weights_sha256"]
    counts = {
        who: int(n) for who, n in re.findall(r"(actor \d|the learner)(?: \(.*\))? computed (\d+) tickets", caplog.text)
    }
    assert len(counts) == 3 and min(counts.values()) > 10, counts
    steps = [record for record in records(tmp_path / "out") if "loss/lm" in record]
    assert [record["step"] for record in steps] == list(range(1, local["steps"] + 1))
    assert max(record["engine/bytes_moved"] for record in steps) > 0
    for record in steps:
        assert record["engine/actors_alive"] == 2
        assert 0 <= record["engine/learner_starved"] <= 1 and 0 <= record["engine/actors_idle"] <= 1


@pytest.mark.usefixtures("one_ray")
def test_after_an_exception_that_occurs_once_the_learner_leads_again(
    config_in: Configure, with_fault: Callable[[str, int], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    with_fault("raise once", 2)
    with caplog.at_level(logging.INFO):
        result = train(config_in(*LEAD, "actors.count=2"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert re.search(r"Ticket\(step=5, group=\d, version=5\) failed on actor \d and is reissued: .*Bug", caplog.text)
    assert max(r.get("engine/tickets_reissued", 0) for r in records(tmp_path / "out")) == 1


@pytest.mark.slow  # further runs on Ray
@pytest.mark.usefixtures("one_ray")
def test_a_bug_ends_the_run_after_three_tries(config_in: Configure, with_fault: Callable[[str, int], Path]) -> None:
    with_fault("raise", 3)
    with pytest.raises(RunFailed, match=r"^Ticket\(step=5, group=\d, version=5\) failed on 3 actors"):
        train(config_in(*LEAD, "actors.count=3"))


@pytest.mark.slow  # further runs on Ray
@pytest.mark.usefixtures("one_ray")
def test_an_actor_that_dies_is_replaced_and_its_ticket_reissued(
    config_in: Configure, with_fault: Callable[[str, int], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(config_in(f"out={tmp_path}/whole"))
    with_fault("die once", 2)
    with caplog.at_level(logging.INFO):
        result = train(config_in(*LEAD, "actors.count=2"))
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert re.search(r"actor \d \(pid \d+ on \S+\) was lost", caplog.text)
    assert re.search(r"reissuing Ticket\(step=5, group=\d, version=5\)", caplog.text)
