"""Masking with the probability that t implies, with a suffix left unmasked as in the paper, and progressively."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from actors.masking import leave_suffix, mask, revealed_slots
from learner.baselines import mdm_loss
from recor_dist.core.compose import compose
from recor_dist.core.memory import needs
from recor_dist.core.messages import MaskedBatch, Shape
from recor_dist.core.method_settings import STAGES, MdmConfig
from recor_dist.core.rng import rng
from recor_dist.core.setting import Mistake
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, log_softmax

R, M = 40_000, 8


def masked_batch(**settings: object) -> MaskedBatch:
    return mask(MdmConfig(**settings), None, random_rows(R, M=M), rng(0, "rollout", 0, 0), version=7)


def chi_square(counts: np.ndarray) -> float:
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


def test_times_are_uniform_and_slots_are_masked_with_probability_t_plus_one_over_T() -> None:
    batch = masked_batch(diffusion_steps=5)
    assert batch.version == 7
    counts = np.bincount(batch.times, minlength=5)
    assert len(counts) == 5
    assert chi_square(counts) < 18.5, "4 degrees of freedom, p = 0.001"
    for t in range(5):
        share = batch.masked[batch.times == t].mean(axis=0)  # by slot
        np.testing.assert_allclose(share, (t + 1) / 5, atol=0.025)
    assert batch.masked[batch.times == 4].all(), "at the last time every slot is masked"
    assert not batch.masked.any(axis=1).all(), "rows without a masked slot are allowed"


def test_slots_are_masked_independently_of_each_other() -> None:
    batch = masked_batch(diffusion_steps=2)
    half = batch.masked[batch.times == 0].astype(float)
    correlation = np.corrcoef(half.T) - np.eye(M)
    assert np.abs(correlation).max() < 0.03


def test_a_ticket_is_masked_the_same_way_every_time() -> None:
    a, b = masked_batch(suffix=True), masked_batch(suffix=True)
    np.testing.assert_array_equal(a.masked, b.masked)
    np.testing.assert_array_equal(a.times, b.times)
    rows = random_rows(R, M=M)
    np.testing.assert_array_equal(a.responses, rows.responses)
    np.testing.assert_array_equal(a.prompts, rows.prompts)


def test_the_length_of_the_suffix_is_uniform_from_0_to_M_minus_1() -> None:
    masked = masked_batch(suffix=True, diffusion_steps=1).masked  # every slot before the suffix is masked
    lengths = M - masked.sum(axis=1)
    assert (masked == (np.arange(M) < M - lengths[:, None])).all(), "the unmasked slots are a suffix"
    counts = np.bincount(lengths, minlength=M)
    assert len(counts) == M
    assert chi_square(counts) < 24.4, "7 degrees of freedom, p = 0.001"


@pytest.mark.parametrize("T", [1, 3, 20])
def test_with_a_suffix_something_is_always_masked(T: int) -> None:
    assert masked_batch(suffix=True, diffusion_steps=T).masked.any(axis=1).all()


def test_if_nothing_is_masked_one_slot_before_the_suffix_is_masked_uniformly() -> None:
    """With nothing masked to begin with, P(slot i) is the mean over l of 1/(M - l) for slots before the suffix."""
    masked = leave_suffix(np.zeros((R, M), dtype=bool), rng(0, "rollout", 0, 0))
    assert (masked.sum(axis=1) == 1).all()
    expected = [sum(1 / before for before in range(1, M + 1) if slot < before) / M for slot in range(M)]
    np.testing.assert_allclose(masked.mean(axis=0), expected, atol=0.01)


def test_before_the_suffix_slots_are_masked_as_without_a_suffix() -> None:
    """At time t a slot before the suffix is masked with probability (t+1)/T, or because no other slot is masked."""
    T = 4
    batch = masked_batch(suffix=True, diffusion_steps=T)
    for t in range(T):
        p = (t + 1) / T
        for slot in range(M):
            before = range(slot + 1, M + 1)
            expected = sum(p + (1 - p) ** n / n for n in before) / M
            assert batch.masked[batch.times == t][:, slot].mean() == pytest.approx(expected, abs=0.02)


# --- progressive masking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [4, 11])  # slots: fewer and more than stages
def test_progressive_states_are_those_of_a_slow_chain_that_reveals_the_most_certain_slots(answer: int) -> None:
    """Row by row, stage by stage and slot by slot, with a model that reads what has been revealed so far."""
    model, rows = small_model(M=answer), random_rows(6, M=answer)
    slow = SlowModel(model)
    batch = mask(MdmConfig(masking="progressive"), model, rows, rng(0, "rollout", 0, 0), version=7)
    revealed = revealed_slots(rng(0, "rollout", 0, 0), 6, answer)
    assert batch.version == 7
    assert batch.masked.shape == (6 * STAGES, answer)
    for b in range(6):
        hidden: list[int | None] = [None] * answer
        for stage in range(STAGES):
            logits = slow.denoised_logits(rows.prompts[b].tolist(), hidden)
            certainty = {i: log_softmax(logits[i]).max() for i in range(answer) if hidden[i] is None}
            while answer - hidden.count(None) < revealed[stage, b]:
                best = max(certainty, key=certainty.__getitem__)
                hidden[best] = int(rows.responses[b, best])
                del certainty[best]
            state = stage * 6 + b
            np.testing.assert_array_equal(batch.masked[state], [token is None for token in hidden])
            np.testing.assert_array_equal(batch.responses[state], rows.responses[b])
            np.testing.assert_array_equal(batch.prompts[state], rows.prompts[b])
            assert batch.times[state] == STAGES - 1 - stage


def test_the_revealed_share_of_a_stage_is_uniform_in_its_eighth() -> None:
    slots = 800
    revealed = revealed_slots(rng(0, "rollout", 0, 0), R, slots)  # (J, R)
    for stage in range(STAGES):
        assert revealed[stage].min() >= slots * stage / STAGES
        assert revealed[stage].max() < slots * (stage + 1) / STAGES
        assert chi_square(np.bincount(revealed[stage] - slots * stage // STAGES)) < 149, "99 degrees of freedom"
    few = revealed_slots(rng(0, "rollout", 0, 0), R, 3)
    assert few.max() == 2, "something is always masked"
    assert (np.diff(few, axis=0) >= 0).all(), "what is revealed stays revealed"


def test_progressive_masking_costs_a_pass_per_stage() -> None:
    """So a row costs 8 passes to mask and 3 * 8 to learn from; with independent masks, 3."""
    model, rows = small_model().move("cpu"), random_rows(5)

    def flops_of(compute: Callable[[], object]) -> int:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            compute()
        return counter.get_total_flops()

    prompts, responses = (torch.from_numpy(a.astype(np.int64)) for a in (rows.prompts, rows.responses))
    one_pass = flops_of(lambda: model.denoise(prompts, responses, torch.ones_like(responses, dtype=torch.bool)))
    method, random = MdmConfig(masking="progressive"), rng(0, "rollout", 0, 0)
    assert flops_of(lambda: mask(method, model, rows, random, 0)) == STAGES * one_pass
    batch = mask(method, model, rows, random, 0)
    assert flops_of(lambda: mdm_loss(method, model, batch, None)) == STAGES * one_pass


def test_a_ticket_of_progressive_states_needs_the_memory_of_eight_rows_per_row() -> None:
    settings, shape = ["scale=smoke", "device=cpu", "precision=float32", "method=mdm"], Shape(4, 4, 5)
    one = needs(compose(settings), shape)["rollout_size=16"]
    assert needs(compose([*settings, "method.masking=progressive"]), shape)["rollout_size=16"] == 8 * one


def test_progressive_states_depend_on_the_weights() -> None:
    method, rows = MdmConfig(masking="progressive"), random_rows(20)
    a, b = (mask(method, small_model(seed=seed), rows, rng(0, "rollout", 0, 0), 0).masked for seed in (0, 1))
    np.testing.assert_array_equal(a.sum(axis=1), b.sum(axis=1))
    assert (a != b).any()


@pytest.mark.parametrize("setting", [{"suffix": True}, {"diffusion_steps": 10}, {"time_weight": "none"}], ids=str)
def test_settings_of_independent_masks_are_refused_with_progressive_ones(setting: dict[str, Any]) -> None:
    with pytest.raises(Mistake, match=rf"^method\.{next(iter(setting))}=.*method\.masking=progressive.*; omit"):
        MdmConfig(masking="progressive", **setting).check()
