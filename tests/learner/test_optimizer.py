"""Muon against slow NumPy, one matrix at a time; AdamW is torch's own."""

import numpy as np
import pytest
import torch

from learner.optimizer import Optimizer, orthogonalize
from recor_dist.core.config import LearnerConfig
from recor_dist.model.transformer import Model
from tests.conftest import small_model

CONFIG = LearnerConfig(
    lr=1e-2, weight_decay=0.5, optimizer="muon", muon_lr=0.1, muon_momentum=0.8, muon_decay=0.3
)  # fmt: skip
STEPS, RATE = 3, 4e-3


def slow_orthogonalize(matrix: np.ndarray) -> np.ndarray:
    if matrix.shape[0] > matrix.shape[1]:
        return slow_orthogonalize(matrix.T).T
    x = matrix / np.sqrt((matrix**2).sum())
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x - 4.7750 * (square @ x) + 2.0315 * (square @ square @ x)
    return x


def slow_muon(weight: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """The matrix after one step per gradient, all at a rate of RATE for AdamW."""
    rate, momentum = 0.1 * RATE / 1e-2, np.zeros_like(weight)
    for gradient in gradients:
        momentum = 0.8 * momentum + 0.2 * gradient
        direction = slow_orthogonalize(0.2 * gradient + 0.8 * momentum)
        stretch = max(1, weight.shape[0] / weight.shape[1]) ** 0.5
        weight = weight * (1 - rate * 0.3) - rate * stretch * direction
    return weight


def gradients_of(model: Model) -> list[torch.Tensor]:
    random = np.random.default_rng(3)
    return [torch.from_numpy(random.normal(size=model.flat.numel())) for _ in range(STEPS)]


def optimizer_of(model: Model, config: LearnerConfig = CONFIG) -> tuple[Optimizer, torch.Tensor]:
    gradient = model.share_gradients()
    return Optimizer(config, model, gradient), gradient


def test_muon_steps_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    model, reference = small_model(2), small_model(2)
    (muon, gradient), (adamw, same) = optimizer_of(model), optimizer_of(reference, LearnerConfig(weight_decay=0.5))
    before = model.named_weights(model.weights().astype(np.float64))
    flats = gradients_of(model)
    for flat in flats:
        gradient.copy_(flat)
        same.copy_(flat)
        muon.step(RATE)
        adamw.step(RATE)
    for (name, parameter), (_, expected) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        if not (name.startswith("blocks.") and parameter.dim() == 2):
            assert torch.equal(parameter, expected), name
            continue
        parts = 3 if "c_attn" in name else 1
        named = [np.split(model.named_weights(flat.numpy())[name], parts) for flat in flats]
        for part, weight in enumerate(np.split(before[name], parts)):
            slow = slow_muon(weight, [pieces[part] for pieces in named])
            actual = np.split(parameter.detach().numpy(), parts)[part]
            np.testing.assert_allclose(actual, slow, atol=1e-6, err_msg=name)  # float32 at `before`


def test_orthogonal_directions_learn_equally_fast() -> None:
    matrices = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 16, 64)))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert torch.equal(orthogonalize(torch.zeros(1, 2, 3)), torch.zeros(1, 2, 3)), "a gradient of 0 stays 0"


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_restored_optimizer_takes_the_same_steps(kind: str) -> None:
    config = LearnerConfig(optimizer=kind)
    model = small_model().move("cpu", torch.float32)
    optimizer, gradient = optimizer_of(model, config)
    flats = gradients_of(model)
    for flat in flats[:2]:
        gradient.copy_(flat)
        optimizer.step(RATE)
    other = model.twin()
    other.flat, other.decayed = other._make_flat()
    other.load(model.weights())
    resumed, its_gradient = optimizer_of(other, config)
    resumed.load(2, *optimizer.moments())
    for optimizer_, buffer in ((optimizer, gradient), (resumed, its_gradient)):
        buffer.copy_(flats[2])
        optimizer_.step(RATE)
    assert torch.equal(model.flat, other.flat)
