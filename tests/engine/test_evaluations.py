"""Evaluations in tickets, whose answers may arrive in any order."""

from collections.abc import Callable

import numpy as np

from data.prepare import open_data
from data.tasks import task_of
from recor_dist.core.config import Config
from recor_dist.core.messages import EvalSums, EvalTicket
from recor_dist.engine.evaluations import Evaluations


def sums(rows: int) -> dict[str, EvalSums]:
    return {"recor": EvalSums(rows, exact=rows, tokens=4 * rows, fills=np.eye(4, dtype=np.int64), agreement=None)}


def test_answers_add_up_in_any_order_and_weights_are_needed_until_the_last_one(
    config_in: Callable[..., Config],
) -> None:
    config = config_in("eval.every=5", "eval.size=16", "task.val_rows=40", "task.test_rows=16")
    evaluations = Evaluations(config, open_data(config, task_of(config)), steps=20)
    assert evaluations.due(4) == [], "not a multiple of eval.every"
    val = evaluations.due(5)
    assert val == [EvalTicket(5, "val", index) for index in range(3)]
    assert evaluations.due(20) == [*(EvalTicket(20, "val", index) for index in range(3)), EvalTicket(20, "test", 0)]
    assert evaluations.due(5) == [], "a new learner computes the same weights again"
    assert evaluations.versions() == {5, 20}
    answered = [evaluations.add(ticket, sums(rows)) for ticket, rows in ((val[2], 8), (val[0], 16), (val[1], 16))]
    assert [(event.version, event.split, event.done, event.total) for event in answered] == [
        (5, "val", done, 3) for done in (1, 2, 3)
    ]
    assert [event.sums["recor"].rows for event in answered] == [8, 24, 40]
    assert evaluations.versions() == {20}
