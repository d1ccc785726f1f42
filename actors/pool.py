"""Who computes what next: the pool's decisions, as a pure state machine that owns no tasks, no clocks and no Ray.

The engine tells the pool what happened (an actor joined or was lost, a ticket was finished, failed or lost, the learner
published or rewound) and asks what to do (`decide`): issue these tickets, drop these actors, let the learner learn this
step, or give up. All times are numbers that the engine passes in.

What it promises, whatever happens in whatever order:
- in each life of the learner every ticket is consumed exactly once, in the order of (step, group);
- a ticket of step s names weights v_max(0, s - lag), and is issued only when those are published: at most lag + 1 steps
  are under way, which is the backpressure;
- a ticket is reissued when its actor is lost or its time is up, and only then; the first answer counts, later ones are
  duplicates with the same bits;
- as long as there is an actor, something can happen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from recor_dist.messages import Ticket

TRIES = 3  # a ticket that raises this often, on different actors where there are any, fails by itself


@dataclass(frozen=True)
class Issue:
    """Have this actor compute this ticket."""

    ticket: Ticket
    actor: str


@dataclass(frozen=True)
class Learn:
    """All tickets of this step are there: have the learner take them, in the order of their groups."""

    step: int


@dataclass(frozen=True)
class Drop:
    """This actor is past its deadline: end it. Its ticket will be issued again."""

    actor: str
    ticket: Ticket


@dataclass(frozen=True)
class GiveUp:
    """This ticket raised an exception on so many actors that it is a bug, not an accident."""

    ticket: Ticket
    error: str


Command = Issue | Learn | Drop | GiveUp


@dataclass
class _Work:
    """What is under way on an actor."""

    ticket: Ticket
    deadline: float


@dataclass
class Pool:
    steps: int  # of the whole run
    groups: int  # tickets of a step
    lag: int
    patience: float  # seconds an actor may take for a ticket
    learned: int = 0  # steps that the learner has taken: v_learned is published
    learning: bool = False
    actors: dict[str, _Work | None] = field(default_factory=dict)
    finished: set[Ticket] = field(default_factory=set)  # and not yet consumed
    failures: dict[Ticket, list[tuple[str, str]]] = field(default_factory=dict)  # ticket -> (actor, error) of each try
    reissued: int = 0

    # --- what happened -----------------------------------------------------------------------------------------------

    def joined(self, actor: str) -> None:
        self.actors.setdefault(actor, None)

    def lost(self, actor: str) -> Ticket | None:
        """An actor is gone; returns the ticket that went with it and will be issued again."""
        work = self.actors.pop(actor, None)
        if work is None or not self._wanted(work.ticket):
            return None
        self.reissued += 1
        return work.ticket

    def completed(self, actor: str, ticket: Ticket) -> bool:
        """An actor has finished a ticket. False for a duplicate or a ticket of a step that was already taken."""
        self._idle(actor, ticket)
        new = self._wanted(ticket)
        if new:
            self.finished.add(ticket)
        return new

    def failed(self, actor: str, ticket: Ticket, error: str) -> None:
        """A ticket raised an exception on a living actor."""
        self._idle(actor, ticket)
        if self._wanted(ticket):
            self.failures.setdefault(ticket, []).append((actor, error))
            self.reissued += 1

    def ticket_lost(self, ticket: Ticket) -> None:
        """A finished ticket went down with the node that held it; the learner could not take its step."""
        if ticket in self.finished:
            self.finished.remove(ticket)
            self.reissued += 1
        self.learning = False

    def published(self, version: int) -> None:
        """The learner took step version - 1; its weights can be had."""
        assert self.learning and version == self.learned + 1, f"v_{version} after v_{self.learned}"
        self.finished = {t for t in self.finished if t.step >= version}
        self.failures = {t: f for t, f in self.failures.items() if t.step >= version}
        self.learned, self.learning = version, False

    def rewound(self, version: int) -> None:
        """The learner died and begins another life at v_version. Tickets are pure: what is finished stays good."""
        self.learned, self.learning = version, False

    # --- what to do --------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Command]:
        """Everything that should be done now. Issued tickets are under way from here on."""
        commands: list[Command] = []
        for ticket, tries in self.failures.items():
            if len(tries) >= TRIES:
                return [GiveUp(ticket, tries[0][1])]
        for actor, work in list(self.actors.items()):
            if work and now > work.deadline:
                self.lost(actor)
                commands.append(Drop(actor, work.ticket))
        for ticket in self._open_tickets():
            actor = self._actor_for(ticket)
            if actor is None:
                continue
            self.actors[actor] = _Work(ticket, now + self.patience)
            commands.append(Issue(ticket, actor))
        if not self.learning and self.learned < self.steps and not self.missing():
            self.learning = True
            commands.append(Learn(self.learned))
        return commands

    def missing(self) -> list[Ticket]:
        """Tickets that the learner's next step still waits for."""
        wanted = (self._ticket(self.learned, group) for group in range(self.groups))
        return [ticket for ticket in wanted if ticket not in self.finished]

    def idle(self) -> list[str]:
        return [actor for actor, work in self.actors.items() if work is None]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _ticket(self, step: int, group: int) -> Ticket:
        return Ticket(step, group, max(0, step - self.lag))

    def _wanted(self, ticket: Ticket) -> bool:
        return ticket.step >= self.learned and ticket not in self.finished

    def _open_tickets(self) -> Iterator[Ticket]:
        """Tickets whose weights are published, that are neither finished nor under way, oldest first."""
        under_way = {work.ticket for work in self.actors.values() if work}
        for step in range(self.learned, min(self.steps, self.learned + self.lag + 1)):
            for group in range(self.groups):
                ticket = self._ticket(step, group)
                if ticket not in self.finished and ticket not in under_way:
                    yield ticket

    def _actor_for(self, ticket: Ticket) -> str | None:
        """An idle actor on which the ticket has not failed; one on which it has only if there is no other at all."""
        tried = {actor for actor, _ in self.failures.get(ticket, [])}
        suitable = set(self.actors) - tried or set(self.actors)
        return next((actor for actor in self.idle() if actor in suitable), None)

    def _idle(self, actor: str, ticket: Ticket) -> None:
        work = self.actors.get(actor)
        if work and work.ticket == ticket:
            self.actors[actor] = None
