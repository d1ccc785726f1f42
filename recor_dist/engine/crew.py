"""The processes of a run on Ray, one learner and its actors: hired, greeted, admitted, dismissed and replaced.

hired ──► hello ──┬──► begin ──► at work, which the pool keeps track of
                  ├──► waits for the learner's hello, and is compared with it
                  └──► turned away: its machine would compute different bits, or has too little memory
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.pool import TRIES
from actors.ray_actor import RolloutActor, StoredShards
from data.shards import Dataset
from learner.leading import Terms
from learner.learner import LearnerState
from learner.ray_learner import LearnerActor
from recor_dist.core.config import Config
from recor_dist.core.device import differing, fingerprint
from recor_dist.core.files import is_local
from recor_dist.core.messages import Hello
from recor_dist.core.ray_member import Fingerprint
from recor_dist.core.setting import Mistake
from recor_dist.engine.calls import Call, Calls
from recor_dist.engine.events import RunFailed
from recor_dist.engine.placement import (
    actor_resources,
    cluster_in_words,
    end_process,
    examine,
    in_words,
    learner_resources,
    room_for_actors,
)
from recor_dist.methods import make_compute, make_learner, make_worker

log = logging.getLogger(__name__)
LEARNER = "learner"
ROUND = 2.0  # seconds between two checks of the cluster
PATIENCE_WITH_PLACEMENT = 20.0  # seconds until a process that Ray has not placed is reported
PATIENCE_WITH_STACKS = 10.0  # seconds that the replacement of a process that hangs may wait for its stacks

# The engine replaces dead processes itself because it knows what was lost; Ray would restart them without their state.
_OPTIONS = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {"watch": 1, "state": 1}}
# Any, like their handles, because Ray makes the methods `remote` and `options` at run time.
RemoteActor: Any = ray.remote(**_OPTIONS)(RolloutActor)
RemoteLearner: Any = ray.remote(**_OPTIONS)(LearnerActor)
Handle = Any


@dataclass
class Member:
    """An actor or the learner."""

    name: str
    handle: Handle
    since: float  # when it was hired; later, when it said hello
    hello: Hello | None = None  # once Ray has placed it

    def __str__(self) -> str:
        return f"{self.name} ({self.hello})" if self.hello else f"{self.name} (still starting)"


class Crew:
    """The processes that exist. The pool knows which actors are at work and on what; this is passed in.

    It promises:
    - exactly one learner, from `hire_learner` on, and at most as many actors as wanted; no actor's name is used twice;
    - no actor gets data before its fingerprint is compared with the learner's; if they differ, it gets none, unless
      allow_mixed;
    - a dismissed process is ended, its calls are forgotten, and the next round replaces it;
    - after each failed start in a row it waits longer before hiring; if no actor begins in time, it raises the reason.
    """

    def __init__(
        self,
        config: Config,
        data: Dataset,
        steps: int,
        lead: Terms | None,
        calls: Calls,
        check_machine: Callable[[Fingerprint], Fingerprint],
    ) -> None:
        """`lead`: the terms on which the learner hands out tickets, if actors compute gradients."""
        self.config, self.data, self.steps, self.lead, self.gradients = config, data, steps, lead, lead is not None
        self.calls, self.check_machine = calls, check_machine
        self.node = ray.get_runtime_context().get_node_id()
        self.members: dict[str, Member] = {}
        self.hired = 0  # actors so far
        self.lives = 0  # learners so far
        self.machine: Fingerprint | None = None  # what every actor must have
        self.waiting: list[str] = []  # actors that said hello before the learner
        self.turned_away: set[str] = set()
        self.shards: StoredShards | None = None
        self.failed_starts = 0  # in a row
        self.last_failure = ""
        self.hire_again_at = 0.0
        self.next_round = 0.0
        self.reported: set[str] = set()  # actors last reported as missing
        self.report_again_at = 0.0
        self.alone_since = time.monotonic()  # without any actor at work
        self.made_room_at = 0.0

    # --- which processes exist ---------------------------------------------------------------------------------------

    @property
    def learner(self) -> Member:
        return self.members[LEARNER]

    def actors(self) -> list[Member]:
        """Oldest first, whether at work or not."""
        return [member for name, member in self.members.items() if name != LEARNER]

    def member(self, name: str) -> Member:
        return self.members[name]

    # --- hiring ------------------------------------------------------------------------------------------------------

    def start_actor(self) -> Handle:
        make = partial(make_worker, self.config, role="actor with gradients" if self.gradients else "actor")
        return RemoteActor.options(**actor_resources(self.config, self.gradients)).remote(
            partial(fingerprint, self.config), make
        )

    def start_learner(self) -> Handle:
        make = partial(make_learner, self.config, self.data.shape, self.steps)
        # Next to the driver if there is room: losing that node ends the run anyway, and workers may be spot machines.
        here = NodeAffinitySchedulingStrategy(self.node, soft=True, _spill_on_unavailable=True)
        options = {**learner_resources(self.config, self.gradients), "scheduling_strategy": here}
        return RemoteLearner.options(**options).remote(partial(fingerprint, self.config), make)

    def hire_learner(self, state: LearnerState, now: float) -> None:
        """A learner that resumes from this state; the one before must have been dismissed."""
        assert LEARNER not in self.members
        self.lives += 1
        handle = self.start_learner()
        self._hire(LEARNER, handle, now)
        self.calls.add(handle.begin.remote(state), Call(LEARNER, "begin"))

    def _hire_actors(self, now: float) -> None:
        count, hello = self.config.actors.count, self.learner.hello
        wanted = count if isinstance(count, int) else room_for_actors(self.config, self.gradients, hello)
        if now < self.hire_again_at or (hello is None and self.lives > 1):  # a new learner is placed first
            return
        for _ in range(wanted - len(self.actors())):
            self.hired += 1
            self._hire(f"actor {self.hired}", self.start_actor(), now)

    def _hire(self, name: str, handle: Handle, now: float) -> None:
        self.members[name] = Member(name, handle, now)
        self.calls.add(handle.hello.remote(), Call(name, "hello"))
        self.calls.add(handle.watch.remote(), Call(name, "watch"))

    # --- greeting and admitting --------------------------------------------------------------------------------------

    def greet(self, name: str, hello: Hello, now: float) -> None:
        """Ray has placed a process, and it has introduced itself."""
        member = self.members[name]
        member.hello, member.since = hello, now
        if name == LEARNER:
            self.machine = self.check_machine(hello.fingerprint)
            self.alone_since = now  # no actor can begin before the learner
            log.info("%s started", member)
            if self.lead:
                make = partial(make_compute, self.config, self.data, self._stored_shards(hello.node))
                self.calls.add(member.handle.prepare_to_lead.remote(make, self.lead), Call(name, "prepare_to_lead"))
            waiting, self.waiting = self.waiting, []
            for actor in waiting:
                if actor in self.members:
                    self._admit(self.members[actor])
        elif self.machine is None:
            self.waiting.append(name)
        else:
            self._admit(member)

    def _admit(self, member: Member) -> None:
        """Has an actor open the data. One on a different kind of machine gets no tickets but is kept: if dismissed, it
        would only be replaced by another one in the same place."""
        assert member.hello is not None and self.machine is not None
        difference = differing(self.machine, member.hello.fingerprint)
        if difference and not self.config.allow_mixed:
            self.turned_away.add(member.name)
            log.warning(
                "%s is turned away because it would compute different bits: %s (allow_mixed=true accepts it)",
                member,
                difference,
            )
            return
        if difference:
            self.check_machine(member.hello.fingerprint)
        shards = self._stored_shards(member.hello.node)
        self.calls.add(member.handle.begin.remote(self.data, shards), Call(member.name, "begin"))

    def _stored_shards(self, node: str) -> StoredShards | None:
        """The data for a node that cannot reach the driver's folder; None if it can."""
        if node == self.node or not is_local(self.data.folder):
            return None
        if self.shards is None:
            log.info("putting the shards into the object store for nodes that cannot reach %s", self.data.uri)
            self.shards = StoredShards.put(self.data)
        return self.shards

    def too_small(self, name: str, why: Mistake, at_work: int) -> None:
        """An actor's machine has too little memory. It is kept without tickets, as one that differs, unless there is no
        other: then raises the reason."""
        self.turned_away.add(name)
        log.warning("%s is turned away: %s", self.members[name], why)
        if not at_work and all(actor.name in self.turned_away for actor in self.actors()):
            raise why

    def began(self, name: str, at_work: int) -> None:
        """An actor has opened the data; `at_work` actors now do, including this one."""
        self.failed_starts, self.last_failure = 0, ""
        log.info("%s joined; %d at work", self.members[name], at_work)

    # --- dismissing --------------------------------------------------------------------------------------------------

    def explain(self, hanging: Mapping[str, str], seconds: float | None = None) -> None:
        """Logs where processes are that are about to be dismissed because they hang; waits at most this many seconds
        for all of them. `hanging`: what to say of each, such as `hangs: computes ...`."""
        members = [self.members[name] for name in hanging if name in self.members]
        placed = [(member, member.hello) for member in members if member.hello]
        found = examine([hello for _, hello in placed], seconds or PATIENCE_WITH_STACKS) if placed else []
        for (member, _), what in zip(placed, found, strict=True):
            log.warning("%s %s; %s", member, hanging[member.name], what)

    def dismiss(self, name: str) -> Member | None:
        """Ends a process and forgets everything that it was asked; None if it was dismissed before."""
        member = self.members.pop(name, None)
        if member:
            self.calls.forget(name)
            self.next_round = 0.0
            self.turned_away.discard(name)
            ray.kill(member.handle)
            if member.hello:
                end_process(member.hello)
        return member

    def dismiss_unplaced(self) -> None:
        """Ends the actors that Ray has not placed: they would take the place that a lost learner has left."""
        for member in self.actors():
            if member.hello is None:
                self.dismiss(member.name)

    def failed_to_start(self, cause: str, *, bug: bool, at_work: int) -> None:
        """An actor was lost before its first ticket: hires less and less often. A bug that keeps all actors from
        starting ends the run."""
        self.failed_starts += 1
        self.last_failure = cause.strip().splitlines()[-1]
        if bug and self.failed_starts >= TRIES and not at_work:
            raise RunFailed(f"actors cannot start:\n{cause}")
        self.hire_again_at = time.monotonic() + min(30.0, 2.0 ** min(self.failed_starts, 6) / 2)

    def who_makes_room(self, now: float, idle: list[str]) -> str | None:
        """The actor to dismiss for a new learner that Ray has not placed for some time: without a learner, no actor has
        anything to do."""
        learner = self.learner
        if learner.hello or self.lives == 1:
            return None
        if now - max(learner.since, self.made_room_at) < PATIENCE_WITH_PLACEMENT:
            return None
        candidates = [*self.turned_away, *idle, *(actor.name for actor in self.actors())]
        if not candidates:
            return None
        self.made_room_at = now
        return candidates[0]

    def close(self) -> None:
        for member in self.members.values():
            ray.kill(member.handle)
        self.members.clear()

    # --- rounds ------------------------------------------------------------------------------------------------------

    def round_due(self, now: float) -> bool:
        """True every other second, and right after a dismissal."""
        if now < self.next_round:
            return False
        self.next_round = now + ROUND
        return True

    def look_around(self, now: float, at_work: Collection[str]) -> None:
        """Hires where there is room, replaces actors that did not begin in time, and reports missing actors."""
        actors = self.actors()
        self._hire_actors(now)
        settled = {*at_work, *self.turned_away, *self.waiting}
        missing = [member for member in actors if member.name not in settled]
        late = [member for member in missing if now - member.since > self.config.deadline.join]
        self.explain({member.name: "is not responding while opening the data" for member in late})
        for member in late:
            log.warning("%s did not begin within %g s: replacing it", member, self.config.deadline.join)
            self.dismiss(member.name)
        self._report_missing(missing, len(actors), len(at_work), now)
        if at_work:
            self.alone_since = now
        elif now - self.alone_since > self.config.deadline.join:
            self._give_up()

    def _report_missing(self, missing: list[Member], of: int, at_work: int, now: float) -> None:
        overdue = {member.name for member in missing if now - member.since > PATIENCE_WITH_PLACEMENT}
        if not overdue or overdue == self.reported or now <= self.report_again_at:
            return
        self.reported, self.report_again_at = overdue, now + PATIENCE_WITH_PLACEMENT
        log.warning(
            "%d of %d actors have not started yet: each needs %s, and the cluster has %s; continuing with %d",
            len(overdue),
            of,
            in_words(actor_resources(self.config, self.gradients)),
            cluster_in_words(),
            at_work,
        )

    def _give_up(self) -> None:
        join = f"deadline.join={self.config.deadline.join:g}"
        if self.last_failure:
            raise RunFailed(
                f"{join}: no actor began in that time; {self.failed_starts} were lost while starting, the last one "
                f"because of: {self.last_failure}"
            )
        raise Mistake(
            f"{join}: no actor began in that time: each needs "
            f"{in_words(actor_resources(self.config, self.gradients))}, the cluster "
            f"has {cluster_in_words()}, and {len(self.turned_away)} actors were turned away because their machine "
            "differs from the learner's or is too small; add nodes, or ask for less (actors.num_cpus, actors.num_gpus, "
            "learner.num_gpus; fractions are allowed)"
        )

    def require_learner(self) -> None:
        """Raises if the learner's time to start is up and Ray has not even placed it."""
        if self.learner.hello is None:
            raise Mistake(
                f"deadline.join={self.config.deadline.join:g}: the learner did not start in that time: it needs "
                f"{in_words(learner_resources(self.config, self.gradients))}, and the cluster has "
                f"{cluster_in_words()}; add a node, or ask for less (learner.num_cpus, learner.num_gpus)"
            )
