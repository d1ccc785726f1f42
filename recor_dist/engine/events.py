"""What an engine tells the loop, and what is due when. Both engines tell the same story."""

from dataclasses import dataclass

from learner.learner import LearnerState
from recor_dist.core.config import Config
from recor_dist.core.messages import EvalSums


@dataclass(frozen=True)
class Stepped:
    """The learner has taken a step: `step` of them are done. After a learner was lost, a step may be told twice."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Evaluated:
    """So many tickets of an evaluation are answered; with done == total the sums are those of the split."""

    version: int
    split: str
    sums: dict[str, EvalSums]  # by decoder
    done: int
    total: int


@dataclass(frozen=True)
class Checkpoint:
    """A state to be kept."""

    state: LearnerState


Event = Stepped | Evaluated | Checkpoint


def checkpoint_due(config: Config, step: int, steps: int) -> bool:
    return step % config.checkpoint.every == 0 or step == steps


def splits_due(config: Config, version: int, steps: int) -> tuple[str, ...]:
    """What is evaluated with these weights: validation on the way, all in the end."""
    if version == steps:
        return ("val", "test")
    return ("val",) if version and config.eval.every and version % config.eval.every == 0 else ()
