"""Training curves: of one run, from its journal; of groups of runs, from the validation accuracy of each.

The figure of one run has a panel each for accuracy, order, reward and losses. The figure of groups has one line per
method: the mean over seeds, in a band from the lowest to the highest.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recor_dist.core.config import Config
from recor_dist.core.method_settings import RecorConfig
from recor_dist.core.names import name_of, place_of
from recor_dist.figures.groups import Condition, Group, with_defaults
from recor_dist.figures.style import PALETTE, caption, hide_unused, look_of, new_figure, styled
from recor_dist.methods import headline_decoder

Points = list[tuple[int, float]]  # (step, value)
Lines = dict[str, list[tuple[float, float, float, float]]]  # name -> (step, mean, lowest, highest)


# --- one run ---------------------------------------------------------------------------------------------------------


def metric_curves(records: Sequence[Mapping[str, float]]) -> dict[str, Points]:
    """The recorded points of each metric, sorted by step."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.items():
            if name != "step":
                found.setdefault(name, {})[int(record["step"])] = value
    return {name: sorted(points.items()) for name, points in found.items()}


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of each value and up to `window` - 1 values before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    return (sums[last] - sums[first]) / (last - first)


def run_panels(config: Config, records: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Points]]:
    """What the figure of one run shows, by panel and line; without panels and lines that have no points."""
    found = metric_curves(records)
    panels: dict[str, dict[str, Points]] = {
        "validation accuracy": {
            "exact match": found.get("eval/val/exact_match", []),
            "tokens": found.get("eval/val/token_accuracy", []),
        },
        "agreement with the known order (tau)": {
            "validation": found.get("order/val/kendall_tau") or found.get("eval/val/kendall_tau", [])
        },
        "reward": {_reward_name(config): found.get("reward/mean", [])},
        "losses": {name.removeprefix("loss/"): points for name, points in found.items() if name.startswith("loss/")},
    }
    shown = {title: {name: points for name, points in lines.items() if points} for title, lines in panels.items()}
    return {title: lines for title, lines in shown.items() if lines}


def _reward_name(config: Config) -> str:
    method = config.method
    if isinstance(method, RecorConfig) and method.reward == "sparse":
        return f"share of queries with p(y) ≥ {method.eta}"
    return "mean log p(y)"


@styled
def draw_run(title: str, panels: Mapping[str, Mapping[str, Points]]) -> Figure:
    """The training of one run, from `run_panels`; metrics recorded at every step get a running mean."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(6.8, 5.0 * columns), 0.9 + 2.9 * rows)
    figure, axes = new_figure(f"Training: {title}", size, rows, columns)
    for panel, (name, lines) in zip(axes, panels.items(), strict=False):
        for index, (line, points) in enumerate(lines.items()):
            _draw_points(panel, points, PALETTE[index], "os"[index % 2], line)
        panel.set(title=name, xlabel="step")
        panel.margins(x=0.02)
        if name in ("validation accuracy", "reward") and min(v for p in lines.values() for _, v in p) >= 0:
            panel.set_ylim(-0.03, 1.03)
        if "tau" in name:
            panel.set_ylim(-1.06, 1.06)
        panel.legend(fontsize=9)
    hide_unused(axes, len(panels))
    return figure


def _draw_points(axes: Axes, points: Points, colour: str, marker: str, name: str) -> None:
    """Few points with markers; many as a faint line with their running mean."""
    steps, values = (np.array(column) for column in zip(*points, strict=True))
    if len(points) > 100:
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(steps, running_mean(values, len(points) // 50), color=colour, label=name)
    else:
        axes.plot(steps, values, color=colour, marker=marker, label=name)


# --- groups of runs --------------------------------------------------------------------------------------------------


def spread(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[float, float, float, float]]:
    """(step, mean, lowest, highest) over several runs, at the steps that all of them recorded."""
    by_step = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(points) for points in by_step)))
    columns = [(step, [points[step] for points in by_step]) for step in steps]
    return [(step, float(np.mean(values)), min(values), max(values)) for step, values in columns]


def training_lines(groups: Sequence[Group], condition: Condition) -> Lines:
    """Validation accuracy over training of each method with its default settings, by headline decoder."""
    chosen = with_defaults(groups, condition)
    found = {headline_decoder(g.runs[0].config): spread([run.validation for run in g.runs]) for g in chosen}
    return {name: found[name] for name in sorted(found, key=place_of) if found[name]}


@styled
def draw_training(title: str, lines: Lines) -> Figure:
    """One line per method, from `training_lines`."""
    figure, (axes,) = new_figure(f"Validation over training: {title}", (8.2, 4.2))
    draw_lines(axes, {name_of(name): points for name, points in lines.items()}, [look_of(name) for name in lines])
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    caption(figure, "Mean over seeds; band from lowest to highest. The cost per step differs between methods.")
    return figure


def draw_lines(axes: Axes, lines: Lines, looks: Sequence[tuple[str, str]]) -> None:
    """Validation accuracy over training: means as lines, lowest to highest as bands; `looks`: colours and markers."""
    for (name, points), (colour, marker) in zip(lines.items(), looks, strict=True):
        steps, mean, low, high = zip(*points, strict=True)
        every = max(1, len(steps) // 12)
        axes.plot(steps, mean, color=colour, marker=marker, markevery=every, label=name)
        if low != high:
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel="exact match, validation", ylim=(-0.03, 1.03))
