"""The learner: turns weights v_n and the tickets of step n into v_{n+1}, and keeps the versions that tickets may name.

Tickets are taken in the order of their groups, one forward and backward each, together or as they come. Gradients add
up in one flat buffer, are divided once by the counts of the whole step, clipped, and followed by one AdamW step.
Nothing else changes the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from learner.losses import LossSums
from recor_dist.core.config import Config, LearnerConfig, Mistake
from recor_dist.core.device import autocast
from recor_dist.model.transformer import Model

Statistics = Callable[[Any, Sequence[Any]], Any]  # method, all batches of a step -> what `loss` wants to know of them


@dataclass(frozen=True)
class LearnerState:
    """All that a run needs to go on after step - 1: there is no random state and no data position."""

    step: int
    versions: dict[int, np.ndarray]  # v_{step - lag} .. v_step, flat float32
    exp_avg: np.ndarray  # AdamW's moments, flat float32
    exp_avg_sq: np.ndarray


def initial_state(model: Model, seed: int) -> LearnerState:
    """Where every run begins: v_0 is a function of the seed."""
    model.initialise(seed)
    flat = model.weights()
    return LearnerState(0, {0: flat}, np.zeros_like(flat), np.zeros_like(flat))


def learning_rate(config: LearnerConfig, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine from lr towards 0 at `steps`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * progress))


class Learner:
    def __init__(
        self,
        config: Config,
        model: Model,
        steps: int,
        loss: Callable[[Any, Model, Any, Any], LossSums],
        statistics: Statistics | None,
    ) -> None:
        """`statistics`, if given, sees all tickets of a step before the first backward; `loss` gets what it returns."""
        self.config, self.model, self.steps = config, model, steps
        self.loss, self.statistics = loss, statistics
        self.step = 0
        self.taken = 0  # tickets of the current step whose gradients are in the buffer
        self.count = 0  # of what their losses add up
        self.sums: dict[str, Any] = {}
        model.initialise(config.seed)
        self.versions = {0: model.weights()}
        self.gradient = model.share_gradients()
        # AdamW sees two tensors: matrices, which decay, and the rest. `fused` makes each update one pass over them.
        parts = (slice(0, model.decayed), slice(model.decayed, None))
        self.flat_parameters = [model.flat[part] for part in parts]
        for parameter, part in zip(self.flat_parameters, parts, strict=True):
            parameter.grad = self.gradient[part]
        decays = (config.learner.weight_decay, 0.0)
        self.optimizer = torch.optim.AdamW(
            [{"params": [p], "weight_decay": d} for p, d in zip(self.flat_parameters, decays, strict=True)],
            lr=config.learner.lr,
            betas=(config.learner.beta1, config.learner.beta2),
            fused=True,
        )

    def update(self, batches: Sequence[Any]) -> dict[str, float]:
        """Learns from all tickets of the current step, in the order of their groups; returns the step's metrics."""
        self.take(batches)
        return self.finish()

    def take(self, batches: Sequence[Any]) -> None:
        """Adds the gradients of the current step's next tickets; of all at once, where there are `statistics`."""
        assert not (self.statistics and self.taken), "statistics are over a whole step"
        if not self.taken:
            self.gradient.zero_()
            self.count, self.sums = 0, {}
        statistics = self.statistics(self.config.method, batches) if self.statistics else None
        for batch in batches:
            with autocast(self.config):
                part = self.loss(self.config.method, self.model, batch, statistics)
            part.total.backward()
            self.count += part.count
            for name, value in part.metrics.items():
                self.sums[name] = self.sums.get(name, 0.0) + value
            self.taken += 1
        if self.model.flat.is_cuda:
            torch.cuda.synchronize()  # or a GPU still at work would be taken for a learner that waits

    def finish(self) -> dict[str, float]:
        """Ends the current step with the tickets that were taken; returns its metrics."""
        count = max(1, self.count)
        self.gradient.div_(count)
        norm = float(torch.linalg.vector_norm(self.gradient))
        if not math.isfinite(norm):
            raise Mistake(
                f"learner.lr={self.config.learner.lr}: the gradient of step {self.step} is not finite; try a lower one"
            )
        if norm > self.config.learner.clip:
            self.gradient.mul_(self.config.learner.clip / norm)
        rate = learning_rate(self.config.learner, self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.step, self.taken = self.step + 1, 0
        self.versions[self.step] = self.model.weights()
        self.versions = {v: flat for v, flat in self.versions.items() if v >= self.step - self.config.lag}
        metrics = {name: float(value) / count for name, value in self.sums.items()}
        return metrics | {"learner/gradient_norm": norm, "learner/lr": rate}

    def state(self) -> LearnerState:
        moments = [
            torch.cat([self._moments(p)[name] for p in self.flat_parameters]) for name in ("exp_avg", "exp_avg_sq")
        ]
        return LearnerState(self.step, dict(self.versions), *(m.cpu().numpy() for m in moments))

    def load_state(self, state: LearnerState) -> None:
        self.step, self.taken, self.versions = state.step, 0, dict(state.versions)
        self.model.load(state.versions[state.step])
        start = 0
        for parameter in self.flat_parameters:
            end = start + parameter.numel()
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(state.step), device=parameter.device),
                "exp_avg": torch.tensor(state.exp_avg[start:end], device=parameter.device),
                "exp_avg_sq": torch.tensor(state.exp_avg_sq[start:end], device=parameter.device),
            }
            start = end

    def _moments(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        zeros = torch.zeros_like(parameter)
        return self.optimizer.state.get(parameter) or {"exp_avg": zeros, "exp_avg_sq": zeros}
