"""The style of all figures: colours, markers, fonts, captions, and how a figure becomes bytes.

Figures share no state: no pyplot, no global settings. The colours are Okabe and Ito's, which readers with any colour
vision can tell apart; lines also differ by marker.
"""

import io
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recor_dist.core.names import place_of

PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#555555", "#8A6D00", "#6A3D9A", "#B2182B"),  # the last four are ours and differ in lightness
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "<")
INK, FAINT = "#222222", "#8a8a8a"

STYLE: dict[Any, Any] = {  # Any: Matplotlib's type for the keys depends on its version
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "recor_dist",  # the same figure gives the same bytes
}


def look_of(decoder: str) -> tuple[str, str]:
    """Colour and marker of a decoder, the same in every figure."""
    return look_at(place_of(decoder)[1])


def look_at(index: int) -> tuple[str, str]:
    """Colour and marker number `index`; the first hundred all differ."""
    turn, place = divmod(index, len(PALETTE))
    return PALETTE[place], MARKERS[(place + turn) % len(MARKERS)]


styled = matplotlib.rc_context(STYLE)  # a decorator: the style applies during the call only


def new_figure(title: str, size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of `size` inches and its axes, row by row."""
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def hide_unused(panels: list[Axes], used: int) -> None:
    """Hides the axes that the grid has beyond the first `used`."""
    for axes in panels[used:]:
        axes.set_visible(False)


@styled
def to_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as `png` or `svg`."""
    with io.BytesIO() as buffer:
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        return buffer.getvalue()


def caption(figure: Figure, text: str) -> None:
    """A sentence or two below the figure."""
    figure.supxlabel(text, fontsize=8.5, color="#555555", x=0.01, ha="left")
