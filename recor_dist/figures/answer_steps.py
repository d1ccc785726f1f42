"""What happens at each step of an answer: errors, confidence, and how good the order policy's choice is.

first errors    the step that wrote an answer's first wrong token
calibration     the confidence in the tokens of a step, and how many of them are right; for ReCOR also exp Q
policy          ReCOR: its entropy, and its regret, which is the reward of the best slot minus that of its choice
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from actors.rewards import q_values, sparse_reward
from actors.rollout import rollout
from recor_dist.core.messages import Rows
from recor_dist.core.method_settings import RecorConfig
from recor_dist.core.rng import rng
from recor_dist.figures.answered import Answered
from recor_dist.figures.calibration import has_q, q_against_truth
from recor_dist.figures.style import FAINT, PALETTE, caption, new_figure, styled
from recor_dist.model.transformer import Model, filled_slots


@dataclass(frozen=True)
class CalibrationBySteps:
    """Means over the tokens written at each step, (steps,) each; NaN at a step that wrote none."""

    counts: np.ndarray
    confidence: np.ndarray  # the probability of the token when it was written
    right: np.ndarray  # the share of right tokens
    exp_q: np.ndarray | None  # the predicted probability of a reward; None without Q


@dataclass(frozen=True)
class PolicyBySteps:
    """Means over rows, (M,) each, in the states of rollouts: the policy's order, and true tokens."""

    entropy: np.ndarray  # of the policy over unfilled slots, in nats; uniform choice has the logarithm of their number
    uniform_entropy: np.ndarray
    regret: np.ndarray  # the reward of the best slot minus that of the slot that the policy fills
    uniform_regret: np.ndarray  # the same for a slot chosen at random


def first_errors(answered: Answered) -> np.ndarray:
    """(R,): the step, from 1, that wrote the first wrong token of each answer; 0 if there is none."""
    steps = np.where(answered.wrong, answered.steps, np.iinfo(np.int64).max).min(axis=1)
    return np.where(answered.wrong.any(axis=1), steps, 0)


def calibration_by_step(answered: Answered) -> CalibrationBySteps:
    steps, last = answered.steps, answered.generation.last_step
    counts = np.bincount(steps.ravel() - 1, minlength=last)

    def mean(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.bincount(steps.ravel() - 1, values.ravel(), minlength=last) / counts

    exp_q = _exp_q_of_choices(answered)
    return CalibrationBySteps(
        counts,
        mean(steps, answered.generation.confidences),
        mean(steps, ~answered.wrong),
        None if exp_q is None else mean(np.sort(steps, axis=1), exp_q),
    )


def _exp_q_of_choices(answered: Answered) -> np.ndarray | None:
    """(R, M): of the slot that was filled first, second, ... in each answer."""
    method = answered.config.method
    if not has_q(method):
        return None
    parts = [q_against_truth(answered.model, p.rows, p.generation, method.algorithm) for p in answered.parts()]
    return np.concatenate([exp_q[chosen] for exp_q, _, chosen in parts]).reshape(answered.steps.shape)


def policy_by_step(answered: Answered) -> PolicyBySteps | None:
    """None if the method has no policy that learns from rewards."""
    method, model = answered.config.method, answered.model
    if not isinstance(method, RecorConfig):
        return None
    parts = [_policy(method, model, part.rows) for part in answered.parts()]
    return PolicyBySteps(*(np.concatenate(part).mean(axis=0) for part in zip(*parts, strict=True)))


@torch.inference_mode()
def _policy(method: RecorConfig, model: Model, rows: Rows) -> tuple[np.ndarray, ...]:
    """The four quantities of PolicyBySteps, by row (R, M)."""
    greedy = replace(method, random_contexts=0.0, random_contexts_end=None, gamma=0.0)
    batch = rollout(greedy, model, rows, rng(0, "answered/policy"), 0)
    order, responses = torch.from_numpy(batch.order), torch.as_tensor(rows.responses.astype(np.int64))
    R, M = order.shape
    every = torch.arange(M).expand(R, M, M)
    streams = model(torch.from_numpy(batch.prompts), torch.from_numpy(batch.tokens), order, every)
    filled, left = filled_slots(order), torch.arange(M, 0, -1)
    truth = responses[:, None, :, None].expand(R, M, M, 1)
    log_p = streams.tokens.float().log_softmax(-1).gather(-1, truth)[..., 0]  # (R, M, M): by step and slot
    reward = sparse_reward(log_p, method.eta) if method.reward == "sparse" else log_p
    best = reward.masked_fill(filled, -torch.inf).amax(-1)
    mean = reward.masked_fill(filled, 0.0).sum(-1) / left
    chosen = reward.gather(2, order[..., None])[..., 0]
    entropy = _entropy(method, streams.order.float(), filled)
    both = entropy, left.log().expand(R, M), best - chosen, best - mean
    return tuple(values.numpy() for values in both)


def _entropy(method: RecorConfig, logits: torch.Tensor, filled: torch.Tensor) -> torch.Tensor:
    """(R, M): the entropy of softmax(Q / alpha), or of the PPO-like policy, softmax(z), over unfilled slots."""
    scores = q_values(logits, method.algorithm)
    if method.algorithm != "ppo":
        if method.alpha == 0:
            return torch.zeros(scores.shape[:2])
        scores = scores / method.alpha
    log_policy = scores.masked_fill(filled, -torch.inf).log_softmax(-1)
    return -(log_policy.exp() * log_policy.masked_fill(filled, 0.0)).sum(-1)


# --- the figure ------------------------------------------------------------------------------------------------------


@styled
def draw_steps(title: str, answered: Answered) -> Figure:
    """A panel for first errors, one for calibration and, for ReCOR, two for its policy."""
    policy = policy_by_step(answered)
    columns = 4 if policy else 2
    figure, panels = new_figure(f"Step by step: {title}", (3.7 * columns, 3.9), 1, columns)
    _draw_errors(panels[0], answered)
    _draw_calibration(panels[1], calibration_by_step(answered))
    if policy:
        _draw_pair(panels[2], "entropy of the policy", "nats", policy.entropy, policy.uniform_entropy)
        _draw_pair(panels[3], "regret of its choice", "reward", policy.regret, policy.uniform_regret)
    for axes in panels:
        axes.set(xlabel="step", xlim=(0.4, answered.generation.last_step + 0.6))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=9)
    about = f"{len(answered.rows)} test rows. Errors and confidence are those of the model's own answers."
    if policy:
        about += " Entropy and regret are those of rollouts, which write true tokens.\n"
        about += "Regret: the reward of the best slot minus that of the slot that was chosen."
    caption(figure, about)
    return figure


def _draw_errors(axes: Axes, answered: Answered) -> None:
    steps = answered.generation.last_step
    first, rows = np.bincount(first_errors(answered), minlength=steps + 1)[1:], len(answered.rows)
    axes.bar(
        np.arange(1, steps + 1), first / rows, color=PALETTE[1], label=f"{first.sum() / rows:.3f} of the answers in all"
    )
    axes.set(title="first wrong token", ylabel="share of answers", ylim=(0, max(0.01, 1.25 * first.max() / rows)))


def _draw_calibration(axes: Axes, found: CalibrationBySteps) -> None:
    some = found.counts > 0
    x = np.flatnonzero(some) + 1
    axes.plot(x, found.right[some], color=PALETTE[2], marker="o", label="share right")
    axes.plot(x, found.confidence[some], color=PALETTE[1], marker="s", label="confidence")
    if found.exp_q is not None:
        axes.plot(x, found.exp_q[some], color=PALETTE[0], marker="^", label="exp Q of the chosen slot")
    axes.set(title="calibration", ylim=(-0.02, 1.02))


def _draw_pair(axes: Axes, title: str, unit: str, policy: np.ndarray, uniform: np.ndarray) -> None:
    x = np.arange(1, len(policy) + 1)
    axes.plot(x, uniform, color=FAINT, linestyle="--", label="random choice")
    axes.plot(x, policy, color=PALETTE[0], marker="o", label="policy")
    axes.set(title=title, ylabel=unit)
    axes.set_ylim(bottom=min(0.0, float(policy.min())))
