"""The baselines' losses against slow NumPy, state by state and slot by slot."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from actors.masking import mask
from actors.orders import known_order, left_to_right, random_order
from learner.baselines import ao_arm_loss, ar_gt_loss, clm_loss, mdm_loss
from learner.learner import Learner
from recor_dist.core.config import SCHEMAS, Config
from recor_dist.core.messages import MaskedBatch, Rows
from recor_dist.core.method_settings import AoArmConfig, ArGtConfig, ClmConfig, MdmConfig
from recor_dist.core.rng import rng
from recor_dist.methods import METHODS
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, State, log_softmax

R, M = 5, 4
PLAIN = random_rows(R)
ORDERS = np.stack([np.random.default_rng(b).permutation(M) for b in range(R)]).astype(np.int16)
ROWS = Rows(PLAIN.prompts, PLAIN.responses, ORDERS)


def random() -> np.random.Generator:
    return rng(0, "rollout", 0, 0)


def states(order: np.ndarray, b: int) -> list[State]:
    """s_1 .. s_M of row b, written in the given order."""
    reached = [State(tuple(ROWS.prompts[b].tolist()))]
    for slot in order[b, :-1].tolist():
        reached.append(reached[-1].write(slot, int(ROWS.responses[b, slot])))
    return reached


def test_clm_learns_each_token_from_those_before_it() -> None:
    model = small_model()
    slow = SlowModel(model)
    sums = clm_loss(ClmConfig(), model, left_to_right(ClmConfig(), model, ROWS, random(), 0), None)
    reading = np.tile(np.arange(M), (R, 1))
    expected = -sum(
        log_softmax(slow.next_logits(state))[ROWS.responses[b, t]]
        for b in range(R)
        for t, state in enumerate(states(reading, b))
    )
    assert sums.count == R * M
    assert sums.total.item() == pytest.approx(expected, rel=1e-5)
    assert sums.metrics["loss/lm"].item() == sums.total.item()


@pytest.mark.parametrize("C", [0, 2])
def test_ar_gt_learns_the_next_slot_of_the_known_order_and_its_token(C: int) -> None:
    model = small_model(C)
    slow, method = SlowModel(model), ArGtConfig(order_queries=C, order_weight=0.7)
    sums = ar_gt_loss(method, model, known_order(method, model, ROWS, random(), 0), None)
    lm = order = 0.0
    for b in range(R):
        for t, state in enumerate(states(ORDERS, b)):
            slot = int(ORDERS[b, t])
            left = [s for s in range(M) if s not in state.filled]
            lm -= log_softmax(slow.token_logits(state, slot))[ROWS.responses[b, slot]]
            order -= log_softmax(slow.order_logits(state)[left])[left.index(slot)]
    assert sums.count == R * M
    assert sums.metrics["loss/lm"].item() == pytest.approx(lm, rel=1e-5)
    assert sums.metrics["loss/order"].item() == pytest.approx(order, rel=1e-5)
    assert sums.total.item() == pytest.approx(lm + 0.7 * order, rel=1e-5)


def test_imitating_an_order_gives_finite_gradients_even_with_one_slot_left() -> None:
    model = small_model()
    ar_gt_loss(ArGtConfig(), model, known_order(ArGtConfig(), model, ROWS, random(), 0), None).total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert model.order_head.weight.grad.abs().sum() > 0


def test_ao_arm_learns_tokens_in_the_sampled_orders() -> None:
    model = small_model()
    slow, method = SlowModel(model), AoArmConfig()
    batch = random_order(method, model, ROWS, random(), 0)
    sums = ao_arm_loss(method, model, batch, None)
    expected = 0.0
    for b in range(R):
        for t, state in enumerate(states(batch.order, b)):
            slot = int(batch.order[b, t])
            expected -= log_softmax(slow.token_logits(state, slot))[ROWS.responses[b, slot]]
    assert sums.count == R * M
    assert sums.total.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("time_weight", ["linear", "original", "none"])
@pytest.mark.parametrize(("reweight", "gamma"), [(False, 1.0), (True, 0.0), (True, 1.0), (True, 2.0)])
@pytest.mark.parametrize("suffix", [False, True])
def test_mdm_learns_the_masked_slots_weighted_by_time_and_token(
    time_weight: str, reweight: bool, gamma: float, suffix: bool
) -> None:
    model = small_model()
    slow = SlowModel(model)
    method = MdmConfig(
        diffusion_steps=3, suffix=suffix, time_weight=time_weight, reweight_tokens=reweight, alpha=0.4, gamma=gamma
    )
    batch = mask(method, model, ROWS, random(), 0)
    sums = mdm_loss(method, model, batch, None)
    plain = weighted = 0.0
    for b in range(R):
        t = int(batch.times[b])
        by_time = {"linear": 3 - t, "original": 1 / (t + 1), "none": 1}[time_weight]
        hidden = [None if batch.masked[b, i] else int(ROWS.responses[b, i]) for i in range(M)]
        logits = slow.denoised_logits(ROWS.prompts[b].tolist(), hidden)
        for i in np.flatnonzero(batch.masked[b]):
            loss = -log_softmax(logits[i])[ROWS.responses[b, i]]
            plain += loss
            weighted += loss * by_time * (0.4 * (1 - math.exp(-loss)) ** gamma if reweight else 1)
    assert sums.count == batch.masked.sum() > 0
    assert sums.metrics["loss/lm"].item() == pytest.approx(plain, rel=1e-5)
    assert sums.total.item() == pytest.approx(weighted, rel=1e-5)


@pytest.mark.parametrize("reweight", [False, True])
def test_of_progressive_states_mdm_learns_the_mean_over_the_masked_slots_of_each(reweight: bool) -> None:
    model = small_model()
    slow, method = SlowModel(model), MdmConfig(masking="progressive", reweight_tokens=reweight, alpha=0.4, gamma=2.0)
    batch = mask(method, model, ROWS, random(), 0)
    sums = mdm_loss(method, model, batch, None)
    plain = weighted = 0.0
    for prompt, response, masked in zip(batch.prompts, batch.responses, batch.masked, strict=True):
        hidden = [None if masked[i] else int(response[i]) for i in range(M)]
        logits = slow.denoised_logits(prompt.tolist(), hidden)
        losses = [-log_softmax(logits[i])[response[i]] for i in np.flatnonzero(masked)]
        plain += sum(losses) / len(losses)
        weights = [0.4 * (1 - math.exp(-loss)) ** 2 if reweight else 1 for loss in losses]
        weighted += sum(np.multiply(losses, weights)) / len(losses)
    assert sums.count == 8 * R, "states"
    assert sums.metrics["loss/lm"].item() == pytest.approx(plain, rel=1e-5)
    assert sums.total.item() == pytest.approx(weighted, rel=1e-5)


def test_a_ticket_without_a_masked_slot_has_count_zero_and_no_gradient() -> None:
    model = small_model()
    nothing = np.zeros((R, M), dtype=bool)
    batch = MaskedBatch(0, ROWS.prompts, ROWS.responses, nothing, np.zeros(R, dtype=np.int32))
    sums = mdm_loss(MdmConfig(gamma=2.0), model, batch, None)
    sums.total.backward()
    assert (sums.count, sums.total.item()) == (0, 0.0)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_the_gradient_is_divided_by_the_masked_slots_of_the_whole_step(config_in: Callable[..., Config]) -> None:
    """Three tickets with 5, 0 and 2 masked slots: each slot has the same weight, whichever ticket it is in."""
    config = config_in("method=mdm", "device=cpu", "precision=float32", "learner.clip=1e9", "learner.warmup=0")
    times = np.zeros(R, dtype=np.int32)
    masks = [np.zeros((R, M), dtype=bool) for _ in range(3)]
    masks[0].flat[:5] = True
    masks[2].flat[[3, 9]] = True
    batches = [MaskedBatch(0, ROWS.prompts, ROWS.responses, masked, times) for masked in masks]
    learner = Learner(config, small_model(), 10, mdm_loss, None)
    metrics = learner.update(batches)
    alone = small_model()
    alone.initialise(config.seed)
    sums = [mdm_loss(config.method, alone, batch, None) for batch in batches]
    (sum((part.total for part in sums), start=torch.zeros(())) / 7).backward()
    expected = torch.cat([p.grad.flatten() for p in alone.parameters() if p.grad is not None])
    assert metrics["learner/gradient_norm"] == pytest.approx(expected.norm().item(), rel=1e-5)
    assert metrics["loss/lm"] == pytest.approx(sum(part.metrics["loss/lm"].item() for part in sums) / 7, rel=1e-5)


def test_the_token_weights_are_differentiated_too() -> None:
    """As in a focal loss: d/dl of alpha (1 - exp(-l))^gamma l, by finite differences along the gradient."""
    model, method = small_model(), MdmConfig(diffusion_steps=1, gamma=2.0)
    batch = mask(method, model, ROWS, random(), 0)
    sums = mdm_loss(method, model, batch, None)
    sums.total.backward()
    gradient = model.token_head.weight.grad.clone()
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            model.token_head.weight.add_(sign * 1e-3 * gradient / gradient.norm())
            losses.append(mdm_loss(method, model, batch, None).total.item())
            model.token_head.weight.sub_(sign * 1e-3 * gradient / gradient.norm())
    assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(gradient.norm().item(), rel=5e-3)


@pytest.mark.parametrize("name", ["clm", "ar_gt", "ao_arm", "mdm"])
def test_the_loss_works_on_a_shared_read_only_batch(name: str) -> None:
    """Like batches from Ray. torch warns about such an array unless it is copied, and warnings are errors here."""
    row, model, method = METHODS[name], small_model(), SCHEMAS["method"][name]()
    batch = row.prepare(method, model, ROWS, random(), 0)
    for array in vars(batch).values():
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    row.loss(method, model, batch, None).total.backward()
    assert model.wte.weight.grad.abs().sum() > 0
