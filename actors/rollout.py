"""ReCOR's rollout: the order policy chooses slots, the true tokens are written, and sampled queries are scored.

    prompt ──► s_1 ──► rho_1, K queries ──► y_rho_1 ──► s_2 ──► ...        (KV cache: nothing is computed twice)
    all M K queries at once, from the full cache ──► p(y) ──► rewards ──► targets

It costs one pass of each stream: as many FLOPs as a training forward over the same streams.

With random_contexts, some rows are filled in a random order instead: early on, the policy knows nothing, and leads to
few contexts that are all alike. Nothing else changes for these rows: their queries are drawn as for any other.
"""

import numpy as np
import torch
from torch import Tensor

from actors.rewards import bce_label, mse_target, q_values, soft_value, sparse_reward
from recor_dist.core.device import to_device
from recor_dist.core.messages import RecorBatch, Rows
from recor_dist.core.method_settings import RecorConfig
from recor_dist.core.rng import gumbel
from recor_dist.model.transformer import Cache, Model, filled_slots


@torch.inference_mode()
def rollout(method: RecorConfig, model: Model, rows: Rows, random: np.random.Generator, version: int) -> RecorBatch:
    """Rolls out the policy over `rows` with the model's weights, which are v_version."""
    device = model.flat.device
    prompts = to_device(rows.prompts.astype(np.int64), device)
    responses = to_device(rows.responses.astype(np.int64), device)
    R, M = responses.shape
    noise = to_device(exploration_noise(method, random, R, M), device)
    orders = to_device(random_orders(method, random, R, M), device)  # of the first rows

    cache = model.new_cache(R)
    filled = torch.zeros(R, M, dtype=torch.bool, device=device)
    written, order_logits = [], []
    logits = model.start(prompts, cache)
    for t in range(M):
        slots = logits.masked_fill(filled, -torch.inf).argmax(-1)  # (R,)
        slots[: len(orders)] = orders[:, t]
        written.append(slots)
        order_logits.append(logits)
        filled.scatter_(1, slots[:, None], True)
        if t < M - 1:
            logits = model.step(responses.gather(1, slots[:, None])[:, 0], slots, cache)

    # The rest does not depend on the step before, so it takes one call for all steps.
    order = torch.stack(written, 1)  # (R, M)
    queries, valid = choose_queries(
        method, torch.stack(order_logits, 1), filled_slots(order), order, noise
    )  # (R, M, K)
    answers = responses.gather(1, queries.flatten(1)).view_as(queries)
    logits = model.ask_all(queries, cache).float()
    log_p = logits.log_softmax(-1).gather(-1, answers[..., None])[..., 0]  # (R, M, K)
    rewards = sparse_reward(log_p, method.eta) if method.reward == "sparse" else log_p
    value = next_values(method, model, order, queries, answers, cache) if method.gamma else None
    return RecorBatch(
        version=version,
        prompts=prompts.cpu().numpy(),
        tokens=responses.gather(1, order).cpu().numpy(),
        order=order.cpu().numpy(),
        queries=queries.cpu().numpy(),
        answers=answers.cpu().numpy(),
        valid=valid.cpu().numpy(),
        rewards=rewards.cpu().numpy(),
        targets=targets(method, rewards, value).cpu().numpy(),
    )


def exploration_noise(method: RecorConfig, random: np.random.Generator, R: int, M: int) -> np.ndarray:
    """(R, M, M) float32, for each row, step and slot: uniform, Gumbel, or zero."""
    if method.exploration == "topk":
        return np.zeros((R, M, M), dtype=np.float32)
    noise = random.random((R, M, M)) if method.exploration == "uniform" else gumbel(random, (R, M, M))
    return noise.astype(np.float32)


def random_orders(method: RecorConfig, random: np.random.Generator, R: int, M: int) -> np.ndarray:
    """Random orders for the first rows of a ticket, as many as random_contexts says; its rows are shuffled already."""
    slots = np.tile(np.arange(M), (round(method.random_contexts * R), 1))
    return random.permuted(slots, axis=1)


def choose_queries(
    method: RecorConfig, logits: Tensor, filled: Tensor, written: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """The slots to query in some states and which of them are valid, both (..., K), or (..., K + 1) with
    include_greedy. Of each state: order logits, filled slots and noise (..., M), and the slot that is written (...).

    The top K of uniform noise are a uniform sample without duplicates. The top K of Q/alpha + Gumbel noise are a sample
    from the policy (Gumbel-top-K). With include_greedy the slot that is about to be written is queried, too (the greedy
    one, unless the row's order is random); the sample excludes it, so none is queried twice.
    """
    if method.exploration == "uniform":
        scores = noise
    else:
        scores = q_values(logits.float(), method.algorithm)
        if method.exploration == "entropy":
            # The PPO-like policy is the softmax of the logits themselves; sampling from it keeps that loss on-policy.
            scores = (scores if method.algorithm == "ppo" else scores / method.alpha) + noise
    closed = filled.scatter(-1, written[..., None], True) if method.include_greedy else filled
    slots = scores.masked_fill(closed, -torch.inf).topk(method.token_queries, dim=-1).indices  # (..., K)
    usable = ~closed.gather(-1, slots)
    if method.include_greedy:
        slots = torch.cat([slots, written[..., None]], dim=-1)
        usable = torch.cat([usable, torch.ones_like(usable[..., :1])], dim=-1)
    return slots, usable


def next_values(
    method: RecorConfig, model: Model, order: Tensor, queries: Tensor, answers: Tensor, cache: Cache
) -> Tensor:
    """V(s_t + y_a) of every query a, (R, M, K): s' is off the trajectory unless a = rho_t, so every query branches."""
    filled = filled_slots(order)
    values = []
    for k in range(queries.shape[2]):  # one query per step at a time, to keep the attention scores small
        logits = model.branch_order_logits(answers[:, :, k], queries[:, :, k], cache)  # (R, M, M)
        closed = filled.scatter(2, queries[:, :, k, None], True)
        values.append(soft_value(q_values(logits.float(), method.algorithm), closed, method.alpha))
    return torch.stack(values, dim=2)


def targets(method: RecorConfig, rewards: Tensor, value: Tensor | None) -> Tensor:
    """The order policy's target for each query: a BCE label, an MSE target, or the reward itself."""
    if method.algorithm == "sql_bce":
        exp_r = rewards if method.reward == "sparse" else rewards.exp()
        return bce_label(exp_r, value, method.gamma)
    return mse_target(rewards, value, method.gamma)
