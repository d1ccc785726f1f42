"""The learner's side of the Ray engine: it hands the learner its tickets and publishes the weights that come back."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import ray

from actors.pool import DEATHS, Lead, Learn, Pool
from learner.learner import LearnerState
from recor_dist.core.config import Config
from recor_dist.core.messages import Led, LedStep, Receipt, Ticket
from recor_dist.engine.calls import Calls, LeadCall, UpdateCall
from recor_dist.engine.crew import LEARNER, Crew
from recor_dist.engine.evaluations import Evaluations
from recor_dist.engine.events import Checkpoint, Event, RunFailed, Stepped, checkpoint_due, next_due
from recor_dist.engine.meter import Meter

log = logging.getLogger(__name__)
LEAD = 1.0  # seconds that the learner leads before it reports, and before actors that joined can take part


class Learning:
    """Results of tickets on their way to the learner, batches or gradients, and the versions of the weights that it has
    published, all by reference.

    It promises:
    - the learner's answers count in the order of its calls, even if Ray delivers them in another;
    - the weights of a version are kept as long as a ticket can name them, and the state of a checkpoint includes the
      weights of every unfinished evaluation;
    - a learner that is lost repeatedly without making progress ends the run.
    """

    def __init__(
        self,
        config: Config,
        steps: int,
        pool: Pool,
        crew: Crew,
        calls: Calls,
        evaluations: Evaluations,
        meter: Meter,
    ) -> None:
        self.config, self.steps = config, steps
        self.pool, self.crew, self.calls, self.evaluations, self.meter = pool, crew, calls, evaluations, meter
        self.results: dict[Ticket, ray.ObjectRef] = {}  # of finished tickets that are not taken yet
        self.weights: dict[int, ray.ObjectRef] = {}  # published versions that a ticket may still name
        self.early: dict[Learn, tuple[UpdateCall, Receipt]] = {}  # answers that overtook an earlier one
        self.starting = False  # the learner has not begun
        self.deadline = math.inf  # for it to start, or for its next answer, if it has what it needs
        self.free_at = 0.0  # when it began, or last finished tickets
        self.losses = 0  # of learners since `furthest`
        self.furthest = pool.learned
        self.pause = steps  # where the learner stops leading, at the latest

    def start(self, state: LearnerState) -> None:
        """Hires a learner that resumes from this state, and publishes the weights that tickets may name from there."""
        now = time.monotonic()
        self.early.clear()
        self.weights = {version: ray.put(flat) for version, flat in state.versions.items()}
        self.crew.hire_learner(state, now)
        self.starting, self.deadline = True, now + self.config.deadline.join

    def greeted(self, now: float) -> None:
        """Ray has placed the learner, which now loads its state."""
        self.deadline = now + self.config.deadline.join

    def began(self, now: float) -> None:
        """The learner has loaded its state and works on what it has in hand."""
        self.starting, self.deadline, self.free_at = False, math.inf, now
        self._watch(now)

    def lost(self, cause: str) -> None:
        self.losses += 1
        if self.losses >= DEATHS:
            raise RunFailed(
                f"the learner was lost {DEATHS} times before step {self.furthest + 1}; the last time: {cause}"
            )

    def _watch(self, now: float) -> None:
        """The learner's time for an answer starts when it has something to do. If it leads, it has the time for its own
        share of the tickets, and for noticing that an actor does not answer."""
        if self.starting or self.deadline < math.inf:
            return
        patience = self.config.deadline.answer
        if self.pool.leading:
            at_once = min(len(self.pool.leading.actors) + 1, self.pool.window or self.pool.groups)
            rounds = -(-self.pool.groups // at_once)
            self.deadline = now + LEAD + (rounds + 1) * patience
        elif self.pool.in_hand:
            self.deadline = now + patience
        self.free_at = max(self.free_at, now)

    def is_late(self, now: float) -> bool:
        return now > self.deadline

    # --- tickets -----------------------------------------------------------------------------------------------------

    def finished(self, ticket: Ticket, result: ray.ObjectRef) -> None:
        """An actor has computed a ticket."""
        self.results[ticket] = result

    def learn(self, part: Learn) -> None:
        """Has the learner take tickets of a step."""
        now = time.monotonic()
        results = tuple(self.results[ticket] for ticket in self.pool.tickets_of(part))
        last, with_state = part.end == self.pool.groups, self._checkpoint_after(part)
        update = self.crew.learner.handle.update
        receipt, weights, state = update.remote(part.step, part.first, results, last=last, with_state=with_state)
        self.calls.add(receipt, UpdateCall(LEARNER, "update", part, weights, state, now))
        self._watch(now)

    def learned(self, call: UpdateCall, receipt: Receipt, now: float) -> Iterator[Event]:
        """The learner has taken tickets, or found that the result of one is lost; yields the step if it is complete.
        Raises RayError if a checkpoint's state was lost with the learner."""
        part = call.part
        if receipt.metrics is None and not receipt.lost:
            return  # it followed tickets that could not be taken; the pool will ask for both again
        if part != self.pool.in_hand[0]:  # Ray answers each call independently, so two may arrive in the wrong order
            self.early[part] = call, receipt
            return
        self.deadline = math.inf
        if receipt.lost:
            self._results_lost(part.step, receipt.lost)
            return
        patience, state = self.config.deadline.answer, None
        if self._checkpoint_after(part):
            state = self.with_unevaluated(ray.get(call.state, timeout=patience), patience)
        self.meter.took(receipt, now - max(call.issued, self.free_at))
        self.pool.took()
        for ticket in self.pool.tickets_of(part):  # at once, because gradients take as much room as weights
            del self.results[ticket]
        self.free_at = now
        self._watch(now)
        if part.end == self.pool.groups:
            assert receipt.metrics is not None
            self.weights[part.step + 1] = call.weights
            yield self._stepped(part.step + 1, receipt.metrics)
        if state:
            yield Checkpoint(state)
        if self.pool.in_hand and self.pool.in_hand[0] in self.early:
            yield from self.learned(*self.early.pop(self.pool.in_hand[0]), now)

    def lead(self, command: Lead) -> None:
        """Has the learner hand out tickets itself, at most until something is due."""
        now, end = time.monotonic(), next_due(self.config, command.step, self.steps)
        end = min(end, self.pause) if self.pause > command.step else end
        actors = {name: self.crew.member(name).handle for name in command.actors}
        with_state = checkpoint_due(self.config, end, self.steps)
        led, weights, state = self.crew.learner.handle.lead.remote(end, actors, LEAD, with_state)
        self.calls.add(led, LeadCall(LEARNER, "lead", weights, state, now))
        self._watch(now)

    def led(self, call: LeadCall, led: Led, now: float) -> Iterator[Event]:
        """The learner has stopped leading; yields the steps that it has taken. Raises RayError if a checkpoint's state
        was lost with it."""
        since, self.deadline, self.free_at = max(call.issued, self.free_at), math.inf, now
        self.meter.led_between(now - since - sum(step.seconds for step in led.steps), len(self.pool.actors))
        patience = self.config.deadline.answer
        state = ray.get(call.state, timeout=patience)
        if state is not None:
            state = self.with_unevaluated(state, patience)
        yield from self.led_steps(led.steps)
        self.weights[self.pool.learned] = call.weights
        self.release()
        if state is not None:
            yield Checkpoint(state)

    def led_steps(self, steps: Sequence[LedStep]) -> Iterator[Event]:
        """Counts steps that a leading learner has taken."""
        first = self.pool.learned
        self.pool.led(len(steps))
        self.results = {ticket: ref for ticket, ref in self.results.items() if ticket.step >= self.pool.learned}
        for number, step in enumerate(steps, start=first + 1):
            self.meter.led(step)
            yield self._stepped(number, step.metrics)

    def _stepped(self, version: int, metrics: dict[str, float]) -> Stepped:
        """The learner has taken the last tickets of a step."""
        if version > self.furthest:
            self.furthest, self.losses = version, 0
        self.pool.evaluate(self.evaluations.due(version))
        self.release()
        timing = self.meter.stepped(present=len(self.pool.actors), reissued=self.pool.reissued)
        return Stepped(version, {**metrics, **timing})

    def _checkpoint_after(self, part: Learn) -> bool:
        return part.end == self.pool.groups and checkpoint_due(self.config, part.step + 1, self.steps)

    def _results_lost(self, step: int, groups: Sequence[int]) -> None:
        """The results of finished tickets of a step were lost with their node."""
        for group in groups:
            ticket = self.pool.tickets(step)[group]
            log.warning("the result of %s was lost with its node; reissuing it", ticket)
            self.pool.ticket_lost(ticket)
            del self.results[ticket]

    # --- weights -----------------------------------------------------------------------------------------------------

    def weights_of(self, version: int) -> ray.ObjectRef:
        return self.weights[version]

    def release(self) -> None:
        """Drops versions that no ticket can name any more."""
        named = self.evaluations.versions()
        oldest = max(0, self.pool.learned - self.config.lag)
        self.weights = {v: ref for v, ref in self.weights.items() if v >= oldest or v in named}

    def with_unevaluated(self, state: LearnerState, patience: float) -> LearnerState:
        """The state with the weights of unfinished evaluations, which a resumed run can then finish."""
        # Later versions are those of a lost learner; they will be computed and evaluated again.
        named = {version for version in self.evaluations.versions() if version <= state.step} - set(state.versions)
        flat = ray.get([self.weights[v] for v in sorted(named)], timeout=patience)
        return replace(state, versions=state.versions | dict(zip(sorted(named), flat, strict=True)))
