"""Masking with the probability that t implies, and with a suffix left unmasked as in the paper."""

import numpy as np
import pytest

from actors.masking import leave_suffix, mask
from recor_dist.core.messages import MaskedBatch
from recor_dist.core.method_settings import MdmConfig
from recor_dist.core.rng import rng
from tests.conftest import random_rows

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
