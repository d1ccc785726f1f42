"""Cached decoding against a slow version that recomputes every state."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from recor_dist.core.rng import rng
from recor_dist.model import transformer
from recor_dist.model.decoding import generate, generate_in_random_order, generate_left_to_right
from recor_dist.model.transformer import Model
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, State, log_softmax

SETTINGS = pytest.mark.parametrize("settings", [{}, {"positions": "coordinates"}, {"loops": 2}], ids=str)


@pytest.fixture(params=["MKL", "oneDNN", "oneDNN for prompts"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Model]:
    """A small model in float64, or one in float32 whose answers are products by oneDNN: all of them, or only the larger
    ones, of 8 prompts at once."""
    if request.param == "MKL":
        return small_model
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(transformer, "WORTHWHILE", 0 if request.param == "oneDNN" else 8 * 3 * 8 * 8)

    def float32(*sizes: int, **settings: Any) -> Model:
        model = small_model(*sizes, **settings).move("cpu", torch.float32)
        assert model.new_cache(8, answering=True).onednn
        return model

    return float32


@SETTINGS
@pytest.mark.parametrize("C", [0, 2])
def test_greedy_answers_are_those_of_an_uncached_model(
    C: int, settings: dict[str, Any], make: Callable[..., Model]
) -> None:
    model = make(C, **settings)
    slow, prompts = SlowModel(model), random_rows(8).prompts
    generation = generate(model, prompts)
    for b, prompt in enumerate(prompts):
        state = State(tuple(prompt.tolist()))
        for t in range(4):
            left = [slot for slot in range(4) if slot not in state.filled]
            z = slow.order_logits(state)[left]
            slot = left[int(z.argmax())]
            tokens = slow.token_logits(state, slot)
            assert len(left) == 1 or np.diff(np.sort(z)[-2:]) > 1e-5, "the test needs a clear winner"
            assert np.diff(np.sort(tokens)[-2:]) > 1e-5
            token = int(tokens.argmax())
            assert generation.orders[b, t] == slot
            assert generation.responses[b, slot] == token
            assert generation.steps[b, slot] == t + 1
            assert generation.confidences[b, slot] == pytest.approx(np.exp(log_softmax(tokens)[token]), rel=1e-4)
            state = state.write(slot, token)


def test_answers_do_not_depend_on_the_other_rows_of_a_ticket() -> None:
    model, prompts = small_model(), random_rows(5).prompts
    together = generate(model, prompts)
    alone = generate(model, prompts[2:3])
    assert np.array_equal(together.responses[2], alone.responses[0])
    assert np.array_equal(together.orders[2], alone.orders[0])


def test_an_empty_prompt_and_a_single_slot_work() -> None:
    model = small_model(N=0, M=1)
    generation = generate(model, np.zeros((3, 0), dtype=np.uint8))
    assert generation.orders.tolist() == [[0]] * 3
    assert len(set(generation.responses.ravel())) == 1


def test_left_to_right_answers_are_those_of_an_uncached_model(make: Callable[..., Model]) -> None:
    model = make()
    slow, prompts = SlowModel(model), random_rows(8).prompts
    generation = generate_left_to_right(model, prompts)
    for b, prompt in enumerate(prompts):
        state = State(tuple(prompt.tolist()))
        for t in range(4):
            logits = slow.next_logits(state)
            assert np.diff(np.sort(logits)[-2:]) > 1e-5
            assert generation.responses[b, t] == logits.argmax()
            state = state.write(t, int(logits.argmax()))
    assert (generation.orders == np.arange(4)).all()


@SETTINGS
def test_answers_in_random_order_are_those_of_an_uncached_model(
    settings: dict[str, Any], make: Callable[..., Model]
) -> None:
    model = make(**settings)
    slow, prompts = SlowModel(model), random_rows(8).prompts
    generation = generate_in_random_order(model, prompts, rng(0, "evaluate/test/ao_arm", 0))
    for b, prompt in enumerate(prompts):
        state = State(tuple(prompt.tolist()))
        for slot in generation.orders[b].tolist():
            logits = slow.token_logits(state, slot)
            assert np.diff(np.sort(logits)[-2:]) > 1e-5
            assert generation.responses[b, slot] == logits.argmax()
            assert generation.confidences[b, slot] == pytest.approx(np.exp(log_softmax(logits).max()), rel=1e-4)
            state = state.write(slot, int(logits.argmax()))
    assert (np.sort(generation.orders, axis=1) == np.arange(4)).all()
    assert len({tuple(order) for order in generation.orders.tolist()}) > 1
