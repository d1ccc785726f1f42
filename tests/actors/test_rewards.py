"""Rewards and Bellman targets against NumPy from the paper's equations."""

import math

import numpy as np
import pytest
import torch

from actors.rewards import bce_label, mse_target, q_values, soft_value, sparse_reward


def test_the_sparse_reward_is_one_from_eta_on() -> None:
    log_p = torch.tensor([0.79, 0.8, 0.81, 1.0, 0.0], dtype=torch.float64).log()
    assert sparse_reward(log_p, 0.8).tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_q_is_the_logsigmoid_for_the_bce_and_otherwise_the_logit() -> None:
    z = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64)
    np.testing.assert_allclose(q_values(z, "sql_bce"), [math.log(1 / (1 + math.exp(-v))) for v in (-3.0, 0.0, 2.0)])
    assert torch.equal(q_values(z, "sql_mse"), z)
    assert torch.equal(q_values(z, "ppo"), z)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_the_soft_value_is_over_unfilled_slots(alpha: float) -> None:
    random = np.random.default_rng(0)
    q = random.normal(size=(4, 5))
    filled = random.random((4, 5)) < 0.5
    filled[2] = True  # the terminal state
    filled[3] = False
    value = soft_value(torch.from_numpy(q), torch.from_numpy(filled), alpha)
    for row in range(4):
        left = q[row, ~filled[row]]
        if len(left) == 0:
            expected = 0.0
        elif alpha == 0:
            expected = left.max()
        else:
            expected = alpha * math.log(sum(math.exp(x / alpha) for x in left))
        assert value[row].item() == pytest.approx(expected)


def test_the_bce_label_is_exp_of_the_target_and_at_most_one() -> None:
    exp_r = torch.tensor([0.0, 1.0, 0.5, 1.0])
    value = torch.tensor([-1.0, -1.0, -2.0, 3.0])
    expected = [min(1.0, r * math.exp(0.5 * v)) for r, v in zip(exp_r.tolist(), value.tolist(), strict=True)]
    np.testing.assert_allclose(bce_label(exp_r, value, 0.5), expected, rtol=1e-6)
    assert torch.equal(bce_label(exp_r, None, 0.0), exp_r)


def test_the_mse_target_is_the_bellman_sum() -> None:
    r, value = torch.tensor([-0.5, -2.0]), torch.tensor([-1.0, 0.25])
    np.testing.assert_allclose(mse_target(r, value, 0.9), [-0.5 - 0.9, -2.0 + 0.225], rtol=1e-6)
    assert torch.equal(mse_target(r, None, 0.0), r)
