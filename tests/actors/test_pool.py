"""The pool under random completions, deaths, hangs, joins, duplicates, losses and rewinds, without Ray."""

from itertools import chain

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.pool import DEATHS, QUEUE, TRIES, Drop, GiveUp, Issue, Lead, Learn, Pool, Work, _Work
from recor_dist.core.messages import EvalTicket, Ticket

PATIENCE = 10.0


class World(RuleBasedStateMachine):
    """Does to the pool whatever a cluster can do, and checks the pool's reaction."""

    @initialize(
        steps=st.integers(1, 5),
        groups=st.integers(1, 3),
        lag=st.integers(0, 3),
        ahead=st.sampled_from([0, 0, 2]),
        whole=st.booleans(),
        window=st.sampled_from([1, 2]),
        leads=st.booleans(),
    )
    def begin(self, steps: int, groups: int, lag: int, ahead: int, whole: bool, window: int, leads: bool) -> None:
        if leads:
            self.pool = Pool(steps, groups, 0, PATIENCE, leads=True, window=window)
        else:
            self.pool = Pool(steps, groups, lag, PATIENCE, ahead, whole)
        self.now = 0.0
        self.born = 0
        self.working: dict[str, list[Work]] = {}  # the queues of living actors
        self.zombies: list[tuple[str, Work]] = []  # dropped actors whose results may still arrive
        self.learning: list[Learn] = []  # parts that the learner has in hand
        self.leading: Lead | None = None
        self.stored: set[Ticket] = set()  # batches in the object store
        self.consumed: list[list[Ticket]] = [[]]  # one list per life of the learner
        self.version = 0  # the newest weights
        self.checkpoint = 0
        self.gave_up = False
        self.asked: list[EvalTicket] = []
        self.answered: list[EvalTicket] = []

    # --- carrying out what the pool decides --------------------------------------------------------------------------

    def obey(self) -> list:
        commands = self.pool.decide(self.now)
        for command in commands:
            if isinstance(command, Issue):
                assert command.actor in self.pool.actors
                queue = self.working.setdefault(command.actor, [])
                assert len(queue) < QUEUE
                failed_on = {actor for actor, _ in self.pool.failures.get(command.ticket, [])}
                idle = {actor for actor in self.pool.actors if not self.working.get(actor)} - failed_on
                idle -= set(self.leading.actors) if self.leading else set()
                assert not queue or not idle, "idle actors come first"
                assert not self.leading or command.actor not in self.leading.actors, "the learner has work for it"
                if isinstance(command.ticket, EvalTicket) or not self.pool.ahead:
                    assert command.ticket.version <= self.version, "its weights must be published"
                if isinstance(command.ticket, Ticket):
                    assert not self.leading, "the learner hands out its tickets"
                    window = self.pool.lag + self.pool.ahead
                    assert command.ticket.version == max(0, command.ticket.step - self.pool.lag)
                    assert self.version <= command.ticket.step <= self.version + window, "must be within the window"
                    if self.pool.window:
                        assert command.ticket.group < self.pool.taken + self.pool.window, "its result needs room"
                else:
                    assert command.ticket not in self.answered
                assert command.ticket not in chain(*self.working.values()), "no ticket is in flight twice"
                queue.append(command.ticket)
            elif isinstance(command, Learn):
                assert len(self.learning) < QUEUE
                assert self.part(command) and self.stored.issuperset(self.part(command)), "its results must exist"
                assert not self.pool.whole or len(self.part(command)) == self.pool.groups
                assert command.end == self.pool.groups or command.step == self.version, (
                    "a part of a step only if the learner waits"
                )
                self.learning.append(command)
            elif isinstance(command, Lead):
                assert self.pool.prepared and not self.leading and not self.learning and not self.pool.taken
                assert command.step == self.version < self.pool.steps
                assert all(not self.working.get(actor) for actor in command.actors), "evaluations come first"
                self.leading = command
            elif isinstance(command, Drop):
                self.zombies += [(command.actor, ticket) for ticket in self.working.pop(command.actor)]
            else:
                self.gave_up = True
        return commands

    def finish(self, actor: str, ticket: Work) -> None:
        if not self.pool.completed(actor, ticket):
            return
        if isinstance(ticket, EvalTicket):
            self.answered.append(ticket)
        else:
            self.stored.add(ticket)

    def part(self, command: Learn) -> tuple[Ticket, ...]:
        return self.pool.tickets(command.step)[command.first : command.end]

    def spared(self, actor: str) -> bool:
        """True if the death of this actor would not make the pool give up; that case has a test below."""
        queue = self.working.get(actor)
        return not queue or len(self.pool.deaths.get(queue[0], [])) < DEATHS - 1

    def busy(self) -> list[str]:
        return sorted(actor for actor, queue in self.working.items() if queue)

    # --- what can happen ---------------------------------------------------------------------------------------------

    @rule()
    def an_actor_joins(self) -> None:
        self.pool.joined(f"a{self.born}")
        self.born += 1
        self.obey()

    @precondition(lambda self: self.pool.leads)
    @rule()
    def the_learner_is_prepared_to_lead(self) -> None:
        self.pool.prepared = True
        self.obey()

    @precondition(lambda self: self.leading)
    @rule(steps=st.integers(0, 3), saves=st.booleans())
    def the_learner_stops_leading(self, steps: int, saves: bool) -> None:
        self.led(steps)
        self.checkpoint = self.version if saves else self.checkpoint
        self.obey()

    def led(self, steps: int) -> None:
        steps = min(steps, self.pool.steps - self.version)
        for step in range(self.version, self.version + steps):
            self.consumed[-1] += self.pool.tickets(step)
        self.version, self.leading = self.version + steps, None
        self.stored = {ticket for ticket in self.stored if ticket.step >= self.version}
        self.pool.led(steps)

    @precondition(lambda self: self.leading and self.version < self.pool.steps)
    @rule(group=st.integers(0, 2), raised=st.booleans(), by_learner=st.booleans())
    def a_ticket_goes_wrong_while_the_learner_leads(self, group: int, raised: bool, by_learner: bool) -> None:
        assert self.leading is not None
        actors = [actor for actor in self.leading.actors if actor in self.pool.actors]
        ticket = self.pool.tickets(self.version)[group % self.pool.groups]
        counts = len(self.pool.failures.get(ticket, [])), len(self.pool.deaths.get(ticket, []))
        if counts[0] >= TRIES - 1 or counts[1] >= DEATHS - 1 or not (actors or by_learner):
            return
        self.led(0)
        self.pool.troubled("the learner" if by_learner else actors[0], ticket, "error", raised=raised or by_learner)
        if not raised and not by_learner:
            self.pool.lost(actors[0])
        self.obey()

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def an_actor_dies(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(sorted(self.pool.actors)))
        if not self.spared(actor):
            return
        tickets = self.working.pop(actor, [])
        assert set(self.pool.lost(actor)) <= set(tickets)
        self.obey()

    @precondition(lambda self: self.pool.actors)
    @rule(data=st.data())
    def an_actor_is_sent_away(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(sorted(self.pool.actors)))
        deaths = {ticket: len(others) for ticket, others in self.pool.deaths.items()}
        assert set(self.pool.sent_away(actor)) <= set(self.working.pop(actor, []))
        assert deaths == {ticket: len(others) for ticket, others in self.pool.deaths.items()}, (
            "not counted against a ticket"
        )
        self.obey()

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def a_ticket_is_finished(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(self.busy()))
        self.finish(actor, self.working[actor].pop(0))
        self.obey()

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def the_weights_of_a_ticket_are_unavailable(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(self.busy()))
        self.pool.refused(actor, self.working[actor].pop(0))
        self.obey()

    @rule(tickets=st.integers(1, 3), newest=st.booleans())
    def an_evaluation_is_requested(self, tickets: int, newest: bool) -> None:
        """Of the newest weights, or of weights that a rewound learner will publish again."""
        version = self.version if newest else min(self.version + 1, self.pool.steps)
        new = [EvalTicket(version, "val", len(self.asked) + index) for index in range(tickets)]
        self.asked += new
        self.pool.evaluate(new)
        self.obey()

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def a_ticket_fails(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(self.busy()))
        ticket = self.working[actor].pop(0)
        before = len(self.pool.failures.get(ticket, []))
        if before < TRIES - 1:  # giving up has a test below
            self.pool.failed(actor, ticket, "error")
        else:
            self.finish(actor, ticket)
        self.obey()

    @precondition(lambda self: all(self.spared(actor) for actor in self.working))
    @rule(seconds=st.floats(0.1, 15.0))
    def time_passes(self, seconds: float) -> None:
        """Actors past their deadline count as hung."""
        self.now += seconds
        self.obey()

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_late_result_arrives(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.zombies) - 1))
        self.finish(*self.zombies.pop(place))
        self.obey()

    def can_take(self) -> bool:
        return bool(self.learning) and self.stored.issuperset(self.part(self.learning[0]))

    @precondition(lambda self: self.can_take())
    @rule(saves=st.booleans())
    def the_learner_takes_what_it_has_in_hand(self, saves: bool) -> None:
        command = self.learning.pop(0)
        self.consumed[-1] += self.part(command)
        self.stored -= set(self.part(command))
        self.pool.took()
        if command.end == self.pool.groups:
            self.version = command.step + 1
            self.checkpoint = self.version if saves else self.checkpoint
        self.obey()

    @precondition(lambda self: self.learning)
    @rule(data=st.data())
    def the_learner_finds_no_result_for_a_ticket(self, data: st.DataObject) -> None:
        """It was lost with its node."""
        ticket = data.draw(st.sampled_from(self.part(self.learning[0])))
        self.stored.discard(ticket)
        self.pool.ticket_lost(ticket)
        self.learning = []
        self.obey()

    @rule()
    def the_learner_dies(self) -> None:
        self.version, self.learning, self.leading = self.checkpoint, [], None
        self.consumed.append([])
        self.pool.rewound(self.version)
        self.obey()

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def each_life_consumes_every_ticket_once_and_in_order(self) -> None:
        for life in getattr(self, "consumed", []):
            places = [ticket.step * self.pool.groups + ticket.group for ticket in life]
            assert places == list(range(places[0], places[0] + len(places))) if places else True
            assert not places or places[0] % self.pool.groups == 0, "a life begins at the start of a step"

    @invariant()
    def no_consumed_ticket_is_kept_and_nothing_is_given_up(self) -> None:
        if hasattr(self, "pool"):
            assert not self.gave_up
            assert all(ticket.step >= self.version for ticket in self.pool.finished)
            assert self.pool.finished <= self.stored

    def teardown(self) -> None:
        """From any state, the run finishes if nothing fails from now on: there is no deadlock."""
        if not hasattr(self, "pool"):
            return
        if not self.pool.actors:
            self.an_actor_joins()
        if self.pool.leads:
            self.the_learner_is_prepared_to_lead()
        for _ in range(10_000):
            self.obey()
            if self.pool.done():
                break
            if self.leading:
                self.the_learner_stops_leading(steps=1, saves=True)
            elif self.can_take():
                self.the_learner_takes_what_it_has_in_hand(saves=True)
            elif busy := self.busy():
                self.finish(busy[0], self.working[busy[0]].pop(0))
            else:
                raise AssertionError("deadlock")
        assert self.version == self.pool.steps
        assert sorted(self.answered, key=str) == sorted(self.asked, key=str), "each evaluation ticket is answered once"


World.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_the_pool_keeps_its_invariants_whatever_happens = World.TestCase


def issued(pool: Pool, now: float = 0.0) -> dict[str, Work]:
    """The first ticket that a decision issues to each actor."""
    return {c.actor: c.ticket for c in reversed(pool.decide(now)) if isinstance(c, Issue)}


def test_lag_zero_waits_for_the_learner_and_lag_one_runs_ahead() -> None:
    for lag, expected in ((0, [0]), (1, [0, 1])):
        pool = Pool(steps=9, groups=1, lag=lag, patience=PATIENCE)
        for name in "abc":
            pool.joined(name)
        assert sorted(t.step for t in issued(pool).values() if isinstance(t, Ticket)) == expected


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
    assert pool.decide(0.0) == [GiveUp(Ticket(0, 0, 0), tuple((actor, f"error {i}") for i, actor in enumerate(tried)))]


def test_a_ticket_that_kills_every_actor_is_given_up() -> None:
    pool = Pool(steps=2, groups=1, lag=0, patience=PATIENCE)
    for number in range(DEATHS):
        assert not [c for c in pool.decide(0.0) if isinstance(c, GiveUp)]
        pool.joined(f"a{number}")
        ((actor, ticket),) = issued(pool).items()
        assert pool.lost(actor, "out of memory") == [ticket]
    causes = tuple((f"a{number}", "out of memory") for number in range(DEATHS))
    assert pool.decide(0.0) == [GiveUp(Ticket(0, 0, 0), causes)]


def test_the_death_of_an_idle_actor_is_not_counted_against_a_ticket() -> None:
    pool = Pool(steps=2, groups=1, lag=0, patience=PATIENCE)
    for number in range(2 * DEATHS):
        pool.joined(f"a{number}")
    ((worker, _),) = issued(pool).items()
    for number in range(2 * DEATHS):
        if f"a{number}" != worker:
            assert pool.lost(f"a{number}", "node lost") == []
    assert pool.decide(0.0) == []
    assert pool.reissued == 0


def test_evaluation_never_delays_the_step_the_learner_waits_for_but_precedes_later_steps() -> None:
    pool = Pool(steps=9, groups=1, lag=1, patience=PATIENCE)
    for name in "abc":
        pool.joined(name)
    pool.evaluate(EvalTicket(0, "val", index) for index in range(2))
    order = [c.ticket for c in pool.decide(0.0) if isinstance(c, Issue)]
    assert order == [Ticket(0, 0, 0), EvalTicket(0, "val", 0), EvalTicket(0, "val", 1), Ticket(1, 0, 0)]


def test_evaluations_that_fall_behind_go_first() -> None:
    pool = Pool(steps=9, groups=1, lag=0, patience=PATIENCE, learned=4)
    pool.joined("a")
    pool.evaluate([EvalTicket(2, "val", 0), EvalTicket(4, "val", 0)])
    assert issued(pool) == {"a": EvalTicket(2, "val", 0)}


@pytest.mark.parametrize("rewound_to", [0, 2])
def test_an_evaluation_waits_for_weights_that_a_restarted_learner_has_yet_to_publish(rewound_to: int) -> None:
    pool = Pool(steps=3, groups=1, lag=0, patience=PATIENCE, learned=3)
    pool.evaluate([EvalTicket(3, "val", 0)])
    pool.rewound(rewound_to)
    pool.joined("a")
    assert issued(pool) == {"a": Ticket(rewound_to, 0, rewound_to)}


def test_a_failed_ticket_goes_to_another_actor_while_there_is_one() -> None:
    pool = Pool(steps=2, groups=2, lag=0, patience=PATIENCE)
    pool.joined("a")
    pool.joined("b")
    work = issued(pool)
    pool.failed("a", work["a"], "error")
    assert issued(pool) == {"b": work["a"]}, "a is idle, but b must try it next"
    assert pool.lost("b") == [work["b"], work["a"]]
    assert pool.deaths == {work["b"]: [("b", "")]}, "only the ticket in progress can have killed it"
    assert issued(pool) == {"a": work["a"]}, "there is no other actor left"


def test_the_learner_takes_the_first_tickets_of_a_step_while_the_last_are_rolled_out() -> None:
    pool = Pool(steps=2, groups=4, lag=0, patience=PATIENCE)
    pool.joined("a")
    first, second, third, fourth = pool.tickets(0)
    pool.decide(0.0)
    pool.completed("a", first)
    assert Learn(0, 0, 1) in pool.decide(0.0)
    pool.completed("a", third)
    assert not [c for c in pool.decide(0.0) if isinstance(c, Learn)], "the second comes before the third"
    pool.completed("a", second)
    assert Learn(0, 1, 3) in pool.decide(0.0)
    pool.completed("a", fourth)
    assert pool.decide(0.0) == [], "the learner has enough in hand"
    pool.took()
    assert pool.decide(0.0) == [Learn(0, 3, 4)]
    pool.took()
    assert pool.learned == 0
    pool.took()
    assert pool.learned == 1


def test_results_that_wait_for_the_learner_keep_later_tickets_of_the_step_waiting() -> None:
    pool = Pool(steps=2, groups=4, lag=0, patience=PATIENCE, window=2)
    for name in "abcd":
        pool.joined(name)
    first, second, third, fourth = pool.tickets(0)
    assert issued(pool) == {"a": first, "b": second}
    pool.completed("b", second)
    assert issued(pool) == {}, "c is idle, but the second result still waits for the first"
    pool.lost("a")
    assert issued(pool) == {"b": first}, "which can always be issued again"
    pool.completed("b", first)
    assert pool.decide(0.0) == [Learn(0, 0, 2)]
    pool.took()
    assert set(issued(pool).values()) == {third, fourth}


def test_what_a_lost_learner_had_taken_of_a_step_is_computed_again() -> None:
    pool = Pool(steps=2, groups=2, lag=0, patience=PATIENCE)
    pool.joined("a")
    first, second = pool.tickets(0)
    pool.decide(0.0)
    pool.completed("a", first)
    pool.decide(0.0)
    pool.took()
    pool.completed("a", second)
    pool.rewound(0)
    assert issued(pool) == {"a": first}, "its result is gone; that of the second is still there"


def leading(*actors: str) -> Pool:
    pool = Pool(steps=9, groups=2, lag=0, patience=PATIENCE, leads=True, window=2)
    pool.prepared = True
    for actor in actors:
        pool.joined(actor)
    return pool


def test_a_learner_leads_the_idle_actors_and_those_that_evaluate_take_part_later() -> None:
    pool = leading("a", "b")
    assert pool.decide(0.0) == [Lead(0, ("a", "b"))]
    pool.joined("c")
    evaluations = [EvalTicket(0, "val", group) for group in range(3)]
    pool.evaluate(evaluations)
    assert pool.decide(0.0) == [Issue(evaluations[0], "c"), Issue(evaluations[1], "c")]
    pool.led(4)
    assert pool.decide(0.0) == [Issue(evaluations[2], "a"), Lead(4, ("b",))]
    assert leading().decide(0.0) == [Lead(0, ())], "it also leads alone"


@pytest.mark.parametrize("raised", [True, False])
def test_after_trouble_the_step_is_issued_ticket_by_ticket_and_then_the_learner_leads_again(raised: bool) -> None:
    pool = leading("a", "b")
    pool.decide(0.0)
    first, second = pool.tickets(3)
    pool.led(3)
    pool.troubled("a", second, "error", raised=raised)
    assert pool.decide(0.0) == [Issue(first, "a"), Issue(second, "b")]
    pool.completed("a", first)
    pool.completed("b", second)
    assert pool.decide(0.0) == [Learn(3, 0, 2)]
    pool.took()
    assert not pool.failures and not pool.deaths
    assert pool.decide(0.0) == [Lead(4, ("a", "b"))]


def test_a_ticket_that_fails_on_the_learner_and_two_actors_is_given_up() -> None:
    pool = leading("a", "b")
    pool.decide(0.0)
    ticket = pool.tickets(0)[0]
    pool.led(0)
    pool.troubled("the learner", ticket, "error 0", raised=True)
    for attempt in (1, 2):
        actor = next(c.actor for c in pool.decide(0.0) if isinstance(c, Issue) and c.ticket == ticket)
        pool.failed(actor, ticket, f"error {attempt}")
    (command,) = pool.decide(0.0)
    assert isinstance(command, GiveUp) and len(command.errors) == TRIES


def test_a_learner_that_leads_is_not_also_handed_results_of_before_it_was_rewound() -> None:
    pool = leading("a", "b")
    pool.decide(0.0)
    pool.led(5)
    pool.troubled("b", pool.tickets(5)[1], "error", raised=True)
    pool.decide(0.0)
    pool.completed("a", pool.tickets(5)[0])
    pool.rewound(3)
    pool.lost("b")
    pool.prepared = True
    pool.decide(0.0)
    for ticket in pool.tickets(3):  # still ticket by ticket
        pool.completed("a", ticket)
    pool.decide(0.0)
    pool.took()
    assert [type(command) for command in pool.decide(0.0)] == [Lead]
    pool.led(1)
    assert pool.decide(0.0) == [Lead(5, ())], "not also Learn(5, 0, 1); a still has a ticket of before"


def test_a_learner_does_not_lead_while_evaluations_of_two_versions_are_pending() -> None:
    pool = leading("a")
    pool.decide(0.0)
    pool.evaluate([EvalTicket(1, "val", 0)])
    pool.led(1)
    assert pool.decide(0.0) == [Issue(EvalTicket(1, "val", 0), "a"), Lead(1, ())]
    pool.evaluate([EvalTicket(2, "val", 0), EvalTicket(9, "val", 0)])
    pool.led(1)
    assert pool.decide(0.0) == [Issue(EvalTicket(2, "val", 0), "a")]
    pool.completed("a", EvalTicket(1, "val", 0))
    assert pool.decide(0.0) == [Lead(2, ())], "that of version 9 waits for its weights"


def test_a_learner_that_shares_its_gpu_does_not_lead_alone() -> None:
    pool = leading()
    pool.leads_alone = False
    assert pool.decide(0.0) == []
    pool.joined("a")
    assert pool.decide(0.0) == [Lead(0, ("a",))]


def test_a_new_learner_leads_only_once_it_is_prepared() -> None:
    pool = leading("a")
    pool.decide(0.0)
    pool.rewound(0)
    assert pool.decide(0.0) == []
    pool.prepared = True
    assert pool.decide(0.0) == [Lead(0, ("a",))]


def test_a_learner_with_statistics_gets_a_whole_step_at_once() -> None:
    pool = Pool(steps=2, groups=2, lag=0, patience=PATIENCE, whole=True)
    pool.joined("a")
    pool.decide(0.0)
    pool.completed("a", pool.tickets(0)[0])
    assert pool.decide(0.0) == []
    pool.completed("a", pool.tickets(0)[1])
    assert pool.decide(0.0) == [Learn(0, 0, 2)]


def test_the_next_ticket_is_queued_at_the_actor_that_has_been_working_longest() -> None:
    pool = Pool(steps=1, groups=3, lag=0, patience=PATIENCE)
    pool.joined("a")
    pool.decide(0.0)
    pool.joined("b")
    first, second, third = pool.tickets(0)
    pool.completed("a", first)
    assert pool.decide(1.0) == [Issue(third, "b"), Learn(0, 0, 1)], "a works on the second"
    pool = Pool(steps=1, groups=4, lag=0, patience=PATIENCE)
    pool.actors = {"late": [], "early": []}
    first, second, third, fourth = pool.tickets(0)
    pool.actors["early"].append(_Work(first, deadline=PATIENCE))
    pool.actors["late"].append(_Work(second, deadline=PATIENCE + 1))
    assert pool.decide(2.0) == [Issue(third, "early"), Issue(fourth, "late")]


def test_an_actor_has_a_ticket_queued_whose_deadline_starts_when_its_turn_comes() -> None:
    pool = Pool(steps=1, groups=3, lag=0, patience=PATIENCE)
    pool.joined("a")
    first, second, third = pool.tickets(0)
    assert pool.decide(0.0) == [Issue(first, "a"), Issue(second, "a")]
    pool.completed("a", first)
    assert pool.decide(8.0) == [Issue(third, "a"), Learn(0, 0, 1)]
    assert pool.decide(8.0 + PATIENCE) == []
    assert pool.decide(8.1 + PATIENCE) == [Drop("a", (second, third))]


def test_a_hung_actor_is_dropped_and_its_ticket_issued_to_another() -> None:
    pool = Pool(steps=1, groups=1, lag=0, patience=PATIENCE)
    pool.joined("a")
    (ticket,) = issued(pool).values()
    assert pool.decide(PATIENCE) == []
    assert pool.decide(PATIENCE + 0.1) == [Drop("a", (ticket,))]
    pool.joined("b")
    assert issued(pool, 20.0) == {"b": ticket}
    assert pool.completed("a", ticket), "a late result is as good as any"
    assert not pool.completed("b", ticket), "the second result is a duplicate"
