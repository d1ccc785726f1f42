"""What passes between the processes of a run: frozen dataclasses of NumPy arrays, and the tickets that name work.

Letters, the same in every file:
  B batch, R rows of a ticket, N prompt length, M response length, t step 1..M (index 0..M-1 in arrays),
  K token queries per step (one more with include_greedy), C order queries, V vocabulary, D width, H heads,
  L main-stream length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Shape:
    """What a model must know about its data, e.g. Shape(N=20, M=20, V=7) for the paper's ARG."""

    N: int
    M: int
    V: int  # size of the vocabulary; the model adds SEP as token V


class Ticket(NamedTuple):  # a tuple, because the pool hashes thousands of them per second
    """A unit of work: rows [group * R, (group + 1) * R) of step `step`'s batch, computed with weights `version`."""

    step: int
    group: int
    version: int


class EvalTicket(NamedTuple):
    """A unit of evaluation: rows [group * eval.size, (group + 1) * eval.size) of a split, with weights `version`."""

    version: int
    split: str
    group: int


@dataclass(frozen=True)
class Hello:
    """How an actor or the learner introduces itself."""

    node: str  # Ray's id of its node
    host: str
    pid: int
    fingerprint: dict[str, str | int]  # must match for bit-identical results
    thread: int  # that computes, by the operating system's number
    stacks: str  # where its machine reads its stacks (core/stacks.py)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


@dataclass(frozen=True)
class Receipt:
    """What the driver gets from a finished ticket or learner step, instead of its tensors."""

    seconds: float  # spent computing
    moved_seconds: float  # spent fetching weights or batches before that
    moved_bytes: int
    metrics: dict[str, float] | None = None  # of a learner step, empty until its last tickets; None: none taken
    lost: tuple[int, ...] = ()  # groups whose results are gone, so the learner took none of the tickets


@dataclass(frozen=True)
class LedStep:
    """A step whose tickets the learner handed out itself, to actors and to itself."""

    seconds: float  # from its start to its end
    computed: float  # of those, in which the learner computed tickets itself
    waited: float  # of those, in which it waited for actors
    actors: int  # that took part
    busy: float  # seconds in which actors computed, summed over them
    pulled: float  # seconds in which actors fetched weights, summed over them
    tickets: dict[str, int]  # that each of them and the learner computed, by name
    moved_bytes: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Trouble:
    """Why the learner stopped handing out tickets: one of them has no result."""

    ticket: Ticket
    actor: str
    cause: str
    raised: bool  # an exception in our own code; otherwise the actor died, or did not answer in time
    hangs: bool = False  # it did not answer in time


@dataclass(frozen=True)
class Led:
    """What the driver gets when the learner stops handing out tickets."""

    steps: tuple[LedStep, ...]
    trouble: Trouble | None = None


@dataclass(frozen=True)
class HandedOut:
    """What is computed in a step whose tickets the learner hands out."""

    step: int
    due: Ticket | None  # whose gradient the learner takes next; None once it has all
    computing: dict[str, tuple[Ticket, float]]  # by name, the learner included: its ticket, and seconds so far


@dataclass(frozen=True)
class Trace:
    """What a process did while a profile was made."""

    began: float  # in seconds since 1970
    seconds: float
    # As in Chrome's trace format, but in whole nanoseconds, `ts` since 1970: in microseconds as floating-point numbers,
    # events would no longer lie exactly inside one another.
    events: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Rows:
    """Rows of a data set, as token ids."""

    prompts: np.ndarray  # (R, N) unsigned
    responses: np.ndarray  # (R, M) unsigned
    orders: np.ndarray | None = None  # (R, M) int16: the slot of each step in the known order, if any

    def __len__(self) -> int:
        return len(self.prompts)

    def select(self, index: np.ndarray) -> "Rows":
        return Rows(self.prompts[index], self.responses[index], None if self.orders is None else self.orders[index])

    @staticmethod
    def concatenate(parts: Sequence["Rows"]) -> "Rows":
        """Joins parts of one data set."""
        if len(parts) == 1:
            return parts[0]
        orders = [part.orders for part in parts if part.orders is not None]
        return Rows(
            np.concatenate([part.prompts for part in parts]),
            np.concatenate([part.responses for part in parts]),
            np.concatenate(orders) if orders else None,
        )


@dataclass(frozen=True)
class RecorBatch:
    """A rolled-out ticket: what ReCOR's learner needs, e.g. R=64 rows of ARG with K=1."""

    version: int  # of the weights it was rolled out with
    prompts: np.ndarray  # (R, N) int64
    tokens: np.ndarray  # (R, M) int64: response tokens in generation order
    order: np.ndarray  # (R, M) int64: the slot of each step
    queries: np.ndarray  # (R, M, K) int64: slots queried at each step
    answers: np.ndarray  # (R, M, K) int64: the true token of each query
    valid: np.ndarray  # (R, M, K) bool: False for surplus queries, where fewer than K slots were left
    rewards: np.ndarray  # (R, M, K) float32: exp(r) for the sparse reward, r for the dense one
    targets: np.ndarray  # (R, M, K) float32: BCE label, MSE target, or r again for the PPO-like loss


@dataclass(frozen=True)
class OrderBatch:
    """A ticket whose rows are written in a given order: what CLM, AR-GT and AO-ARM learn from."""

    version: int  # of the weights its ticket names, which it does not depend on
    prompts: np.ndarray  # (R, N) unsigned
    tokens: np.ndarray  # (R, M) unsigned: response tokens in generation order
    order: np.ndarray  # (R, M) int16: the slot of each step


@dataclass(frozen=True)
class MaskedBatch:
    """A ticket with some response tokens hidden: what MDM learns from, e.g. R=64 rows of ARG at T=20.

    With progressive masking each row comes in J states, so R is J times `rollout_size`."""

    version: int  # of the weights its ticket names; only progressive masks depend on them
    prompts: np.ndarray  # (R, N) unsigned
    responses: np.ndarray  # (R, M) unsigned
    masked: np.ndarray  # (R, M) bool: True where a token is hidden
    times: np.ndarray  # (R,) int32: t of each row, 0..T-1; progressive: the stages that follow, 0..J-1


@dataclass(frozen=True)
class TicketGradient:
    """What a ticket adds to its step, if its gradient is computed where it is rolled out (`actors.gradients`)."""

    gradient: np.ndarray  # flat float32, laid out like the weights: of the loss summed over `count` entries
    count: int
    metrics: dict[str, np.float32]  # sums to report


@dataclass(frozen=True)
class EvalSums:
    """Evaluation sums over the rows of a ticket or of a whole split. They are integers, so tickets may be added in any
    order."""

    rows: int
    exact: int  # responses that are entirely correct
    tokens: int  # response tokens that are correct
    fills: np.ndarray  # (M, steps) int64: fills[slot, step - 1] answers filled this slot at this step
    agreement: int | None  # pairs of slots filled in the known order minus those against it; None: no known order
    work: "Work | None" = None  # None: every answer costs the same, see Cost

    def __add__(self, other: "EvalSums") -> "EvalSums":
        agreement = None
        if self.agreement is not None and other.agreement is not None:
            agreement = self.agreement + other.agreement
        return EvalSums(
            self.rows + other.rows,
            self.exact + other.exact,
            self.tokens + other.tokens,
            self.fills + other.fills,
            agreement,
            self.work + other.work if self.work and other.work else None,
        )


@dataclass(frozen=True)
class Work:
    """What the answers to some rows took, where it depends on the answer: integers, like EvalSums."""

    passes: int  # forward passes, summed over rows
    most_passes: int  # of one row
    flops: int  # summed over rows

    def __add__(self, other: "Work") -> "Work":
        most = max(self.most_passes, other.most_passes)
        return Work(self.passes + other.passes, most, self.flops + other.flops)


@dataclass(frozen=True)
class Cost:
    """Cost per answer."""

    forward_passes: int  # complete passes over prompt and response; with a KV cache, one per stream
    flops: int  # 2 per multiply-add, matrix products and attention only


@dataclass(frozen=True)
class Generation:
    """A model's answers."""

    responses: np.ndarray  # (R, M) int64
    steps: np.ndarray  # (R, M) int64: the step, from 1, that filled each slot; several slots may share one
    confidences: np.ndarray  # (R, M) float32: the probability of each token when it was written
    last_step: int  # steps per answer, or if they depend on the answer, the most it can take
    passes: np.ndarray | None = None  # (R,) int64: forward passes of each row; None: the same for all, see Decoder
    flops: np.ndarray | None = None  # (R,) int64: what those passes cost

    def select(self, rows: slice) -> "Generation":
        passes, flops = (None if x is None else x[rows] for x in (self.passes, self.flops))
        responses, steps, confidences = (x[rows] for x in (self.responses, self.steps, self.confidences))
        return Generation(responses, steps, confidences, self.last_step, passes, flops)

    @staticmethod
    def concatenate(parts: "Sequence[Generation]") -> "Generation":
        """The answers of several batches by the same decoder."""

        def joined(name: str) -> Any:
            arrays = [getattr(part, name) for part in parts]
            return None if arrays[0] is None else np.concatenate(arrays)

        responses, steps, confidences = map(joined, ("responses", "steps", "confidences"))
        last = max(part.last_step for part in parts)
        return Generation(responses, steps, confidences, last, joined("passes"), joined("flops"))

    @property
    def last_steps(self) -> np.ndarray:
        """(R,) int64: the number of steps of each answer."""
        return np.full(len(self.steps), self.last_step) if self.passes is None else self.steps.max(axis=1)

    @property
    def orders(self) -> np.ndarray:
        """(R, M) int64: the slots in the order they were filled; slots of the same step are in reading order."""
        return self.steps.argsort(axis=1, kind="stable")
