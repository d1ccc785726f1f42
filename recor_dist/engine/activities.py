"""Who works on what, and for how long, as the driver sees it."""

from collections.abc import Iterator
from dataclasses import replace

from actors.pool import Pool, Work
from learner.leading import ITSELF
from recor_dist.core.messages import HandedOut, Ticket
from recor_dist.engine.crew import Crew, Member
from recor_dist.engine.learning import Learning
from recor_dist.record.snapshot import Activity


def activities(
    pool: Pool, crew: Crew, learning: Learning, handed_out: HandedOut | None, now: float
) -> Iterator[Activity]:
    """The learner first, then the actors, oldest first. `handed_out`: what a leading learner told, on our clock."""
    doing, since = doing_of_learner(pool, crew, learning, handed_out)
    yield _activity(crew.learner, doing, now - since)
    for member in crew.actors():
        yield _of_actor(member, pool, crew, handed_out, now)


def doing_of_learner(pool: Pool, crew: Crew, learning: Learning, handed_out: HandedOut | None) -> tuple[str, float]:
    """What the learner does or waits for, and since when."""
    if learning.starting:
        return "starts" if crew.learner.hello else "waits for a place in the cluster", crew.learner.since
    if pool.leading:
        return f"leads{_in_lead(handed_out) if handed_out else ''}", learning.free_at
    if pool.in_hand:
        part = pool.in_hand[0]
        tickets = f"ticket {part.first}" if part.end == part.first + 1 else f"tickets {part.first} to {part.end - 1}"
        return f"takes {tickets} of step {part.step} with v_{part.step}", learning.free_at
    if pool.learned == pool.steps:
        return "has taken the last step", learning.free_at
    due = pool.tickets(pool.learned)[pool.taken]
    computing = [name for name, works in pool.actors.items() if due in [work.ticket for work in works]]
    return f"waits for {due}, {f'which {computing[0]} has' if computing else 'not assigned yet'}", learning.free_at


def _in_lead(handed_out: HandedOut) -> str:
    if own := handed_out.computing.get(ITSELF):
        return f", computes {own[0]}"
    if (due := handed_out.due) is None:
        return f", has all gradients of step {handed_out.step} with v_{handed_out.step}"
    holders = [name for name, (ticket, _) in handed_out.computing.items() if ticket == due]
    return f", waits for {due}" + (f", which {holders[0]} has" if holders else "")


def _of_actor(member: Member, pool: Pool, crew: Crew, handed_out: HandedOut | None, now: float) -> Activity:
    name = member.name
    if name not in pool.actors:
        return _activity(member, _before_work(member, crew), now - member.since)
    if works := pool.actors[name]:
        seconds = None if works[0].deadline is None else now - (works[0].deadline - pool.patience)
        return _activity(member, doing_of_actor(works[0].ticket), seconds)
    if handed_out and pool.leading and name in pool.leading.actors and name in handed_out.computing:
        ticket, since = handed_out.computing[name]
        return _activity(member, doing_of_actor(ticket), now - since)
    return _activity(member, "idle", None)


def on_our_clock(told: HandedOut, now: float) -> HandedOut:
    """What the learner has just told, with times since when instead of seconds so far."""
    computing = {name: (ticket, now - seconds) for name, (ticket, seconds) in told.computing.items()}
    return replace(told, computing=computing)


def doing_of_actor(ticket: Work) -> str:
    return f"{'computes' if isinstance(ticket, Ticket) else 'evaluates'} {ticket}"


def _before_work(member: Member, crew: Crew) -> str:
    if member.hello is None:
        return "waits for a place in the cluster"
    if member.name in crew.turned_away:
        return "was turned away: its machine differs from the learner's, or is too small"
    return "waits for the learner to start" if member.name in crew.waiting else "opens the data"


def _activity(member: Member, doing: str, seconds: float | None) -> Activity:
    return Activity(member.name, str(member.hello or "-"), doing, seconds)
