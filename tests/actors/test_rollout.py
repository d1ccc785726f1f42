"""The rollout against a slow one without a cache, its exploration, and its cost."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from actors.rollout import choose_queries, exploration_noise, random_orders, rollout
from recor_dist.core.config import ModelConfig
from recor_dist.core.messages import RecorBatch, Shape
from recor_dist.core.method_settings import RecorConfig
from recor_dist.core.rng import rng
from recor_dist.model.transformer import Model
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, State, log_softmax

R, M = 6, 4


def roll_out(method: RecorConfig, C: int = 0, count: int = R) -> tuple[SlowModel, RecorBatch]:
    model = small_model(C)
    return SlowModel(model), rollout(method, model, random_rows(count), rng(0, "rollout", 0, 0), version=7)


def log_sigmoid(z: np.ndarray) -> np.ndarray:
    return -np.log1p(np.exp(-z))


@pytest.mark.parametrize(("C", "random_contexts"), [(0, 0.0), (2, 0.0), (0, 0.5), (2, 1.0)])
@pytest.mark.parametrize("include_greedy", [False, True])
def test_order_tokens_and_rewards_are_those_of_an_uncached_rollout(
    C: int, random_contexts: float, include_greedy: bool
) -> None:
    method = RecorConfig(token_queries=2, include_greedy=include_greedy, eta=0.3, random_contexts=random_contexts)
    slow, batch = roll_out(method, C)
    rows = random_rows(R)
    at_random = round(random_contexts * R)
    assert batch.version == 7
    for b in range(R):
        assert sorted(batch.order[b]) == list(range(M))
        state = State(tuple(rows.prompts[b].tolist()))
        for t in range(M):
            left = [slot for slot in range(M) if slot not in state.filled]
            z = slow.order_logits(state)[left]
            assert len(left) == 1 or np.diff(np.sort(z)[-2:]) > 1e-9, "the test needs a clear winner"
            assert b < at_random or batch.order[b, t] == left[z.argmax()]
            asked = batch.queries[b, t][batch.valid[b, t]]
            expected = min(2, len(left) - include_greedy) + include_greedy
            assert len(set(asked)) == len(asked) == expected, "no duplicates, and as many as possible"
            assert set(asked) <= set(left)
            assert (batch.order[b, t] in asked) or not include_greedy
            for k in np.flatnonzero(batch.valid[b, t]):
                slot = batch.queries[b, t, k]
                token = rows.responses[b, slot]
                assert batch.answers[b, t, k] == token
                p = math.exp(log_softmax(slow.token_logits(state, slot))[token])
                assert batch.rewards[b, t, k] == float(p >= 0.3)
                assert batch.targets[b, t, k] == float(p >= 0.3), "with gamma=0 the label is the reward"
            slot = int(batch.order[b, t])
            assert batch.tokens[b, t] == rows.responses[b, slot], "the truth is written, not the prediction"
            state = state.write(slot, int(rows.responses[b, slot]))


def test_the_dense_reward_is_the_log_probability() -> None:
    slow, batch = roll_out(RecorConfig(token_queries=1, reward="dense", algorithm="sql_mse"))
    rows = random_rows(R)
    for b in range(R):
        state = State(tuple(rows.prompts[b].tolist()))
        for t in range(M):
            slot = batch.queries[b, t, 0]
            expected = log_softmax(slow.token_logits(state, slot))[rows.responses[b, slot]]
            assert batch.rewards[b, t, 0] == pytest.approx(expected, abs=1e-5)
            state = state.write(int(batch.order[b, t]), int(batch.tokens[b, t]))
    np.testing.assert_array_equal(batch.rewards, batch.targets)


@pytest.mark.parametrize(("algorithm", "reward"), [("sql_bce", "sparse"), ("sql_bce", "dense"), ("sql_mse", "dense")])
@pytest.mark.parametrize(("alpha", "C"), [(0.0, 0), (0.5, 2)])
def test_the_bellman_target_uses_the_state_after_each_query(algorithm: str, reward: str, alpha: float, C: int) -> None:
    """s' is s_t with the query's own token appended: off the trajectory, unless the query is rho_t."""
    gamma = 0.9
    method = RecorConfig(
        token_queries=2, algorithm=algorithm, reward=reward, alpha=alpha, gamma=gamma, eta=0.2, include_greedy=True
    )
    slow, batch = roll_out(method, C, count=3)
    rows = random_rows(3)
    seen_positive = False
    for b in range(3):
        state = State(tuple(rows.prompts[b].tolist()))
        for t in range(M):
            for k in np.flatnonzero(batch.valid[b, t]):
                slot = int(batch.queries[b, t, k])
                following = state.write(slot, int(rows.responses[b, slot]))
                left = [s for s in range(M) if s not in following.filled]
                z = slow.order_logits(following)[left]
                q = log_sigmoid(z) if algorithm == "sql_bce" else z
                value = 0.0
                if left:
                    value = q.max() if alpha == 0 else alpha * math.log(np.exp(q / alpha).sum())
                log_p = log_softmax(slow.token_logits(state, slot))[rows.responses[b, slot]]
                if algorithm == "sql_mse":
                    expected = log_p + gamma * value
                else:
                    exp_r = float(math.exp(log_p) >= 0.2) if reward == "sparse" else math.exp(log_p)
                    expected = min(1.0, exp_r * math.exp(gamma * value))
                    seen_positive |= 0 < expected < 1
                assert batch.targets[b, t, k] == pytest.approx(expected, abs=1e-5)
            state = state.write(int(batch.order[b, t]), int(batch.tokens[b, t]))
    assert seen_positive or algorithm == "sql_mse", "the test needs labels between 0 and 1"


def queries_often(method: RecorConfig, logits: torch.Tensor, filled: torch.Tensor, times: int) -> np.ndarray:
    """Slots (times, K) sampled for one state, with fresh noise each time."""
    slots = logits.shape[-1]
    noise = torch.from_numpy(exploration_noise(method, np.random.default_rng(0), times, slots)[:, 0])
    logits, filled = logits.expand(times, -1), filled.expand(times, -1)
    greedy = logits.masked_fill(filled, -torch.inf).argmax(-1)
    asked, usable = choose_queries(method, logits, filled, greedy, noise)
    assert usable.all()
    return asked.numpy()


def test_uniform_exploration_samples_every_unfilled_slot_equally_often() -> None:
    filled = torch.tensor([False, True, False, False, False])
    logits = torch.tensor([5.0, 0.0, -5.0, 1.0, 2.0])
    drawn = queries_often(RecorConfig(token_queries=2), logits, filled, 6000)
    shares = np.bincount(drawn.ravel(), minlength=5) / 6000
    assert shares[1] == 0
    np.testing.assert_allclose(shares[[0, 2, 3, 4]], 0.5, atol=0.03)


@pytest.mark.parametrize(("algorithm", "reward"), [("sql_bce", "sparse"), ("sql_mse", "dense"), ("ppo", "dense")])
def test_entropy_exploration_samples_from_the_policy(algorithm: str, reward: str) -> None:
    """The first slot of a Gumbel-top-K sample follows softmax(Q / alpha), or softmax(z) for the PPO-like loss."""
    alpha = 0.7
    z = np.array([0.5, 3.0, -0.4, 1.0])
    filled = torch.tensor([False, False, False, True])
    method = RecorConfig(token_queries=1, exploration="entropy", alpha=alpha, algorithm=algorithm, reward=reward)
    drawn = queries_often(method, torch.from_numpy(z), filled, 20_000)
    q = {"sql_bce": log_sigmoid(z) / alpha, "sql_mse": z / alpha, "ppo": z}[algorithm][:3]
    expected = np.exp(q) / np.exp(q).sum()
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=4)[:3] / 20_000, expected, atol=0.015)


def test_topk_exploration_takes_the_best_and_leaves_the_greedy_slot_to_include_greedy() -> None:
    filled = torch.tensor([False, True, False, False, False])
    logits = torch.tensor([1.0, 9.0, -1.0, 2.0, 3.0])
    plain = queries_often(RecorConfig(token_queries=2, exploration="topk"), logits, filled, 3)
    assert plain.tolist() == [[4, 3]] * 3
    method = RecorConfig(token_queries=2, exploration="topk", include_greedy=True)
    assert queries_often(method, logits, filled, 3).tolist() == [[3, 0, 4]] * 3


def test_a_ticket_gives_the_same_bits_every_time_and_another_ticket_different_ones() -> None:
    model, rows, method = small_model(), random_rows(R), RecorConfig(token_queries=2)
    a, b, c = (rollout(method, model, rows, rng(0, "rollout", 0, g), version=0) for g in (0, 0, 1))
    for name in ("order", "queries", "valid", "rewards", "targets"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
    assert not np.array_equal(a.queries, c.queries)


def test_random_contexts_change_the_first_rows_only_and_no_other_random_numbers() -> None:
    plain, some = (roll_out(RecorConfig(token_queries=2, random_contexts=share))[1] for share in (0.0, 0.5))
    for name in ("order", "tokens", "queries", "valid", "answers", "rewards", "targets"):
        np.testing.assert_array_equal(getattr(plain, name)[3:], getattr(some, name)[3:])
    assert not np.array_equal(plain.order[:3], some.order[:3])
    np.testing.assert_array_equal(plain.queries[:, 0], some.queries[:, 0])  # the same noise for the same state


def test_all_orders_are_equally_likely_in_random_contexts() -> None:
    method = RecorConfig(random_contexts=0.75)
    orders = random_orders(method, np.random.default_rng(0), 8000, 3)
    assert len(orders) == 6000
    shares = np.bincount(orders @ [9, 3, 1], minlength=27) / len(orders)
    assert sorted(shares[shares > 0]) == pytest.approx([1 / 6] * 6, abs=0.02)


@pytest.mark.parametrize(
    ("N", "M", "K", "C", "greedy"),
    [(20, 20, 1, 0, False), (24, 22, 2, 0, True), (12, 16, 4, 3, False), (8, 8, 1, 0, True)],
)
def test_a_rollout_costs_about_one_training_forward(N: int, M: int, K: int, C: int, greedy: bool) -> None:
    """Nothing in the cache is recomputed: a rollout with rewards costs the FLOPs of one forward, not M times that."""
    model = Model(ModelConfig(layers=3, width=48, heads=4), Shape(N, M, 7), C)
    model.initialise(0)
    rows = random_rows(2, N, M, 7)
    method = RecorConfig(token_queries=K, order_queries=C, include_greedy=greedy)

    def flops_of(compute: Callable[[], object]) -> int:
        # torch counts the FLOPs of attention only if it is computed as separate products.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            compute()
        return counter.get_total_flops()

    batch = rollout(method, model, rows, rng(0, "rollout", 0, 0), version=0)
    tensors = (torch.from_numpy(a) for a in (batch.prompts, batch.tokens, batch.order, batch.queries))
    with torch.no_grad():
        one_forward = flops_of(lambda inputs=tuple(tensors): model(*inputs))
    whole_rollout = flops_of(lambda: rollout(method, model, rows, rng(0, "rollout", 0, 0), version=0))
    assert 0.8 * one_forward < whole_rollout < 1.05 * one_forward
