"""Actors and a learner on Ray: the loop's clock, kept by whatever machines are there.

        ┌────────────────────────────── driver ──────────────────────────────┐
        │  Pool.decide ──► Issue, Learn, Drop        receipts ──► Pool, Meter │
        └──────┬──────────────────┬──────────────────────▲───────────────────┘
       tickets │     batches, as  │ references           │ small numbers
               ▼                  ▼                      │
        RolloutActor ──────► LearnerActor ───────────────┤
               ▲   batches, through the object store     │
               └──────────── v_n, a reference ◄──────────┘

Consumes tickets that the pool decides on, produces Stepped, Evaluated and Checkpoint, and waits in one place (`_wait`),
for answers. Weights and batches are references here; the driver fetches tensors only to write a checkpoint.

Whoever dies or hangs is replaced. An actor's ticket is issued again; a lost learner goes on from the last checkpoint.
Nothing of that shows in the result: a ticket is a pure function of its name and its weights.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from functools import partial
from typing import Any

import ray
from pyarrow import fs
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.pool import DEATHS, TRIES, Drop, GiveUp, Issue, Learn, Pool, Work
from actors.ray_actor import RolloutActor, StoredShards, WeightsLost, introduce
from data.shards import Dataset
from learner.learner import LearnerState
from learner.ray_learner import LearnerActor
from recor_dist.core.config import Config, Mistake
from recor_dist.core.device import fingerprint
from recor_dist.core.messages import EvalSums, EvalTicket, Hello, Receipt, Ticket
from recor_dist.engine.events import Checkpoint, Evaluated, Event, Stepped, checkpoint_due, splits_due
from recor_dist.engine.meter import Meter
from recor_dist.engine.placement import (
    actor_resources,
    cluster_in_words,
    end_process,
    in_words,
    learner_resources,
    room_for_actors,
)
from recor_dist.methods import METHODS, make_learner, make_worker
from recor_dist.model.evaluation import add_by_decoder

log = logging.getLogger(__name__)
LEARNER = "learner"
TICK = 0.5  # seconds between looks at the clock while no answer comes
ROUND = 2.0  # seconds between looks at the cluster
PATIENCE_WITH_PLACEMENT = 20.0  # seconds until actors without a place are spoken of
AHEAD = 3  # further steps under way where tickets need no weights

# Whoever dies is replaced by the engine, which knows what was lost; Ray would restart it with its state gone.
_OPTIONS = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {"watch": 1}}
RemoteActor, RemoteLearner = ray.remote(**_OPTIONS)(RolloutActor), ray.remote(**_OPTIONS)(LearnerActor)


class RunFailed(RuntimeError):
    """A ticket or a process fails whoever computes it; the text holds the original traceback."""


@dataclass
class Member:
    """An actor or the learner."""

    name: str
    handle: ActorHandle
    since: float  # when it was hired, or said hello
    hello: Hello | None = None
    tickets: int = 0  # finished

    def __str__(self) -> str:
        return f"{self.name} ({self.hello})" if self.hello else f"{self.name} (still starting)"


@dataclass(frozen=True)
class Call:
    """What a pending reference will answer."""

    kind: str  # hello, begin, watch, work, update
    member: str
    work: Work | None = None
    others: tuple[ray.ObjectRef, ...] = ()  # the tensors that come with the answer
    issued: float = 0.0
    part: Learn | None = None  # of an update


class RayEngine:
    def __init__(
        self,
        config: Config,
        data: Dataset,
        steps: int,
        state: LearnerState,
        unevaluated: Sequence[int],
        restore: Callable[[], LearnerState],
        check_machine: Callable[[dict[str, str | int]], dict[str, str | int]],
    ) -> None:
        """`restore` gives the last checkpoint; `check_machine` refuses or records the learner's fingerprint and returns
        the one that actors must have."""
        self.config, self.data, self.steps = config, data, steps
        self.restore, self.check_machine = restore, check_machine
        groups = config.batch_size // config.rollout_size
        method = METHODS[config.method.name]
        self.uses_weights = method.uses_weights
        ahead, whole = 0 if self.uses_weights else AHEAD, method.statistics(config.method) is not None
        self.pool = Pool(steps, groups, config.lag, config.deadline.answer, ahead, whole, learned=state.step)
        self.members: dict[str, Member] = {}
        self.pending: dict[ray.ObjectRef, Call] = {}
        self.batches: dict[Ticket, ray.ObjectRef] = {}
        self.weights: dict[int, ray.ObjectRef] = {}  # published versions that somebody may still name
        self.scores: dict[tuple[int, str], tuple[int, dict[str, EvalSums]]] = {}  # answered tickets of an evaluation
        self.evaluated: set[int] = set()  # versions whose evaluation was asked for
        self.machine: dict[str, str | int] | None = None  # the fingerprint all must share
        self.waiting_room: list[str] = []  # actors that came before the learner
        self.turned_away: set[str] = set()
        self.shards: StoredShards | None = None
        self.node = ray.get_runtime_context().get_node_id()
        self.happened: list[Event] = []
        self.hired = 0
        self.failed_starts = 0
        self.why_not_started = ""  # what the last one said that was lost before its first ticket
        self.hire_again_at = 0.0
        self.next_round = 0.0
        self.spoken_of: set[str] = set()  # actors whose missing place was told
        self.speak_again_at = 0.0
        self.alone_since = time.monotonic()
        self.learner_deadline = math.inf  # for its next answer, if one is awaited
        self.learner_losses = 0
        self.lives = 0  # of the learner
        self.made_room_at = 0.0
        self.last_learned_at = 0.0
        self.furthest = state.step
        self.kept = state.step  # the newest step whose checkpoint the loop has
        self.refusals: Counter[str] = Counter()  # of weights, in a row
        self.early: dict[Learn, tuple[Call, Receipt]] = {}  # the learner's answers that overtook the one before
        self.meter = Meter(config.batch_size, config.lag, time.monotonic())
        self._begin_life(state)
        for version in unevaluated:
            self._evaluate(version)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def events(self, stopping: Callable[[], bool]) -> Iterator[Event]:
        """Runs to the end, or until it is told to stop; then the last event is a checkpoint, if one could be had."""
        while True:
            self._look_around(time.monotonic())
            if not stopping():  # else the learner would have one more step to take before it can give its state
                for command in self.pool.decide(time.monotonic()):
                    self._carry_out(command)
            # Told only now, so that everybody has work while the loop writes a checkpoint.
            happened, self.happened = self.happened, []
            yield from happened
            if self.pool.done():
                self._sum_up()
                return
            if stopping():
                yield from self._last_words() if self.pool.learned < self.steps else ()
                return
            self._wait()

    def _sum_up(self) -> None:
        for member in self.members.values():
            if member.tickets:
                log.info("%s computed %d tickets", member, member.tickets)
        if self.pool.reissued:
            log.info("%d tickets were issued again", self.pool.reissued)
        log.info("%s", self.meter.advice())

    def close(self) -> None:
        for member in self.members.values():
            ray.kill(member.handle)
        self.members.clear()

    def _wait(self) -> None:
        """Waits for the next answer, but not longer than a tick, and takes all that are there."""
        calls = list(self.pending)
        ready, rest = ray.wait(calls, timeout=TICK, fetch_local=False)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        now = time.monotonic()
        occupied = self.pool.in_hand or self.pool.learned == self.steps  # in the end there is nothing left to learn
        self.meter.passed(now, present=len(self.pool.actors), idle=len(self.pool.idle()), learning=bool(occupied))
        for ref in ready:
            if call := self.pending.pop(ref, None):  # gone if its member was lost a moment ago
                self._take(ref, call, now)

    def _fetch(self, ref: ray.ObjectRef) -> Any:
        """An answer that is there, be it on a machine that does not answer any more."""
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
        if call.kind == "work":
            self._worked(call, answer)
        elif call.kind == "update":
            self._learned(call, answer, now)
        elif call.kind == "hello":
            self._greet(call.member, answer, now)
        elif call.kind == "begin" and call.member == LEARNER:
            self.learner_deadline = now + self.config.deadline.answer if self.pool.in_hand else math.inf
            for other, waiting in self.pending.items():
                if waiting.kind == "update":
                    self.pending[other] = with_changes(waiting, issued=now)
        elif call.kind == "begin":
            self.failed_starts, self.why_not_started = 0, ""
            self.pool.joined(call.member)
            log.info("%s joined; %d at work", self.members[call.member], len(self.pool.actors))

    def _carry_out(self, command: Issue | Learn | Drop | GiveUp) -> None:
        if isinstance(command, Issue):
            handle, ticket = self.members[command.actor].handle, command.ticket
            method = handle.roll_out if isinstance(ticket, Ticket) else handle.evaluate
            needed = self.uses_weights or isinstance(ticket, EvalTicket)
            receipt, answer = method.remote(ticket, [self.weights[ticket.version]] if needed else [])
            self.pending[receipt] = Call("work", command.actor, ticket, (answer,))
        elif isinstance(command, Learn):
            self._learn(command)
        elif isinstance(command, Drop):
            member = self._dismiss(command.actor)
            patience = self.config.deadline.answer
            log.warning("%s was lost: no answer in %g s; %s", member, patience, _again(command.tickets))
        else:
            tries = "; ".join(f"{actor}: {error.strip().splitlines()[-1]}" for actor, error in command.errors)
            raise RunFailed(
                f"{command.ticket} failed on {len(command.errors)} actors ({tries}). The first time:\n"
                f"{command.errors[0][1]}"
            )

    # --- actors ------------------------------------------------------------------------------------------------------

    def hire_actor(self) -> ActorHandle:
        make = partial(make_worker, self.config)
        return RemoteActor.options(**actor_resources(self.config)).remote(partial(fingerprint, self.config), make)

    def _hire(self, name: str, handle: ActorHandle, now: float) -> None:
        self.members[name] = Member(name, handle, now)
        self.pending[handle.hello.remote()] = Call("hello", name)
        self.pending[handle.watch.remote()] = Call("watch", name)

    def _greet(self, name: str, hello: Hello, now: float) -> None:
        """Somebody has found a place and introduces itself."""
        self.members[name].hello, self.members[name].since = hello, now
        if name == LEARNER:
            self.machine = self.check_machine(hello.fingerprint)
            self.learner_deadline = now + self.config.deadline.join
            self.alone_since = now  # actors cannot begin before it
            log.info("%s is there", self.members[name])
            waiting, self.waiting_room = self.waiting_room, []
            for actor in waiting:
                if actor in self.members:
                    self._admit(actor)
        elif self.machine is None:
            self.waiting_room.append(name)
        else:
            self._admit(name)

    def _admit(self, name: str) -> None:
        """Lets an actor open the data. One of another kind of machine keeps its place and gets no ticket: sent away, it
        would only be replaced by another one there."""
        member = self.members[name]
        assert member.hello is not None and self.machine is not None
        theirs = member.hello.fingerprint
        differing = ", ".join(
            f"{key} {theirs.get(key)} instead of {value}"
            for key, value in self.machine.items()
            if theirs.get(key) != value
        )
        if differing and not self.config.allow_mixed:
            self.turned_away.add(name)
            log.warning(
                "%s is turned away, it would compute other bits: %s (allow_mixed=true takes it)", member, differing
            )
            return
        if differing:
            self.check_machine(theirs)
        shards = None
        if member.hello.node != self.node and isinstance(self.data.folder.base_fs, fs.LocalFileSystem):
            if self.shards is None:
                log.info("putting the shards into the object store for nodes that cannot reach %s", self.data.uri)
                self.shards = StoredShards.put(self.data)
            shards = self.shards
        self.pending[member.handle.begin.remote(self.data, shards)] = Call("begin", name)

    def _worked(self, call: Call, receipt: Receipt) -> None:
        self.meter.answered(receipt)
        self.members[call.member].tickets += 1
        self.refusals.pop(call.member, None)
        if not self.pool.completed(call.member, call.work):
            return
        if isinstance(call.work, Ticket):
            self.batches[call.work] = call.others[0]
            return
        version, split = call.work.version, call.work.split
        try:
            sums = self._fetch(call.others[0])
        except RayError:  # small sums come with the receipt; large ones can go down with their node
            log.warning("the answer to %s was lost with its node; it is issued again", call.work)
            self.pool.evaluate([call.work])
            return
        done, before = self.scores.get((version, split), (0, None))
        done, sums = done + 1, add_by_decoder(before, sums) if before else sums
        self.scores[version, split] = done, sums
        total = len(self._eval_tickets(version, split))
        if done == total:
            del self.scores[version, split]
        self.happened.append(Evaluated(version, split, sums, done, total))
        self._release()

    def _raised(self, call: Call, error: RayTaskError) -> None:
        """An exception in code of ours, on a member that lives."""
        if isinstance(error.cause, Mistake):
            raise error.cause from None
        if isinstance(error.cause, WeightsLost):
            self.pool.refused(call.member, call.work)
            log.warning("%s could not get %s; %s is issued again", self.members[call.member], error.cause, call.work)
            self.refusals[call.member] += 1
            if self.refusals[call.member] >= TRIES:
                self._lost(call.member, f"it could not get weights {TRIES} times in a row")
        elif call.kind == "work":
            self.pool.failed(call.member, call.work, str(error))
            log.warning(
                "%s failed on %s and is issued again: %s", call.work, self.members[call.member], _last_line(error)
            )
        elif call.member == LEARNER:
            raise RunFailed(f"{self.members[LEARNER]} failed:\n{error}")
        else:
            self._lost(call.member, str(error), bug=True)

    def _lost(self, name: str, cause: str, *, bug: bool = False) -> None:
        """A member is dead, or taken for dead."""
        member = self._dismiss(name)
        if member is None:
            return
        if name == LEARNER:
            self._learner_lost(member, cause)
            return
        at_work = name in self.pool.actors
        again = _again(self.pool.lost(name, cause))
        log.warning("%s was lost: %s; %s", member, cause.strip().splitlines()[-1], again)
        if not at_work:
            self._failed_start(cause, bug or "creation task" in cause)

    def _dismiss(self, name: str) -> Member | None:
        """Ends a process and forgets all that it was asked."""
        member = self.members.pop(name, None)
        if member:
            self.pending = {ref: call for ref, call in self.pending.items() if call.member != name}
            self.next_round = 0.0
            self.turned_away.discard(name)
            self.refusals.pop(name, None)
            ray.kill(member.handle)
            if member.hello:
                end_process(member.hello)
        return member

    def _failed_start(self, cause: str, bug: bool) -> None:
        """An actor was lost before its first ticket: hires less and less often, and a bug ends the run."""
        self.failed_starts += 1
        self.why_not_started = cause.strip().splitlines()[-1]
        if bug and self.failed_starts >= TRIES and not self.pool.actors:
            raise RunFailed(f"actors cannot start:\n{cause}")
        self.hire_again_at = time.monotonic() + min(30.0, 2.0 ** min(self.failed_starts, 6) / 2)

    def _look_around(self, now: float) -> None:
        """Every other second: hires where there is room, and says who is missing."""
        if now < self.next_round:
            return
        self.next_round = now + ROUND
        if now > self.learner_deadline:
            self._miss_the_learner()
        learner = self.members[LEARNER]
        if learner.hello is None and self.lives > 1:
            self._make_room_for_the_learner(now)
        actors = [member for name, member in self.members.items() if name != LEARNER]
        count = self.config.actors.count
        wanted = count if isinstance(count, int) else room_for_actors(self.config, learner.hello)
        if now >= self.hire_again_at and (learner.hello or self.lives == 1):
            for _ in range(wanted - len(actors)):
                self.hired += 1
                self._hire(f"actor {self.hired}", self.hire_actor(), now)
        settled = {*self.pool.actors, *self.turned_away, *self.waiting_room}
        missing = [member for member in actors if member.name not in settled]
        for member in missing:
            if now - member.since > self.config.deadline.join:
                log.warning("%s did not begin in %g s: asking for another", member, self.config.deadline.join)
                self._dismiss(member.name)
        overdue = {member.name for member in missing if now - member.since > PATIENCE_WITH_PLACEMENT}
        if overdue and overdue != self.spoken_of and now > self.speak_again_at:
            self.spoken_of, self.speak_again_at = overdue, now + PATIENCE_WITH_PLACEMENT
            log.warning(
                "%d of %d actors are not there yet: each wants %s, and there are %s; going on with %d",
                len(overdue),
                len(actors),
                in_words(actor_resources(self.config)),
                cluster_in_words(),
                len(self.pool.actors),
            )
        if self.pool.actors:
            self.alone_since = now
        elif now - self.alone_since > self.config.deadline.join:
            if self.why_not_started:
                raise RunFailed(
                    f"deadline.join={self.config.deadline.join:g}: no actor began in it; {self.failed_starts} were "
                    f"lost while they started, the last one by this: {self.why_not_started}"
                )
            raise Mistake(
                f"deadline.join={self.config.deadline.join:g}: no actor could be had in that time: each wants "
                f"{in_words(actor_resources(self.config))}, and there are {cluster_in_words()}, "
                f"{len(self.turned_away)} actors being of another kind than the learner; add nodes, or ask for less "
                "(actors.num_cpus, actors.num_gpus, learner.num_gpus; fractions are allowed)"
            )

    # --- the learner -------------------------------------------------------------------------------------------------

    def hire_learner(self) -> ActorHandle:
        make = partial(make_learner, self.config, self.data.shape, self.steps)
        # Beside the driver, if there is room: with that node the run is lost anyway, and workers may be spot machines.
        here = NodeAffinitySchedulingStrategy(self.node, soft=True, _spill_on_unavailable=True)
        options = {**learner_resources(self.config), "scheduling_strategy": here}
        return RemoteLearner.options(**options).remote(partial(_introduce, self.config), make)

    def _begin_life(self, state: LearnerState) -> None:
        """A learner that goes on from this state, and the weights that tickets may name from there on."""
        now = time.monotonic()
        self.lives += 1
        self.early.clear()
        self.weights = {version: ray.put(flat) for version, flat in state.versions.items()}
        handle = self.hire_learner()
        self._hire(LEARNER, handle, now)
        self.pending[handle.begin.remote(state)] = Call("begin", LEARNER)
        self.learner_deadline = now + self.config.deadline.join

    def _learn(self, part: Learn) -> None:
        now = time.monotonic()
        batches = [self.batches[ticket] for ticket in self.pool.tickets(part.step)[part.first : part.end]]
        last = part.end == self.pool.groups
        with_state = last and checkpoint_due(self.config, part.step + 1, self.steps)
        handle = self.members[LEARNER].handle
        receipt, *others = handle.update.remote(part.step, part.first, batches, last=last, with_state=with_state)
        self.pending[receipt] = Call("update", LEARNER, None, tuple(others), now, part)
        if self.learner_deadline == math.inf:  # else it still starts, and that comes first
            self.learner_deadline = now + self.config.deadline.answer

    def _learned(self, call: Call, receipt: Receipt, now: float) -> None:
        """The learner has taken tickets, or found that a finished one is gone."""
        part = call.part
        if receipt.metrics is None and not receipt.lost:
            return  # it followed tickets that could not be taken; both will be asked for again
        if part != self.pool.in_hand[0]:  # Ray answers each call by itself: two may arrive in the wrong order
            self.early[part] = call, receipt
            return
        self.learner_deadline = math.inf
        if receipt.lost:
            tickets = self.pool.tickets(part.step)
            for group in receipt.lost:
                log.warning("the batch of %s was lost with its node; it is issued again", tickets[group])
                self.pool.ticket_lost(tickets[group])
                del self.batches[tickets[group]]
            return
        last, state = part.end == self.pool.groups, None
        if last and checkpoint_due(self.config, part.step + 1, self.steps):
            try:
                state = self._with_unevaluated(self._fetch(call.others[1]), self.config.deadline.answer)
            except RayError as error:
                self._lost(LEARNER, _cause(error))
                return
        self.meter.took(receipt, now - max(call.issued, self.last_learned_at))
        self.pool.took()
        self.last_learned_at = now
        if self.pool.in_hand:
            self.learner_deadline = now + self.config.deadline.answer
        if last:
            self._stepped(part.step + 1, call.others[0], receipt.metrics, state)
        if self.pool.in_hand and self.pool.in_hand[0] in self.early:
            self._learned(*self.early.pop(self.pool.in_hand[0]), now)

    def _stepped(
        self, version: int, weights: ray.ObjectRef, metrics: dict[str, float], state: LearnerState | None
    ) -> None:
        """The learner has taken the last tickets of a step."""
        for ticket in self.pool.tickets(version - 1):
            del self.batches[ticket]
        self.weights[version] = weights
        if version > self.furthest:
            self.furthest, self.learner_losses = version, 0
        self._evaluate(version)
        self._release()
        timing = self.meter.stepped(present=len(self.pool.actors), reissued=self.pool.reissued)
        self.happened.append(Stepped(version, {**metrics, **timing}))
        if state:
            self.kept = state.step
            self.happened.append(Checkpoint(state))

    def _learner_lost(self, member: Member, cause: str) -> None:
        self.learner_losses += 1
        if self.learner_losses >= DEATHS:
            raise RunFailed(
                f"the learner was lost {DEATHS} times before step {self.furthest + 1}; the last time: {cause}"
            )
        state = self.restore()
        log.warning(
            "%s was lost at step %d: %s; a new one goes on from step %d", member, self.pool.learned, cause, state.step
        )
        self.pool.rewound(state.step)
        for name in [name for name, other in self.members.items() if other.hello is None]:
            self._dismiss(name)  # or it would take the place that has just become free
        self._begin_life(state)

    def _make_room_for_the_learner(self, now: float) -> None:
        """A new learner that finds no place for long gets that of an actor: without it nobody has anything to do."""
        if now - max(self.members[LEARNER].since, self.made_room_at) < PATIENCE_WITH_PLACEMENT:
            return
        actors = [*self.turned_away, *self.pool.idle(), *(name for name in self.members if name != LEARNER)]
        if actors:
            self.made_room_at = now
            again = _again(self.pool.sent_away(actors[0]))
            log.warning("the new learner is not there yet: %s makes room for it; %s", self._dismiss(actors[0]), again)

    def _miss_the_learner(self) -> None:
        member = self.members[LEARNER]
        if member.hello is None:
            raise Mistake(
                f"deadline.join={self.config.deadline.join:g}: the learner did not start in that time: it wants "
                f"{in_words(learner_resources(self.config))}, and there are {cluster_in_words()}; "
                "add a node, or ask for less (learner.num_cpus, learner.num_gpus)"
            )
        self._lost(LEARNER, "no answer before its deadline")

    def _last_words(self) -> Iterator[Event]:
        """The state to go on from when the run is stopped now: that of the last whole step, once the learner has taken
        what it has in hand, if that is soon. A step of which it has taken a part will be begun again."""
        patience, lives, state = self.config.deadline.stop, self.lives, None
        try:
            newest = ray.get(self.members[LEARNER].handle.state.remote(), timeout=patience)
            # What was before it in the learner's queue, and may have to be evaluated, too.
            for ref, call in list(self.pending.items()):
                if call.kind == "update" and self.pending.pop(ref, None):
                    self._take(ref, call, time.monotonic())
            if self.lives == lives:  # else it was lost at that, with weights that are still to be evaluated
                state = self._with_unevaluated(newest, patience)
        except RayError as error:
            log.warning(
                "there was no state to be had in deadline.stop=%g s (%s): the last checkpoint stands",
                patience,
                _cause(error),
            )
        told, self.happened = self.happened, []
        yield from told
        if state and state.step > self.kept:
            yield Checkpoint(state)

    # --- versions and evaluations ------------------------------------------------------------------------------------

    def _eval_tickets(self, version: int, split: str) -> list[EvalTicket]:
        count = math.ceil(self.data.rows_of(split) / self.config.eval.size)
        return [EvalTicket(version, split, index) for index in range(count)]

    def _evaluate(self, version: int) -> None:
        if version in self.evaluated:  # before the learner was lost
            return
        self.evaluated.add(version)
        for split in splits_due(self.config, version, self.steps):
            self.pool.evaluate(self._eval_tickets(version, split))

    def _release(self) -> None:
        """Lets go of versions that no ticket can name any more."""
        named = {ticket.version for ticket in self.pool.evaluating}
        oldest = max(0, self.pool.learned - self.config.lag)
        self.weights = {v: ref for v, ref in self.weights.items() if v >= oldest or v in named}

    def _with_unevaluated(self, state: LearnerState, patience: float) -> LearnerState:
        """Whoever goes on from this state can also evaluate what was still to be evaluated."""
        # Later versions are those of a learner that was lost; they will be computed and evaluated again.
        named = {t.version for t in self.pool.evaluating if t.version <= state.step} - set(state.versions)
        flat = ray.get([self.weights[v] for v in sorted(named)], timeout=patience)
        return with_changes(state, versions=state.versions | dict(zip(sorted(named), flat, strict=True)))


def _introduce(config: Config) -> Hello:
    return introduce(fingerprint(config))


def _cause(error: Exception) -> str:
    """What Ray says of a loss; the whole traceback where an actor could not even be made."""
    text = str(error)
    if isinstance(error, ActorDiedError) and "creation task" in text:
        return text
    return " ".join(text.split("\n")[0].split()) or type(error).__name__


def _again(tickets: Sequence[Work]) -> str:
    """What becomes of the tickets of somebody who is gone."""
    return f"{', '.join(map(str, tickets))} is issued again" if tickets else "it had no ticket"


def _last_line(error: RayTaskError) -> str:
    return str(error).strip().splitlines()[-1]
