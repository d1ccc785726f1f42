"""What a finished run looks like: PNGs in `out/pictures`, drawn from its record and, for calibration, its weights.

    order_map.png     how often each slot was filled at each step, in the test
    order_board.png   for puzzles: the board or the table of houses with the mean step of each cell
    calibration.png   what the model expects of a token against how often it is right
    curves.png        accuracy, losses and reward over training

Each picture is a pure function that computes its numbers, and one that draws them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from pyarrow import fs

from actors.rewards import q_values
from data.prepare import find_data
from data.sudoku import SudokuConfig
from data.sudoku_rules import BOX
from data.tasks import task_of
from data.zebra import ZebraConfig
from recor_dist.core.config import Config, Mistake, RecorConfig, unflatten
from recor_dist.core.files import exists, join, open_folder, read_json, write_atomically
from recor_dist.core.messages import Rows
from recor_dist.core.names import TASKS, name_of, place_of, split_steps
from recor_dist.core.rng import rng
from recor_dist.figures.style import FAINT, INK, PALETTE, caption, look_at, look_of, new_figure, styled, to_bytes
from recor_dist.figures.tables import CostPoint, conditions, costs, group_runs, label
from recor_dist.methods import METHODS, headline_decoder
from recor_dist.model.decoding import generate
from recor_dist.model.evaluation import mean_steps
from recor_dist.model.transformer import Model, filled_slots
from recor_dist.record.checkpoint import load_model
from recor_dist.record.identity import read_about
from recor_dist.record.runs import once, read_metrics, read_run

FOLDER = "pictures"
ROWS = 400  # test rows that calibration looks at, at most
PAIRS = 200_000  # states times slots that it looks at: fewer rows where answers are long
PAIRS_AT_ONCE = 8_192
log = logging.getLogger(__name__)


def draw_pictures(out: str) -> list[str]:
    """Draws what the record of the finished run in `out` allows; returns where the pictures are."""
    folder = open_folder(out)
    about = read_about(folder)
    if about is None:
        raise Mistake(f"{out}: holds no run; give the folder that a run said it was saved in")
    config = unflatten(about["settings"])
    figures: dict[str, Figure | None] = {
        **_order_figures(config, folder),
        "calibration": _calibration_figure(config, out),
        "curves": _curves_figure(config, folder),
    }
    folder.create_dir(FOLDER)
    return [_write(folder, out, name, figure) for name, figure in figures.items() if figure]


def _write(folder: fs.SubTreeFileSystem, out: str, name: str, figure: Figure) -> str:
    write_atomically(folder, f"{FOLDER}/{name}.png", to_bytes(figure, "png"))
    return join(out, FOLDER, f"{name}.png")


def _title(config: Config) -> str:
    return f"{TASKS[config.task.name]}, {name_of(headline_decoder(config))}, scale={config.scale}, seed={config.seed}"


# --- the order -------------------------------------------------------------------------------------------------------


def shares(fills: np.ndarray, rows: int) -> np.ndarray:
    """(M, steps): the share of answers that filled a slot at a step."""
    return fills / rows


def board_of(config: Config) -> tuple[int, int] | None:
    """Rows and columns in which the slots of a puzzle lie; None for answers in a line."""
    if isinstance(config.task, SudokuConfig):
        return config.task.size, config.task.size
    if isinstance(config.task, ZebraConfig):
        return config.task.range_of("attributes")[1] + 1, config.task.range_of("houses")[1]
    return None


def _order_figures(config: Config, folder: fs.SubTreeFileSystem) -> dict[str, Figure]:
    if not exists(folder, "orders.json"):
        log.info("no map of the order: the run kept no orders.json")
        return {}
    orders = read_json(folder, "orders.json")
    # Two steps make no order to speak of.
    decoders = [name for name in METHODS[config.method.name].decoders(config.method) if not split_steps(name)[1]]
    fills = {name: (np.array(orders[name]["fills"]), orders[name]["rows"]) for name in decoders}
    figures = {"order_map": draw_order_map(_title(config), {name: shares(*part) for name, part in fills.items()})}
    if board := board_of(config):
        means = {name: mean_steps(*part).reshape(board) for name, part in fills.items()}
        figures["order_board"] = draw_boards(_title(config), means, zebra=isinstance(config.task, ZebraConfig))
    return figures


@styled
def draw_order_map(title: str, maps: Mapping[str, np.ndarray]) -> Figure:
    """A panel for each decoder: slots from top to bottom, steps from left to right, the darker the more answers."""
    columns = min(3, len(maps))
    rows = -(-len(maps) // columns)
    M = len(next(iter(maps.values())))
    high = min(8.0, max(3.2, 0.3 * M))
    size = (max(6.8, 4.2 * columns), 1.2 + high * rows)
    figure, panels = new_figure(f"In which order: {title}", size, rows, columns)
    most = max(float(share.max()) for share in maps.values())
    for axes, (name, share) in zip(panels, maps.items(), strict=False):
        M, steps = share.shape
        edges = np.arange(steps + 1) + 0.5, np.arange(M + 1) + 0.5
        shown = axes.pcolormesh(*edges, share, cmap="Blues", vmin=0, vmax=most, rasterized=True)
        mean = share @ np.arange(1, steps + 1)
        axes.plot(mean, np.arange(1, M + 1), color=PALETTE[1], marker="o", markersize=4, linestyle="none", label="mean")
        axes.set(xlabel="step", ylabel="slot", title=name_of(name) if len(maps) > 1 else "")
        axes.invert_yaxis()
        axes.grid(False)
        _whole_ticks(axes)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)
    figure.colorbar(shown, ax=panels, label="share of answers", shrink=0.8)
    panels[0].legend(loc="lower right", fontsize=9)
    caption(figure, "Every slot of every test answer is filled once: the shares of a row of the map add up to 1.")
    return figure


def _whole_ticks(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)


@styled
def draw_boards(title: str, boards: Mapping[str, np.ndarray], zebra: bool) -> Figure:
    """A panel for each decoder: the cells in their places, coloured and marked with their mean step."""
    columns = min(3, len(boards))
    rows = -(-len(boards) // columns)
    high, wide = next(iter(boards.values())).shape
    cell = 0.52 if max(high, wide) > 6 else 0.72
    size = (max(6.8, 1.6 + columns * (0.6 + cell * wide)), 1.5 + rows * (0.5 + cell * high))
    figure, panels = new_figure(f"At which step, in the mean: {title}", size, rows, columns)
    latest = max(float(board.max()) for board in boards.values())
    for axes, (name, board) in zip(panels, boards.items(), strict=False):
        shown = axes.imshow(board, cmap="YlGnBu", vmin=1, vmax=latest)
        for row, column in np.ndindex(board.shape):
            step = board[row, column]
            dark = (step - 1) / max(1e-9, latest - 1) > 0.55
            axes.text(column, row, f"{step:.1f}", ha="center", va="center", color="white" if dark else INK, fontsize=9)
        axes.grid(False)
        axes.set(xticks=[], yticks=[], title=name_of(name) if len(boards) > 1 else "")
        _rule(axes, high, wide, (1, 1) if zebra else BOX[wide])
        if zebra:
            axes.set_yticks(range(high), ["house", *"ABCDEF"[: high - 1]])
            axes.set_xticks(range(wide), [str(house + 1) for house in range(wide)])
            axes.tick_params(length=0)
    for axes in panels[len(boards) :]:
        axes.set_visible(False)
    figure.colorbar(shown, ax=panels, label="mean step", shrink=0.8)
    what = "Rows are the house numbers and the attributes." if zebra else "Given cells are written by the model, too."
    caption(figure, f"Over the test answers. {what}")
    return figure


def _rule(axes: Axes, high: int, wide: int, box: tuple[int, int]) -> None:
    """Thin lines between cells, thick ones around boxes."""
    for count, step, draw in ((high, box[0], axes.axhline), (wide, box[1], axes.axvline)):
        for line in range(count + 1):
            thick = line % step == 0 and step > 1
            draw(line - 0.5, color=INK if thick else "white", linewidth=1.8 if thick else 0.8)


# --- calibration -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reliability:
    """Predictions in bins of equal width: how many, what was expected of them in the mean, and how many were right."""

    counts: np.ndarray  # (bins,)
    expected: np.ndarray  # (bins,) NaN where there are none
    right: np.ndarray  # (bins,) NaN where there are none
    error: float  # expected calibration error: the mean gap, weighted by the counts


def reliability(expected: np.ndarray, right: np.ndarray, bins: int = 10) -> Reliability:
    """Of predictions with an expected chance in [0, 1] each, and whether they were right."""
    index = np.minimum((expected * bins).astype(np.int64), bins - 1)
    counts = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        means, share = (np.bincount(index, values, minlength=bins) / counts for values in (expected, right))
    error = float(np.nansum(np.abs(means - share) * counts) / max(1, counts.sum()))
    return Reliability(counts, means, share, error)


@torch.inference_mode()
def q_against_truth(model: Model, rows: Rows, algorithm: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """exp Q of every unfilled slot in every state of the model's own answers, whether the likeliest token there is the
    right one, and whether the policy chose that slot; each (pairs,).

    The states are those of inference: the answer so far may hold wrong tokens. exp Q is cut off at 1, which only the
    MSE loss lets it pass.
    """
    answer = generate(model, rows.prompts)
    order = torch.as_tensor(answer.orders)
    prompts = torch.as_tensor(rows.prompts.astype(np.int64))
    tokens = torch.as_tensor(answer.responses).gather(1, order)
    R, M = order.shape
    streams = model(prompts, tokens, order, torch.arange(M).expand(R, M, M))  # every slot is asked for at every step
    exp_q = q_values(streams.order.float(), algorithm).exp().clamp(max=1.0)  # (R, M, M)
    right = streams.tokens.argmax(-1) == torch.as_tensor(rows.responses.astype(np.int64))[:, None]
    chosen = torch.zeros(R, M, M, dtype=torch.bool).scatter(2, order[..., None], True)
    unfilled = ~filled_slots(order)
    return tuple(x[unfilled].numpy() for x in (exp_q, right, chosen))  # type: ignore[return-value]


def confidence_against_truth(model: Model, rows: Rows, config: Config) -> tuple[np.ndarray, np.ndarray]:
    """The probability that the headline decoder gave each token when it wrote it, and whether it was right."""
    decoder = METHODS[config.method.name].decoders(config.method)[headline_decoder(config)]
    answer = decoder.answer(model, rows.prompts, rng(config.seed, "pictures/calibration"))
    return answer.confidences.ravel(), (answer.responses == rows.responses).ravel()


def has_q(config: Config) -> bool:
    """Whether exp Q is the chance of a reward. The PPO-like policy has no Q."""
    return isinstance(config.method, RecorConfig) and config.method.algorithm != "ppo"


def _calibration_figure(config: Config, out: str) -> Figure | None:
    try:
        model, _ = load_model(out)
        data = find_data(config, task_of(config))
        if data is None:
            raise Mistake(f"data.dir={config.data.dir}: does not hold the rows of the run")
    except Mistake as mistake:
        log.warning("no picture of the calibration: %s", mistake)
        return None
    M = model.shape.M
    rows = data.read_split("test", 0, int(np.clip(PAIRS // M**2, 16, ROWS)))
    panels = {}
    if has_q(config):
        size = max(1, PAIRS_AT_ONCE // M**2)
        parts = [
            q_against_truth(model, rows.select(np.arange(start, min(start + size, len(rows)))), config.method.algorithm)
            for start in range(0, len(rows), size)
        ]
        exp_q, right, chosen = (np.concatenate(part) for part in zip(*parts, strict=True))
        panels["exp Q, all unfilled slots"] = reliability(exp_q, right)
        panels["exp Q, slots that were chosen"] = reliability(exp_q[chosen], right[chosen])
    panels["confidence, written tokens"] = reliability(*confidence_against_truth(model, rows, config))
    return draw_calibration(_title(config), panels, _about_calibration(config, len(rows)))


def _about_calibration(config: Config, rows: int) -> str:
    text = f"{rows} test rows, in the states of the model's own answers. "
    if has_q(config):
        method = config.method
        aim = f"chance that p(y) ≥ {method.eta}" if method.reward == "sparse" else "p(y)"
        text += (
            f"exp Q learns the {aim}{', discounted ahead' if method.gamma else ''}"
            f"{', with a focal factor that draws it to the middle' if method.focal else ''}; it is held\n"
            "against how often the token predictor's first choice at that slot is the right token. "
        )
    return text + "Bars: predictions in a bin."


@styled
def draw_calibration(title: str, panels: Mapping[str, Reliability], about: str) -> Figure:
    """A reliability diagram for each: above, how often right against how often expected; below, how many."""
    size = (max(6.8, 3.7 * len(panels)), 5.2)
    figure, axes = new_figure(f"Calibration: {title}", size, 2, len(panels))
    grid = axes[0].get_gridspec()
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
        below.set(xlim=(-0.02, 1.02), xlabel="expected", ylabel="how many" if column == 0 else "", yscale="symlog")
        below.set_ylim(0, 4 * max(1, found.counts.max()))
        below.minorticks_off()
    axes[0].legend(loc="upper left", fontsize=9)
    caption(figure, about)
    return figure


# --- curves ----------------------------------------------------------------------------------------------------------

Points = list[tuple[int, float]]


def curves(records: Sequence[Mapping[str, float]]) -> dict[str, Points]:
    """The recorded (step, value) pairs of each figure, in the order of the steps."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.items():
            if name != "step":
                found.setdefault(name, {})[int(record["step"])] = value
    return {name: sorted(points.items()) for name, points in found.items()}


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of each value with up to `window` - 1 before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    return (sums[last] - sums[first]) / (last - first)


def _curves_figure(config: Config, folder: fs.SubTreeFileSystem) -> Figure | None:
    found = curves(read_metrics(folder))
    panels: dict[str, dict[str, Points]] = {
        "accuracy in validation": {
            "exact match": found.get("eval/val/exact_match", []),
            "tokens": found.get("eval/val/token_accuracy", []),
        },
        "agreement with the known order (tau)": {
            "validation": found.get("order/val/kendall_tau") or found.get("eval/val/kendall_tau", [])
        },
        "reward": {_reward_name(config): found.get("reward/mean", [])},
        "losses": {name.removeprefix("loss/"): points for name, points in found.items() if name.startswith("loss/")},
    }
    shown = {title: {name: p for name, p in lines.items() if p} for title, lines in panels.items()}
    shown = {title: lines for title, lines in shown.items() if lines}
    if not shown:
        log.info("no curves: %s keeps no metrics", folder.base_path)
        return None
    return draw_curves(_title(config), shown)


def _reward_name(config: Config) -> str:
    sparse = isinstance(config.method, RecorConfig) and config.method.reward == "sparse"
    return f"share of queries with p(y) ≥ {config.method.eta}" if sparse else "mean log p(y)"


@styled
def draw_curves(title: str, panels: Mapping[str, Mapping[str, Points]]) -> Figure:
    """A panel for each kind of figure; what is recorded at every step is shown with its running mean."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(6.8, 5.0 * columns), 0.9 + 2.9 * rows)
    figure, axes = new_figure(f"Training: {title}", size, rows, columns)
    for panel, (name, lines) in zip(axes, panels.items(), strict=False):
        for index, (line, points) in enumerate(lines.items()):
            steps, values = (np.array(column) for column in zip(*points, strict=True))
            colour, often = PALETTE[index], len(points) > 100
            if often:
                panel.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
                panel.plot(steps, running_mean(values, len(points) // 50), color=colour, label=line)
            else:
                panel.plot(steps, values, color=colour, marker="os"[index % 2], label=line)
        panel.set(title=name, xlabel="step")
        panel.margins(x=0.02)
        if name.startswith(("accuracy", "reward")) and min(v for p in lines.values() for _, v in p) >= 0:
            panel.set_ylim(-0.03, 1.03)
        if "tau" in name:
            panel.set_ylim(-1.06, 1.06)
        panel.legend(fontsize=9)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    return figure


# --- a sweep ---------------------------------------------------------------------------------------------------------


def draw_sweep(outs: Sequence[str], folder: str) -> list[str]:
    """FLOPs an answer against accuracy for the finished runs of a sweep; a picture for each scale, task and whatever
    else but the method differs."""
    groups = group_runs(once(map(read_run, outs)))
    place = open_folder(folder, create=True)
    written = []
    for index, condition in enumerate(conditions(groups)):
        chosen = [g for g in groups if g.condition == condition]
        name = "flops_accuracy.png" if index == 0 else f"flops_accuracy_{index + 1}.png"
        figure = draw_costs(f"{label(condition)}, scale={condition[0]}".replace("`", ""), costs(chosen))
        write_atomically(place, name, to_bytes(figure, "png"))
        written.append(join(folder, name))
    return written


@styled
def draw_costs(title: str, points: Sequence[CostPoint]) -> Figure:
    """FLOPs an answer (logarithmic) against exact match: the mean of the runs, and the lowest and highest of them."""
    figure, (axes,) = new_figure(f"Accuracy against compute: {title}", (8.4, 4.6))
    drawn = sorted(points, key=lambda point: (place_of(point.decoder), point.settings, point.flops))
    names = list(dict.fromkeys((point.name, split_steps(point.decoder)[0]) for point in drawn))
    # A method has its own colour, unless several settings of it are to be told apart.
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
    axes.set(xscale="log", xlabel="MFLOPs an answer", ylabel="exact match, test", ylim=(-0.03, 1.03))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    few = " Hollow: T=2." if any(split_steps(point.decoder)[1] for point in drawn) else ""
    caption(figure, f"Mean over seeds, whiskers from lowest to highest.{few} Equal costs are drawn side by side.")
    return figure
