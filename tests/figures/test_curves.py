"""Training curves of one run and of groups of runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recor_dist.figures.curves import metric_curves, running_mean, spread, training_lines
from recor_dist.figures.groups import conditions, group_runs
from tests.figures.made_up import made_up


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.integers(1, 40))
def test_the_running_mean_covers_the_window_and_no_more(values: list[float], window: int) -> None:
    slow = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    assert running_mean(np.array(values), window) == pytest.approx(np.array(slow), abs=1e-9)


def test_curves_are_sorted_by_step_although_evaluations_come_late() -> None:
    records = [{"step": 1, "loss/lm": 2.0}, {"step": 3, "loss/lm": 1.0}, {"step": 2, "eval/val/exact_match": 0.5}]
    records.append({"step": 2, "loss/lm": 1.5})
    assert metric_curves(records) == {"loss/lm": [(1, 2.0), (2, 1.5), (3, 1.0)], "eval/val/exact_match": [(2, 0.5)]}


def test_curves_of_several_seeds_are_averaged_at_common_steps() -> None:
    assert spread([[(10, 0.2), (20, 0.4)], [(10, 0.4), (20, 0.5), (30, 0.9)]]) == [
        (10, pytest.approx(0.3), 0.2, 0.4),
        (20, pytest.approx(0.45), 0.4, 0.5),
    ]
    groups = group_runs([made_up(accuracy=0.5), made_up("seed=1", accuracy=0.7), made_up("method=mdm", accuracy=0.1)])
    lines = training_lines(groups, conditions(groups)[0])
    assert lines["recor"] == [(10, 0.1, 0.1, 0.1), (18, pytest.approx(0.6), 0.5, 0.7)]
    assert list(lines) == ["recor", "adamdm_prob"], "named after the decoder used in validation"
    begun = group_runs([made_up("seed=2", accuracy=None), made_up("method=clm", accuracy=None), made_up()])
    assert list(training_lines(begun, conditions(begun)[0])) == ["recor"], "an unfinished run has no curve"
    assert [len(g.runs) for g in begun] == [1]
