"""Calibration: the probability that a model assigns against how often it is right, as reliability diagrams.

Computed from a model and test rows, in the states of the model's own answers. For ReCOR, exp Q is the predicted
probability of a reward; for every method, confidence is the probability of a token when it was written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from matplotlib.figure import Figure

from actors.rewards import q_values
from recor_dist.core.config import Config
from recor_dist.core.messages import Generation, Rows
from recor_dist.core.method_settings import MethodConfig, RecorConfig
from recor_dist.figures.answered import Answered
from recor_dist.figures.style import FAINT, PALETTE, caption, new_figure, styled
from recor_dist.model.transformer import Model, filled_slots


@dataclass(frozen=True)
class Reliability:
    """Predictions in bins of equal width."""

    counts: np.ndarray  # (bins,) number of predictions
    expected: np.ndarray  # (bins,) mean predicted probability; NaN in an empty bin
    right: np.ndarray  # (bins,) share of right predictions; NaN in an empty bin
    error: float  # expected calibration error: the mean gap, weighted by the counts


def reliability(expected: np.ndarray, right: np.ndarray, bins: int = 10) -> Reliability:
    """From predicted probabilities in [0, 1] and whether each prediction was right."""
    index = np.minimum((expected * bins).astype(np.int64), bins - 1)
    counts = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        means, share = (np.bincount(index, values, minlength=bins) / counts for values in (expected, right))
    error = float(np.nansum(np.abs(means - share) * counts) / max(1, counts.sum()))
    return Reliability(counts, means, share, error)


@torch.inference_mode()
def q_against_truth(
    model: Model, rows: Rows, answers: Generation, algorithm: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every unfilled slot in every state of the model's own answers: exp Q, whether the most likely token is the
    right one, and whether the answer filled that slot next; each (pairs,), in the order of rows, states and slots.

    The answer so far may hold wrong tokens. exp Q is clipped at 1, which only the MSE loss lets it exceed.
    """
    order = torch.as_tensor(answers.orders)
    prompts = torch.as_tensor(rows.prompts.astype(np.int64))
    tokens = torch.as_tensor(answers.responses).gather(1, order)
    R, M = order.shape
    streams = model(prompts, tokens, order, torch.arange(M).expand(R, M, M))  # queries every slot at every step
    exp_q = q_values(streams.order.float(), algorithm).exp().clamp(max=1.0)  # (R, M, M)
    right = streams.tokens.argmax(-1) == torch.as_tensor(rows.responses.astype(np.int64))[:, None]
    chosen = torch.zeros(R, M, M, dtype=torch.bool).scatter(2, order[..., None], True)
    unfilled = ~filled_slots(order)
    return exp_q[unfilled].numpy(), right[unfilled].numpy(), chosen[unfilled].numpy()


def has_q(method: MethodConfig) -> TypeGuard[RecorConfig]:
    """True if exp Q is the probability of a reward. The PPO-like policy has no Q."""
    return isinstance(method, RecorConfig) and method.algorithm != "ppo"


def measure_calibration(answered: Answered) -> dict[str, Reliability]:
    """The reliability diagrams of a run, by panel."""
    panels, method, model = {}, answered.config.method, answered.model
    if has_q(method):
        parts = [q_against_truth(model, part.rows, part.generation, method.algorithm) for part in answered.parts()]
        exp_q, right, chosen = (np.concatenate(part) for part in zip(*parts, strict=True))
        panels["exp Q, all unfilled slots"] = reliability(exp_q, right)
        panels["exp Q, chosen slots"] = reliability(exp_q[chosen], right[chosen])
    panels["confidence, written tokens"] = reliability(answered.generation.confidences.ravel(), ~answered.wrong.ravel())
    return panels


def draw_run_calibration(title: str, answered: Answered) -> Figure:
    """The calibration of a run on its first test rows."""
    return draw_calibration(title, measure_calibration(answered), _about(answered.config, len(answered.rows)))


def _about(config: Config, rows: int) -> str:
    text = f"{rows} test rows, in the states of the model's own answers. "
    method = config.method
    if has_q(method):
        target = f"probability that p(y) ≥ {method.eta}" if method.reward == "sparse" else "p(y)"
        text += (
            f"exp Q learns the {target}{', discounted' if method.gamma else ''}"
            f"{', with a focal factor that pulls it towards the middle' if method.focal else ''};\n"
            "it is compared with how often the token predictor's first choice at that slot is right. "
        )
    return text + "Bars: predictions per bin."


@styled
def draw_calibration(title: str, panels: Mapping[str, Reliability], about: str) -> Figure:
    """A reliability diagram per panel. Top: share right against predicted probability. Bottom: predictions per bin."""
    size = (max(6.8, 3.7 * len(panels)), 5.2)
    figure, axes = new_figure(f"Calibration: {title}", size, 2, len(panels))
    grid = axes[0].get_gridspec()
    assert grid is not None
    grid.set_height_ratios([3, 1])
    for column, (name, found) in enumerate(panels.items()):
        above, below = axes[column], axes[len(panels) + column]
        above.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1, label="perfect")
        some = found.counts > 0
        colour = PALETTE[1] if name.startswith("confidence") else PALETTE[0]
        above.plot(found.expected[some], found.right[some], color=colour, marker="o", label="measured")
        above.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="share right" if column == 0 else "", title=name)
        above.text(0.98, 0.04, f"mean gap {found.error:.3f}", ha="right", transform=above.transAxes, fontsize=9)
        bins = len(found.counts)
        below.bar((np.arange(bins) + 0.5) / bins, found.counts, width=0.92 / bins, color=colour, alpha=0.75)
        below.set(xlim=(-0.02, 1.02), xlabel="predicted", ylabel="count" if column == 0 else "", yscale="symlog")
        below.set_ylim(0, 4 * max(1, found.counts.max()))
        below.minorticks_off()
    axes[0].legend(loc="upper left", fontsize=9)
    caption(figure, about)
    return figure
