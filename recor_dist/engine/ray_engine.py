"""Actors and a learner on Ray: the loop's clock, kept by however many machines are available.

        ┌────────────────────────────── driver ──────────────────────────────┐
        │  Pool.decide ──► Issue, Learn, Lead, Drop   receipts ──► Pool, Meter │
        └──────┬──────────────────┬──────────────────────▲───────────────────┘
       tickets │       references │ to results           │ small numbers
               ▼                  ▼                      │
        RolloutActor ──────► LearnerActor ───────────────┤
               ▲   batches, through the                  │
               │   object store                          │
               └──────── a reference to v_n ◄────────────┘

If actors compute gradients, too, the learner leads: it hands out the tickets of whole steps itself, and reports to the
driver once a second (learner/leading.py).

The pool decides who computes what (actors/pool.py), the crew hires and replaces processes (crew.py), evaluations are
added up in evaluations.py, and learning.py hands the learner its tickets. The engine carries out the pool's commands,
waits in one place (`_wait`) for answers, and turns them into the events Stepped, Evaluated and Checkpoint. It handles
weights and batches by reference; the driver fetches tensors only to write a checkpoint.

A process that dies or hangs is replaced. An actor's tickets are reissued; a new learner resumes from the last
checkpoint. The result does not change, because a ticket is a pure function of its name and its weights.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

from actors.pool import TRIES, Command, Drop, GiveUp, Issue, Lead, Learn, Pool, Work
from actors.ray_actor import WeightsLost
from data.shards import Dataset
from learner.leading import ITSELF, Terms
from learner.learner import LearnerState
from recor_dist.core import ray_session
from recor_dist.core.config import Config
from recor_dist.core.files import split_name
from recor_dist.core.memory import TooSmall
from recor_dist.core.messages import EvalTicket, HandedOut, Led, Receipt, Ticket
from recor_dist.core.ray_member import Fingerprint
from recor_dist.core.setting import Mistake
from recor_dist.core.tracing import span
from recor_dist.engine.activities import activities, doing_of_actor, doing_of_learner, on_our_clock
from recor_dist.engine.calls import Call, Calls, LeadCall, TicketCall, UpdateCall
from recor_dist.engine.crew import LEARNER, Crew, Member
from recor_dist.engine.evaluations import Evaluations
from recor_dist.engine.events import Checkpoint, Event, Looked, Profiled, RunFailed
from recor_dist.engine.gradient_mode import choose_gradients, tickets_in_store
from recor_dist.engine.learning import Learning
from recor_dist.engine.meter import Meter
from recor_dist.engine.profile import INCOMPLETE
from recor_dist.engine.profiling import Profiling
from recor_dist.engine.prometheus import Exports
from recor_dist.methods import METHODS

log = logging.getLogger(__name__)
TICK = 0.5  # seconds to wait for an answer before looking at the clock again
AHEAD = 3  # extra steps in flight if tickets need no weights


class RayEngine:
    """Carries out the pool's commands.

    It promises the events of an undisturbed run no matter which processes are lost. Only the steps since the last
    checkpoint are reported twice, with the same numbers, when the learner is lost.
    """

    def __init__(
        self,
        config: Config,
        data: Dataset,
        steps: int,
        state: LearnerState,
        unevaluated: Sequence[int],
        restore: Callable[[], LearnerState],
        check_machine: Callable[[Fingerprint], Fingerprint],
    ) -> None:
        """`restore` returns the last checkpoint; `check_machine` refuses or records the learner's fingerprint and
        returns the one that actors must have."""
        self.config, self.steps, self.restore = config, steps, restore
        weights = state.versions[state.step].size
        self.gradients = choose_gradients(config, data.shape, weights)
        self.uses_weights = self.gradients or METHODS[config.method.name].uses_weights(config.method)
        self.pool = self._make_pool(weights, state.step)
        self.calls = Calls()
        terms = None
        if self.pool.leads:
            takes_part, patience = self.pool.leads_alone, config.deadline.answer
            terms = Terms(self.pool.groups, takes_part, patience, self.pool.window or self.pool.groups)
        self.crew = Crew(config, data, steps, terms, self.calls, check_machine)
        self.evaluations = Evaluations(config, data, steps)
        self.meter = Meter(config.batch_size, self.pool.groups, config.lag, self.gradients, time.monotonic())
        self.learning = Learning(config, steps, self.pool, self.crew, self.calls, self.evaluations, self.meter)
        self.happened: list[Event] = []  # not yet reported to the loop
        self.kept = state.step  # the newest step whose checkpoint the loop has
        self.computed: Counter[str] = Counter()  # tickets, by actor
        self.refusals: Counter[str] = Counter()  # of weights, in a row, by actor
        self.handed_out: HandedOut | None = None  # what the leading learner last told
        self.exports = Exports(split_name(config.out or "")[1], self.meter, self.pool)
        self.profiling = Profiling(self.crew, state.step, config.deadline.answer) if config.profile else None
        if self.profiling:
            self.learning.pause = self.profiling.until
        self.learning.start(state)
        for version in unevaluated:
            self.pool.evaluate(self.evaluations.due(version))

    def _make_pool(self, weights: int, step: int) -> Pool:
        config, method = self.config, METHODS[self.config.method.name]
        groups, patience = config.batch_size // config.rollout_size, config.deadline.answer
        if self.gradients:  # which need the weights of their own step, whatever the lag of a method without rollouts
            window = tickets_in_store(weights)
            alone = config.device == "cpu"  # on a GPU, the learner would share its memory with an actor
            return Pool(self.steps, groups, 0, patience, leads=True, leads_alone=alone, window=window, learned=step)
        ahead = 0 if method.uses_weights(config.method) else AHEAD
        whole = method.statistics(config.method) is not None
        return Pool(self.steps, groups, config.lag, patience, ahead, whole, learned=step)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def events(self, stopping: Callable[[], bool]) -> Iterator[Event]:
        """Runs to the end, or until told to stop; then the last event is a checkpoint, if the learner returns one."""
        while True:
            looked = self._look_around(time.monotonic())
            profiled = self._profile(self.profiling) if self.profiling else False
            if looked or profiled:  # which takes seconds if a process hangs
                self._wait(0.0)  # answers that arrived in that time come before deadlines that passed in it
            if not stopping():  # else the learner would have to take another step before it can return its state
                with span("hand out work"):
                    self._hand_out(self.pool.decide(time.monotonic()))
            if looked:  # now, while all have work
                self._tell(time.monotonic())
            # Only now, so all processes have work while the loop writes a checkpoint.
            yield from self._news()
            if self.profiling and (self.pool.done() or stopping()):
                log.warning("%s, or no actor had joined in time", INCOMPLETE)
            if self.pool.done():
                self._sum_up()
                return
            if stopping():
                yield from self._stop() if self.pool.learned < self.steps else ()
                return
            self._wait()

    def close(self) -> None:
        if self.profiling:
            self.profiling.abandon()
        self.crew.close()

    def _profile(self, profiling: Profiling) -> bool:
        """Begins or ends the profile when it is time; not while the learner leads, because it would not answer. True
        if it waited for that."""
        due = self.pool.learned >= profiling.until and not self.pool.leading
        if not due or not (profiling.members or self.pool.actors):
            return False
        try:
            if profiling.members:
                self.happened.append(Profiled(profiling.end()))
                self.profiling = None
            else:
                profiling.begin(next(iter(self.pool.actors)), self.pool.learned)
                self.learning.pause = profiling.until
        except RayError as error:
            late = f"no answer in {profiling.patience:g} s"
            log.warning("no profile: %s", late if isinstance(error, GetTimeoutError) else _cause(error))
            profiling.abandon()
            self.profiling = None
        return True

    def _news(self) -> list[Event]:
        happened, self.happened = self.happened, []
        return happened

    def _sum_up(self) -> None:
        for member in self.crew.actors():
            if self.computed[member.name]:
                log.info("%s computed %d tickets", member, self.computed[member.name])
        if self.computed[ITSELF]:
            log.info("%s computed %d tickets", ITSELF, self.computed[ITSELF])
        if self.pool.reissued:
            log.info("%d tickets were reissued", self.pool.reissued)
        log.info("%s", self.meter.advice())

    def _stop(self) -> Iterator[Event]:
        """Ends with the state of the last whole step, if the learner returns it in time. A step of which it has taken
        only a part will be started again."""
        patience, learner, state = self.config.deadline.stop, self.crew.learner, None
        try:
            asked: ray.ObjectRef = learner.handle.state.remote()
            newest, led = ray.get(asked, timeout=patience)
            # Its last steps may still have to be recorded, and evaluated.
            for ref in self.calls.updates_before(newest.step):
                if call := self.calls.take(ref):
                    self._take(ref, call, time.monotonic())
            if self.pool.leading and self.pool.leading.step + len(led) == newest.step:
                self.happened += self.learning.led_steps(led)
            # Else it was lost just now, with weights that are still to be evaluated.
            if self.crew.learner is learner and self.pool.learned == newest.step:
                state = self.learning.with_unevaluated(newest, patience)
        except RayError as error:
            if isinstance(error, GetTimeoutError):
                self.crew.explain({LEARNER: f"hangs: {self._doing_of_learner()}"}, patience / 4)
            log.warning(
                "no state from the learner within deadline.stop=%g s (%s): keeping the last checkpoint",
                patience,
                _cause(error),
            )
        yield from self._news()
        if state and state.step > self.kept:
            yield Checkpoint(state)

    def _look_around(self, now: float) -> bool:
        """Every other second: replaces a learner past its deadline, and has the crew hire and report."""
        if not self.crew.round_due(now):
            return False
        ray_session.check()
        if self.learning.is_late(now):
            self.crew.require_learner()
            self._lost(LEARNER, "no answer before its deadline", hangs=self._doing_of_learner())
        if name := self.crew.who_makes_room(now, self.pool.idle()):
            again = _again(self.pool.sent_away(name))
            member = self.crew.dismiss(name)
            log.warning("the new learner has not started yet: dismissing %s to make room for it; %s", member, again)
        self.crew.look_around(now, self.pool.actors)
        return True

    def _tell(self, now: float) -> None:
        """What the processes do at the moment, and have done."""
        self.exports.export(now)
        self.happened.append(Looked(tuple(activities(self.pool, self.crew, self.learning, self.handed_out, now))))
        if self.pool.leading and not self.calls.has(LEARNER, "handed_out"):  # only the learner knows who has what
            self.calls.add(self.crew.learner.handle.handed_out.remote(), Call(LEARNER, "handed_out"))

    def _doing_of_learner(self) -> str:
        return doing_of_learner(self.pool, self.crew, self.learning, self.handed_out)[0]

    # --- commands ----------------------------------------------------------------------------------------------------

    def _hand_out(self, commands: Sequence[Command]) -> None:
        drops = [command for command in commands if isinstance(command, Drop)]
        self.crew.explain({drop.actor: f"hangs: {_doing(drop.tickets)}" for drop in drops})
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Issue):
            self._issue(command.actor, command.ticket)
        elif isinstance(command, Learn):
            self.learning.learn(command)
        elif isinstance(command, Lead):
            self.learning.lead(command)
        elif isinstance(command, Drop):
            member = self.crew.dismiss(command.actor)
            patience = self.config.deadline.answer
            log.warning("%s was lost: no answer in %g s; %s", member, patience, _again(command.tickets))
        else:
            raise _failure(command)

    def _issue(self, actor: str, ticket: Work) -> None:
        handle = self.crew.member(actor).handle
        kind = "evaluate" if isinstance(ticket, EvalTicket) else "differentiate" if self.gradients else "roll_out"
        needed = self.uses_weights or isinstance(ticket, EvalTicket)
        weights = [self.learning.weights_of(ticket.version)] if needed else []
        receipt, answer = getattr(handle, kind).remote(ticket, weights)
        self.calls.add(receipt, TicketCall(actor, kind, ticket, answer))

    # --- answers -----------------------------------------------------------------------------------------------------

    def _wait(self, seconds: float = TICK) -> None:
        """Waits for the next answer, at most this long, and takes all that have arrived."""
        with span("wait for answers"):
            ready = self.calls.wait(seconds)
        now = time.monotonic()
        if self.pool.leading:  # the learner itself measures its steps
            self.meter.now = now
        else:
            occupied = self.pool.in_hand or self.pool.learned == self.steps  # at the end there is nothing left to learn
            self.meter.passed(now, present=len(self.pool.actors), idle=len(self.pool.idle()), learning=bool(occupied))
        with span("take answers"):
            for ref in ready:
                if call := self.calls.take(ref):
                    self._take(ref, call, now)

    def _fetch(self, ref: ray.ObjectRef) -> Any:
        """An answer that has arrived. The timeout is for one on a machine that no longer responds."""
        return ray.get(ref, timeout=self.config.deadline.answer)

    def _take(self, ref: ray.ObjectRef, call: Call, now: float) -> None:
        """One answer, or the news that there will be none."""
        try:
            answer = self._fetch(ref)
        except RayTaskError as error:
            self._raised(call, error)
            return
        except RayError as error:
            self._lost(call.member, _cause(error))
            return
        if isinstance(call, TicketCall):
            self._worked(call, answer)
        elif isinstance(call, UpdateCall):
            self._report(self.learning.learned(call, answer, now))
        elif isinstance(call, LeadCall):
            self._led(call, answer, now)
        elif call.method == "handed_out":
            self.handed_out = on_our_clock(answer, now) if answer else None
        elif call.method == "hello":
            self.crew.greet(call.member, answer, now)
            if call.member == LEARNER:
                self.learning.greeted(now)
        elif call.method == ("prepare_to_lead" if self.pool.leads else "begin") and call.member == LEARNER:
            self.pool.prepared = self.pool.leads
            self.learning.began(now)
        elif call.method == "begin" and call.member != LEARNER:
            self.pool.joined(call.member)
            self.crew.began(call.member, len(self.pool.actors))

    def _worked(self, call: TicketCall, receipt: Receipt) -> None:
        """An actor has finished a ticket."""
        self.meter.answered(receipt)
        self.computed[call.member] += 1
        self.refusals.pop(call.member, None)
        ticket = call.ticket
        if not self.pool.completed(call.member, ticket):
            return
        if isinstance(ticket, Ticket):
            self.learning.finished(ticket, call.answer)
            return
        try:
            sums = self._fetch(call.answer)
        except RayError:  # small sums come with the receipt; large ones can be lost with their node
            log.warning("the answer to %s was lost with its node; reissuing it", ticket)
            self.pool.evaluate([ticket])
            return
        self.happened.append(self.evaluations.add(ticket, sums))
        self.learning.release()

    def _led(self, call: LeadCall, led: Led, now: float) -> None:
        """The learner has stopped leading."""
        for step in led.steps:
            self.computed.update(step.tickets)
        self._report(self.learning.led(call, led, now))
        if trouble := led.trouble:
            self.pool.troubled(trouble.actor, trouble.ticket, trouble.cause, raised=trouble.raised)
            if trouble.raised:
                last = _last_line(trouble.cause)
                log.warning("%s failed on %s and is reissued: %s", trouble.ticket, trouble.actor, last)
            else:
                hangs = doing_of_actor(trouble.ticket) if trouble.hangs else ""
                self._lost(trouble.actor, trouble.cause, hangs=hangs)
                log.warning("reissuing %s", trouble.ticket)

    def _report(self, events: Iterator[Event]) -> None:
        """The learner has answered."""
        try:
            for event in events:
                self.happened.append(event)
                if isinstance(event, Checkpoint):
                    self.kept = event.state.step
        except RayError as error:
            hangs = self._doing_of_learner() if isinstance(error, GetTimeoutError) else ""
            self._lost(LEARNER, _cause(error), hangs=hangs)

    # --- losses ------------------------------------------------------------------------------------------------------

    def _raised(self, call: Call, error: RayTaskError) -> None:
        """Our own code raised an exception, in a process that is still alive."""
        if isinstance(error.cause, TooSmall) and call.method == "begin" and call.member != LEARNER:
            self.crew.too_small(call.member, error.cause, len(self.pool.actors))
            return
        if isinstance(error.cause, Mistake):
            raise error.cause from None
        if not isinstance(call, TicketCall):
            if call.member == LEARNER:
                raise RunFailed(f"{self.crew.learner} failed:\n{error}")
            self._lost(call.member, str(error), bug=True)
            return
        actor = self.crew.member(call.member)
        if not isinstance(error.cause, WeightsLost):
            self.pool.failed(actor.name, call.ticket, str(error))
            log.warning("%s failed on %s and is reissued: %s", call.ticket, actor, _last_line(str(error)))
            return
        self.pool.refused(actor.name, call.ticket)
        log.warning("%s could not get %s; reissuing %s", actor, error.cause, call.ticket)
        self.refusals[actor.name] += 1
        if self.refusals[actor.name] >= TRIES:
            self._lost(actor.name, f"it could not get weights {TRIES} times in a row")

    def _lost(self, name: str, cause: str, *, bug: bool = False, hangs: str = "") -> None:
        """A process is dead, or considered dead. `hangs`: what it has to do, if it does not answer."""
        ray_session.check()
        if hangs:
            self.crew.explain({name: f"hangs: {hangs}"})
        member = self.crew.dismiss(name)
        if member is None:
            return
        if name == LEARNER:
            self._learner_lost(member, cause)
            return
        was_at_work = name in self.pool.actors
        again = _again(self.pool.lost(name, cause))
        log.warning("%s was lost: %s; %s", member, _last_line(cause), again)
        if not was_at_work:
            self.crew.failed_to_start(cause, bug=bug or "creation task" in cause, at_work=len(self.pool.actors))

    def _learner_lost(self, member: Member, cause: str) -> None:
        self.learning.lost(cause)
        state, step = self.restore(), self.pool.learned
        log.warning("%s was lost at step %d: %s; a new one resumes from step %d", member, step, cause, state.step)
        self.pool.rewound(state.step)
        self.crew.dismiss_unplaced()
        self.learning.start(state)


def _failure(given_up: GiveUp) -> RunFailed:
    tries = "; ".join(f"{actor}: {_last_line(error)}" for actor, error in given_up.errors)
    count, (_, first) = len(given_up.errors), given_up.errors[0]
    return RunFailed(f"{given_up.ticket} failed on {count} actors ({tries}). The first time:\n{first}")


def _doing(tickets: Sequence[Work]) -> str:
    """What an actor with these tickets has not finished; none if others have computed them since."""
    return doing_of_actor(tickets[0]) if tickets else "computes a ticket that is not needed any more"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def _cause(error: Exception) -> str:
    """What Ray says about a loss; the whole traceback if an actor could not even be created."""
    text = str(error)
    if isinstance(error, ActorDiedError) and "creation task" in text:
        return text
    return " ".join(text.split("\n")[0].split()) or type(error).__name__


def _again(tickets: Sequence[Work]) -> str:
    """What happens to the tickets of a process that is gone."""
    return f"reissuing {', '.join(map(str, tickets))}" if tickets else "it had no ticket from the driver"
