"""The pool decides which actor computes what next: a pure state machine without tasks, clocks or Ray.

The engine reports to the pool what happened (an actor joined or was lost; a ticket finished, failed or was lost; the
learner took tickets or was rewound) and asks what to do (`decide`): issue these tickets, drop these actors, have the
learner take what is ready, have it lead, or give up. All times are numbers that the engine passes in.

Invariants, whatever happens in whatever order:
- In each life of the learner every ticket is consumed exactly once, in the order of (step, group), as soon as it and
  all tickets before it are finished: the learner works on the first tickets of a step while actors roll out its last.
- A ticket of step s names weights v_max(0, s - lag) and is issued only once those are published. At most lag + 1 steps
  are in flight, which is the backpressure (`ahead` more if tickets need no weights).
- With `leads`, the learner itself hands out the tickets of whole steps, to idle actors and to itself. If something goes
  wrong, it stops at the last whole step, and the pool issues the tickets of the next one.
- Results in flight or waiting for the learner are at most `window` tickets of a step, which bounds the bytes they take.
- A ticket is reissued only if it failed, its actor was lost or exceeded the deadline, or its result was lost, also with
  a learner that had taken only a part of the step. The first result counts; later ones are duplicates with the same
  bits.
- Every evaluation ticket is answered once. Evaluation never delays the step that the learner is waiting for, unless
  tickets of more than one version are pending. A learner that leads continues without the actors that evaluate.
- As long as there is an actor, the run can make progress.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from recor_dist.core.messages import EvalTicket, Ticket

TRIES = 3  # a ticket that raises this often, on different actors if possible, is at fault itself
DEATHS = 5  # if this many actors die while computing the same ticket, the ticket kills them
QUEUE = 2  # tickets per actor, parts per learner: one in progress and one queued, so neither waits for the driver

Work = Ticket | EvalTicket


@dataclass(frozen=True)
class Issue:
    """Have this actor compute this ticket."""

    ticket: Work
    actor: str


@dataclass(frozen=True)
class Learn:
    """Tickets `first` .. `end` - 1 of this step are finished: have the learner take them, in group order."""

    step: int
    first: int
    end: int


@dataclass(frozen=True)
class Lead:
    """Have the learner compute steps from this one on, handing out their tickets to these actors and to itself."""

    step: int
    actors: tuple[str, ...]


@dataclass(frozen=True)
class Drop:
    """This actor is past its deadline: kill it. Its tickets will be reissued."""

    actor: str
    tickets: tuple[Work, ...]


@dataclass(frozen=True)
class GiveUp:
    """This ticket raised an exception on, or killed, so many actors that it must be a bug."""

    ticket: Work
    errors: tuple[tuple[str, str], ...]  # (actor, what happened) for each try


Command = Issue | Learn | Lead | Drop | GiveUp


@lru_cache(maxsize=256)  # used in every decision
def _tickets(step: int, groups: int, lag: int) -> tuple[Ticket, ...]:
    return tuple(Ticket(step, group, max(0, step - lag)) for group in range(groups))


@dataclass
class _Work:
    """A ticket that was issued to an actor."""

    ticket: Work
    deadline: float | None = None  # set by the first decision that finds it at the head of its queue


@dataclass
class Pool:
    steps: int  # of the whole run
    groups: int  # tickets per step
    lag: int
    patience: float  # seconds an actor may take per ticket
    ahead: int = 0  # additional steps that may be in flight if tickets need no weights
    whole: bool = False  # the learner takes all tickets of a step at once, because its loss needs statistics over them
    leads: bool = False  # the learner leads once it is prepared; needs lag = ahead = 0
    leads_alone: bool = True  # also without actors
    window: int | None = None  # tickets of a step that may be issued or wait for the learner at a time
    learned: int = 0  # steps that the learner has finished; v_learned is published
    taken: int = 0  # tickets of the next step that the learner has taken
    in_hand: list[Learn] = field(default_factory=list)  # parts sent to the learner that it has not taken yet
    actors: dict[str, list[_Work]] = field(default_factory=dict)  # the first in progress, the rest queued
    finished: set[Ticket] = field(default_factory=set)  # but not yet taken
    prepared: bool = False  # the learner has what it needs to lead
    leading: Lead | None = None
    by_tickets: bool = False  # something went wrong while the learner led: the current step is issued ticket by ticket
    evaluating: dict[EvalTicket, None] = field(default_factory=dict)  # not yet answered, oldest first
    failures: dict[Work, list[tuple[str, str]]] = field(default_factory=dict)  # (actor, error) for each try
    deaths: dict[Work, list[tuple[str, str]]] = field(default_factory=dict)  # (actor, cause) for each death
    reissued: int = 0

    # --- what happened -----------------------------------------------------------------------------------------------

    def joined(self, actor: str) -> None:
        self.actors.setdefault(actor, [])

    def lost(self, actor: str, cause: str = "") -> list[Work]:
        """An actor is gone; returns its tickets, which will be reissued."""
        at_work = [work.ticket for work in self.actors.get(actor, [])[:1]]
        tickets = self.sent_away(actor)
        if at_work and at_work == tickets[:1]:
            self.deaths.setdefault(tickets[0], []).append((actor, cause))
        return tickets

    def sent_away(self, actor: str) -> list[Work]:
        """Like `lost`, but not counted against its ticket."""
        tickets = [work.ticket for work in self.actors.pop(actor, []) if self._wanted(work.ticket)]
        self.reissued += len(tickets)
        return tickets

    def completed(self, actor: str, ticket: Work) -> bool:
        """An actor has finished a ticket. False for a duplicate or a ticket of a step that is already consumed."""
        self._idle(actor, ticket)
        if not self._wanted(ticket):
            return False
        if isinstance(ticket, Ticket):
            self.finished.add(ticket)
        else:
            del self.evaluating[ticket]
        return True

    def failed(self, actor: str, ticket: Work, error: str) -> None:
        """A ticket raised an exception on an actor, which is still alive."""
        self._idle(actor, ticket)
        if self._wanted(ticket):
            self.failures.setdefault(ticket, []).append((actor, error))
            self.reissued += 1

    def refused(self, actor: str, ticket: Work) -> None:
        """An actor could not get the weights of a ticket. Not counted as a failure; the ticket is reissued."""
        self._idle(actor, ticket)
        if self._wanted(ticket):
            self.reissued += 1

    def evaluate(self, tickets: Iterable[EvalTicket]) -> None:
        """Adds evaluation tickets, to be issued as soon as their weights are published."""
        self.evaluating |= dict.fromkeys(tickets)

    def ticket_lost(self, ticket: Ticket) -> None:
        """The result of a finished ticket was lost with its node: the learner can take nothing it has in hand."""
        if ticket in self.finished:
            self.finished.remove(ticket)
            self.reissued += 1
        self.in_hand = []

    def took(self) -> None:
        """The learner took the first part in hand. If that ends a step, the new weights are published."""
        part = self.in_hand.pop(0)
        self.taken = part.end
        self.finished.difference_update(self.tickets_of(part))
        if self.taken == self.groups:
            self._learned(1)

    def led(self, steps: int) -> None:
        """The learner has stopped leading, after this many whole steps."""
        self.leading = None
        if steps:
            self._learned(steps)

    def troubled(self, actor: str, ticket: Ticket, cause: str, *, raised: bool) -> None:
        """While the learner led, a ticket raised an exception on an actor, or the actor was lost with it."""
        (self.failures if raised else self.deaths).setdefault(ticket, []).append((actor, cause))
        self.by_tickets = True
        self.reissued += 1

    def _learned(self, steps: int) -> None:
        self.learned, self.taken, self.by_tickets = self.learned + steps, 0, False
        self.finished = {t for t in self.finished if t.step >= self.learned}
        self.failures = {t: f for t, f in self.failures.items() if self._wanted(t)}
        self.deaths = {t: f for t, f in self.deaths.items() if self._wanted(t)}

    def rewound(self, version: int) -> None:
        """The learner died and was restarted at v_version. Tickets are pure, so those that it had not taken stay
        valid."""
        self.learned, self.taken, self.in_hand, self.leading, self.prepared = version, 0, [], None, False

    # --- what to do --------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Command]:
        """Everything that should be done now. Tickets in the returned commands count as issued."""
        commands: list[Command] = []
        for actor, works in list(self.actors.items()):
            if not works:
                continue
            head = works[0]
            if head.deadline is None:
                head.deadline = now + self.patience
            if now > head.deadline:
                commands.append(Drop(actor, tuple(self.lost(actor, f"no answer in {self.patience:g} s"))))
        for tries, limit in ((self.failures, TRIES), (self.deaths, DEATHS)):
            for ticket, errors in tries.items():
                if len(errors) >= limit:
                    return [GiveUp(ticket, tuple(errors))]
        room = self._room()
        for ticket in self._open_tickets() if room else ():
            actor = self._actor_for(ticket, room)
            if actor is not None:
                self.actors[actor].append(_Work(ticket, None if self.actors[actor] else now + self.patience))
                room.remove(actor)
                commands.append(Issue(ticket, actor))
            if not room:
                break
        while len(self.in_hand) < QUEUE and (part := self._next_part()):
            self.in_hand.append(part)
            commands.append(part)
        if self.prepared and (lead := self._next_lead()):
            self.leading = lead
            commands.append(lead)
        return commands

    def tickets(self, step: int) -> tuple[Ticket, ...]:
        return _tickets(step, self.groups, self.lag)

    def tickets_of(self, part: Learn) -> tuple[Ticket, ...]:
        return self.tickets(part.step)[part.first : part.end]

    def idle(self) -> list[str]:
        return [actor for actor, works in self.actors.items() if not works and not self._is_led(actor)]

    def done(self) -> bool:
        return self.learned == self.steps and not self.evaluating

    # --- internals ---------------------------------------------------------------------------------------------------

    def _wanted(self, ticket: Work) -> bool:
        if isinstance(ticket, EvalTicket):
            return ticket in self.evaluating
        return (ticket.step, ticket.group) >= (self.learned, self.taken) and ticket not in self.finished

    def _open_tickets(self) -> Iterator[Work]:
        """Tickets whose weights are published and that are neither finished nor issued, most urgent first."""
        under_way = {work.ticket for works in self.actors.values() for work in works}
        evaluations = [ticket for ticket in self.evaluating if ticket.version <= self.learned]
        urgent, *ahead = [self.tickets(step) for step in range(self.learned, self._end_of_window())] or [()]
        urgent = urgent[: self.taken + self.window] if self.window else urgent
        # An evaluation keeps the weights of its version alive: with a second one waiting they would pile up.
        behind = len({ticket.version for ticket in evaluations}) > 1
        first, second = (evaluations, urgent) if behind else (urgent, evaluations)
        for ticket in chain(first, second, *ahead):
            if ticket not in under_way and self._wanted(ticket):
                yield ticket

    def _next_part(self) -> Learn | None:
        """What the learner can take after everything in hand: the finished tickets of a step up to the first unfinished
        one. While the step before is in hand, only a whole step: each call costs the learner a millisecond or two,
        which pays off only if it would otherwise wait."""
        step, first = self.learned, self.taken
        if self.in_hand:
            step, first = divmod(self.in_hand[-1].step * self.groups + self.in_hand[-1].end, self.groups)
        if step == self.steps or (self.leads and not self.by_tickets):
            return None
        tickets = self.tickets(step)
        end = next((group for group in range(first, self.groups) if tickets[group] not in self.finished), self.groups)
        if end == first or (end < self.groups and (self.whole or step > self.learned)):
            return None
        return Learn(step, first, end)

    def _next_lead(self) -> Lead | None:
        if self.leading or self.by_tickets or self.learned == self.steps:
            return None
        if len({ticket.version for ticket in self.evaluating if ticket.version <= self.learned}) > 1:
            return None  # their weights would pile up
        actors = tuple(self.idle())
        return Lead(self.learned, actors) if actors or self.leads_alone else None

    def _end_of_window(self) -> int:
        """The first step whose tickets are not issued yet."""
        if self.leads and not self.by_tickets:
            return self.learned
        return min(self.steps, self.learned + self.lag + self.ahead + 1)

    def _is_led(self, actor: str) -> bool:
        return self.leading is not None and actor in self.leading.actors

    def _room(self) -> list[str]:
        """Actors with a free place in their queue, once per place, those that will start it soonest first: idle actors,
        then the one that has been working longest, and the second places of idle actors last."""
        places = [
            (place, works[0].deadline if works else math.inf, actor)
            for actor, works in self.actors.items()
            if not self._is_led(actor)
            for place in range(len(works), QUEUE)
        ]
        return [actor for *_, actor in sorted(places, key=lambda place: place[:2])]

    def _actor_for(self, ticket: Work, room: list[str]) -> str | None:
        """The first actor on which the ticket has not failed. If it has failed on all of them, any actor will do."""
        tried = {actor for actor, _ in self.failures.get(ticket, [])}
        if tried.issuperset(self.actors):
            tried = set()
        return next((actor for actor in room if actor not in tried), None)

    def _idle(self, actor: str, ticket: Work) -> None:
        works = self.actors.get(actor, [])
        self.actors |= {actor: [work for work in works if work.ticket != ticket]} if works else {}
