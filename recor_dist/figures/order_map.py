"""In which order answers are written: maps of slots by steps, and boards with the mean step of each cell.

Drawn from the content of a run's orders.json: for each decoder, how many test answers filled each slot at each step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from data.tasks import TASKS
from recor_dist.core.config import Config, TaskConfig
from recor_dist.core.names import name_of, place_of, split_steps
from recor_dist.figures.style import INK, PALETTE, caption, hide_unused, new_figure, styled
from recor_dist.methods import METHODS, headline_decoder
from recor_dist.model.evaluation import mean_steps
from recor_dist.record.runs import Run


def shares(fills: np.ndarray, rows: int) -> np.ndarray:
    """(M, steps): the share of answers that filled a slot at a step."""
    return fills / rows


@dataclass(frozen=True)
class Board:
    """Where the slots of an answer are, for tasks whose coordinates are rows and columns."""

    row: np.ndarray  # (M,)
    column: np.ndarray  # (M,)
    box: np.ndarray | None  # (M,), where cells form boxes
    row_names: list[str]

    @staticmethod
    def of(task: TaskConfig) -> "Board | None":
        row, where = TASKS[task.name], TASKS[task.name].slot_coordinates(task)
        if not {"row", "column"} <= where.keys():
            return None
        return Board(where["row"], where["column"], where.get("box"), row.row_names(task))

    def place(self, values: np.ndarray) -> np.ndarray:
        """Values by slot (M,) in their cells (rows, columns)."""
        cells = np.zeros((self.row.max() + 1, self.column.max() + 1), dtype=values.dtype)
        cells[self.row, self.column] = values
        return cells


def draw_orders(title: str, config: Config, orders: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures `order_map` and, for puzzles, `order_board`, by name."""
    # Decoders of two steps have no order worth showing.
    decoders = [name for name in METHODS[config.method.name].decoders(config.method) if not split_steps(name)[1]]
    fills = {name: (np.array(orders[name]["fills"]), orders[name]["rows"]) for name in decoders}
    return _draw(title, config.task, fills)


def draw_orders_of_runs(title: str, runs: Sequence[Run]) -> dict[str, Figure]:
    """The same figures with a panel for each run's headline decoder, for runs on one task whose orders are known."""
    fills: dict[str, tuple[np.ndarray, int]] = {}
    for run in runs:
        decoder = headline_decoder(run.config)
        if run.orders and decoder in run.orders:
            fills[decoder] = np.array(run.orders[decoder]["fills"]), run.orders[decoder]["rows"]
    return _draw(title, runs[0].config.task, dict(sorted(fills.items(), key=lambda item: place_of(item[0]))))


def _draw(title: str, task: TaskConfig, fills: Mapping[str, tuple[np.ndarray, int]]) -> dict[str, Figure]:
    if not fills:
        return {}
    figures = {"order_map": draw_order_map(title, {name: shares(*part) for name, part in fills.items()})}
    if board := Board.of(task):
        means = {name: mean_steps(*part) for name, part in fills.items()}
        figures["order_board"] = draw_boards(title, means, board)
    return figures


@styled
def draw_order_map(title: str, maps: Mapping[str, np.ndarray]) -> Figure:
    """A panel for each decoder: slots from top to bottom, steps from left to right; darker means more answers."""
    columns = min(3, len(maps))
    rows = -(-len(maps) // columns)
    M = len(next(iter(maps.values())))
    high = min(8.0, max(3.2, 0.3 * M))
    size = (max(6.8, 4.2 * columns), 1.2 + high * rows)
    figure, panels = new_figure(f"Generation order: {title}", size, rows, columns)
    shown = []
    most = max(float(share.max()) for share in maps.values())
    for axes, (name, share) in zip(panels, maps.items(), strict=False):
        M, steps = share.shape
        edges = np.arange(steps + 1) + 0.5, np.arange(M + 1) + 0.5
        shown.append(axes.pcolormesh(*edges, share, cmap="Blues", vmin=0, vmax=most, rasterized=True))
        mean = share @ np.arange(1, steps + 1)
        axes.plot(mean, np.arange(1, M + 1), color=PALETTE[1], marker="o", markersize=4, linestyle="none")
        axes.set(xlabel="step", ylabel="slot", title=name_of(name) if len(maps) > 1 else "")
        axes.invert_yaxis()
        axes.grid(False)
        for axis in (axes.xaxis, axes.yaxis):
            locator = axis.get_major_locator()
            assert isinstance(locator, MaxNLocator)
            locator.set_params(integer=True)
    hide_unused(panels, len(maps))
    figure.colorbar(shown[-1], ax=panels, label="share of answers", shrink=0.8)
    caption(figure, "Each test answer fills every slot once, so each row of the map adds up to 1. Dots: mean steps.")
    return figure


@styled
def draw_boards(title: str, means: Mapping[str, np.ndarray], board: Board) -> Figure:
    """A panel for each decoder: the cells in their places, coloured and labelled with their mean step, by slot (M,)."""
    columns = min(3, len(means))
    rows = -(-len(means) // columns)
    high, wide = board.place(board.row).shape
    cell = 0.52 if max(high, wide) > 6 else 0.72
    size = (max(6.8, 1.6 + columns * (0.6 + cell * wide)), 1.5 + rows * (0.5 + cell * high))
    figure, panels = new_figure(f"Mean step of each cell: {title}", size, rows, columns)
    shown = []
    latest = max(float(mean.max()) for mean in means.values())
    for axes, (name, mean) in zip(panels, means.items(), strict=False):
        cells = board.place(mean)
        shown.append(axes.imshow(cells, cmap="YlGnBu", vmin=1, vmax=latest))
        for row, column in np.ndindex(cells.shape):
            step = cells[row, column]
            dark = (step - 1) / max(1e-9, latest - 1) > 0.55
            axes.text(column, row, f"{step:.1f}", ha="center", va="center", color="white" if dark else INK, fontsize=9)
        axes.grid(False)
        axes.set(xticks=[], yticks=[], title=name_of(name) if len(means) > 1 else "")
        _draw_rules(axes, board)
        if board.row_names:
            axes.set_yticks(range(high), board.row_names)
            axes.set_xticks(range(wide), [str(column + 1) for column in range(wide)])
            axes.tick_params(length=0)
    hide_unused(panels, len(means))
    figure.colorbar(shown[-1], ax=panels, label="mean step", shrink=0.8)
    caption(figure, "Mean over the test answers. The model writes every cell, given or not.")
    return figure


def _draw_rules(axes: Axes, board: Board) -> None:
    """Thin lines between cells, thick ones around boxes."""
    boxes = None if board.box is None else board.place(board.box)
    high, wide = board.place(board.row).shape
    for count, draw, axis in ((high, axes.axhline, 0), (wide, axes.axvline, 1)):
        for line in range(count + 1):
            thick = boxes is not None and (line in (0, count) or _differ(boxes, line, axis))
            look = {"color": INK, "linewidth": 1.8, "zorder": 3} if thick else {"color": "white", "linewidth": 0.8}
            draw(line - 0.5, **look)


def _differ(boxes: np.ndarray, line: int, axis: int) -> bool:
    """True if a line between two rows (axis 0) or columns (axis 1) is the border of boxes."""
    before, after = np.take(boxes, line - 1, axis), np.take(boxes, line, axis)
    return bool((before != after).all())
