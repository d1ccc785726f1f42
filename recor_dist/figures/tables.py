"""The report's tables, in Markdown: exact match and cost of groups of runs next to the paper's numbers.

Settings that differ from the scale's defaults are named, and so is every method that was never run.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from data.tasks import TASKS
from recor_dist.core.names import NAMES, name_of, place_of, split_parameter, split_steps
from recor_dist.figures.compute import CostPoint, costs
from recor_dist.figures.groups import Condition, Group, conditions, find_accuracy, label, with_defaults
from recor_dist.methods import headline_decoder
from recor_dist.record.runs import Run

# Exact match as printed in the paper's tables; without a deviation where the paper quotes others.
PAPER = {
    "arg": {
        "ar_gt": "0.994 ± 0.003",
        "recor": "0.987 ± 0.007",
        "clm": "0.017 ± 0.002",
        "mdm": "0.035 ± 0.010",
        "adamdm": "0.174 ± 0.036",
        "sufmdm": "0.040 ± 0.005",
        "adasufmdm": "0.536 ± 0.051",
        "adasufmdm_T2": "0.028 ± 0.009",
    },
    "mul": {
        "ar_gt": "0.999 ± 0.001",
        "recor": "0.964 ± 0.007",
        "clm": "0.594 ± 0.018",
        "mdm": "0.943 ± 0.006",
        "adamdm": "0.951 ± 0.038",
        "adamdm_T2": "0.875 ± 0.043",
    },
    "sudoku": {
        "ar_gt": "0.8718",
        "recor": "0.9017 ± 0.0004",
        "clm": "0.0973",
        "mdm": "0.0688",
        "adamdm_margin": "0.8949",
    },
    "zebra": {
        "ar_gt": "0.9117",
        "recor": "0.9905 ± 0.0021",
        "clm": "0.8031",
        "mdm": "0.769",
        "adamdm_prob": "0.985",
    },
}
NOT_RUN = "not run"


def paper_figure(task: str, decoder: str) -> str:
    """The paper's number. It does not say how its adaptive decoder ranks on ARG and MUL: both rankings get the same."""
    base, steps = split_steps(decoder)
    kind = re.sub("_(prob|margin)$", "", base)
    suffix = f"_T{steps}" if steps else ""
    printed = PAPER.get(task, {})
    return printed.get(f"{base}{suffix}") or printed.get(f"{kind}{suffix}") or ""


def cell(values: Sequence[float]) -> str:
    """Mean, sample standard deviation if there are several values, and the number of seeds in brackets."""
    if not values:
        return NOT_RUN
    mean = f"{np.mean(values):.3f}"
    return f"{mean} ± {np.std(values, ddof=1):.3f} ({len(values)})" if len(values) > 1 else f"{mean} (1)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return ["| " + " | ".join(entry.replace("|", "\\|") for entry in line) + " |" for line in lines] + [""]


def main_table(groups: Sequence[Group], scale: str) -> list[str]:
    """Methods by tasks at a scale, next to the paper's numbers."""
    wanted = [(scale, task, ()) for task in PAPER]
    wanted += [c for c in conditions(groups) if c[0] == scale and c not in wanted]
    wanted.sort(key=lambda c: (list(TASKS).index(c[1]), len(c[2])))
    found = {decoder for g in groups if g.scale == scale for run in g.runs for decoder in run.decoders}
    further = {decoder for decoder in found if not split_parameter(decoder)[1]}
    decoders = sorted({*NAMES, *further}, key=place_of)  # methods that users added come last
    head, columns = [""], [[name_of(decoder) for decoder in decoders]]
    for condition in wanted:
        head.append(label(condition))
        columns.append([cell(find_accuracy(groups, condition, decoder)) for decoder in decoders])
        if condition[1] in PAPER and not condition[2]:
            head.append("the paper")
            columns.append([_in_italics(paper_figure(condition[1], decoder)) for decoder in decoders])
    lines = [f"### `scale={scale}`", "", *table(head, zip(*columns, strict=True))]
    missing = _missing(groups, wanted, decoders)
    return [*lines, f"Never run at `scale={scale}`:", "", *missing, ""] if missing else lines


def _missing(groups: Sequence[Group], wanted: Sequence[Condition], decoders: Sequence[str]) -> list[str]:
    """A line for each condition under which some decoder was never run."""
    lines = []
    for condition in wanted:
        names = [name_of(decoder) for decoder in decoders if not find_accuracy(groups, condition, decoder)]
        if names:
            lines.append(f"- {label(condition)}: {'any method' if len(names) == len(decoders) else ', '.join(names)}")
    return lines


def _in_italics(figure: str) -> str:
    return f"*{figure}*" if figure else ""


def compute_table(groups: Sequence[Group], condition: Condition) -> list[str]:
    """Every decoder, cheapest first, with its cost per answer, also as a multiple of ReCOR's."""
    points = costs(with_defaults(groups, condition))
    recor = [point.flops for point in points if point.decoder == "recor"]
    rows = [
        [
            name_of(point.decoder),
            _passes(point),
            f"{point.flops / 1e6:,.2f}",
            f"{point.flops / recor[0]:.2f}" if recor else "–",
            cell(point.accuracy),
            _in_italics(paper_figure(condition[1], point.decoder)),
        ]
        for point in sorted(points, key=lambda point: (point.flops, place_of(point.decoder)))
    ]
    head = ["", "passes (most)", "MFLOPs per answer", "relative to ReCOR", "exact match", "the paper"]
    remark = [] if recor else ["ReCOR's cost per answer is not recorded here.", ""]
    return [*table(head, rows), *remark] if rows else []


def _passes(point: CostPoint) -> str:
    """Of an answer; where they depend on it, the mean and in brackets the most."""
    if not point.passes:
        return ""
    return f"{point.passes:.1f} ({point.most_passes:.0f})" if point.most_passes else f"{point.passes:.0f}"


def other_table(groups: Sequence[Group]) -> list[str]:
    """Groups whose method does not have its default settings."""
    rows = [
        [f"`{g.scale}`", label(g.condition), ", ".join(f"`{word}`" for word in g.own), name_of(decoder), cell(values)]
        for g in sorted(groups, key=lambda g: (g.condition, g.method, g.own))
        for decoder in sorted({d for run in g.runs for d in run.decoders})
        if g.own and not split_parameter(decoder)[1] and (values := g.accuracy(decoder))
    ]
    return table(["scale", "task", "settings that differ", "method", "exact match"], rows, left=4) if rows else []


def run_table(runs: Sequence[Run]) -> list[str]:
    """Every run with its status and result."""
    rows = []
    for run in sorted(runs, key=lambda run: run.place):
        config = run.config
        figures = run.decoders.get(headline_decoder(config), {})
        shown = [f"{figures[metric]:.3f}" if metric in figures else "" for metric in ("exact_match", "kendall_tau")]
        status = run.status if run.reproducible else f"{run.status}, `reproducible=false`"
        method = "SufMDM" if getattr(config.method, "suffix", False) else name_of(config.method.name)
        text = [f"`{run.place}`", f"`{config.scale}`", TASKS[config.task.name].name, method, str(config.seed), status]
        rows.append([*text, f"{run.steps:,}", *shown, f"`{run.weights[:8]}`" if run.weights else ""])
    head = ["run", "scale", "task", "method", "seed", "status", "steps", "exact match", "tau", "weights sha256"]
    return table(head, rows, left=6)
