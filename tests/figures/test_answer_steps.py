"""What happens at each step of an answer, against slow code: row by row, state by state, slot by slot."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recor_dist.core.compose import compose
from recor_dist.core.messages import Generation, Rows
from recor_dist.figures.answer_steps import calibration_by_step, draw_steps, first_errors, policy_by_step
from recor_dist.figures.answered import Answered
from recor_dist.figures.style import to_bytes
from recor_dist.model.decoding import generate
from tests.conftest import random_rows, small_model
from tests.slow_model import SlowModel, State, log_softmax

R, M = 7, 4
ANY: Any = None  # what a test does not read


def made_up(responses: list[list[int]], steps: list[list[int]], truth: list[list[int]], confidences: Any) -> Answered:
    generation = Generation(np.array(responses), np.array(steps), np.array(confidences, np.float32), last_step=3)
    rows = Rows(np.zeros((len(truth), 1), np.uint8), np.array(truth, np.uint8))
    return Answered(compose(["scale=smoke", "method=mdm"]), ANY, rows, {}, generation)


def test_errors_and_confidences_are_counted_at_the_step_that_wrote_the_token() -> None:
    answered = made_up(
        responses=[[1, 2, 3], [9, 2, 9], [1, 9, 9]],
        steps=[[1, 2, 3], [3, 1, 2], [1, 1, 3]],
        truth=[[1, 2, 3], [1, 2, 3], [1, 2, 3]],
        confidences=[[0.5, 0.6, 0.7], [0.1, 0.9, 0.3], [0.2, 0.4, 0.8]],
    )
    assert first_errors(answered).tolist() == [0, 2, 1]
    found = calibration_by_step(answered)
    assert found.counts.tolist() == [4, 2, 3]
    assert found.confidence == pytest.approx(np.array([(0.5 + 0.9 + 0.2 + 0.4) / 4, (0.6 + 0.3) / 2, 1.6 / 3]))
    assert found.right == pytest.approx(np.array([3 / 4, 1 / 2, 1 / 3]))
    assert found.exp_q is None, "masked diffusion has no Q"
    assert policy_by_step(answered) is None


def answered_by_recor(*overrides: str) -> Answered:
    config = compose(["scale=smoke", "method=recor", *overrides])
    method: Any = config.method
    model, rows = small_model(method.order_queries), random_rows(R)
    return Answered(config, model, rows, {}, generate(model, rows.prompts))


SPARSE, DENSE = ["method.eta=0.3", "method.alpha=0.7"], ["method.reward=dense", "method.alpha=0.7"]


@pytest.mark.parametrize(
    "overrides",
    [
        [*SPARSE, "method.gamma=0.5"],
        [*SPARSE, "method.order_queries=2", "method.random_contexts=1"],
        [*DENSE, "method.algorithm=sql_mse"],
        [*DENSE, "method.algorithm=ppo"],
        [*SPARSE, "method.alpha=0", "method.exploration=uniform"],
    ],
    ids=" ".join,
)
def test_entropy_and_regret_are_those_of_the_policys_states(overrides: list[str]) -> None:
    answered = answered_by_recor(*overrides)
    method: Any = answered.config.method
    slow = SlowModel(answered.model)
    expected = np.zeros((4, R, M))
    for b in range(R):
        state = State(tuple(answered.rows.prompts[b].tolist()))
        for t in range(M):
            left = [slot for slot in range(M) if slot not in state.filled]
            z = slow.order_logits(state)
            log_p = {s: log_softmax(slow.token_logits(state, s))[answered.rows.responses[b, s]] for s in left}
            rewards = {s: float(math.exp(p) >= 0.3) if method.reward == "sparse" else p for s, p in log_p.items()}
            chosen = max(left, key=lambda slot: z[slot])
            q = np.array([-math.log1p(math.exp(-z[s])) if method.algorithm == "sql_bce" else z[s] for s in left])
            alpha = 1.0 if method.algorithm == "ppo" else method.alpha
            log_policy = log_softmax(q / alpha) if alpha else np.zeros(len(left))
            expected[0, b, t] = -(np.exp(log_policy) * log_policy).sum()
            expected[1, b, t] = math.log(len(left))
            expected[2, b, t] = max(rewards.values()) - rewards[chosen]
            expected[3, b, t] = max(rewards.values()) - sum(rewards.values()) / len(left)
            state = state.write(chosen, int(answered.rows.responses[b, chosen]))
    found = policy_by_step(answered)
    assert found is not None
    both = (found.entropy, found.uniform_entropy, found.regret, found.uniform_regret)
    for ours, theirs in zip(both, expected.mean(axis=1), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_exp_q_is_that_of_the_slot_that_each_step_of_the_answer_chose() -> None:
    answered = answered_by_recor()
    slow, expected = SlowModel(answered.model), np.zeros((R, M))
    for b in range(R):
        state = State(tuple(answered.rows.prompts[b].tolist()))
        for t in range(M):
            z = slow.order_logits(state)
            chosen = max((slot for slot in range(M) if slot not in state.filled), key=lambda slot: z[slot])
            expected[b, t] = 1 / (1 + math.exp(-z[chosen]))
            state = state.write(chosen, int(slow.token_logits(state, chosen).argmax()))
    assert calibration_by_step(answered).exp_q == pytest.approx(expected.mean(axis=0), rel=1e-4)


def test_exp_q_is_that_of_the_slots_that_another_decoder_wrote() -> None:
    """In its own states; slots of one step are taken in reading order."""
    usual = answered_by_recor()
    steps = np.array([[2, 1, 2, 1], [1, 1, 1, 1], [4, 3, 2, 1], *usual.steps[3:]])
    answered = replace(usual, generation=replace(usual.generation, steps=steps))
    slow = SlowModel(answered.model)
    sums, counts = np.zeros(M), np.zeros(M)
    for b in range(R):
        state = State(tuple(answered.rows.prompts[b].tolist()))
        for slot in sorted(range(M), key=lambda slot: (steps[b, slot], slot)):
            sums[steps[b, slot] - 1] += 1 / (1 + math.exp(-slow.order_logits(state)[slot]))
            counts[steps[b, slot] - 1] += 1
            state = state.write(slot, int(answered.generation.responses[b, slot]))
    assert calibration_by_step(answered).exp_q == pytest.approx(sums / counts, rel=1e-4)


@pytest.mark.parametrize("overrides", [[], ["method.algorithm=ppo", "method.reward=dense"]], ids=" ".join)
def test_the_figure_has_a_panel_for_each(overrides: list[str]) -> None:
    figure = draw_steps("ReCOR", answered_by_recor(*overrides))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["first wrong token", "calibration", "entropy of the policy", "regret of its choice"]
    assert to_bytes(figure, "png").startswith(b"\x89PNG")
