"""The streams and their gradients against slow NumPy, and the flat buffer."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from recor_dist.core.config import ModelConfig
from recor_dist.core.messages import Shape
from recor_dist.model import transformer
from recor_dist.model.transformer import Block, Model, filled_slots
from tests.conftest import small_model
from tests.slow_model import SlowModel, State

B, N, M, V, K = 3, 3, 4, 5, 2
VARIANTS = pytest.mark.parametrize("settings", [{}, {"positions": "coordinates"}, {"loops": 3}], ids=str)


def trajectories(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts, tokens in generation order, the order, and K queries per step (of any slot, filled or not)."""
    random = np.random.default_rng(seed)
    order = np.stack([random.permutation(M) for _ in range(B)])
    arrays = random.integers(0, V, (B, N)), random.integers(0, V, (B, M)), order, random.integers(0, M, (B, M, K))
    prompts, tokens, order, queries = (torch.from_numpy(array) for array in arrays)
    return prompts, tokens, order, queries


def state_at(prompts: torch.Tensor, tokens: torch.Tensor, order: torch.Tensor, b: int, t: int) -> State:
    return State(tuple(prompts[b].tolist()), tuple(zip(order[b, :t].tolist(), tokens[b, :t].tolist(), strict=True)))


@VARIANTS
@pytest.mark.parametrize("C", [0, 1, 3])
def test_the_training_forward_matches_the_paper_state_by_state(C: int, settings: dict[str, Any]) -> None:
    model = small_model(C, **settings)
    slow = SlowModel(model)
    prompts, tokens, order, queries = trajectories()
    streams = model(prompts, tokens, order, queries)
    for b in range(B):
        for t in range(M):
            state = state_at(prompts, tokens, order, b, t)
            np.testing.assert_allclose(streams.order[b, t].detach(), slow.order_logits(state), atol=1e-10)
            for k in range(K):
                expected = slow.token_logits(state, int(queries[b, t, k]))
                np.testing.assert_allclose(streams.tokens[b, t, k].detach(), expected, atol=1e-10)


@VARIANTS
@pytest.mark.parametrize("C", [0, 2])
def test_cached_steps_match_the_uncached_forward(C: int, settings: dict[str, Any]) -> None:
    model = small_model(C, **settings)
    prompts, tokens, order, queries = trajectories()
    streams = model(prompts, tokens, order, queries)
    with torch.inference_mode():
        cache = model.new_cache(B)
        logits = [model.start(prompts, cache)]
        asked = [model.ask(queries[:, 0, 0], cache)]
        for t in range(M - 1):
            logits.append(model.step(tokens[:, t], order[:, t], cache))
            asked.append(model.ask(queries[:, t + 1, 0], cache))
        together = model.ask_all(queries, cache)
    np.testing.assert_allclose(torch.stack(logits, 1), streams.order.detach(), atol=1e-12)
    np.testing.assert_allclose(torch.stack(asked, 1), streams.tokens[:, :, 0].detach(), atol=1e-12)
    np.testing.assert_allclose(together, streams.tokens.detach(), atol=1e-12)


@VARIANTS
@pytest.mark.parametrize("C", [0, 2])
def test_a_branch_sees_only_its_prefix_and_its_own_token(C: int, settings: dict[str, Any]) -> None:
    model = small_model(C, **settings)
    slow = SlowModel(model)
    prompts, tokens, order, queries = trajectories()
    branch_tokens, branch_slots = tokens.flip(1), queries[:, :, 1]
    with torch.inference_mode():
        cache = model.new_cache(B)
        model.start(prompts, cache)
        for t in range(M - 1):
            model.step(tokens[:, t], order[:, t], cache)
        logits = model.branch_order_logits(branch_tokens, branch_slots, cache)
        again = model.branch_order_logits(branch_tokens, branch_slots, cache)
    assert torch.equal(logits, again), "a branch must not change the cache"
    for b in range(B):
        for t in range(M):
            state = state_at(prompts, tokens, order, b, t).write(int(branch_slots[b, t]), int(branch_tokens[b, t]))
            np.testing.assert_allclose(logits[b, t], slow.order_logits(state), atol=1e-10)


@pytest.mark.parametrize("C", [0, 2])
def test_no_loss_reaches_later_response_tokens(C: int) -> None:
    """Every response token has a unique id, so the gradient of its embedding shows whether it was reached."""
    model = small_model(C, V=N + M)
    prompts = torch.arange(N)[None]
    tokens = torch.arange(N, N + M)[None]
    order = torch.tensor([[2, 0, 3, 1]])
    queries = torch.tensor([[[2], [3], [1], [0]]])
    for t in range(M):
        for output in ("tokens", "order"):
            model.zero_grad()
            getattr(model(prompts, tokens, order, queries), output)[0, t].sum().backward()
            reached = model.wte.weight.grad.abs().sum(1) > 0
            assert reached[:N].all(), "the prompt is always seen"
            assert reached[N : N + t].all(), f"step {t} sees all tokens before it"
            assert not reached[N + t : N + M].any(), f"step {t} must not see later tokens"


def test_queries_do_not_see_each_other_or_themselves() -> None:
    model = small_model()
    prompts, tokens, order, queries = trajectories()
    before = model(prompts, tokens, order, queries).tokens
    changed = queries.clone()
    changed[:, :, 1] = (changed[:, :, 1] + 1) % M
    after = model(prompts, tokens, order, changed)
    assert torch.equal(before[:, :, 0], after.tokens[:, :, 0])
    assert not torch.equal(before[:, :, 1], after.tokens[:, :, 1])


def test_the_prompt_never_sees_the_response() -> None:
    model = small_model()
    prompts, tokens, order, queries = trajectories()
    x, y = model(prompts, tokens, order, queries), model(prompts, (tokens + 1) % V, order, queries)
    assert torch.equal(x.order[:, 0], y.order[:, 0])
    assert not torch.equal(x.order[:, 1], y.order[:, 1])


@VARIANTS
def test_left_to_right_the_main_stream_predicts_the_next_token(settings: dict[str, Any]) -> None:
    model = small_model(**settings)
    slow = SlowModel(model)
    prompts, tokens, _, _ = trajectories()
    order = torch.arange(M).expand(B, M)
    logits = model.predict_all(prompts, tokens)
    for b in range(B):
        for t in range(M):
            expected = slow.next_logits(state_at(prompts, tokens, order, b, t))
            np.testing.assert_allclose(logits[b, t].detach(), expected, atol=1e-10)
    with torch.inference_mode():
        cache = model.new_cache(B)
        cached = [model.predict_first(prompts, cache)]
        cached += [model.predict_next(tokens[:, t], order[:, t], cache) for t in range(M - 1)]
    np.testing.assert_allclose(torch.stack(cached, 1), logits.detach(), atol=1e-12)


@VARIANTS
def test_a_denoiser_lets_every_position_see_every_other(settings: dict[str, Any]) -> None:
    model = small_model(**settings)
    slow = SlowModel(model)
    prompts, responses, _, _ = trajectories()
    masked = torch.tensor([[True] * M, [False] * M, [True, False, False, True]])
    logits = model.denoise(prompts, responses, masked)
    for b in range(B):
        response = [None if hidden else token for token, hidden in zip(responses[b].tolist(), masked[b], strict=True)]
        np.testing.assert_allclose(logits[b].detach(), slow.denoised_logits(prompts[b].tolist(), response), atol=1e-10)


def test_products_by_onednn_are_for_answers_in_float32_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and rollouts must not change by a bit, whatever library is the faster one."""
    monkeypatch.setattr(transformer, "WORTHWHILE", 0)
    model = small_model()
    assert not model.new_cache(B, answering=True).onednn, "oneDNN has no float64"
    model.move("cpu", torch.float32)
    prompts, responses, _, _ = trajectories()
    masked = torch.tensor([[True] * M, [False] * M, [True, False, False, True]])
    with torch.inference_mode():
        assert model.new_cache(B, answering=True).onednn == torch.backends.mkldnn.is_available()
        assert not model.new_cache(B).onednn
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not model.new_cache(B, answering=True).onednn
        trained, answered = (model.denoise(prompts, responses, masked, answering) for answering in (False, True))
    torch.testing.assert_close(trained, answered, rtol=1e-4, atol=1e-5)


def test_no_position_sees_a_masked_token() -> None:
    model = small_model()
    prompts, responses, _, _ = trajectories()
    masked = torch.tensor([[True, False, True, False]] * B)
    other = torch.where(masked, (responses + 1) % V, responses)
    assert torch.equal(model.denoise(prompts, responses, masked), model.denoise(prompts, other, masked))


def test_model_sizes_match_the_paper() -> None:
    tiny = Model(ModelConfig(3, 384, 12), Shape(20, 20, 7))
    nano = Model(ModelConfig(6, 384, 12), Shape(455, 42, 20), order_queries=2)
    assert 5e6 < sum(p.numel() for p in tiny.parameters()) < 6.5e6
    assert 10e6 < sum(p.numel() for p in nano.parameters()) < 12e6
    assert tiny.wpe.num_embeddings == 20 + 1 + 20


@VARIANTS
def test_gradients_match_finite_differences(settings: dict[str, Any]) -> None:
    model = small_model(2, **settings)
    prompts, tokens, order, queries = trajectories()

    def loss() -> torch.Tensor:
        streams = model(prompts, tokens, order, queries)
        return streams.tokens.logsumexp(-1).sum() + streams.order.square().sum()

    flat = model.share_gradients()
    loss().backward()
    with torch.no_grad():
        for index in np.random.default_rng(0).choice(model.flat.numel(), 40, replace=False):
            here = model.flat[index].clone()
            sides = []
            for shift in (1e-5, -1e-5):
                model.flat[index] = here + shift
                sides.append(loss())
            model.flat[index] = here
            assert flat[index].item() == pytest.approx(float(sides[0] - sides[1]) / 2e-5, abs=1e-6, rel=1e-5)


def test_a_twin_has_the_same_positions_and_weights() -> None:
    model = small_model(positions="coordinates")
    streams = [m(*trajectories()) for m in (model, model.twin())]
    assert torch.equal(streams[0].tokens, streams[1].tokens)


def first_block(model: Model) -> Block:
    block = model.blocks[0]
    assert isinstance(block, Block)
    return block


def test_initialization_is_gpt2s_and_a_function_of_the_seed() -> None:
    def weights(seed: int, **sizes: float) -> Model:
        model = Model(ModelConfig(4, 64, 4, **sizes), Shape(8, 8, 5))
        model.initialise(seed)
        return model

    a, b, c = weights(0), weights(0), weights(1)
    assert np.array_equal(a.weights(), b.weights())
    assert not np.array_equal(a.weights(), c.weights())
    first = first_block(a)
    assert first.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert first.c_proj.weight.std().item() == pytest.approx(0.02 / np.sqrt(2 * 4), rel=0.05)
    assert (first.ln_1.weight == 1).all()
    assert (a.order_head.bias == 0).all()
    wide = weights(0, deviation=0.1)
    assert torch.allclose(first_block(wide).c_proj.weight, 5 * first.c_proj.weight)
    assert torch.allclose(wide.wpe.weight, 5 * a.wpe.weight)


def test_loading_copies_and_never_keeps_a_reference() -> None:
    model = Model(ModelConfig(1, 8, 2), Shape(2, 2, 3))
    model.initialise(0)
    shared = np.random.default_rng(0).normal(size=model.flat.numel()).astype(np.float32)
    shared.setflags(write=False)  # like an array from Ray's object store
    before = hashlib.sha256(shared.tobytes()).digest()
    model.load(shared)
    with torch.no_grad():
        model.wte.weight.add_(1)
    assert hashlib.sha256(shared.tobytes()).digest() == before
    published = model.weights()
    with torch.no_grad():
        model.wte.weight.zero_()
    assert not np.array_equal(published, model.weights()), "published weights must not change with the model"
    assert np.array_equal(model.flat_weights(model.named_weights(published)), _without_padding(model, published))


def _without_padding(model: Model, weights: np.ndarray) -> np.ndarray:
    """Weights with zeros in the gaps between parameters."""
    clean = np.zeros_like(weights)
    for name, value in model.named_weights(np.arange(len(weights), dtype=np.int64)).items():
        clean[value.reshape(-1)] = model.named_weights(weights)[name].reshape(-1)
    return clean


def test_filled_slots_are_those_of_earlier_steps() -> None:
    filled = filled_slots(torch.tensor([[2, 0, 1]]))
    assert filled.tolist() == [[[False, False, False], [False, False, True], [True, False, True]]]


@VARIANTS
@pytest.mark.parametrize("C", [0, 2])
def test_training_with_onednn_gives_the_same_streams_and_gradients(
    C: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(transformer, "WORTHWHILE", 0)
    results = []
    for onednn in (False, True):
        model = small_model(C, onednn=onednn, **settings).move("cpu", torch.float32)
        gradient = model.share_gradients()
        with torch.profiler.profile() as profiler:
            streams = model(*trajectories())
        by_onednn = any(event.name == "aten::mkldnn_linear" for event in profiler.events() or [])
        assert by_onednn == onednn
        (streams.tokens.square().sum() + streams.order.square().sum()).backward()
        with torch.inference_mode():
            cache = model.new_cache(B)
            assert cache.onednn == onednn
            first = model.start(trajectories()[0], cache)
        results.append([streams.tokens, streams.order, gradient / gradient.norm(), first])
    for mkl, onednn in zip(*results, strict=True):
        torch.testing.assert_close(onednn, mkl, rtol=1e-4, atol=1e-5)
