"""ReCOR's losses, from the paper's equations, as plain functions of tensors, and what the baselines share with them.

Each loss takes one entry per query, (R, M, K), and returns a sum over the valid ones. The learner divides once, by the
count of the whole step, so every query of a step has the same weight, whichever ticket it is in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recor_dist.core.device import to_device
from recor_dist.core.messages import RecorBatch
from recor_dist.core.method_settings import RecorConfig
from recor_dist.model.transformer import Model, filled_slots


@dataclass(frozen=True)
class LossSums:
    """One ticket's share of a step's loss: sums over its valid entries, and their count."""

    total: Tensor  # differentiated
    count: int
    metrics: dict[str, Tensor]  # detached sums to report, each divided by the count of the step


def cross_entropy(logits: Tensor, answers: Tensor) -> Tensor:
    """-log p of each answer: logits (..., V), answers (...) -> (...)."""
    return F.cross_entropy(logits.float().flatten(0, -2), answers.flatten(), reduction="none").view_as(answers)


def sql_bce_loss(logits: Tensor, labels: Tensor, valid: Tensor, focal: float) -> Tensor:
    """-exp(Qbar) Q - (1 - exp(Qbar)) log(1 - exp Q) with Q = logsigmoid(z), times |label - p|^focal."""
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    if focal:
        losses = losses * (labels - logits.sigmoid()).abs() ** focal
    return (losses * valid).sum()


def sql_mse_loss(q: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """(Q - Qbar)^2."""
    return ((q - target) ** 2 * valid).sum()


def ppo_like_loss(policy_logits: Tensor, queries: Tensor, advantages: Tensor, valid: Tensor, alpha: float) -> Tensor:
    """-(ratio A) - alpha H, ratio = pi / pi.detach(); policy_logits (R, M, M) are -inf at filled slots."""
    log_pi = policy_logits.log_softmax(-1)
    log_pi_queries = log_pi.gather(-1, queries)  # (R, M, K)
    # A surplus query points at a filled slot with log-probability -inf, and 0 * inf would make the sum NaN.
    log_pi_queries = log_pi_queries.masked_fill(~valid, 0.0)
    ratio = (log_pi_queries - log_pi_queries.detach()).exp()
    entropy = -(log_pi.exp() * log_pi.masked_fill(policy_logits == -torch.inf, 0.0)).sum(-1, keepdim=True)  # (R, M, 1)
    return ((-(ratio * advantages) - alpha * entropy) * valid).sum()


@dataclass(frozen=True)
class RewardMoments:
    """Mean and standard deviation of the rewards of a whole step, which is the batch of the PPO-like loss."""

    mean: float
    deviation: float


def recor_statistics(_: RecorConfig, batches: Sequence[RecorBatch]) -> RewardMoments:
    rewards = np.concatenate([batch.rewards[batch.valid] for batch in batches]).astype(np.float64)
    return RewardMoments(float(rewards.mean()), float(rewards.std()))


def recor_loss(method: RecorConfig, model: Model, batch: RecorBatch, moments: RewardMoments | None) -> LossSums:
    """lm_weight * LM + order_weight * (soft-Q or PPO-like) over the queries of one ticket."""
    device = model.flat.device
    order, queries, answers, valid, rewards, targets = (
        to_device(array, device)
        for array in (batch.order, batch.queries, batch.answers, batch.valid, batch.rewards, batch.targets)
    )
    prompts, tokens = (to_device(array, device) for array in (batch.prompts, batch.tokens))
    streams = model(prompts, tokens, order, queries)
    lm = (cross_entropy(streams.tokens, answers) * valid).sum()
    logits = streams.order.float()  # (R, M, M)
    asked = logits.gather(-1, queries)  # (R, M, K)
    if method.algorithm == "sql_bce":
        policy = sql_bce_loss(asked, targets, valid, method.focal)
    elif method.algorithm == "sql_mse":
        policy = sql_mse_loss(asked, targets, valid)
    else:
        assert moments is not None
        advantages = (rewards - moments.mean) / (moments.deviation + 1e-8)
        masked = logits.masked_fill(filled_slots(order), -torch.inf)
        policy = ppo_like_loss(masked, queries, advantages, valid, method.alpha)
    metrics = {"loss/lm": lm.detach(), "loss/order": policy.detach(), "reward/mean": (rewards * valid).sum()}
    return LossSums(method.lm_weight * lm + method.order_weight * policy, int(batch.valid.sum()), metrics)
