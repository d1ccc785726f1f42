"""The learner turns weights v_n and the tickets of step n into v_{n+1}, and keeps the versions that tickets may name.

Tickets are taken in group order, all at once or as they arrive, with one forward and backward each, unless an actor has
already computed the gradient. Their gradients add up in one flat buffer, are divided once by the count of the whole
step, and clipped; then the optimizer takes one step. Nothing else changes the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from learner.gradients import Gradients, Loss
from learner.optimizer import Optimizer, learning_rate
from recor_dist.core.config import Config
from recor_dist.core.messages import TicketGradient
from recor_dist.core.setting import Mistake
from recor_dist.core.tracing import span
from recor_dist.model.transformer import Model

Statistics = Callable[[Any, Sequence[Any]], Any]  # method, all batches of a step -> whatever `loss` needs from them


@dataclass(frozen=True)
class LearnerState:
    """All that is needed to resume training at `step`. There is no random state and no data position."""

    step: int
    versions: dict[int, np.ndarray]  # v_{step - lag} .. v_step, flat float32
    exp_avg: np.ndarray  # the optimizer's state, flat float32
    exp_avg_sq: np.ndarray


def initial_state(model: Model, seed: int) -> LearnerState:
    """The state every run starts from: v_0 is a function of the seed."""
    model.initialise(seed)
    flat = model.weights()
    return LearnerState(0, {0: flat}, np.zeros_like(flat), np.zeros_like(flat))


class Learner:
    def __init__(
        self,
        config: Config,
        model: Model,
        steps: int,
        loss: Loss,
        statistics: Statistics | None,
    ) -> None:
        """`statistics`, if given, sees all tickets of a step before the first backward; `loss` gets what it returns."""
        self.config, self.model, self.steps = config, model, steps
        self.statistics = statistics
        self.step = 0
        self.taken = 0  # tickets of the current step whose gradients are in the buffer
        self.count = 0  # entries that their loss sums cover
        self.sums: dict[str, Any] = {}
        model.initialise(config.seed)
        self.versions = {0: model.weights()}
        self.gradients = Gradients(config, model, loss)
        self.optimizer = Optimizer(config.learner, model, self.gradients.flat)

    def update(self, batches: Sequence[Any]) -> dict[str, float]:
        """Learns from all tickets of the current step, in group order; returns the step's metrics."""
        self.take(batches)
        return self.finish()

    def take(self, tickets: Sequence[Any]) -> None:
        """Adds the gradients of the current step's next tickets. A ticket is a batch, or a TicketGradient that an actor
        computed with the weights of this step. With `statistics`, all tickets of a step must come in one call."""
        assert not (self.statistics and self.taken), "statistics are over a whole step"
        if not self.taken:
            self.gradients.flat.zero_()
            self.count, self.sums = 0, {}
        statistics = self.statistics(self.config.method, tickets) if self.statistics else None
        for ticket in tickets:
            if isinstance(ticket, TicketGradient):
                with span("add gradients"):
                    self.gradients.add_computed(ticket.gradient)
                part = ticket
            else:
                part = self.gradients.add(ticket, statistics)
            self.count += part.count
            for name, value in part.metrics.items():
                self.sums[name] = self.sums.get(name, 0.0) + value
            self.taken += 1
        if self.model.flat.is_cuda:
            torch.cuda.synchronize()  # otherwise time the GPU is still computing would be measured as waiting

    def restart_step(self) -> None:
        """Forgets the tickets taken so far: the next one is the first of the step again."""
        self.taken = 0

    def finish(self) -> dict[str, float]:
        """Ends the current step with the tickets taken so far; returns its metrics."""
        with span("optimizer"):
            return self._finish()

    def _finish(self) -> dict[str, float]:
        count, gradient = max(1, self.count), self.gradients.flat
        gradient.div_(count)
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            raise Mistake(
                f"learner.lr={self.config.learner.lr}: the gradient of step {self.step} is not finite; "
                "try a lower learning rate"
            )
        if norm > self.config.learner.clip:
            gradient.mul_(self.config.learner.clip / norm)
        rate = learning_rate(self.config.learner, self.step, self.steps)
        self.optimizer.step(rate)
        self.step, self.taken = self.step + 1, 0
        self.versions[self.step] = self.model.weights()
        self.versions = {v: flat for v, flat in self.versions.items() if v >= self.step - self.config.lag}
        metrics = {name: float(value) / count for name, value in self.sums.items()}
        return metrics | {"learner/gradient_norm": norm, "learner/lr": rate}

    def state(self) -> LearnerState:
        """The state at the beginning of the current step, even if some of its tickets are taken."""
        return LearnerState(self.step, dict(self.versions), *self.optimizer.moments())

    def load_state(self, state: LearnerState) -> None:
        self.step, self.taken, self.versions = state.step, 0, dict(state.versions)
        self.model.load(state.versions[state.step])
        self.optimizer.load(state.step, state.exp_avg, state.exp_avg_sq)
