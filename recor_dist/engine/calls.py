"""Calls to the processes of a run that are not answered yet."""

from dataclasses import dataclass

import ray

from actors.pool import Learn, Work


@dataclass(frozen=True)
class Call:
    """A call of a remote method that an actor or the learner has yet to answer."""

    member: str
    method: str  # hello, watch, begin, prepare_to_lead, roll_out, differentiate, evaluate, update, lead, handed_out


@dataclass(frozen=True)
class TicketCall(Call):
    """`roll_out`, `differentiate` or `evaluate` of an actor. The receipt answers the call; the result comes with it."""

    ticket: Work
    answer: ray.ObjectRef


@dataclass(frozen=True)
class UpdateCall(Call):
    """`update` of the learner. The receipt answers the call; the rest comes with the last tickets of a step."""

    part: Learn
    weights: ray.ObjectRef  # v_{step + 1}
    state: ray.ObjectRef  # if a checkpoint is due
    issued: float  # when, in seconds


@dataclass(frozen=True)
class LeadCall(Call):
    """`lead` of the learner."""

    weights: ray.ObjectRef  # the newest
    state: ray.ObjectRef  # if a checkpoint is due at the end
    issued: float  # when, in seconds


class Calls:
    """All pending calls, oldest first, by the reference that answers them.

    It promises that each answer is taken once, and that no answer of a dismissed process is taken.
    """

    def __init__(self) -> None:
        self.pending: dict[ray.ObjectRef, Call] = {}

    def add(self, ref: ray.ObjectRef, call: Call) -> None:
        self.pending[ref] = call

    def take(self, ref: ray.ObjectRef) -> Call | None:
        """The call that this reference answers; None if its process was dismissed in the meantime."""
        return self.pending.pop(ref, None)

    def forget(self, member: str) -> None:
        self.pending = {ref: call for ref, call in self.pending.items() if call.member != member}

    def has(self, member: str, method: str) -> bool:
        return any((call.member, call.method) == (member, method) for call in self.pending.values())

    def updates_before(self, step: int) -> list[ray.ObjectRef]:
        """Calls of `update` with tickets of earlier steps."""
        pending = self.pending.items()
        return [ref for ref, call in pending if isinstance(call, UpdateCall) and call.part.step < step]

    def wait(self, seconds: float) -> list[ray.ObjectRef]:
        """Waits for an answer, at most this long; returns all that have arrived."""
        ready, rest = ray.wait(list(self.pending), timeout=seconds, fetch_local=False)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        return ready
