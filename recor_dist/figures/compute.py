"""Accuracy against compute: exact match on the test split against FLOPs per answer, from groups of runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from recor_dist.core.names import name_of, place_of, split_steps
from recor_dist.figures.groups import Group
from recor_dist.figures.style import caption, look_at, look_of, new_figure, styled


@dataclass(frozen=True)
class CostPoint:
    """Cost per answer and accuracy of one decoder of one group."""

    decoder: str
    settings: tuple[str, ...]  # non-default settings of the method
    flops: float
    passes: float | None
    accuracy: list[float]

    @property
    def name(self) -> str:
        """Without the decoder's number of steps."""
        return ", ".join([name_of(split_steps(self.decoder)[0]), *self.settings])


def costs(groups: Iterable[Group]) -> list[CostPoint]:
    """A point for each decoder of each group whose cost is known."""
    return [
        CostPoint(decoder, g.own, figures["flops"], figures.get("forward_passes"), g.accuracy(decoder))
        for g in groups
        for decoder, figures in g.runs[0].decoders.items()
        if "flops" in figures
    ]


@styled
def draw_costs(title: str, points: Sequence[CostPoint]) -> Figure:
    """FLOPs per answer (logarithmic) against exact match: the mean over runs, with whiskers from lowest to highest."""
    figure, (axes,) = new_figure(f"Accuracy against compute: {title}", (8.4, 4.6))
    drawn = sorted(points, key=lambda point: (place_of(point.decoder), point.settings, point.flops))
    names = list(dict.fromkeys((point.name, split_steps(point.decoder)[0]) for point in drawn))
    # A method keeps its own colour unless several settings of it must be told apart.
    several = len({base for _, base in names}) < len(names)
    looks = {name: look_at(i) if several else look_of(base) for i, (name, base) in enumerate(names)}
    beside = {point.flops: [other for other in drawn if other.flops == point.flops] for point in drawn}
    for point in drawn:
        colour, marker = looks[point.name]
        shift = 1.06 ** (beside[point.flops].index(point) - (len(beside[point.flops]) - 1) / 2)
        low, mean, high = min(point.accuracy), float(np.mean(point.accuracy)), max(point.accuracy)
        axes.errorbar(
            point.flops / 1e6 * shift,
            mean,
            yerr=[[mean - low], [high - mean]] if len(point.accuracy) > 1 else None,
            color=colour,
            marker=marker,
            markersize=8,
            markerfacecolor="white" if split_steps(point.decoder)[1] else colour,
            linestyle="none",
            capsize=3,
            label=point.name if point is next(other for other in drawn if other.name == point.name) else None,
        )
    axes.set(xscale="log", xlabel="MFLOPs per answer", ylabel="exact match, test", ylim=(-0.03, 1.03))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    hollow = " Hollow: T=2." if any(split_steps(point.decoder)[1] for point in drawn) else ""
    caption(figure, f"Mean over seeds; whiskers from lowest to highest.{hollow} Equal costs are drawn side by side.")
    return figure
