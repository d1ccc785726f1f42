"""The paper's tables, made of recorded runs: which runs belong together, and what is said of them.

Runs are put together when nothing but their seed differs. Settings that differ from the default of the scale are named,
and what was never run is said.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from recor_dist.core.command import compose
from recor_dist.core.config import digest, flatten
from recor_dist.core.names import NAMES, TASKS, name_of, place_of, split_steps
from recor_dist.methods import headline_decoder
from recor_dist.record.runs import Run

# Exact match as the paper prints it, from its tables; without a deviation where it quotes others.
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
Condition = tuple[str, str, tuple[str, ...]]  # scale, task, settings other than the method's that are not the default
NOT_RUN = "not run"
TOLD_IF_SEVERAL = ("device", "precision", "rows")  # what decides the result, but is no choice that a scale makes
SCALES = ("paper", "laptop", "smoke")


def paper_figure(task: str, decoder: str) -> str:
    """What the paper measured. It does not say how its adaptive decoder ranks on ARG and MUL: both get its figure."""
    base, steps = split_steps(decoder)
    kind = re.sub("_(prob|margin)$", "", base)
    mark = f"_T{steps}" if steps else ""
    printed = PAPER.get(task, {})
    return printed.get(f"{base}{mark}") or printed.get(f"{kind}{mark}") or ""


# --- which runs belong together --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Finished runs that differ in nothing but their seed."""

    task: str
    scale: str
    method: str
    common: tuple[str, ...]  # settings other than the method's that differ from the scale's default, as key=value
    own: tuple[str, ...]  # settings of the method that do; that of SufMDM is a name of its own
    runs: list[Run] = field(default_factory=list)

    @property
    def condition(self) -> Condition:
        return self.scale, self.task, self.common

    def accuracy(self, decoder: str) -> list[float]:
        return [run.decoders[decoder]["exact_match"] for run in self.runs if decoder in run.decoders]


@lru_cache
def defaults(task: str, method: str, scale: str) -> dict[str, Any]:
    """The settings of a run that names nothing but these three."""
    source = ["data.source=rows"] if task == "custom" else []
    return flatten(compose([f"task={task}", f"method={method}", f"scale={scale}", *source]), identity_only=True)


def differences(run: Run) -> list[str]:
    """The settings, as key=value, in which a run differs from the default of its scale; its seed is none of them."""
    config = run.config
    usual = defaults(config.task.name, config.method.name, config.scale)
    differing = [
        f"{key}={value}"
        for key, value in run.identity.items()
        if key not in ("seed", "rows") and usual.get(key, "absent") != value and usual.get(key) != "auto"
    ]
    if config.data.source:  # which rows these are is told by no setting
        differing.append(f"data.source={os.path.basename(config.data.source)} ({(run.data or 'unknown')[:8]})")
    return differing


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """All finished runs, those of one group together, in the order of their seeds."""
    groups: dict[str, Group] = {}
    for run in sorted((run for run in runs if run.finished), key=lambda run: run.config.seed):
        key = digest({"scale": run.config.scale, **run.identity, "seed": None})
        if key not in groups:
            config, differing = run.config, differences(run)
            own = tuple(d for d in differing if d.startswith("method.") and not d.startswith("method.suffix="))
            common = tuple(d for d in differing if not d.startswith("method."))
            groups[key] = Group(config.task.name, config.scale, config.method.name, common, own)
        groups[key].runs.append(run)
    return _told_apart(list(groups.values()))


def _told_apart(groups: list[Group]) -> list[Group]:
    """Where groups would stand side by side although `auto` took another device, or another version of numpy drew other
    rows for the same settings, that is named, too."""
    found: dict[tuple, set] = {}
    for g in groups:
        for key in TOLD_IF_SEVERAL:
            found.setdefault((g.condition, key), set()).add(g.runs[0].identity[key])
    told = []
    for g in groups:
        keys = [key for key in TOLD_IF_SEVERAL if len(found[g.condition, key]) > 1]
        told.append(replace(g, common=g.common + tuple(f"{key}={str(g.runs[0].identity[key])[:8]}" for key in keys)))
    return told


# --- tables ----------------------------------------------------------------------------------------------------------


def cell(values: Sequence[float]) -> str:
    """Mean and, of several, the sample's standard deviation; behind it the number of seeds."""
    if not values:
        return NOT_RUN
    mean = f"{np.mean(values):.3f}"
    return f"{mean} ± {np.std(values, ddof=1):.3f} ({len(values)})" if len(values) > 1 else f"{mean} (1)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table; the first `left` columns are text, the others figures."""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return ["| " + " | ".join(entry.replace("|", "\\|") for entry in line) + " |" for line in lines] + [""]


def usual(groups: Iterable[Group], condition: Condition) -> list[Group]:
    """The groups under a condition whose method has the default settings."""
    return [g for g in groups if g.condition == condition and not g.own]


def find(groups: Iterable[Group], condition: Condition, decoder: str) -> list[float]:
    """Exact match of those of them that have this decoder."""
    return [value for g in usual(groups, condition) for value in g.accuracy(decoder)]


@dataclass(frozen=True)
class CostPoint:
    """What an answer of some runs costs, and how good it is."""

    decoder: str
    settings: tuple[str, ...]  # of the method, that differ from the default
    flops: float
    passes: float | None
    accuracy: list[float]

    @property
    def name(self) -> str:
        """Without the steps of its decoder."""
        return ", ".join([name_of(split_steps(self.decoder)[0]), *self.settings])


def costs(groups: Iterable[Group]) -> list[CostPoint]:
    """A point for each decoder of each group of which the cost is known."""
    return [
        CostPoint(decoder, g.own, figures["flops"], figures.get("forward_passes"), g.accuracy(decoder))
        for g in groups
        for decoder, figures in g.runs[0].decoders.items()
        if "flops" in figures
    ]


def conditions(groups: Iterable[Group]) -> list[Condition]:
    """Scale, task and shared settings of which there are runs: larger scales first, defaults first."""
    order = {name: place for place, name in enumerate((*SCALES, *TASKS))}
    found = {g.condition for g in groups}
    return sorted(found, key=lambda c: (order.get(c[0], 99), order.get(c[1], 99), len(c[2]), c[2]))


def label(condition: Condition) -> str:
    _, task, common = condition
    return TASKS[task] + (f", {', '.join(f'`{word}`' for word in common)}" if common else "")


def main_table(groups: Sequence[Group], scale: str) -> list[str]:
    """Methods by tasks at a scale, beside the paper's figures."""
    wanted = [(scale, task, ()) for task in PAPER]
    wanted += [c for c in conditions(groups) if c[0] == scale and c not in wanted]
    wanted.sort(key=lambda c: (list(TASKS).index(c[1]), len(c[2])))
    further = {d for g in groups if g.scale == scale for run in g.runs for d in run.decoders if not split_steps(d)[1]}
    decoders = sorted({*NAMES, *further}, key=place_of)  # methods that others added come last
    head, columns = [""], [[name_of(decoder) for decoder in decoders]]
    for condition in wanted:
        head.append(label(condition))
        columns.append([cell(find(groups, condition, decoder)) for decoder in decoders])
        if condition[1] in PAPER and not condition[2]:
            head.append("the paper")
            columns.append([_aside(paper_figure(condition[1], decoder)) for decoder in decoders])
    lines = [f"### `scale={scale}`", "", *table(head, zip(*columns, strict=True))]
    missing = []
    for condition in wanted:
        names = [name_of(decoder) for decoder in decoders if not find(groups, condition, decoder)]
        if names:
            missing.append(f"- {label(condition)}: {'any method' if len(names) == len(decoders) else ', '.join(names)}")
    return [*lines, f"Never run at `scale={scale}`:", "", *missing, ""] if missing else lines


def _aside(figure: str) -> str:
    return f"*{figure}*" if figure else ""


def compute_table(groups: Sequence[Group], condition: Condition) -> list[str]:
    """Every decoder, cheapest first, with what an answer costs and how much of that ReCOR's costs."""
    points = costs(usual(groups, condition))
    recor = [point.flops for point in points if point.decoder == "recor"]
    rows = [
        [
            name_of(point.decoder),
            f"{point.passes:.0f}" if point.passes else "",
            f"{point.flops / 1e6:,.2f}",
            f"{point.flops / recor[0]:.2f}" if recor else "–",
            cell(point.accuracy),
            _aside(paper_figure(condition[1], point.decoder)),
        ]
        for point in sorted(points, key=lambda point: (point.flops, place_of(point.decoder)))
    ]
    head = ["", "passes", "MFLOPs an answer", "times ReCOR", "exact match", "the paper"]
    remark = [] if recor else ["What an answer of ReCOR costs is not recorded here.", ""]
    return [*table(head, rows), *remark] if rows else []


def other_table(groups: Sequence[Group]) -> list[str]:
    """Runs whose method was not at the default of its scale."""
    rows = [
        [f"`{g.scale}`", label(g.condition), ", ".join(f"`{word}`" for word in g.own), name_of(decoder), cell(values)]
        for g in sorted(groups, key=lambda g: (g.condition, g.method, g.own))
        for decoder in sorted({d for run in g.runs for d in run.decoders})
        if g.own and not split_steps(decoder)[1] and (values := g.accuracy(decoder))
    ]
    return table(["scale", "task", "settings that differ", "method", "exact match"], rows, left=4) if rows else []


def run_table(runs: Sequence[Run]) -> list[str]:
    """Every run with its end."""
    rows = []
    for run in sorted(runs, key=lambda run: run.place):
        config = run.config
        accuracy = run.decoders.get(headline_decoder(config), {}).get("exact_match")
        shown = "" if accuracy is None else f"{accuracy:.3f}"
        status = run.status if run.reproducible else f"{run.status}, `reproducible=false`"
        method = "SufMDM" if getattr(config.method, "suffix", False) else name_of(config.method.name)
        words = [f"`{run.place}`", f"`{config.scale}`", TASKS[config.task.name], method, str(config.seed), status]
        rows.append([*words, f"{run.steps:,}", shown, f"`{run.weights[:8]}`" if run.weights else ""])
    head = ["run", "scale", "task", "method", "seed", "status", "steps", "exact match", "weights sha256"]
    return table(head, rows, left=6)
