"""AdamW on the model's flat weights, and the learning rate, a function of the step alone."""

import math

import numpy as np
import torch
from torch import Tensor

from recor_dist.core.config import LearnerConfig
from recor_dist.model.transformer import Model


def learning_rate(config: LearnerConfig, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine from lr towards 0 at `steps`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * progress))


class FlatAdamW:
    """AdamW over two tensors, both views into the flat buffer: the matrices, which decay, and everything else."""

    def __init__(self, config: LearnerConfig, model: Model, gradient: Tensor) -> None:
        """`gradient`: the flat buffer that `step` reads, laid out like `model.flat`."""
        parts = (slice(0, model.decayed), slice(model.decayed, None))
        self.parameters = [model.flat[part] for part in parts]
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = gradient[part]
        decays = (config.weight_decay, 0.0)
        self.adamw = torch.optim.AdamW(
            [{"params": [p], "weight_decay": d} for p, d in zip(self.parameters, decays, strict=True)],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            fused=True,  # one pass over each tensor
        )

    def step(self, rate: float) -> None:
        """Updates the model's weights in place, with the gradient in the buffer."""
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """exp_avg and exp_avg_sq, flat float32, laid out like `model.flat`; zeros before the first step."""
        exp_avg, exp_avg_sq = (
            torch.cat([self._moments_of(p)[name] for p in self.parameters]) for name in ("exp_avg", "exp_avg_sq")
        )
        return exp_avg.cpu().numpy(), exp_avg_sq.cpu().numpy()

    def load(self, step: int, exp_avg: np.ndarray, exp_avg_sq: np.ndarray) -> None:
        """Restores the moments as they were after `step` steps."""
        start = 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            self.adamw.state[parameter] = {
                "step": torch.tensor(float(step), device=parameter.device),
                "exp_avg": torch.tensor(exp_avg[start:end], device=parameter.device),
                "exp_avg_sq": torch.tensor(exp_avg_sq[start:end], device=parameter.device),
            }
            start = end

    def _moments_of(self, parameter: Tensor) -> dict[str, Tensor]:
        zeros = torch.zeros_like(parameter)
        return self.adamw.state.get(parameter) or {"exp_avg": zeros, "exp_avg_sq": zeros}
