"""One update: the learning rate, AdamW on flat buffers, and how tickets add up."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from actors.rollout import rollout
from learner.learner import Learner
from learner.losses import recor_loss
from learner.optimizer import learning_rate
from recor_dist.core.config import Config, LearnerConfig
from recor_dist.core.messages import RecorBatch, Shape
from recor_dist.core.rng import rng
from recor_dist.core.setting import Mistake
from recor_dist.methods import build_model
from tests.conftest import random_rows

SHAPE = Shape(N=3, M=4, V=5)


def learner_of(config: Config) -> Learner:
    return Learner(config, build_model(config, SHAPE), 10, recor_loss, None)


def tickets(config: Config, learner: Learner, count: int = 2) -> list[RecorBatch]:
    return [
        rollout(config.method, learner.model, random_rows(8, seed=g), rng(0, "rollout", 0, g), 0) for g in range(count)
    ]


@pytest.fixture
def config(config_in: Callable[..., Config]) -> Config:
    config = config_in("device=cpu", "precision=float32", "learner.warmup=2")
    assert config.learner.weight_decay == 0.1
    return config


def test_the_learning_rate_warms_up_and_follows_a_cosine() -> None:
    settings = LearnerConfig(lr=0.5, warmup=4)
    rates = [learning_rate(settings, n, 12) for n in range(12)]
    assert rates[:4] == [0.125, 0.25, 0.375, 0.5]
    for n in range(4, 12):
        assert rates[n] == pytest.approx(0.5 * (1 + math.cos(math.pi * (n - 4) / 8)) / 2)
    assert learning_rate(LearnerConfig(lr=0.5), 0, 12) == 0.5, (
        "without warm-up the first step has the full learning rate"
    )


def test_three_updates_match_adamw_on_separate_parameters(config: Config) -> None:
    """Against torch's plain AdamW with one tensor per parameter and clipped gradients of the mean over the batch."""
    learner = learner_of(config)
    plain = build_model(config, SHAPE)
    plain.load(learner.model.weights())
    parameters = [torch.nn.Parameter(p.detach().clone()) for p in plain.parameters()]
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], foreach=False
    )
    for n in range(3):
        batches = tickets(config, learner)
        with torch.no_grad():
            for p, q in zip(plain.parameters(), parameters, strict=True):
                p.copy_(q)
        plain.zero_grad()
        sums = [recor_loss(config.method, plain, batch, None) for batch in batches]
        (sum((s.total for s in sums), start=torch.zeros(())) / sum(s.count for s in sums)).backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), config.learner.clip)
        for p, q in zip(plain.parameters(), parameters, strict=True):
            q.grad = p.grad.clone()
        for group in reference.param_groups:
            group["lr"] = learning_rate(config.learner, n, 10)
        reference.step()
        metrics = learner.update(batches)
        assert metrics["learner/gradient_norm"] == pytest.approx(norm.item(), rel=1e-4)
        assert metrics["loss/lm"] == pytest.approx(
            sum(s.metrics["loss/lm"].item() for s in sums) / sum(s.count for s in sums), rel=1e-5
        )
        for (name, p), q in zip(learner.model.named_parameters(), parameters, strict=True):
            np.testing.assert_allclose(p.detach(), q.detach(), atol=2e-6, err_msg=f"{name} after update {n + 1}")


def test_a_step_taken_in_parts_matches_the_step_taken_at_once_bit_for_bit(config: Config) -> None:
    whole, parts = learner_of(config), learner_of(config)
    state, batches = parts.state(), []
    for _ in range(2):
        batches = tickets(config, whole, count=3)
        metrics = whole.update(batches)
        parts.take(batches[:1])
        state = parts.state()
        parts.take(batches[1:])
        assert parts.finish() == metrics
        assert np.array_equal(whole.model.weights(), parts.model.weights())
    assert state.step == 1, "a state saved in the middle of a step is that of its beginning"
    parts.take(batches[:2])
    parts.load_state(state)
    parts.update(batches)
    assert np.array_equal(whole.model.weights(), parts.model.weights()), (
        "loading a state discards the tickets taken since"
    )


def test_a_gradient_above_the_clip_is_scaled_down(config: Config) -> None:
    config.learner.clip = 1e-3
    learner = learner_of(config)
    metrics = learner.update(tickets(config, learner))
    assert metrics["learner/gradient_norm"] > 1e-3
    assert torch.linalg.vector_norm(learner.gradients.flat).item() == pytest.approx(1e-3, rel=1e-4)


def test_only_versions_that_tickets_may_name_are_kept(config: Config) -> None:
    config.lag = 2
    learner = learner_of(config)
    for n in range(5):
        assert sorted(learner.versions) == list(range(max(0, n - 2), n + 1))
        learner.update(tickets(config, learner))
    assert len({v.tobytes() for v in learner.versions.values()}) == 3


def test_a_state_restores_a_learner_bit_for_bit(config: Config) -> None:
    config.lag = 1
    learner = learner_of(config)
    batches = tickets(config, learner)
    for _ in range(3):
        learner.update(batches)
    other = learner_of(config)
    other.load_state(learner.state())
    assert learner.update(batches) == other.update(batches)
    assert np.array_equal(learner.model.weights(), other.model.weights())
    assert sorted(other.versions) == [3, 4]


def test_a_state_does_not_change_when_the_learner_continues(config: Config) -> None:
    learner = learner_of(config)
    batches = tickets(config, learner)
    learner.update(batches)
    state = learner.state()
    before = [a.copy() for a in (state.versions[1], state.exp_avg, state.exp_avg_sq)]
    learner.update(batches)
    for array, copy in zip((state.versions[1], state.exp_avg, state.exp_avg_sq), before, strict=True):
        assert np.array_equal(array, copy)


def test_a_gradient_that_is_not_finite_is_an_error_with_its_remedy(config: Config) -> None:
    learner = learner_of(config)
    batches = tickets(config, learner)
    with torch.no_grad():
        learner.model.flat.fill_(float("nan"))
    with pytest.raises(Mistake, match=r"learner\.lr=.*step 0 is not finite"):
        learner.update(batches)
