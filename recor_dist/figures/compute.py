"""Accuracy against compute: exact match on the test split against FLOPs per answer, from groups of runs.

A decoder with a parameter (T, tau, gamma) is a curve over its values, any other a point.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from recor_dist.core.names import name_of, place_of, split_parameter, split_rule
from recor_dist.figures.groups import Group
from recor_dist.figures.style import caption, look_at, look_of, new_figure, styled


@dataclass(frozen=True)
class CostPoint:
    """Cost per answer and accuracy of one decoder of one group."""

    decoder: str
    settings: tuple[str, ...]  # non-default settings of the method
    flops: float
    passes: float | None
    most_passes: float | None  # of one answer, where that depends on the answer
    accuracy: list[float]

    @property
    def name(self) -> str:
        """Without the value of the decoder's parameter."""
        return ", ".join([name_of(self.base), *self.settings])

    @property
    def base(self) -> str:
        return split_parameter(self.decoder)[0]


def costs(groups: Iterable[Group]) -> list[CostPoint]:
    """A point for each decoder of each group whose cost is known."""
    return [
        _point(g, decoder)
        for g in groups
        for decoder in dict.fromkeys(name for run in g.runs for name in run.measured)
        if all("flops" in figures for figures in g.figures(decoder))
    ]


def _point(group: Group, decoder: str) -> CostPoint:
    """Costs are means over runs, because those of some decoders depend on the answers."""
    figures = group.figures(decoder)
    passes = [part["forward_passes"] for part in figures if part.get("forward_passes")]
    most = [part["most_forward_passes"] for part in figures if part.get("most_forward_passes")]
    return CostPoint(
        decoder,
        group.own,
        float(np.mean([part["flops"] for part in figures])),
        float(np.mean(passes)) if passes else None,
        max(most) if most else None,
        group.accuracy(decoder),
    )


# Marker and line of the decoders that any model of any order has; others have those of their method.
RULES = {
    "confidence": (">", "-"),
    "threshold": ("P", "--"),
    "entropy_bounded": ("X", ":"),
    "information_gain": ("H", "-"),
}


def _looks(points: Sequence[CostPoint]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and line by name: the colour is the method's, the others tell how it decodes. If that does not
    tell all of them apart, each gets another look."""
    found = {}
    for point in points:
        method, rule = split_rule(point.base)
        colour, marker = look_of(method)
        found[point.name] = colour, *RULES.get(rule, (marker, "-"))
    if len(set(found.values())) == len(found):
        return found
    return {name: (*look_at(index), "-") for index, name in enumerate(found)}


def _place(point: CostPoint) -> tuple[Any, ...]:
    """Sort key: by method, how it decodes, cost, and the value of its parameter."""
    method, rule = split_rule(point.base)
    return place_of(method)[1:], rule, point.settings, point.flops, float(split_parameter(point.decoder)[2] or 0)


@styled
def draw_costs(title: str, points: Sequence[CostPoint]) -> Figure:
    """FLOPs per answer (logarithmic) against exact match: the mean over runs, with whiskers from lowest to highest."""
    drawn = sorted(points, key=_place)
    looks = _looks(drawn)
    lines = {name: [point for point in drawn if point.name == name] for name in looks}
    figure, (axes,) = new_figure(f"Accuracy against compute: {title}", (9.2, max(4.6, 1.6 + 0.24 * len(lines))))
    single = [line[0] for line in lines.values() if len(line) == 1]
    for name, line in lines.items():
        colour, marker, style = looks[name]
        means = [float(np.mean(point.accuracy)) for point in line]
        low = [mean - min(point.accuracy) for mean, point in zip(means, line, strict=True)]
        high = [max(point.accuracy) - mean for mean, point in zip(means, line, strict=True)]
        several = any(len(point.accuracy) > 1 for point in line)
        flops = [point.flops / 1e6 * (_shift(point, single) if len(line) == 1 else 1.0) for point in line]
        axes.errorbar(
            flops,
            means,
            yerr=[low, high] if several else None,
            color=colour,
            marker=marker,
            markersize=8 if len(line) == 1 else 6,
            linestyle=style if len(line) > 1 else "none",
            linewidth=1.3,
            capsize=3,
            label=_label(name, line),
        )
    axes.set(xscale="log", xlabel="MFLOPs per answer", ylabel="exact match, test", ylim=(-0.03, 1.03))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    caption(
        figure,
        "Mean over seeds; whiskers from lowest to highest. A line joins the values of a decoder's "
        "parameter, cheapest first.\nSingle points of equal cost are drawn side by side.",
    )
    return figure


def _shift(point: CostPoint, single: Sequence[CostPoint]) -> float:
    """The factor that draws a single point beside others of the same cost."""
    beside = [other for other in single if other.flops == point.flops]
    return 1.06 ** (beside.index(point) - (len(beside) - 1) / 2)


def _label(name: str, line: Sequence[CostPoint]) -> str:
    """The name, and for a curve the values of its parameter, cheapest first. One without a value has the default."""
    named = next((parameter for point in line if (parameter := split_parameter(point.decoder)[1])), "")
    shown = [split_parameter(point.decoder)[2] or f"{point.passes or 0:g}" for point in line]
    return f"{name}, {named}={', '.join(shown)}" if named else name
