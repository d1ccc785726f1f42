"""What an engine reports to the loop, and what is due when. Both engines report the same events."""

from dataclasses import dataclass

from learner.learner import LearnerState
from recor_dist.core.config import Config
from recor_dist.core.messages import EvalSums, Trace
from recor_dist.record.snapshot import Activity


class RunFailed(RuntimeError):
    """A ticket or a process fails on every machine; the text holds the original traceback."""


@dataclass(frozen=True)
class Stepped:
    """The learner has taken a step: `step` of them are done. After a lost learner, a step may be reported twice."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Evaluated:
    """`done` of `total` tickets of an evaluation are answered; once all are, the sums are those of the split."""

    version: int
    split: str
    sums: dict[str, EvalSums]  # by decoder
    done: int
    total: int


@dataclass(frozen=True)
class Checkpoint:
    """A state to save."""

    state: LearnerState


@dataclass(frozen=True)
class Looked:
    """What the processes of the run do at the moment."""

    activities: tuple[Activity, ...]


@dataclass(frozen=True)
class Profiled:
    """A profile, which was asked for."""

    traces: dict[str, Trace]  # by process


Event = Stepped | Evaluated | Checkpoint | Looked | Profiled


def checkpoint_due(config: Config, step: int, steps: int) -> bool:
    return step % config.checkpoint.every == 0 or step == steps


def next_due(config: Config, step: int, steps: int) -> int:
    """The next version after this step that is evaluated or saved."""
    periods = [config.checkpoint.every, *([config.eval.every] if config.eval.every else [])]
    return min(steps, *((step // period + 1) * period for period in periods))


def splits_due(config: Config, version: int, steps: int) -> tuple[str, ...]:
    """The splits to evaluate with these weights: validation during training, all at the end."""
    if version == steps:
        return ("val", "test")
    return ("val",) if version and config.eval.every and version % config.eval.every == 0 else ()
