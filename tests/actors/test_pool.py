"""The pool under random completions, deaths, hangs, joins, duplicates, losses and rewinds, without Ray."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.pool import TRIES, Drop, GiveUp, Issue, Learn, Pool
from recor_dist.messages import Ticket

PATIENCE = 10.0


class World(RuleBasedStateMachine):
    """A cluster that does to the pool whatever a cluster can do, and watches what comes of it."""

    @initialize(steps=st.integers(1, 5), groups=st.integers(1, 3), lag=st.integers(0, 3))
    def begin(self, steps: int, groups: int, lag: int) -> None:
        self.pool = Pool(steps, groups, lag, PATIENCE)
        self.now = 0.0
        self.born = 0
        self.working: dict[str, Ticket] = {}  # what living actors compute
        self.zombies: list[tuple[str, Ticket]] = []  # dropped actors whose answer may still come
        self.learning: int | None = None
        self.consumed: list[list[Ticket]] = [[]]  # a list for each life of the learner
        self.version = 0  # the newest weights
        self.checkpoint = 0
        self.gave_up = False

    # --- carrying out what the pool decides --------------------------------------------------------------------------

    def obey(self) -> list:
        commands = self.pool.decide(self.now)
        for command in commands:
            if isinstance(command, Issue):
                assert command.actor in self.pool.actors
                assert command.actor not in self.working, "an actor has one ticket at a time"
                assert command.ticket.version == max(0, command.ticket.step - self.pool.lag)
                assert command.ticket.version <= self.version, "its weights are published"
                assert self.version <= command.ticket.step <= self.version + self.pool.lag, "the window is kept"
                assert command.ticket not in self.working.values(), "nothing is under way twice"
                self.working[command.actor] = command.ticket
            elif isinstance(command, Learn):
                assert self.learning is None
                assert command.step == self.version
                self.learning = command.step
            elif isinstance(command, Drop):
                self.zombies.append((command.actor, self.working.pop(command.actor)))
            else:
                self.gave_up = True
        return commands

    # --- what can happen ---------------------------------------------------------------------------------------------

    @rule()
    def an_actor_joins(self) -> None:
        self.pool.joined(f"a{self.born}")
        self.born += 1
        self.obey()

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def an_actor_dies(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(sorted(self.pool.actors)))
        ticket = self.working.pop(actor, None)
        assert self.pool.lost(actor) in (ticket, None)
        self.obey()

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def a_ticket_is_finished(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(sorted(self.working)))
        self.pool.completed(actor, self.working.pop(actor))
        self.obey()

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def a_ticket_fails(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(sorted(self.working)))
        ticket = self.working.pop(actor)
        before = len(self.pool.failures.get(ticket, []))
        if before < TRIES - 1:  # a real bug is tested apart
            self.pool.failed(actor, ticket, "error")
        else:
            self.pool.completed(actor, ticket)
        self.obey()

    @rule(seconds=st.floats(0.1, 15.0))
    def time_passes(self, seconds: float) -> None:
        """Actors that are at work longer than they may are hung."""
        self.now += seconds
        self.obey()

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_late_answer_comes(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.zombies) - 1))
        actor, ticket = self.zombies.pop(place)
        self.pool.completed(actor, ticket)
        self.obey()

    @precondition(lambda self: self.learning is not None)
    @rule(saves=st.booleans())
    def the_learner_publishes(self, saves: bool) -> None:
        step = self.learning
        self.consumed[-1] += [Ticket(step, g, max(0, step - self.pool.lag)) for g in range(self.pool.groups)]
        self.version, self.learning = step + 1, None
        self.pool.published(self.version)
        if saves:
            self.checkpoint = self.version
        self.obey()

    @precondition(lambda self: self.learning is not None)
    @rule(data=st.data())
    def a_finished_ticket_is_lost_with_its_node(self, data: st.DataObject) -> None:
        group = data.draw(st.integers(0, self.pool.groups - 1))
        self.pool.ticket_lost(Ticket(self.learning, group, max(0, self.learning - self.pool.lag)))
        self.learning = None
        self.obey()

    @rule()
    def the_learner_dies(self) -> None:
        self.version, self.learning = self.checkpoint, None
        self.consumed.append([])
        self.pool.rewound(self.version)
        self.obey()

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def each_life_consumes_every_ticket_once_and_in_order(self) -> None:
        for life in getattr(self, "consumed", []):
            assert life == sorted(life, key=lambda t: (t.step, t.group))
            assert len(set(life)) == len(life)
            steps = sorted({t.step for t in life})
            assert steps == list(range(steps[0], steps[0] + len(steps))) if steps else True

    @invariant()
    def nothing_is_kept_that_was_consumed_and_nothing_is_given_up(self) -> None:
        if hasattr(self, "pool"):
            assert not self.gave_up
            assert all(ticket.step >= self.version for ticket in self.pool.finished)

    def teardown(self) -> None:
        """From any state, a cluster that behaves from now on brings the run to its end: there is no dead end."""
        if not hasattr(self, "pool"):
            return
        if not self.pool.actors:
            self.an_actor_joins()
        for _ in range(10_000):
            self.obey()
            if self.version == self.pool.steps:
                break
            if self.learning is not None:
                self.the_learner_publishes(saves=True)
            elif self.working:
                actor = min(self.working)
                self.pool.completed(actor, self.working.pop(actor))
            else:
                raise AssertionError("nothing can happen")
        assert self.version == self.pool.steps


World.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_the_pool_keeps_its_promises_in_any_world = World.TestCase


def issued(pool: Pool, now: float = 0.0) -> dict[str, Ticket]:
    return {c.actor: c.ticket for c in pool.decide(now) if isinstance(c, Issue)}


def test_lag_zero_waits_for_the_learner_and_lag_one_runs_ahead() -> None:
    for lag, expected in ((0, [0]), (1, [0, 1])):
        pool = Pool(steps=9, groups=1, lag=lag, patience=PATIENCE)
        for name in "abc":
            pool.joined(name)
        assert sorted(t.step for t in issued(pool).values()) == expected


def test_a_ticket_that_always_raises_is_given_up_after_three_tries_on_different_actors() -> None:
    pool = Pool(steps=2, groups=1, lag=0, patience=PATIENCE)
    for name in "abcd":
        pool.joined(name)
    tried = []
    for attempt in range(TRIES):
        ((actor, ticket),) = issued(pool).items()
        tried.append(actor)
        pool.failed(actor, ticket, f"error {attempt}")
    assert len(set(tried)) == TRIES
    assert pool.decide(0.0) == [GiveUp(ticket, "error 0")]


def test_a_failed_ticket_waits_for_another_actor_but_not_for_ever() -> None:
    pool = Pool(steps=2, groups=2, lag=0, patience=PATIENCE)
    pool.joined("a")
    pool.joined("b")
    work = issued(pool)
    pool.failed("a", work["a"], "error")
    assert issued(pool) == {}, "b is busy, and a has failed already"
    pool.completed("b", work["b"])
    assert issued(pool) == {"b": work["a"]}
    pool.lost("b")
    assert issued(pool) == {"a": work["a"]}, "there is no other actor left"


def test_a_hung_actor_is_dropped_and_its_ticket_issued_to_another() -> None:
    pool = Pool(steps=1, groups=1, lag=0, patience=PATIENCE)
    pool.joined("a")
    (ticket,) = issued(pool).values()
    assert pool.decide(PATIENCE) == []
    assert pool.decide(PATIENCE + 0.1) == [Drop("a", ticket)]
    pool.joined("b")
    assert issued(pool, 20.0) == {"b": ticket}
    assert pool.completed("a", ticket), "a late answer is as good as any"
    assert not pool.completed("b", ticket), "and the second one is a duplicate"
