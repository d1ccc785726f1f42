"""The tickets of one step, handed out by the learner: to actors, which compute gradients, and to itself.

       ┌──────────── weights, tickets ───────────┐
    learner, which computes tickets, too       actors
       └──────────────── gradients ◄─────────────┘

Weights and gradients go straight from one to the other, without the driver, and a small model's travel with the calls.
"""

import os
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from learner.gradients import Compute
from recor_dist.core.messages import HandedOut, LedStep, Receipt, Ticket, TicketGradient, Trouble
from recor_dist.core.setting import Mistake
from recor_dist.core.tracing import span

QUEUE = 2  # tickets per actor: one in progress and one queued
ITSELF = "the learner"
# Bytes. Larger arguments would go through the object store once per call; Ray's own limit is 100 KB.
INLINE = int(os.environ.get("RAY_max_direct_call_object_size", 100 * 1024))  # noqa: SIM112


class Troubled(Exception):
    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble)
        self.trouble = trouble


@dataclass(frozen=True)
class Terms:
    """What is the same for all steps."""

    groups: int  # tickets per step
    takes_part: bool  # the learner has a device of its own, and may compute tickets
    patience: float  # seconds that an actor may take per ticket
    window: int  # tickets that may be handed out and not taken at a time, which bounds the bytes of their gradients


@dataclass
class _Actor:
    """An actor in the current step."""

    name: str
    handle: Any
    since: float  # when it got its first ticket, or returned the last one
    tickets: deque[tuple[Ticket, ray.ObjectRef]] = field(default_factory=deque)  # it computes them in this order
    has_weights: bool = False


class Leading:
    """One step. Promises the gradient of each ticket once, in group order, whoever computes it, or else Troubled."""

    def __init__(
        self, step: int, weights: np.ndarray, actors: Mapping[str, Any], compute: Compute, terms: Terms
    ) -> None:
        """`actors`: their Ray handles, by name."""
        self.weights, self.compute, self.terms = weights, compute, terms
        self.step, groups = step, terms.groups
        self.open = deque(Ticket(step, group, step) for group in range(groups))  # not handed out
        self.actors = [_Actor(name, handle, 0.0) for name, handle in actors.items()]
        self.sent = [weights] if weights.nbytes <= INLINE else [ray.put(weights)]
        self.results: dict[int, TicketGradient] = {}  # by group, until those before it are there
        self.next = 0  # the group whose gradient is due
        self.own: tuple[Ticket, float] | None = None  # the ticket that it computes itself, and since when
        self.computed = self.waited = self.busy = self.pulled = 0.0  # seconds, see LedStep
        self.tickets: Counter[str] = Counter()
        self.moved_bytes = 0
        # The learner computes tickets if the step then takes fewer rounds; otherwise it is free to add gradients.
        fewer_rounds = not actors or -(-groups // (len(actors) + 1)) < -(-groups // len(actors))
        self.takes_part = terms.takes_part and (fewer_rounds or groups == 1)

    def gradients(self) -> Iterator[TicketGradient]:
        """In group order. Each must be used before the next is asked for."""
        while self.next < self.terms.groups:
            # The first open ticket is its own: it is usually the next one due.
            own = self.open.popleft() if self.takes_part and self._may_hand_out() else None
            self._hand_out(own is not None)
            if own:
                self._compute(own)
                self._fetch_arrived()
            else:
                self._fetch(self._next_to_answer())
            while self.next in self.results:
                self.next += 1
                yield self.results.pop(self.next - 1)

    def _may_hand_out(self) -> bool:
        return bool(self.open) and self.open[0].group < self.next + self.terms.window

    def _hand_out(self, own: bool) -> None:
        """Gives each actor its share of what is left, but no more than it needs to keep busy."""
        left = len(self.open) + sum(len(actor.tickets) for actor in self.actors) + own
        share = -(-left // (len(self.actors) + self.takes_part))
        for place in range(min(QUEUE, share)):
            for actor in self.actors:
                if len(actor.tickets) == place and self._may_hand_out():
                    self._send(actor, self.open.popleft())

    def _send(self, actor: _Actor, ticket: Ticket) -> None:
        weights = [] if actor.has_weights else self.sent
        if not actor.tickets:
            actor.since = time.monotonic()
        actor.tickets.append((ticket, actor.handle.differentiate.options(num_returns=1).remote(ticket, weights)))
        self.moved_bytes += 0 if actor.has_weights else self.weights.nbytes
        actor.has_weights = True

    def _compute(self, ticket: Ticket) -> None:
        began = time.monotonic()
        self.own = ticket, began
        try:
            gradient = self.compute(ticket, self.weights)
        except Mistake:
            raise
        except Exception:
            raise Troubled(Trouble(ticket, ITSELF, traceback.format_exc(), raised=True)) from None
        if ticket.group > self.next:  # it may have to wait, and the next own ticket overwrites its buffer
            gradient = replace(gradient, gradient=gradient.gradient.copy())
        self.computed += time.monotonic() - began
        self.own = None
        self._result(ITSELF, ticket, gradient)

    def _fetch_arrived(self) -> None:
        """Makes room for further tickets, if there are any."""
        heads = {actor.tickets[0][1]: actor for actor in self.actors if actor.tickets}
        if self.open and heads:
            for ref in ray.wait(list(heads), num_returns=len(heads), timeout=0)[0]:
                self._fetch(heads[ref])

    def _next_to_answer(self) -> _Actor:
        """The first actor to answer, which can then be given another ticket; once all are handed out, that of the
        ticket that is due."""
        heads = {actor.tickets[0][1]: actor for actor in self.actors if actor.tickets}
        if not self._may_hand_out():
            return next(actor for actor in heads.values() if actor.tickets[0][0].group == self.next)
        slowest = min(heads.values(), key=lambda actor: actor.since)
        began = time.monotonic()
        with span("wait for actors"):
            arrived, _ = ray.wait(list(heads), timeout=self._time_left(slowest))
        self.waited += time.monotonic() - began
        return heads[arrived[0]] if arrived else slowest

    def _time_left(self, actor: _Actor) -> float:
        """Seconds; at least one, because a result that has arrived elsewhere still has to be fetched."""
        return max(1.0, actor.since + self.terms.patience - time.monotonic())

    def _fetch(self, actor: _Actor) -> None:
        """Waits for the result of the ticket that an actor is computing."""
        ticket, ref = actor.tickets[0]
        began = time.monotonic()
        try:
            with span("wait for actors"):
                answer: tuple[Receipt, TicketGradient] = ray.get(ref, timeout=self._time_left(actor))
        except RayTaskError as error:
            if isinstance(error.cause, Mistake):
                raise error.cause from None
            raise Troubled(Trouble(ticket, actor.name, str(error), raised=True)) from None
        except GetTimeoutError:
            cause = f"no answer in {self.terms.patience:g} s"
            raise Troubled(Trouble(ticket, actor.name, cause, raised=False, hangs=True)) from None
        except RayError as error:
            raise Troubled(Trouble(ticket, actor.name, str(error) or type(error).__name__, raised=False)) from None
        actor.tickets.popleft()
        actor.since = time.monotonic()
        self.waited += actor.since - began
        receipt, gradient = answer
        self.busy += receipt.seconds
        self.pulled += receipt.moved_seconds
        self.moved_bytes += gradient.gradient.nbytes
        self._result(actor.name, ticket, gradient)

    def _result(self, name: str, ticket: Ticket, gradient: TicketGradient) -> None:
        self.tickets[name] += 1
        self.results[ticket.group] = gradient

    def handed_out(self) -> HandedOut:
        """Who computes what at this moment; may be called from another thread."""
        now = time.monotonic()
        tickets = [(actor, *pair) for actor in self.actors for pair in list(actor.tickets)]
        refs = [ref for *_, ref in tickets]
        done = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0] if refs else []
        queued = [(actor, ticket) for actor, ticket, ref in reversed(tickets) if ref not in done]
        computing = {actor.name: (ticket, now - actor.since) for actor, ticket in queued}  # the first of each
        if own := self.own:
            computing[ITSELF] = own[0], now - own[1]
        due = Ticket(self.step, self.next, self.step) if self.next < self.terms.groups else None
        return HandedOut(self.step, due, computing)

    def measured(self, seconds: float, metrics: dict[str, float]) -> LedStep:
        """What there is to tell about the step, which took this many seconds."""
        return LedStep(
            seconds,
            self.computed,
            self.waited,
            len(self.actors),
            self.busy,
            self.pulled,
            dict(self.tickets),
            self.moved_bytes,
            metrics,
        )
