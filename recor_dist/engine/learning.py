"""The learner's side of the Ray engine: it hands the learner its tickets and publishes the weights that come back."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import ray

from actors.pool import DEATHS, Learn, Pool
from learner.learner import LearnerState
from recor_dist.core.config import Config
from recor_dist.core.messages import Receipt, Ticket
from recor_dist.engine.calls import Calls, UpdateCall
from recor_dist.engine.crew import LEARNER, Crew
from recor_dist.engine.evaluations import Evaluations
from recor_dist.engine.events import Checkpoint, Event, RunFailed, Stepped, checkpoint_due
from recor_dist.engine.meter import Meter

log = logging.getLogger(__name__)


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
        self, config: Config, steps: int, pool: Pool, crew: Crew, calls: Calls, evaluations: Evaluations, meter: Meter
    ) -> None:
        self.config, self.steps = config, steps
        self.pool, self.crew, self.calls, self.evaluations, self.meter = pool, crew, calls, evaluations, meter
        self.results: dict[Ticket, ray.ObjectRef] = {}  # of tickets that are issued or finished, and not taken yet
        self.weights: dict[int, ray.ObjectRef] = {}  # published versions that a ticket may still name
        self.early: dict[Learn, tuple[UpdateCall, Receipt]] = {}  # answers that overtook an earlier one
        self.starting = False  # the learner has not begun
        self.deadline = math.inf  # for it to start, or for its next answer, if it has what it needs
        self.free_at = 0.0  # when it began, or last finished tickets
        self.losses = 0  # of learners since `furthest`
        self.furthest = pool.learned

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
        """The learner's time for an answer starts when it has what it needs."""
        if not self.starting and self.deadline == math.inf and self.pool.learner_busy():
            self.deadline = now + self.config.deadline.answer
            self.free_at = max(self.free_at, now)

    def is_late(self, now: float) -> bool:
        return now > self.deadline

    # --- tickets -----------------------------------------------------------------------------------------------------

    def issued(self, ticket: Ticket, result: ray.ObjectRef) -> None:
        """An actor was given a ticket."""
        self.results[ticket] = result

    def finished(self, ticket: Ticket, result: ray.ObjectRef) -> None:
        """An actor has computed a ticket."""
        self.results[ticket] = result
        self._watch(time.monotonic())

    def learn(self, part: Learn) -> None:
        """Has the learner take tickets of a step."""
        now = time.monotonic()
        results = tuple(self.results[ticket] for ticket in self.pool.tickets_of(part))
        last, with_state = part.end == self.pool.groups, self._checkpoint_after(part)
        update = self.crew.learner.handle.update
        receipt, weights, state = update.remote(part.step, part.first, results, last=last, with_state=with_state)
        self.calls.add(receipt, UpdateCall(LEARNER, "update", part, results, weights, state, now))
        if last and self.pool.promises:
            self.weights[part.step + 1] = weights
        self._watch(now)

    def learned(self, call: UpdateCall, receipt: Receipt, now: float) -> Iterator[Event]:
        """The learner has taken tickets, or found that the result of one is lost; yields the steps that are complete.
        Raises RayError if a checkpoint's state was lost with the learner."""
        part = call.part
        if receipt.metrics is None and not receipt.lost:
            return  # it followed tickets that could not be taken; the pool will ask for both again
        if part != self.pool.in_hand[0]:  # Ray answers each call independently, so two may arrive in the wrong order
            self.early[part] = call, receipt
            return
        self.deadline = math.inf
        if receipt.lost:
            self._results_lost(call, receipt.lost)
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
            yield self._stepped(part.step + 1, call.weights, receipt)
        if state:
            yield Checkpoint(state)
        if self.pool.in_hand and self.pool.in_hand[0] in self.early:
            yield from self.learned(*self.early.pop(self.pool.in_hand[0]), now)

    def _stepped(self, version: int, weights: ray.ObjectRef, receipt: Receipt) -> Stepped:
        """The learner has taken the last tickets of a step and published its weights."""
        assert receipt.metrics is not None
        self.weights[version] = weights
        if version > self.furthest:
            self.furthest, self.losses = version, 0
        self.pool.evaluate(self.evaluations.due(version))
        self.release()
        timing = self.meter.stepped(present=len(self.pool.actors), reissued=self.pool.reissued)
        return Stepped(version, {**receipt.metrics, **timing})

    def _checkpoint_after(self, part: Learn) -> bool:
        return part.end == self.pool.groups and checkpoint_due(self.config, part.step + 1, self.steps)

    def _results_lost(self, call: UpdateCall, groups: Sequence[int]) -> None:
        """Tickets of a step have no result: it was lost with its node, or their actor failed."""
        for group in groups:
            ticket = self.pool.tickets(call.part.step)[group]
            again = self.results[ticket] != call.results[group - call.part.first]  # reissued in the meantime
            if ticket in self.pool.finished and not again:
                log.warning("the result of %s was lost with its node; reissuing it", ticket)
            self.pool.ticket_lost(ticket, again)

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
