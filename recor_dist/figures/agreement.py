"""How much two orders agree: those of two runs, or of a run and the solver. Kendall's tau and Spearman's footrule.

An order is given as the steps (R, M) at which the slots of each row were filled. Slots may share a step.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from recor_dist.core.names import name_of, place_of
from recor_dist.core.setting import Mistake
from recor_dist.figures.answered import Answered, answer_test, checkpoints_of
from recor_dist.figures.difficulty import difficulties
from recor_dist.figures.tables import table
from recor_dist.methods import headline_decoder
from recor_dist.model.evaluation import kendall_tau
from recor_dist.record.delivery import MLFLOW_SCHEMES
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.runs import Run

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Agreement:
    """The mean over some rows."""

    tau: float  # 1 for the same order, -1 for the reverse, 0 on average for unrelated orders
    footrule: float  # 0 for the same order, 1 for the reverse, about 2/3 for unrelated orders
    rows: int


def agreement(a: np.ndarray, b: np.ndarray) -> Agreement:
    """Of the steps (R, M) of two orders of the same rows."""
    return Agreement(float(kendall_tau(a, b).mean()), float(footrule(a, b).mean()), len(a))


def footrule(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(R,): the distances between the ranks that a and b (R, M) give to each slot, added up; divided by what they are
    if one order is the reverse of the other."""
    return np.abs(ranks(a) - ranks(b)).sum(axis=1) / (a.shape[1] ** 2 // 2)


def ranks(steps: np.ndarray) -> np.ndarray:
    """(R, M): the rank of each slot, from 1; slots of the same step share the mean of their ranks."""
    before = (steps[:, None, :] < steps[:, :, None]).sum(axis=2)
    ties = (steps[:, None, :] == steps[:, :, None]).sum(axis=2)
    return before + (ties + 1) / 2


def agreement_by(groups: np.ndarray, a: np.ndarray, b: np.ndarray) -> dict[int, Agreement]:
    """The agreement in each group of rows, e.g. of the puzzles with the same hardest technique; groups (R,)."""
    return {int(group): agreement(a[groups == group], b[groups == group]) for group in np.unique(groups)}


def agreement_over_training(out: str, rows: int | None = None) -> dict[int, Agreement]:
    """For each checkpoint that the run in `out` still has: the agreement of its order with that of the newest."""
    steps = {step: one.steps for step, one in answers_over_training(out, rows).items()}
    last = steps[max(steps)]
    return {step: agreement(order, last) for step, order in steps.items()}


def answers_over_training(out: str, rows: int | None = None) -> dict[int, Answered]:
    """The answers of each checkpoint that the run in `out` still has, oldest first."""
    return {step: answer_test(out, rows, step=step) for step in checkpoints_of(out)}


# --- the report ------------------------------------------------------------------------------------------------------


def answer_runs(runs: Sequence[Run]) -> dict[str, dict[int, Answered]]:
    """The answers of the runs whose weights and rows are at hand, by headline decoder and checkpoint, oldest first."""
    found = {}
    for run in runs:
        try:
            found[headline_decoder(run.config)] = answers_over_training(_folder_of(run))
        except Mistake as mistake:
            log.info("%s is not compared with other orders: %s", run.place, mistake)
    return {name: found[name] for name in sorted(found, key=place_of)}


def _folder_of(run: Run) -> str:
    """The folder with the weights of a finished run. A run that was read from MLflow names it in its settings."""
    place = run.config.out or run.place if run.place.startswith(MLFLOW_SCHEMES) else run.place
    result = RunFolder.open(place).read_result() or {}
    if result.get("weights_sha256") != run.weights:
        raise Mistake(f"{place}: does not hold the weights of this run")
    return place


def agreement_tables(answered: Mapping[str, Answered]) -> list[str]:
    """Every method's order against the known one and against every other method's; and by difficulty, if the rows have
    one. Empty if there is nothing to compare."""
    steps = {name_of(name): one.steps for name, one in answered.items()}
    first = next(iter(answered.values()), None)
    if first is None or any((one.rows.prompts != first.rows.prompts).any() for one in answered.values()):
        return []
    known, reference = first.known_steps, "known order"
    others = ({reference: known} if known is not None else {}) | steps
    if len(others) < 2 or first.model.shape.M < 2:
        return []
    rows = [[name, *(_cell(mine, theirs) for theirs in others.values())] for name, mine in steps.items()]
    lines = [f"Tau and footrule, over {len(first.rows)} test rows:", "", *table(["", *others], rows)]
    for about, groups in difficulties(first.notes).items():
        counts = {int(value): int((groups == value).sum()) for value in np.unique(groups)}
        head = [f"{value} ({count} rows)" for value, count in counts.items()]
        rows = [
            [one, other, *(_words(part) for part in agreement_by(groups, others[one], others[other]).values())]
            for other, one in combinations(others, 2)
        ]
        lines += [f"By {about}:", "", *table(["", "", *head], rows, left=2)]
    return lines


def training_table(answered: Mapping[str, Mapping[int, Answered]]) -> list[str]:
    """Every checkpoint's order against the known one and against that of the run's newest. Empty if the runs have kept
    no earlier checkpoint."""
    rows = []
    for name, by_step in answered.items():
        last = by_step[max(by_step)]
        for step, one in by_step.items():
            known = "" if one.known_steps is None else _cell(one.steps, one.known_steps)
            rows.append([name_of(name), f"{step:,}", known, _cell(one.steps, last.steps)])
    if not any(with_last for *_, with_last in rows):
        return []
    head = ["", "step", "known order", "the order of the last step"]
    return ["Over training, for the checkpoints that still exist:", "", *table(head, rows)]


def _cell(a: np.ndarray, b: np.ndarray) -> str:
    if a is b:
        return ""
    return _words(agreement(a, b))


def _words(found: Agreement) -> str:
    return f"{found.tau:.3f}, {found.footrule:.3f}" if math.isfinite(found.tau) else ""
