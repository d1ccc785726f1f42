"""Accuracy over training, and the paper's four ablations, found among recorded runs and drawn."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recor_dist.core.config import digest
from recor_dist.core.names import name_of, place_of
from recor_dist.figures.style import caption, look_at, look_of, new_figure, styled
from recor_dist.figures.tables import Condition, Group
from recor_dist.methods import headline_decoder

Lines = dict[str, list[tuple[float, float, float, float]]]  # name -> (step, mean, lowest, highest)


def spread(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[float, float, float, float]]:
    """Of several runs: (step, mean, lowest, highest) at the steps that all of them recorded."""
    by_step = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(points) for points in by_step)))
    columns = [(step, [points[step] for points in by_step]) for step in steps]
    return [(step, float(np.mean(values)), min(values), max(values)) for step, values in columns]


def training_lines(groups: Sequence[Group], condition: Condition) -> Lines:
    """Validation accuracy over training of each method at its defaults."""
    chosen = [g for g in groups if g.condition == condition and not g.own]
    found = {headline_decoder(g.runs[0].config): spread([run.validation for run in g.runs]) for g in chosen}
    return {name: found[name] for name in sorted(found, key=place_of) if found[name]}


@dataclass(frozen=True)
class Ablation:
    """One of the paper's: which settings it varies, and what its values are called."""

    title: str
    keys: tuple[str, ...]
    value: Callable[[Mapping[str, Any]], str]
    order: tuple[str, ...] = ()  # of the values; numbers need none


def _exploration(settings: Mapping[str, Any]) -> str:
    kind = settings["method.exploration"]
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
    """Groups that differ in nothing but what an ablation varies."""

    condition: Condition
    fixed: tuple[str, ...]  # settings of the method, as key=value, that differ from the default but do not vary
    groups: dict[str, Group]  # by value, in order


def find_series(groups: Iterable[Group], ablation: Ablation) -> list[Series]:
    """All sets of ReCOR's groups in which only the ablation's settings vary, and take two values or more."""
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


def _place(ablation: Ablation, name: str) -> tuple:
    """Listed values in their order, numbers by size behind those that stand for none."""
    if name in ablation.order:
        return 0, ablation.order.index(name), 0.0
    return 1, 0, float(name.split("=")[1]) if "=" in name else 0.0


@styled
def draw_training(title: str, lines: Lines) -> Figure:
    figure, (axes,) = new_figure(f"Validation over training: {title}", (8.2, 4.2))
    _draw_lines(axes, {name_of(name): points for name, points in lines.items()}, [look_of(name) for name in lines])
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    caption(
        figure,
        "Mean over seeds, with a band from the lowest to the highest. Steps of different methods cost differently.",
    )
    return figure


@styled
def draw_series(title: str, series: Series) -> Figure:
    """Left the validation accuracy over training for each value, right the test accuracy in the end."""
    figure, (left, right) = new_figure(title, (10.4, 4.2), 1, 2)
    lines = {name: spread([run.validation for run in g.runs]) for name, g in series.groups.items()}
    looks = [look_at(i) for i in range(len(lines))]
    shown = {name: points for name, points in lines.items() if points}
    _draw_lines(left, shown, [look for look, name in zip(looks, lines, strict=True) if name in shown])
    left.set_title("over training")
    if shown:
        left.legend(fontsize=9)
    for place, ((name, g), (colour, marker)) in enumerate(zip(series.groups.items(), looks, strict=True)):
        values = g.accuracy("recor")
        right.plot([place] * len(values), values, color=colour, marker=marker, linestyle="none", alpha=0.45)
        right.plot(place, np.mean(values), color=colour, marker=marker, markersize=9, label=name)
    everything = [value for g in series.groups.values() for value in g.accuracy("recor")]
    around = max(0.0, min(everything) - 0.1) - 0.03, min(1.0, max(everything) + 0.1) + 0.03
    right.set(title="in the end", ylabel="exact match, test", ylim=around)
    right.set_xticks(
        range(len(series.groups)), list(series.groups), rotation=20 if sum(map(len, series.groups)) > 24 else 0
    )
    right.margins(x=0.15)
    caption(figure, "Left: mean over seeds, band from lowest to highest. Right: each run small, their mean large.")
    return figure


def _draw_lines(axes: Axes, lines: Lines, looks: Sequence[tuple[str, str]]) -> None:
    for (name, points), (colour, marker) in zip(lines.items(), looks, strict=True):
        steps, mean, low, high = zip(*points, strict=True)
        every = max(1, len(steps) // 12)
        axes.plot(steps, mean, color=colour, marker=marker, markevery=every, label=name)
        if low != high:
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel="exact match, validation", ylim=(-0.03, 1.03))
