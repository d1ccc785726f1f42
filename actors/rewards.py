"""Rewards and Bellman targets, from the paper's equations, as plain functions of tensors.

The dense reward is r = log p(y). The sparse one is r = log 1[p >= eta], 0 or minus infinity, and appears only as
exp(r). A target is Qbar = r + gamma V(s'). The BCE label is exp(Qbar) = exp(r) exp(gamma V(s')), computed without ever
taking the logarithm of 0.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def sparse_reward(log_p: Tensor, eta: float) -> Tensor:
    """exp(r) = 1[p >= eta]."""
    return (log_p.exp() >= eta).to(log_p.dtype)


def q_values(logits: Tensor, algorithm: str) -> Tensor:
    """Q from the order head's logits: their logsigmoid if the loss is a BCE, else the logits themselves."""
    return F.logsigmoid(logits) if algorithm == "sql_bce" else logits


def soft_value(q: Tensor, filled: Tensor, alpha: float) -> Tensor:
    """V = alpha logsumexp(Q / alpha) over the unfilled slots (last axis); max Q for alpha = 0; 0 if none is left."""
    q = q.masked_fill(filled, -torch.inf)
    value = q.amax(-1) if alpha == 0 else alpha * torch.logsumexp(q / alpha, -1)
    return value.masked_fill(filled.all(-1), 0.0)


def bce_label(exp_r: Tensor, next_value: Tensor | None, gamma: float) -> Tensor:
    """exp(Qbar), clamped to 1, which the entropy bonus in V can exceed."""
    return exp_r if next_value is None else (exp_r * (gamma * next_value).exp()).clamp(max=1.0)


def mse_target(r: Tensor, next_value: Tensor | None, gamma: float) -> Tensor:
    """Qbar."""
    return r if next_value is None else r + gamma * next_value
