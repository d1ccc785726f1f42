"""Which runs belong together: runs that differ only in their seed form a group.

Groups are compared under a condition: scale, task, and the settings beyond the method's that are not the scale's
defaults.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from data.tasks import TASKS
from recor_dist.core.compose import SCALES, compose
from recor_dist.core.config import digest, flatten
from recor_dist.record.runs import Run

Condition = tuple[str, str, tuple[str, ...]]  # scale, task, non-default settings other than the method's
NAMED_IF_SEVERAL = ("device", "precision", "rows")  # they decide the result, but no scale sets them


@dataclass(frozen=True)
class Group:
    """Finished runs that differ only in their seed."""

    task: str
    scale: str
    method: str
    common: tuple[str, ...]  # non-default settings other than the method's, as key=value
    own: tuple[str, ...]  # non-default settings of the method; without `suffix`, which has its own name, SufMDM
    runs: list[Run] = field(default_factory=list)

    @property
    def condition(self) -> Condition:
        return self.scale, self.task, self.common

    def accuracy(self, decoder: str) -> list[float]:
        return [figures["exact_match"] for figures in self.figures(decoder)]

    def figures(self, decoder: str) -> list[dict[str, Any]]:
        """The test metrics of a decoder, by run that has them."""
        return [run.measured[decoder] for run in self.runs if decoder in run.measured]


@lru_cache
def defaults(task: str, method: str, scale: str) -> dict[str, Any]:
    """The settings of a run that sets only these three."""
    source = ["data.source=rows"] if TASKS[task].read_source else []
    return flatten(compose([f"task={task}", f"method={method}", f"scale={scale}", *source]), identity_only=True)


def differences(run: Run) -> list[str]:
    """The settings, as key=value, in which a run differs from its scale's defaults; the seed is not among them."""
    config = run.config
    usual = defaults(config.task.name, config.method.name, config.scale)
    differing = [
        f"{key}={str(value)[:8] if key == 'init_sha256' else value}"
        for key, value in run.identity.items()
        if key not in ("seed", "rows") and usual.get(key, "absent") != value and usual.get(key) != "auto"
    ]
    if config.data.source:  # no setting identifies its rows
        differing.append(f"data.source={os.path.basename(config.data.source)} ({(run.data or 'unknown')[:8]})")
    return differing


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """All finished runs in groups, each sorted by seed."""
    groups: dict[str, Group] = {}
    for run in sorted((run for run in runs if run.finished), key=lambda run: run.config.seed):
        key = digest({"scale": run.config.scale, **run.identity, "seed": None})
        if key not in groups:
            config, differing = run.config, differences(run)
            own = tuple(d for d in differing if d.startswith("method.") and not d.startswith("method.suffix="))
            common = tuple(d for d in differing if not d.startswith("method."))
            groups[key] = Group(config.task.name, config.scale, config.method.name, common, own)
        groups[key].runs.append(run)
    return _tell_apart(list(groups.values()))


def _tell_apart(groups: list[Group]) -> list[Group]:
    """Adds to `common` what else differs under one condition: `auto` chose a different device, or another numpy
    version drew different rows for the same settings."""
    found: dict[tuple, set] = {}
    for g in groups:
        for key in NAMED_IF_SEVERAL:
            found.setdefault((g.condition, key), set()).add(g.runs[0].identity[key])
    named = []
    for g in groups:
        keys = [key for key in NAMED_IF_SEVERAL if len(found[g.condition, key]) > 1]
        named.append(replace(g, common=g.common + tuple(f"{key}={str(g.runs[0].identity[key])[:8]}" for key in keys)))
    return named


def conditions(groups: Iterable[Group]) -> list[Condition]:
    """The conditions of the groups: larger scales first, defaults first."""
    order = {name: place for place, name in enumerate((*SCALES, *TASKS))}
    found = {g.condition for g in groups}
    return sorted(found, key=lambda c: (order.get(c[0], 99), order.get(c[1], 99), len(c[2]), c[2]))


def label(condition: Condition) -> str:
    """A condition's task and settings, in Markdown."""
    _, task, common = condition
    return TASKS[task].name + (f", {', '.join(f'`{word}`' for word in common)}" if common else "")


def title_of(condition: Condition) -> str:
    """The same with the scale, as plain text for the title of a figure."""
    return f"{label(condition)}, scale={condition[0]}".replace("`", "")


def with_defaults(groups: Iterable[Group], condition: Condition) -> list[Group]:
    """The groups under a condition whose method has its default settings."""
    return [g for g in groups if g.condition == condition and not g.own]


def find_accuracy(groups: Iterable[Group], condition: Condition, decoder: str) -> list[float]:
    """Exact match of a decoder, by run, in the groups under a condition whose method has its default settings."""
    return [value for g in with_defaults(groups, condition) for value in g.accuracy(decoder)]
