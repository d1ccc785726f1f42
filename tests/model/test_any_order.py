"""The decoders of any_order.py against slow ones, one row and one step at a time, written from their definitions."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recor_dist.answers.answering import RandomByRow
from recor_dist.core.messages import Generation
from recor_dist.core.rng import rng
from recor_dist.model.any_order import StreamReader, WholeReader, any_order_decoders
from recor_dist.model.transformer import Model
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, State, log_softmax

R, N, M, V = 6, 3, 5, 4
SURE = 1e-5  # the least distance from a tie or a bound; nearer than that, float32 may decide otherwise
READERS = {"whole": WholeReader, "stream": StreamReader}
RULES: list[tuple[str, float | None]] = [
    ("confidence", None),
    *(("threshold", tau) for tau in (0.0, 0.4, 0.6, 0.9, 1.0)),
    *(("entropy_bounded", gamma) for gamma in (0.0, 0.5, 1.0, 100.0)),
    ("information_gain", None),
]
SETTINGS = [{}, {"positions": "coordinates", "loops": 2}]

Written = tuple[tuple[int, int], ...]  # slots and their tokens
Probabilities = dict[int, np.ndarray]  # of the tokens at each slot that is not written


def make_model(**settings: Any) -> Model:
    """With order queries, which must not matter, and with logits from which slots differ in certainty."""
    model = small_model(2, M=M, V=V, seed=3, **settings)
    with torch.no_grad():
        model.token_head.weight.mul_(3)
    return model


def decode(model: Model, prompts: np.ndarray, kind: str, rule: str, value: float | None, random: Any) -> Generation:
    return any_order_decoders("x", READERS[kind])[f"x_{rule}"].make(value).answer(model, prompts, random)


def by_row(rows: range | list[int]) -> Any:
    return RandomByRow([rng(0, "row", row) for row in rows])


# --- one answer, slowly ----------------------------------------------------------------------------------------------


class SlowAnswer:
    """An answer in progress: `predict` gives the probabilities at all slots that are not written."""

    def __init__(
        self, slow: SlowModel, prompt: list[int], kind: str, written: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.slow, self.prompt, self.kind, self.written = slow, prompt, kind, written

    def predict(self) -> Probabilities:
        filled = dict(self.written)
        left = [slot for slot in range(M) if slot not in filled]
        if self.kind == "whole":
            logits = self.slow.denoised_logits(self.prompt, [filled.get(slot) for slot in range(M)])
            return {slot: np.exp(log_softmax(logits[slot])) for slot in left}
        state = State(tuple(self.prompt), self.written)
        return {slot: np.exp(log_softmax(self.slow.token_logits(state, slot))) for slot in left}

    def write(self, slot: int, token: int) -> "SlowAnswer":
        return SlowAnswer(self.slow, self.prompt, self.kind, (*self.written, (slot, token)))


def entropy(p: np.ndarray) -> float:
    return float(-(p * np.log(p)).sum())


def clear(values: list[float]) -> None:
    """Asserts that rounding does not decide how the values are ranked."""
    ranked = sorted(values)
    assert all(b - a > SURE for a, b in itertools.pairwise(ranked)), "the test needs a clear cut"


def slow_choice(
    answer: SlowAnswer, p: Probabilities, rule: str, value: Any, noise: np.ndarray
) -> tuple[list[int], int]:
    """The slots that a rule writes, and how many states it tries before that."""
    best = {slot: float(probabilities.max()) for slot, probabilities in p.items()}
    surest = max(best, key=lambda slot: best[slot])
    clear(list(best.values()))
    if rule == "confidence":
        return [surest], 0
    if rule == "threshold":
        assert all(abs(b - value) > SURE for b in best.values())
        return [slot for slot in p if best[slot] >= value] or [surest], 0
    if rule == "entropy_bounded":
        ranked = sorted(p, key=lambda slot: entropy(p[slot]))
        clear([entropy(p[slot]) for slot in p])
        sizes = []
        for k in range(1, len(ranked) + 1):
            entropies = [entropy(p[slot]) for slot in ranked[:k]]
            excess = sum(entropies) - max(entropies)
            assert k == 1 or abs(excess - value) > SURE
            if k == 1 or excess <= value:
                sizes.append(k)
        return ranked[: max(sizes)], 0
    candidates = {surest}
    for draw in noise:  # 7 draws
        candidates.add(max(p, key=lambda slot: best[slot] / 0.2 + draw[slot]))
    if all(b >= 0.8 for b in best.values()) or len(candidates) == 1:
        return [surest], 0
    gains = {}
    for slot in candidates:
        after = answer.write(slot, int(p[slot].argmax())).predict()
        gains[slot] = -entropy(p[slot]) - float(np.mean([entropy(probabilities) for probabilities in after.values()]))
    clear(list(gains.values()))
    return [max(gains, key=lambda slot: gains[slot])], len(candidates)


def slow_decode(
    slow: SlowModel, prompt: list[int], kind: str, rule: str, value: float | None, random: np.random.Generator
) -> tuple[list[int], list[int], list[float], int]:
    """Tokens, steps and confidences by slot, and the number of passes."""
    answer, steps, confidences, passes = SlowAnswer(slow, prompt, kind), [0] * M, [0.0] * M, 0
    for step in range(1, M + 1):
        noise = -np.log(-np.log(random.random((7, M)))) if rule == "information_gain" else np.zeros((0, M))
        p = answer.predict()
        slots, tried = slow_choice(answer, p, rule, value, noise)
        passes += 1 + (tried > 0)
        for slot in sorted(slots, key=lambda slot: -p[slot].max()):  # the most confident one enters the stream first
            answer = answer.write(slot, int(p[slot].argmax()))
            steps[slot], confidences[slot] = step, float(p[slot].max())
        if len(answer.written) == M:
            break
    written = dict(answer.written)
    return [written[slot] for slot in range(M)], steps, confidences, passes


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("rule", "value"), RULES)
def test_every_step_is_that_of_a_slow_decoder(
    rule: str, value: float | None, kind: str, settings: dict[str, Any]
) -> None:
    model = make_model(**settings)
    slow, prompts = SlowModel(model), random_rows(R, M=M, V=V).prompts
    generation = decode(model, prompts, kind, rule, value, by_row(range(R)))
    assert generation.passes is not None
    for row, prompt in enumerate(prompts.tolist()):
        tokens, steps, confidences, passes = slow_decode(slow, prompt, kind, rule, value, rng(0, "row", row))
        assert generation.responses[row].tolist() == tokens
        assert generation.steps[row].tolist() == steps
        np.testing.assert_allclose(generation.confidences[row], confidences, atol=1e-5)
        assert generation.passes[row] == passes
        assert generation.last_steps[row] == max(steps)
    if rule == "information_gain" and not settings:
        assert len(set(generation.passes)) > 1, "some rows are sure of all their slots, and do not look ahead"


def test_the_rules_of_these_tests_write_one_slot_several_and_all() -> None:
    """Otherwise the comparison above would show little."""
    model, prompts = make_model(), random_rows(R, M=M, V=V).prompts
    for kind in READERS:
        for rule, values in {"threshold": (1.0, 0.6, 0.0), "entropy_bounded": (0.0, 0.5, 100.0)}.items():
            one, several, all_at_once = (
                decode(model, prompts, kind, rule, value, by_row(range(R))) for value in values
            )
            assert set(one.last_steps) == {M}
            assert set(all_at_once.last_steps) == {1}
            assert len(set(several.last_steps)) > 1, "answers of one batch take different numbers of passes"


# --- the rows of a batch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("rule", "value"), [("threshold", 0.6), ("entropy_bounded", 1.0), ("information_gain", None)])
def test_an_answer_and_its_cost_do_not_depend_on_the_rows_around_it(rule: str, value: float | None, kind: str) -> None:
    model, prompts = make_model(), random_rows(12, M=M, V=V, seed=1).prompts
    whole = decode(model, prompts, kind, rule, value, by_row(range(12)))
    order = np.random.default_rng(0).permutation(12).tolist()
    for rows in ([order[0]], order[:5], order):
        part = decode(model, prompts[rows], kind, rule, value, by_row(rows))
        for name in ("responses", "steps", "passes", "flops"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[rows])
        np.testing.assert_allclose(part.confidences, whole.confidences[rows], atol=1e-6)


@pytest.mark.parametrize("kind", READERS)
def test_complete_answers_are_not_computed_any_longer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = make_model(), random_rows(12, M=M, V=V, seed=1).prompts
    sizes, score = [], READERS[kind].score

    def watch(reader: Any, answers: Any) -> Any:
        sizes.append(len(answers.tokens))
        return score(reader, answers)

    monkeypatch.setattr(READERS[kind], "score", watch)
    generation = decode(model, prompts, kind, "threshold", 0.6, by_row(range(12)))
    assert sizes == [int((generation.last_steps >= step).sum()) for step in range(1, len(sizes) + 1)]
    assert sizes[0] == 12 > sizes[-1]


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(("rule", "value"), [(rule, value) for rule, value in RULES if value not in (0.4, 0.5)])
def test_the_flops_of_an_answer_are_those_that_torch_counts(
    rule: str, value: float | None, kind: str, settings: dict[str, Any]
) -> None:
    model, prompts = make_model(**settings), random_rows(3, M=M, V=V).prompts
    together = decode(model, prompts, kind, rule, value, by_row(range(3)))
    assert together.flops is not None
    for row in range(3):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            decode(model, prompts[[row]], kind, rule, value, by_row([row]))
        assert counter.get_total_flops() == together.flops[row]


@pytest.mark.parametrize("kind", READERS)
def test_the_passes_of_an_answer_are_the_calls_of_the_model(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = make_model(), random_rows(1, M=M, V=V).prompts
    calls, run = [], model._run

    def count(x: torch.Tensor, *positional: Any, **named: Any) -> torch.Tensor:
        calls.append(len(x))
        return run(x, *positional, **named)

    monkeypatch.setattr(model, "_run", count)
    for rule, value in (("threshold", 0.6), ("information_gain", None)):
        calls.clear()
        assert decode(model, prompts, kind, rule, value, by_row([0])).passes == [len(calls)]
        assert (max(calls) > 1) == (rule == "information_gain"), "a look-ahead is one pass over several states"


def test_one_slot_at_a_time_the_cache_saves_most_of_the_work() -> None:
    model, prompts = small_model(N=20, M=20), random_rows(1, 20, 20).prompts
    whole, stream = (
        any_order_decoders("x", read)["x_confidence"].make(None).answer(model, prompts, rng(0, "row", 0))
        for read in READERS.values()
    )
    assert whole.flops is not None
    assert stream.flops is not None
    assert stream.flops[0] < 0.5 * whole.flops[0]
