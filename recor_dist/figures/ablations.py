"""The paper's four ablations, found among groups of runs and drawn: accuracy for each value of what they vary."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recor_dist.core.config import digest
from recor_dist.figures.curves import draw_lines, spread
from recor_dist.figures.groups import Condition, Group
from recor_dist.figures.style import caption, look_at, new_figure, styled


@dataclass(frozen=True)
class Ablation:
    """The settings that it varies, and the names of their values."""

    title: str
    keys: tuple[str, ...]
    value: Callable[[Mapping[str, Any]], str]  # settings -> the name of their value
    order: tuple[str, ...] = ()  # of the values' names; numbers are sorted


def _exploration(settings: Mapping[str, Any]) -> str:
    kind: str = settings["method.exploration"]
    return f"alpha={settings['method.alpha']:g}" if kind == "entropy" else {"topk": "top-K"}.get(kind, kind)


def _objective(settings: Mapping[str, Any]) -> str:
    algorithm = {"sql_bce": "soft Q (BCE)", "sql_mse": "soft Q (MSE)", "ppo": "PPO-like"}
    return f"{settings['method.reward']}, {algorithm[settings['method.algorithm']]}"


ABLATIONS = {
    "token_queries": Ablation("Token queries K", ("method.token_queries",), lambda s: f"K={s['method.token_queries']}"),
    "order_queries": Ablation(
        "Order queries C",
        ("method.order_queries",),
        lambda s: f"C={s['method.order_queries']}" if s["method.order_queries"] else "main stream",
        ("main stream",),
    ),
    "exploration": Ablation("Exploration", ("method.exploration", "method.alpha"), _exploration, ("uniform", "top-K")),
    "objective": Ablation(
        "Reward and algorithm",
        ("method.reward", "method.algorithm"),
        _objective,
        ("sparse, soft Q (BCE)", "dense, soft Q (BCE)", "dense, soft Q (MSE)", "dense, PPO-like"),
    ),
}


@dataclass(frozen=True)
class Series:
    """Groups that differ only in what an ablation varies."""

    condition: Condition
    fixed: tuple[str, ...]  # non-default settings of the method that do not vary, as key=value
    groups: dict[str, Group]  # by value, in order


def find_series(groups: Iterable[Group], ablation: Ablation) -> list[Series]:
    """All sets of ReCOR's groups in which only the ablation's settings vary and take at least two values."""
    sets: dict[str, list[Group]] = {}
    for g in groups:
        if g.method == "recor":
            identity = g.runs[0].identity
            rest = {key: value for key, value in identity.items() if key not in ("seed", *ablation.keys)}
            sets.setdefault(digest(rest), []).append(g)
    series = []
    for members in sets.values():
        named = {ablation.value(g.runs[0].identity): g for g in members}
        if len(named) > 1:
            fixed = tuple(word for word in members[0].own if word.split("=")[0] not in ablation.keys)
            ordered = dict(sorted(named.items(), key=lambda item: _place(ablation, item[0])))
            series.append(Series(members[0].condition, fixed, ordered))
    return sorted(series, key=lambda s: (s.condition, s.fixed))


def _place(ablation: Ablation, name: str) -> tuple[int, int, float]:
    """Sort key: listed values first, in their order, then numbers by size."""
    if name in ablation.order:
        return 0, ablation.order.index(name), 0.0
    return 1, 0, float(name.split("=")[1]) if "=" in name else 0.0


@styled
def draw_series(title: str, series: Series) -> Figure:
    """Left: validation accuracy over training for each value. Right: the final test accuracy."""
    figure, (left, right) = new_figure(title, (10.4, 4.2), 1, 2)
    looks = {name: look_at(i) for i, name in enumerate(series.groups)}
    lines = {name: spread([run.validation for run in g.runs]) for name, g in series.groups.items()}
    shown = {name: points for name, points in lines.items() if points}
    draw_lines(left, shown, [looks[name] for name in shown])
    left.set_title("over training")
    if shown:
        left.legend(fontsize=9)
    _draw_final(right, series, looks)
    caption(figure, "Left: mean over seeds; band from lowest to highest. Right: runs small, means large.")
    return figure


def _draw_final(axes: Axes, series: Series, looks: Mapping[str, tuple[str, str]]) -> None:
    """The test accuracy of each run, and the mean for each value."""
    for place, (name, g) in enumerate(series.groups.items()):
        colour, marker = looks[name]
        values = g.accuracy("recor")
        axes.plot([place] * len(values), values, color=colour, marker=marker, linestyle="none", alpha=0.45)
        axes.plot(place, np.mean(values), color=colour, marker=marker, markersize=9, label=name)
    everything = [value for g in series.groups.values() for value in g.accuracy("recor")]
    limits = max(0.0, min(everything) - 0.1) - 0.03, min(1.0, max(everything) + 0.1) + 0.03
    axes.set(title="final", ylabel="exact match, test", ylim=limits)
    rotation = 20 if sum(map(len, series.groups)) > 24 else 0
    axes.set_xticks(range(len(series.groups)), list(series.groups), rotation=rotation)
    axes.margins(x=0.15)
