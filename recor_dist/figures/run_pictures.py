"""The PNGs of a finished run, in `out/pictures`, drawn from its folder; and the picture of a sweep.

order_map.png       how often each slot was filled at each step, on the test split
order_board.png     for puzzles: the board or the table of houses with the mean step of each cell
calibration.png     predicted probability against the share of right tokens; needs the run's weights and rows
steps.png           errors, confidence, and the policy's entropy and regret at each step of an answer
difficulty.png      for puzzles: accuracy by givens, by the hardest technique, by rounds of deduction
curves.png          accuracy, losses and reward over training
flops_accuracy.png  of a sweep: accuracy against FLOPs per answer
"""

import logging
from collections.abc import Sequence

from matplotlib.figure import Figure

from data.tasks import TASKS
from recor_dist.core.config import Config, unflatten
from recor_dist.core.names import name_of
from recor_dist.core.setting import Mistake
from recor_dist.figures.answer_steps import draw_steps
from recor_dist.figures.answered import affordable, answer_test, notes_of_test
from recor_dist.figures.calibration import draw_run_calibration
from recor_dist.figures.compute import costs, draw_costs
from recor_dist.figures.curves import draw_run, run_panels
from recor_dist.figures.difficulty import ROWS, difficulties, draw_difficulty
from recor_dist.figures.groups import conditions, group_runs, title_of
from recor_dist.figures.order_map import draw_orders
from recor_dist.figures.style import to_bytes
from recor_dist.methods import headline_decoder
from recor_dist.record.journal import read_metrics
from recor_dist.record.run_folder import PICTURES, RunFolder
from recor_dist.record.runs import deduplicate, read_run

log = logging.getLogger(__name__)


def draw_pictures(out: str) -> list[str]:
    """Draws the pictures that the folder of the finished run in `out` allows; returns their paths."""
    folder = RunFolder.open(out)
    config = unflatten(folder.require_run()["settings"])
    title = title_of_run(config)
    figures: dict[str, Figure | None] = {
        **_orders(title, config, folder),
        **_answers(title, out),
        "curves": _curves(title, config, folder),
    }
    drawn = {name: to_bytes(figure, "png") for name, figure in figures.items() if figure}
    places = [folder.write_picture(name, content) for name, content in drawn.items()]
    folder.note_artifact(PICTURES, [f"{PICTURES}/{name}.png" for name in drawn])
    return places


def title_of_run(config: Config) -> str:
    names = f"{TASKS[config.task.name].name}, {name_of(headline_decoder(config))}"
    return f"{names}, scale={config.scale}, seed={config.seed}"


def _orders(title: str, config: Config, folder: RunFolder) -> dict[str, Figure]:
    orders = folder.read_orders()
    if orders is None:
        log.info("no order map: the run has no orders.json")
        return {}
    return draw_orders(title, config, orders)


def _answers(title: str, out: str) -> dict[str, Figure]:
    try:
        measured = difficulties(notes_of_test(out, ROWS))
        answered = answer_test(out, ROWS if measured else None)
    except Mistake as mistake:
        log.warning("no pictures of calibration and steps: %s", mistake)
        return {}
    some = answered.first(affordable(answered.model.shape.M))
    figures = {"calibration": draw_run_calibration(title, some), "steps": draw_steps(title, some)}
    if measured:
        figures["difficulty"] = draw_difficulty(title, answered)
    return figures


def _curves(title: str, config: Config, folder: RunFolder) -> Figure | None:
    panels = run_panels(config, read_metrics(folder))
    if not panels:
        log.info("no curves: %s has no metrics", folder.path)
        return None
    return draw_run(title, panels)


def draw_sweep(outs: Sequence[str], sweep: str) -> list[str]:
    """Accuracy against FLOPs per answer of the finished runs of a sweep, in the pictures of the sweep's folder: one
    picture per condition, which is scale, task and settings other than the method's. Returns the pictures' paths."""
    folder = RunFolder.open(sweep, create=True)
    groups = group_runs(deduplicate(map(read_run, outs)))
    written = []
    for index, condition in enumerate(conditions(groups)):
        chosen = [g for g in groups if g.condition == condition]
        name = "flops_accuracy" if index == 0 else f"flops_accuracy_{index + 1}"
        figure = draw_costs(title_of(condition), costs(chosen))
        written.append(folder.write_picture(name, to_bytes(figure, "png")))
    return written
