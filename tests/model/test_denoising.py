"""The decoders of masked diffusion against a step-by-step reference, one row at a time."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from recor_dist.core.messages import Generation
from recor_dist.core.method_settings import MdmConfig
from recor_dist.core.rng import rng
from recor_dist.model.denoising import denoise_adaptively, denoise_vanilla, log_probability, margin, mdm_decoders
from recor_dist.model.transformer import Model
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, log_softmax

R, N, M = 6, 3, 5
STEPS = [1, 2, 3, 5, 12]
SCORES = {"prob": log_probability, "margin": margin}
ADAPTIVE = [
    partial(denoise_adaptively, score=score, rewrite=rewrite) for score in SCORES.values() for rewrite in (False, True)
]


def noise() -> np.random.Generator:
    return rng(0, "evaluate/test/mdm", 3)


def setting() -> tuple[Model, SlowModel, np.ndarray]:
    model = small_model(M=M, seed=1)
    return model, SlowModel(model), random_rows(R, M=M).prompts


def order_of(filled_at: list[int]) -> list[int]:
    return sorted(range(M), key=lambda slot: (filled_at[slot], slot))


@pytest.mark.parametrize("T", STEPS)
def test_vanilla_decoding_fills_masked_slots_at_random(T: int) -> None:
    model, slow, prompts = setting()
    generation = denoise_vanilla(model, prompts, noise(), steps=T)
    responses: list[list[int | None]] = [[None] * M for _ in range(R)]
    random, filled_at = noise(), np.zeros((R, M), dtype=int)
    for t in range(T - 1, -1, -1):
        uniform = random.random((R, M))
        for b in range(R):
            logits = slow.denoised_logits(prompts[b].tolist(), responses[b])
            for slot in range(M):
                if responses[b][slot] is None and (t == 0 or uniform[b, slot] < 1 / (t + 1)):
                    responses[b][slot], filled_at[b, slot] = int(logits[slot].argmax()), T - t
    assert generation.responses.tolist() == responses
    assert generation.steps.tolist() == filled_at.tolist()
    assert generation.orders.tolist() == [order_of(row.tolist()) for row in filled_at]


@pytest.mark.parametrize("T", STEPS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("rewrite", [False, True])
def test_adaptive_decoding_fills_the_most_confident_slots(T: int, score: str, rewrite: bool) -> None:
    model, slow, prompts = setting()
    generation = denoise_adaptively(model, prompts, noise(), T, SCORES[score], rewrite)
    responses: list[list[int | None]] = [[None] * M for _ in range(R)]
    random, filled_at = noise(), np.zeros((R, M), dtype=int)
    for t in range(T - 1, -1, -1):
        gumbel = -np.log(-np.log(random.random((R, M))))
        for b in range(R):
            logits = slow.denoised_logits(prompts[b].tolist(), responses[b])
            best = np.array([np.sort(log_softmax(row))[::-1][:2] for row in logits])
            sure = best[:, 0] if score == "prob" else np.exp(best[:, 0]) - np.exp(best[:, 1])
            sure = sure + 0.5 * (t / T) * gumbel[b]
            kept = [slot for slot in range(M) if responses[b][slot] is not None and not rewrite]
            sure[kept] = np.inf
            count, ranked = math.floor(M * t / T), np.sort(sure)
            assert count == 0 or ranked[count] - ranked[count - 1] > 1e-6, "the test needs a clear cut"
            assert count == 0 or ranked[count - 1] < np.inf, "at least `count` slots are still masked"
            lowest = set(np.argsort(sure)[:count].tolist())
            for slot in range(M):
                if responses[b][slot] is None and slot not in lowest:
                    filled_at[b, slot] = T - t
            for slot in set(range(M)) - set(kept):
                responses[b][slot] = None if slot in lowest else int(logits[slot].argmax())
    assert generation.responses.tolist() == responses
    assert generation.steps.tolist() == filled_at.tolist()
    assert generation.orders.tolist() == [order_of(row.tolist()) for row in filled_at]


@pytest.mark.parametrize("answer", [denoise_vanilla, *ADAPTIVE])
@pytest.mark.parametrize("T", STEPS)
def test_there_are_T_forward_passes_and_nothing_is_left_masked(
    answer: Callable[..., Generation], T: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, prompts = setting()
    passes, denoise = [], model.denoise

    def count(x: torch.Tensor, responses: torch.Tensor, masked: torch.Tensor, **settings: bool) -> torch.Tensor:
        passes.append(int(masked.sum()))
        return denoise(x, responses, masked, **settings)

    monkeypatch.setattr(model, "denoise", count)
    generation = answer(model, prompts, noise(), steps=T)
    assert len(passes) == T
    assert passes[0] == R * M, "all slots are masked at first"
    assert (np.sort(generation.orders, axis=1) == np.arange(M)).all()
    assert generation.responses.max() < 5


def test_one_step_is_the_same_for_every_decoder() -> None:
    model, _, prompts = setting()
    answers = [d(model, prompts, noise(), steps=1) for d in (denoise_vanilla, *ADAPTIVE)]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer.responses, answers[0].responses)


def test_answers_depend_on_the_noise_alone() -> None:
    model, _, prompts = setting()
    first, again = (denoise_vanilla(model, prompts, noise(), steps=5) for _ in range(2))
    np.testing.assert_array_equal(first.orders, again.orders)
    other = denoise_vanilla(model, prompts, rng(0, "evaluate/test/mdm", 4), steps=5)
    assert (first.orders != other.orders).any()


def test_a_vocabulary_of_one_token_has_no_margin() -> None:
    model = small_model(N=0, M=2, V=1)
    answer = denoise_adaptively(model, np.zeros((3, 0), dtype=np.uint8), noise(), 2, margin)
    assert answer.responses.tolist() == [[0, 0]] * 3


def test_decoders_have_the_papers_names_and_the_chosen_one_comes_first() -> None:
    decoders = mdm_decoders(MdmConfig(decoder="top_margin"))
    assert {name: decoder.passes for name, decoder in decoders.items()} == {
        "adamdm_margin": 20, "mdm": 20, "adamdm_prob": 20, "adamdm_margin_T2": 2, "mdm_T2": 2, "adamdm_prob_T2": 2,
    }  # fmt: skip
    assert next(iter(decoders)) == "adamdm_margin"
    assert list(mdm_decoders(MdmConfig(suffix=True, steps=2))) == ["adasufmdm_prob", "sufmdm", "adasufmdm_margin"]
