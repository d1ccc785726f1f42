"""`python -m recor_dist.report [runs=FOLDER ...] [mlflow=URI] [out=report]`: the paper's tables from recorded runs.

Writes report.md with figures/, and report.html, which holds them all. Only finished runs count. Runs are put together
when nothing but their seed differs; what was never run is said.
"""

import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from recor_dist.core.config import Mistake, nearest
from recor_dist.core.progress import set_up_logging
from recor_dist.figures.curves import ABLATIONS, draw_series, draw_training, find_series, training_lines
from recor_dist.figures.page import to_page
from recor_dist.figures.pictures import draw_costs
from recor_dist.figures.style import to_bytes
from recor_dist.figures.tables import (
    SCALES,
    Group,
    cell,
    compute_table,
    conditions,
    costs,
    group_runs,
    label,
    main_table,
    other_table,
    run_table,
    table,
    usual,
)
from recor_dist.record.runs import Run, once, read_folder, read_mlflow

log = logging.getLogger(__name__)


@dataclass
class Report:
    """Markdown that names its figures, and the figures by name."""

    lines: list[str] = field(default_factory=list)
    figures: dict[str, bytes] = field(default_factory=dict)

    def figure(self, name: str, about: str, figure: Figure) -> None:
        name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        while name in self.figures:
            name += "-again"
        self.figures[name] = to_bytes(figure, "svg")
        self.lines += [f"![{about}](figures/{name}.svg)", ""]


ABOUT_MATCH = """\
Share of test answers that are right as a whole: mean ± standard deviation over seeds, in brackets the number of seeds.
Each figure is of runs that differ in nothing but their seed. Settings are the scale's own unless a column names them.
The paper's figures are of its own scale, `scale=paper`; beside smaller ones they stand for orientation. The paper does
not say by which score its adaptive decoder ranks on ARG and MUL: its figure stands under both.
"""

ABOUT_COMPUTE = """\
FLOPs an answer: 2 a multiply-add, matrix products and attention only. Masked diffusion at T=2 costs about what ReCOR
costs without order queries.
"""


def write(runs: Sequence[Run], places: Sequence[str]) -> Report:
    """The whole report of some runs, each of which is there once."""
    groups = group_runs(runs)
    report = Report()
    finished = sum(run.finished for run in runs)
    unfinished = f" Unfinished, and counted nowhere: {len(runs) - finished}." if finished < len(runs) else ""
    found = f"From {', '.join(f'`{place}`' for place in places)}: {finished} finished runs.{unfinished}"
    report.lines += ["# Report", "", f"{found} All are listed at the end.", "", "## Exact match", "", ABOUT_MATCH]
    scales = [scale for scale in SCALES if any(g.scale == scale for g in groups)]
    for scale in scales:
        report.lines += main_table(groups, scale)
    absent = [f"`scale={scale}`" for scale in SCALES if scale not in scales]
    report.lines += [f"Nothing was run at {' and '.join(absent)}.", ""] if absent else []
    _write_compute(report, groups)
    _write_training(report, groups)
    _write_ablations(report, groups)
    report.lines += ["## Other settings of a method", ""]
    report.lines += other_table(groups) or ["None was run.", ""]
    report.lines += ["## All runs", "", *run_table(runs)]
    return report


def _write_compute(report: Report, groups: Sequence[Group]) -> None:
    report.lines += ["## Accuracy at equal compute", "", ABOUT_COMPUTE]
    for condition in conditions(groups):
        title = f"{label(condition)}, `scale={condition[0]}`"
        if lines := compute_table(groups, condition):
            report.lines += [f"### {title}", "", *lines]
            points = costs(usual(groups, condition))
            plain = title.replace("`", "")
            if len(points) > 1:
                report.figure(f"compute {plain}", f"Accuracy against FLOPs, {plain}", draw_costs(plain, points))


def _write_training(report: Report, groups: Sequence[Group]) -> None:
    report.lines += ["## Training curves", ""]
    for condition in conditions(groups):
        title = f"{label(condition)}, scale={condition[0]}".replace("`", "")
        if lines := training_lines(groups, condition):
            report.figure(
                f"training {title}", f"Validation accuracy over training, {title}", draw_training(title, lines)
            )


def _write_ablations(report: Report, groups: Sequence[Group]) -> None:
    report.lines += ["## Ablations", "", "The paper's are on Sudoku at `scale=paper`.", ""]
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

USAGE = """python -m recor_dist.report [runs=FOLDER ...] [mlflow=URI] [out=report]

  runs=FOLDER   a run's folder, or one that holds such folders; may be given several times
  mlflow=URI    an MLflow tracking URI, such as http://127.0.0.1:5000 or sqlite:///mlflow.db
  out=FOLDER    where report.md, report.html and figures/ are written [report]

Without runs= and mlflow=: what MLFLOW_TRACKING_URI names, or mlflow.db here, and the folder runs here."""


def read_words(words: Sequence[str]) -> tuple[list[str], list[str], str]:
    """Folders, MLflow URIs and `out` from the words of the command; without any, what is there."""
    folders: list[str] = []
    uris: list[str] = []
    out = "report"
    for word in words:
        key, _, value = word.partition("=")
        if key not in ("runs", "mlflow", "out") or not value:
            known = ("runs", "mlflow", "out")
            raise Mistake(f"{word}: not a setting; write runs=FOLDER, mlflow=URI or out=FOLDER{nearest(key, known)}")
        if key == "out":
            out = value
        else:
            (folders if key == "runs" else uris).append(value)
    if not folders and not uris:
        uris = [uri] if (uri := os.environ.get("MLFLOW_TRACKING_URI")) else []
        if not uris and os.path.exists("mlflow.db"):
            uris = ["sqlite:///mlflow.db"]
        folders = ["runs"] if os.path.isdir("runs") else []
    if not folders and not uris:
        raise Mistake("runs: there is no folder runs here, and no MLflow; write runs=FOLDER or mlflow=URI")
    return folders, uris, out


def main(words: Sequence[str]) -> None:
    folders, uris, out = read_words(words)
    runs: list[Run] = []
    for read, places in ((read_folder, folders), (read_mlflow, uris)):
        for place in places:
            log.info("reading %s", place)
            runs += read(place)
    runs = once(runs)
    log.info("drawing %d runs", len(runs))
    report = write(runs, [*folders, *uris])
    folder = Path(out)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name, content in report.figures.items():
        (folder / "figures" / f"{name}.svg").write_bytes(content)
    (folder / "report.md").write_text("\n".join(report.lines))
    (folder / "report.html").write_text(to_page("\n".join(report.lines), report.figures))
    print(f"{len(runs)} runs; {folder / 'report.html'} and {folder / 'report.md'}")


if __name__ == "__main__":
    set_up_logging()
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(USAGE)
        sys.exit(0)
    try:
        main(sys.argv[1:])
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(2)
