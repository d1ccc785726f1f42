"""Each loss against slow NumPy from the paper's equations."""

import math

import numpy as np
import pytest
import torch

from actors.rollout import rollout
from learner.losses import cross_entropy, ppo_like_loss, recor_loss, recor_statistics, sql_bce_loss, sql_mse_loss
from recor_dist.core.method_settings import RecorConfig
from recor_dist.core.rng import rng
from recor_dist.methods import METHODS
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, State, log_softmax

R, M, K, V = 2, 3, 2, 4
RANDOM = np.random.default_rng(0)
VALID = RANDOM.random((R, M, K)) < 0.7
INDICES = [tuple(i) for i in np.argwhere(VALID)]


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array))


def test_cross_entropy_is_minus_the_log_probability_of_each_answer() -> None:
    logits, answers = RANDOM.normal(size=(R, M, K, V)), RANDOM.integers(0, V, (R, M, K))
    losses = cross_entropy(tensor(logits), tensor(answers))
    for i in np.ndindex(R, M, K):
        assert losses[i].item() == pytest.approx(-log_softmax(logits[i])[answers[i]], rel=1e-5)


@pytest.mark.parametrize("focal", [0.0, 1.0, 2.0, 3.5])
def test_the_bce_loss_matches_the_paper_with_q_as_a_logsigmoid(focal: float) -> None:
    z, labels = RANDOM.normal(size=(R, M, K)) * 2, RANDOM.random((R, M, K))
    labels[0, 0, 0], labels[0, 0, 1] = 0.0, 1.0
    expected = 0.0
    for i in INDICES:
        q = math.log(1 / (1 + math.exp(-z[i])))
        loss = -labels[i] * q - (1 - labels[i]) * math.log(1 - math.exp(q))
        expected += loss * abs(labels[i] - math.exp(q)) ** focal
    assert sql_bce_loss(tensor(z), tensor(labels), tensor(VALID), focal).item() == pytest.approx(expected)


def test_with_hard_labels_the_focal_factor_matches_lin_et_al() -> None:
    z = torch.tensor([[[1.5, -0.5]]], dtype=torch.float64)
    labels, valid = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), torch.ones(1, 1, 2, dtype=torch.bool)
    p = 1 / (1 + np.exp(-z.numpy().ravel()))
    p_t = np.array([p[0], 1 - p[1]])
    assert sql_bce_loss(z, labels, valid, 2.0).item() == pytest.approx((-((1 - p_t) ** 2) * np.log(p_t)).sum())


def test_a_saturated_bce_stays_finite() -> None:
    z = torch.tensor([[[90.0, -90.0, 90.0]]], requires_grad=True)
    labels, valid = torch.tensor([[[1.0, 0.0, 0.0]]]), torch.ones(1, 1, 3, dtype=torch.bool)
    loss = sql_bce_loss(z, labels, valid, 2.0)
    loss.backward()
    assert math.isfinite(loss.item())
    assert torch.isfinite(z.grad).all()


def test_the_mse_loss_is_the_squared_bellman_error() -> None:
    q, target = RANDOM.normal(size=(R, M, K)), RANDOM.normal(size=(R, M, K))
    expected = sum((q[i] - target[i]) ** 2 for i in INDICES)
    assert sql_mse_loss(tensor(q), tensor(target), tensor(VALID)).item() == pytest.approx(expected)


def ppo_by_hand(
    logits: np.ndarray, queries: np.ndarray, advantages: np.ndarray, alpha: float
) -> tuple[float, np.ndarray]:
    """The loss, and its gradient by the policy-gradient theorem: d ratio = d log pi, since pi_old is pi."""
    loss, gradient = 0.0, np.zeros_like(logits)
    for b, t, k in INDICES:
        open_slots = np.flatnonzero(np.isfinite(logits[b, t]))
        log_pi = log_softmax(logits[b, t, open_slots])
        pi = np.exp(log_pi)
        entropy = -(pi * log_pi).sum()
        loss += -advantages[b, t, k] - alpha * entropy
        chosen = (open_slots == queries[b, t, k]).astype(float)
        gradient[b, t, open_slots] += -advantages[b, t, k] * (chosen - pi) + alpha * pi * (log_pi + entropy)
    return loss, gradient


def test_the_ppo_like_loss_and_its_gradient_match_numpy() -> None:
    logits = RANDOM.normal(size=(R, M, 5))
    logits[:, 1, 3] = logits[:, 2, 3] = logits[:, 2, 0] = -math.inf
    queries = np.stack([RANDOM.choice([1, 2, 4], size=(R, M)) for _ in range(K)], axis=2)
    queries[~VALID] = 3  # surplus queries may point at filled slots
    advantages = RANDOM.normal(size=(R, M, K))
    z = tensor(logits).requires_grad_()
    loss = ppo_like_loss(z, tensor(queries), tensor(advantages), tensor(VALID), alpha=0.3)
    loss.backward()
    expected, gradient = ppo_by_hand(logits, queries, advantages, 0.3)
    assert loss.item() == pytest.approx(expected)
    assert z.grad is not None
    np.testing.assert_allclose(z.grad, gradient, atol=1e-12)


def test_advantages_are_normalized_over_all_tickets_of_a_step() -> None:
    method = RecorConfig(token_queries=2, reward="dense", algorithm="ppo")
    model = small_model()
    batches = [rollout(method, model, random_rows(4, seed=s), rng(0, "rollout", 0, s), 0) for s in (0, 1)]
    moments = recor_statistics(method, batches)
    rewards = np.concatenate([b.rewards[b.valid] for b in batches]).astype(np.float64)
    assert (moments.mean, moments.deviation) == (pytest.approx(rewards.mean()), pytest.approx(rewards.std()))
    assert METHODS["recor"].statistics(method) is recor_statistics
    assert METHODS["recor"].statistics(RecorConfig()) is None, "soft Q-learning takes each ticket on its own"


@pytest.mark.parametrize(
    ("algorithm", "reward", "gamma", "C"),
    [
        ("sql_bce", "sparse", 0.0, 0),
        ("sql_bce", "dense", 0.5, 2),
        ("sql_mse", "dense", 0.0, 2),
        ("ppo", "dense", 0.0, 0),
    ],
)
def test_recors_loss_is_the_sum_over_states_of_a_trajectory(algorithm: str, reward: str, gamma: float, C: int) -> None:
    method = RecorConfig(
        token_queries=2, include_greedy=True, algorithm=algorithm, reward=reward, gamma=gamma, eta=0.3, alpha=0.2,
        focal=2.0 if algorithm == "sql_bce" else 0.0, lm_weight=0.7, order_weight=1.3,
    )  # fmt: skip
    model = small_model(C)
    slow, rows = SlowModel(model), random_rows(3)
    batch = rollout(method, model, rows, rng(0, "rollout", 0, 0), version=0)
    moments = recor_statistics(method, [batch]) if algorithm == "ppo" else None
    sums = recor_loss(method, model, batch, moments)
    lm = order = 0.0
    for b in range(3):
        state = State(tuple(rows.prompts[b].tolist()))
        for t in range(4):
            z = slow.order_logits(state)
            left = [s for s in range(4) if s not in state.filled]
            log_pi = log_softmax(z[left])
            for k in np.flatnonzero(batch.valid[b, t]):
                slot, target = int(batch.queries[b, t, k]), float(batch.targets[b, t, k])
                lm -= log_softmax(slow.token_logits(state, slot))[rows.responses[b, slot]]
                if algorithm == "sql_bce":
                    p = 1 / (1 + math.exp(-z[slot]))
                    order -= (target * math.log(p) + (1 - target) * math.log(1 - p)) * abs(target - p) ** 2
                elif algorithm == "sql_mse":
                    order += (z[slot] - target) ** 2
                else:
                    advantage = (float(batch.rewards[b, t, k]) - moments.mean) / (moments.deviation + 1e-8)
                    order += -advantage + 0.2 * (np.exp(log_pi) * log_pi).sum()
            state = state.write(int(batch.order[b, t]), int(batch.tokens[b, t]))
    assert sums.count == batch.valid.sum()
    assert sums.metrics["loss/lm"].item() == pytest.approx(lm, rel=1e-5)
    assert sums.metrics["loss/order"].item() == pytest.approx(order, rel=1e-4)
    assert sums.total.item() == pytest.approx(0.7 * lm + 1.3 * order, rel=1e-4)
