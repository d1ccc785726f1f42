"""`python -m recor_dist.report [runs=FOLDER ...] [mlflow=URI ...] [out=report]`: the paper's tables from recorded runs.

Writes report.md with figures/, and report.html, which contains them. Only finished runs count. Runs that differ in
nothing but their seed form one group; the report names what was never run.
"""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from recor_dist.core.command import plain_command
from recor_dist.core.names import name_of
from recor_dist.core.progress import set_up_logging
from recor_dist.core.setting import Mistake, setting
from recor_dist.figures.ablations import ABLATIONS, draw_series, find_series
from recor_dist.figures.agreement import agreement_tables, answer_runs, training_table
from recor_dist.figures.answer_steps import draw_steps
from recor_dist.figures.compute import costs, draw_costs
from recor_dist.figures.curves import draw_training, training_lines
from recor_dist.figures.difficulty import difficulty_tables
from recor_dist.figures.groups import SCALES, Group, conditions, group_runs, label, title_of, with_defaults
from recor_dist.figures.order_map import draw_orders_of_runs
from recor_dist.figures.report_page import report_page
from recor_dist.figures.style import to_bytes
from recor_dist.figures.tables import cell, compute_table, main_table, other_table, run_table, table
from recor_dist.record.published import ENDING, read_published
from recor_dist.record.runs import Run, deduplicate, read_folder, read_mlflow

log = logging.getLogger(__name__)


@dataclass
class Report:
    """Markdown that refers to its figures, and the figures by name."""

    folder: str = "figures"  # of the figures, relative to the report
    lines: list[str] = field(default_factory=list)
    figures: dict[str, bytes] = field(default_factory=dict)

    def figure(self, name: str, about: str, figure: Figure) -> None:
        name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        while name in self.figures:
            name += "-again"
        self.figures[name] = to_bytes(figure, "svg")
        self.lines += [f"![{about}]({self.folder}/{name}.svg)", ""]


ABOUT_MATCH = """\
Share of test answers in which every token is right: mean ± standard deviation over seeds, with the number of seeds in
brackets. Each entry covers runs that differ only in their seed. Settings are the scale's defaults unless the column
names them. The paper's numbers were measured at `scale=paper`; next to smaller scales they are for orientation only.
The paper does not say by which score its adaptive decoder ranks on ARG and MUL: its number is listed for both.
"""

ABOUT_COMPUTE = """\
FLOPs per answer: 2 per multiply-add, matrix products and attention only. Masked diffusion at T=2 costs about as much as
ReCOR without order queries.
"""


ABOUT_AGREEMENT = """\
How much orders agree, answer by answer. Kendall's tau is 1 for the same order and -1 for the reverse; Spearman's
footrule is 0 for the same order and 1 for the reverse. Unrelated orders have a tau of 0 and a footrule of about 2/3 on
average. Only runs whose weights and rows are at hand are compared.
"""


ABOUT_STEPS = """\
Where the first wrong token of an answer falls, and how certain the model is at each step next to how often it is
right. For ReCOR also the entropy of its policy and the regret of its choice: the reward of the best slot minus that of
the chosen one.
"""


def write(runs: Sequence[Run], places: Sequence[str], notes: str = "", folder: str = "figures") -> Report:
    """The whole report of some runs without duplicates. `notes`: Markdown for its beginning."""
    groups = group_runs(runs)
    report = Report(folder)
    finished = sum(run.finished for run in runs)
    unfinished = f" Not counted because unfinished: {len(runs) - finished}." if finished < len(runs) else ""
    found = f"From {', '.join(f'`{place}`' for place in places)}. Finished runs: {finished}.{unfinished}"
    report.lines += ["# Report", "", f"{found} All are listed at the end.", "", *notes.splitlines()]
    report.lines += ["## Exact match", "", ABOUT_MATCH]
    scales = [scale for scale in SCALES if any(g.scale == scale for g in groups)]
    for scale in scales:
        report.lines += main_table(groups, scale)
    absent = [f"`scale={scale}`" for scale in SCALES if scale not in scales]
    report.lines += [f"Nothing was run at {' and '.join(absent)}.", ""] if absent else []
    _write_compute(report, groups)
    _write_training(report, groups)
    _write_orders(report, groups)
    _write_ablations(report, groups)
    report.lines += ["## Other settings of a method", ""]
    report.lines += other_table(groups) or ["None were run.", ""]
    report.lines += ["## All runs", "", *run_table(runs)]
    return report


def _write_compute(report: Report, groups: Sequence[Group]) -> None:
    report.lines += ["## Accuracy at equal compute", "", ABOUT_COMPUTE]
    for condition in conditions(groups):
        title = f"{label(condition)}, `scale={condition[0]}`"
        if lines := compute_table(groups, condition):
            report.lines += [f"### {title}", "", *lines]
            points, plain = costs(with_defaults(groups, condition)), title_of(condition)
            if len(points) > 1:
                report.figure(f"compute {plain}", f"Accuracy against FLOPs, {plain}", draw_costs(plain, points))


def _write_training(report: Report, groups: Sequence[Group]) -> None:
    report.lines += ["## Training curves", ""]
    for condition in conditions(groups):
        title = title_of(condition)
        if lines := training_lines(groups, condition):
            report.figure(
                f"training {title}", f"Validation accuracy over training, {title}", draw_training(title, lines)
            )


def _write_orders(report: Report, groups: Sequence[Group]) -> None:
    report.lines += ["## Generation order", "", "Of one run per method, the one with the lowest seed.", ""]
    for condition in conditions(groups):
        title = title_of(condition)
        runs = [g.runs[0] for g in with_defaults(groups, condition)]
        for name, figure in draw_orders_of_runs(title, runs).items():
            report.figure(f"{name} {title}", f"{name.replace('_', ' ').capitalize()}, {title}", figure)
        over_training = answer_runs(runs)
        answered = {name: by_step[max(by_step)] for name, by_step in over_training.items()}
        if lines := [*agreement_tables(answered), *training_table(over_training)]:
            report.lines += [f"### Agreement of orders: {title}", "", ABOUT_AGREEMENT, *lines]
        if lines := difficulty_tables(answered):
            report.lines += [f"### Exact match by difficulty: {title}", "", *lines]
        if answered:
            report.lines += [f"### Step by step: {title}", "", ABOUT_STEPS]
        for name, one in answered.items():
            about = f"{title}, {name_of(name)}"
            report.figure(f"steps {about}", f"Step by step, {about}", draw_steps(about, one))


def _write_ablations(report: Report, groups: Sequence[Group]) -> None:
    report.lines += ["## Ablations", "", "The paper's ablations are on Sudoku at `scale=paper`.", ""]
    for name, ablation in ABLATIONS.items():
        report.lines += [f"### {ablation.title}", ""]
        found = find_series(groups, ablation)
        if not found:
            report.lines += [f"Never run: `python -m recor_dist.run +sweep={name} task=... scale=...`", ""]
        for series in found:
            where = f"{label(series.condition)}, `scale={series.condition[0]}`"
            where += "".join(f", `{word}`" for word in series.fixed)
            rows = [[value, cell(g.accuracy("recor"))] for value, g in series.groups.items()]
            report.lines += [f"{where}:", "", *table(["", "exact match"], rows)]
            title = f"{ablation.title}: {where.replace('`', '')}"
            report.figure(title, title, draw_series(title, series))


# --- the command -----------------------------------------------------------------------------------------------------

ABOUT = [
    "Writes the paper's tables and figures from recorded runs, as report.md with figures/ and as a single report.html.",
    "",
    "  python -m recor_dist.report runs=runs mlflow=http://127.0.0.1:5000 out=report",
    "",
    "By default it reads MLFLOW_TRACKING_URI, or else mlflow.db in the working directory, and the folder runs.",
]


@dataclass
class ReportConfig:
    """Where the runs are recorded, and where the report is written."""

    runs: tuple[str, ...] = setting((), "folder of a run, a folder that contains several, or a .jsonl file of results")
    mlflow: tuple[str, ...] = setting((), "MLflow tracking URI, such as http://127.0.0.1:5000 or sqlite:///mlflow.db")
    out: str = setting("report", "folder for report.md, report.html and figures/")


def find_places(config: ReportConfig) -> tuple[list[str], list[str]]:
    """The folders and MLflow URIs to read; those that exist by default if none is given."""
    folders, uris = list(config.runs), list(config.mlflow)
    if not folders and not uris:
        uris = [uri] if (uri := os.environ.get("MLFLOW_TRACKING_URI")) else []
        if not uris and os.path.exists("mlflow.db"):
            uris = ["sqlite:///mlflow.db"]
        folders = ["runs"] if os.path.isdir("runs") else []
    if not folders and not uris:
        raise Mistake("runs: no folder runs and no MLflow here; write runs=FOLDER or mlflow=URI")
    return folders, uris


def save(report: Report, figures: Path, page: Path) -> None:
    """Writes the page and, to their folder, its figures."""
    figures.mkdir(parents=True, exist_ok=True)
    for name, content in report.figures.items():
        (figures / f"{name}.svg").write_bytes(content)
    page.write_text("\n".join(report.lines))


def main(config: ReportConfig) -> None:
    set_up_logging()
    folders, uris = find_places(config)
    runs: list[Run] = []
    for place in folders:
        log.info("reading %s", place)
        runs += read_published(Path(place)) if place.endswith(ENDING) else read_folder(place)
    for uri in uris:
        log.info("reading %s", uri)
        runs += read_mlflow(uri)
    runs = deduplicate(runs)
    log.info("drawing %d runs", len(runs))
    report = write(runs, [*folders, *uris])
    folder = Path(config.out)
    save(report, folder / report.folder, folder / "report.md")
    (folder / "report.html").write_text(report_page("\n".join(report.lines), report.figures))
    print(f"{len(runs)} runs; {folder / 'report.html'} and {folder / 'report.md'}")


if __name__ == "__main__":
    plain_command(ReportConfig, main, ABOUT)
