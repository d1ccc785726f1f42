"""Runs that were never computed, for tests of groups, tables and figures."""

from dataclasses import replace
from typing import Any

from recor_dist.core.compose import compose
from recor_dist.core.config import flatten
from recor_dist.methods import METHODS
from recor_dist.record.runs import Run


def made_up(*overrides: str, accuracy: float | None = 0.5, **more: Any) -> Run:
    """A run with the settings of some overrides, and metrics for each decoder; unfinished if `accuracy` is None."""
    config = compose(["scale=smoke", "device=cpu", "precision=float32", *overrides])
    decoders = {
        name: {"exact_match": accuracy, "flops": 1000.0 * (decoder.passes or 0), "forward_passes": decoder.passes}
        for name, decoder in METHODS[config.method.name].decoders(config.method).items()
    }
    run = Run(
        place=more.pop("place", " ".join(overrides)),
        settings=flatten(config),
        data=more.pop("data", "0123456789"),
        status="running" if accuracy is None else "finished",
        decoders={} if accuracy is None else decoders,
        validation=[(10, 0.1), (18, accuracy or 0.0)],
        steps=18,
        weights="ff" * 32,
    )
    return replace(run, **more)


def rows_of(markdown: list[str] | str) -> dict[str, list[str]]:
    """The rows of Markdown tables by their first cell."""
    lines = markdown.splitlines() if isinstance(markdown, str) else markdown
    cells = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: row[1:] for row in cells}
