"""The optimizer on the model's flat weights, and its learning rate, a function of the step alone.

AdamW updates all weights; with learner.optimizer=muon, Muon updates the matrices of the blocks instead. Muon keeps a
momentum, and steps along the orthogonal matrix nearest to it, so that every direction of a matrix learns equally fast.
"""

import math
from collections import defaultdict

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


class Optimizer:
    """Its state is two numbers per weight, in buffers laid out like `model.flat`.

    `exp_avg` and `exp_avg_sq` are AdamW's moments. Of the weights that Muon updates, `exp_avg` is the momentum and
    `exp_avg_sq` stays 0.
    """

    def __init__(self, config: LearnerConfig, model: Model, gradient: Tensor) -> None:
        """`gradient`: the flat buffer that `step` reads, laid out like `model.flat`."""
        self.config = config
        self.exp_avg, self.exp_avg_sq = torch.zeros_like(model.flat), torch.zeros_like(model.flat)
        self.muon = Muon(config, model, gradient, self.exp_avg) if config.optimizer == "muon" else None
        # Few large tensors, all views into the flat buffer. Only matrices decay.
        matrices, others = slice(0, model.decayed), slice(model.decayed, None)
        parts = [(part, config.weight_decay) for part in ([matrices] if self.muon is None else self.muon.around)]
        parts.append((others, 0.0))
        groups, self.counts = [], []
        for part, decay in parts:
            parameter = model.flat[part]
            parameter.grad = gradient[part]
            groups.append({"params": [parameter], "weight_decay": decay})
        self.adamw = torch.optim.AdamW(
            groups,
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            fused=True,  # one pass over each tensor
        )
        for group, (part, _) in zip(groups, parts, strict=True):
            self.counts.append(torch.zeros((), device=model.flat.device))
            self.adamw.state[group["params"][0]] = {
                "step": self.counts[-1],
                "exp_avg": self.exp_avg[part],
                "exp_avg_sq": self.exp_avg_sq[part],
            }

    def step(self, rate: float) -> None:
        """Updates the model's weights in place, with the gradient in the buffer. `rate` is AdamW's; Muon's is in
        proportion."""
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        if self.muon:
            self.muon.step(self.config.muon_lr * rate / self.config.lr)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of `exp_avg` and `exp_avg_sq`, flat float32; zeros before the first step."""
        return self.exp_avg.cpu().numpy().copy(), self.exp_avg_sq.cpu().numpy().copy()

    def load(self, step: int, exp_avg: np.ndarray, exp_avg_sq: np.ndarray) -> None:
        """Restores the moments as they were after `step` steps."""
        self.exp_avg.copy_(torch.tensor(exp_avg))
        self.exp_avg_sq.copy_(torch.tensor(exp_avg_sq))
        for count in self.counts:
            count.fill_(step)


class Muon:
    """Muon with Nesterov momentum on the matrices of the blocks; query, key and value are three matrices.

    torch.optim.Muon does not fit: it takes matrices one by one and iterates in bfloat16. Here all matrices of one shape
    are orthogonalized in one batch, in float32.
    """

    def __init__(self, config: LearnerConfig, model: Model, gradient: Tensor, momentum: Tensor) -> None:
        """`gradient` and `momentum` are laid out like `model.flat`."""
        self.config = config
        blocks = [
            (name, p, start) for name, p, start in model.laid_out() if name.startswith("blocks.") and p.dim() == 2
        ]
        first, last = blocks[0][2], blocks[-1][2] + blocks[-1][1].numel()
        self.around = [slice(0, first), slice(last, model.decayed)]  # the matrices left to AdamW
        self.weights, self.gradient, self.momentum = (flat[first:last] for flat in (model.flat, gradient, momentum))
        self.direction = torch.zeros_like(self.gradient)
        # Pairs of views, into the weights and into the direction, by shape; the shorter side comes first.
        self.matrices: dict[tuple[int, int], list[tuple[Tensor, Tensor, float]]] = defaultdict(list)
        for name, parameter, start in blocks:
            size = parameter.numel()
            direction = self.direction[start - first : start - first + size].view(parameter.shape)
            pieces = 3 if name.endswith("c_attn.weight") else 1
            for weight, along in zip(parameter.data.chunk(pieces), direction.chunk(pieces), strict=True):
                rows, columns = weight.shape
                stretch = max(1.0, rows / columns) ** 0.5
                if rows > columns:
                    weight, along = weight.T, along.T
                self.matrices[weight.shape[0], weight.shape[1]].append((weight, along, stretch))

    def step(self, rate: float) -> None:
        beta = self.config.muon_momentum
        self.momentum.lerp_(self.gradient, 1 - beta)
        torch.lerp(self.gradient, self.momentum, beta, out=self.direction)
        self.weights.mul_(1 - rate * self.config.muon_decay)
        for matrices in self.matrices.values():
            orthogonal = orthogonalize(torch.stack([along for _, along, _ in matrices]))
            for (weight, _, stretch), update in zip(matrices, orthogonal, strict=True):
                weight.add_(update, alpha=-rate * stretch)


def orthogonalize(matrices: Tensor) -> Tensor:
    """(n, rows, columns), rows <= columns -> roughly U V' of each matrix U S V'.

    Five Newton-Schulz iterations with a polynomial that brings all singular values close to 1 quickly: to between 0.7
    and 1.2, which is as good as 1 for learning.
    """
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(3.4445 * x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x)
    return x
