"""Accuracy by difficulty: the share of right answers to test rows that the notes in the shards call equally hard."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recor_dist.core.names import name_of
from recor_dist.figures.answered import Answered
from recor_dist.figures.style import PALETTE, caption, new_figure, styled
from recor_dist.figures.tables import table

ROWS = 1000  # test rows that are answered for it, at most
# Notes that say how hard a row is, and what they are called.
MEASURES = {
    "givens": "givens",
    "hardest": "hardest technique",
    "rounds": "rounds of deduction",
    "clues": "clues",
    "houses": "houses",
    "attributes": "attributes",
}


@dataclass(frozen=True)
class Share:
    """Right answers among the rows of one difficulty."""

    right: int
    rows: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval for the probability of a right answer."""
        z, n, share = 1.96, self.rows, self.right / self.rows
        middle, scale = share + z * z / (2 * n), 1 + z * z / n
        half = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
        return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def difficulties(notes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What varies among some rows: name of a measure -> its value for each row (R,). Of a note on every step, it is the
    largest."""
    found = {
        name: notes[note].reshape(len(notes[note]), -1).max(axis=1) for note, name in MEASURES.items() if note in notes
    }
    return {name: values.astype(np.int64) for name, values in found.items() if len(np.unique(values)) > 1}


def shares(values: np.ndarray, right: np.ndarray) -> dict[int, Share]:
    """Value of a measure -> right answers; values and right (R,)."""
    return {int(value): Share(int(right[values == value].sum()), int((values == value).sum())) for value in set(values)}


def difficulty_tables(answered: Mapping[str, Answered]) -> list[str]:
    """A table per measure, with a line per method; empty if nothing is known about the rows."""
    first = next(iter(answered.values()), None)
    if first is None:
        return []
    lines = []
    for name, values in difficulties(first.notes).items():
        counts = {value: int((values == value).sum()) for value in np.unique(values)}
        rows = []
        for decoder, one in answered.items():
            by_value = shares(difficulties(one.notes)[name], one.right)
            rows.append(
                [
                    name_of(decoder),
                    *(f"{by_value[v].right / by_value[v].rows:.3f}" if v in by_value else "" for v in counts),
                ]
            )
        head = [f"{value} ({count} rows)" for value, count in counts.items()]
        lines += [f"By {name}:", "", *table(["", *head], rows)]
    return lines


@styled
def draw_difficulty(title: str, answered: Answered) -> Figure:
    """A panel per measure: the share of right answers with its interval, and below it the number of rows."""
    found = difficulties(answered.notes)
    figure, axes = new_figure(f"Accuracy by difficulty: {title}", (max(6.8, 3.4 * len(found)), 4.6), 2, len(found))
    grid = axes[0].get_gridspec()
    assert grid is not None
    grid.set_height_ratios([3, 1])
    for column, (name, values) in enumerate(found.items()):
        above, below = axes[column], axes[len(found) + column]
        by_value = dict(sorted(shares(values, answered.right).items()))
        x, share = np.array(list(by_value)), np.array([part.right / part.rows for part in by_value.values()])
        low, high = np.array([part.interval for part in by_value.values()]).T
        errors = np.maximum([share - low, high - share], 0.0)
        above.errorbar(x, share, yerr=errors, color=PALETTE[0], marker="o", capsize=3)
        above.set(title=name, ylim=(-0.03, 1.03), ylabel="share right" if column == 0 else "")
        below.bar(x, [part.rows for part in by_value.values()], color=PALETTE[0], alpha=0.75)
        below.set(xlabel=name, ylabel="rows" if column == 0 else "")
        for panel in (above, below):
            panel.set_xlim(x.min() - 0.6, x.max() + 0.6)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    caption(figure, f"{len(answered.rows)} test rows. Whiskers: 95 % intervals.")
    return figure
