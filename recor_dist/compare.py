"""`python -m recor_dist.compare run=DIR with=FILE`: a run next to published results of the same task.

Prints a table, and draws in which order each of them writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from omegaconf import MISSING
from rich.console import Console
from rich.table import Table

from recor_dist.core.command import plain_command
from recor_dist.core.names import name_of, place_of
from recor_dist.core.setting import Mistake, setting
from recor_dist.figures.groups import Group, group_runs, title_of
from recor_dist.figures.order_map import draw_orders_of_runs
from recor_dist.figures.style import to_bytes
from recor_dist.methods import headline_decoder
from recor_dist.record.published import read_published
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.runs import Run, read_run

ABOUT = [
    "Shows a finished run next to published results of the same task: a table, and a picture of the orders.",
    "",
    "  python -m recor_dist.compare run=runs/demo with=docs/results/arg.jsonl",
]


@dataclass
class CompareConfig:
    """What to compare."""

    run: str = setting(MISSING, "folder of a finished run")
    results: str = setting(MISSING, "published results, a .jsonl file", key="with")


def groups_like(run: Run, published: Sequence[Run]) -> list[Group]:
    """The published runs of the same task, scale and common settings, by method."""
    groups = group_runs([replace(run, machine=None), *published])
    mine = next(g for g in groups if any(r.place == run.place for r in g.runs))
    others = [replace(g, runs=[r for r in g.runs if r.place != run.place]) for g in groups]
    return [g for g in others if g.runs and g.condition == mine.condition]


def show(run: Run, groups: Sequence[Group]) -> None:
    table = Table(title=title_of(groups[0].condition), title_justify="left")
    for column in ("", "exact match", "order (tau)", "passes", "MFLOPs per answer"):
        table.add_column(column, justify="left" if not column else "right")
    lines = [(headline_decoder(run.config), "this run", [run])]
    lines += [(decoder, "", g.runs) for g in groups for decoder in g.runs[0].decoders if "_T" not in decoder]
    for decoder, which, runs in [lines[0], *sorted(lines[1:], key=lambda line: place_of(line[0]))]:
        figures = runs[0].decoders[decoder]
        name = f"{name_of(decoder)}, {which or _seeds(runs)}"
        cells = [_mean(runs, decoder, "exact_match"), _mean(runs, decoder, "kendall_tau")]
        table.add_row(name, *cells, f"{figures['forward_passes']}", f"{figures['flops'] / 1e6:,.1f}")
        if which:
            table.add_section()
    Console().print(table)


def _seeds(runs: Sequence[Run]) -> str:
    return f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"


def _mean(runs: Sequence[Run], decoder: str, metric: str) -> str:
    values = [run.decoders[decoder][metric] for run in runs if metric in run.decoders[decoder]]
    if not values:
        return "-"
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else "")


def main(config: CompareConfig) -> None:
    run = read_run(config.run)
    if not run.finished:
        raise Mistake(f"run={config.run}: is not finished ({run.status}); run its command again first")
    groups = groups_like(run, list(read_published(Path(config.results))))
    if not groups:
        raise Mistake(
            f"with={config.results}: holds no run of task={run.config.task.name} with the settings of {config.run}; "
            "give another file"
        )
    show(run, groups)
    beside = [g.runs[0] for g in groups if g.method != run.config.method.name and not g.own]
    folder = RunFolder.open(config.run)
    for name, figure in draw_orders_of_runs(title_of(groups[0].condition), [run, *beside]).items():
        print(f"saved in {folder.write_picture(f'{name}_beside', to_bytes(figure, 'png'))}")
    print("The other runs were published with their commands and the hashes of their weights: docs/results.md")


if __name__ == "__main__":
    plain_command(CompareConfig, main, ABOUT)
