"""How good the answers are, and in which order they were written.

Evaluation is cut into tickets of a fixed size, too, the last one padded, so that its figures do not depend on who
computed them.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from recor_dist.messages import Cost, EvalSums, Generation, Rows


def pad_rows(rows: Rows, size: int) -> Rows:
    """Repeats the last row until there are `size` of them."""
    return rows if len(rows) == size else rows.select(np.minimum(np.arange(size), len(rows) - 1))


def score(generation: Generation, rows: Rows) -> EvalSums:
    """Compares answers with rows; answers beyond the rows are padding and do not count."""
    count, M = rows.responses.shape
    responses, steps = generation.responses[:count], generation.steps[:count]
    right = responses == rows.responses
    fills = np.zeros((M, generation.last_step), dtype=np.int64)
    np.add.at(fills, (np.arange(M), steps - 1), 1)
    tau = None if rows.orders is None or M < 2 else float(kendall_tau(steps, rows.orders.argsort(axis=1)).sum())
    return EvalSums(count, int(right.all(1).sum()), int(right.sum()), fills, tau)


def kendall_tau(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Kendall's tau between the steps (R, M) at which slots were filled, row by row.

    1 for the same order, -1 for the reverse, 0 for no relation. Two slots of one step are in no order and count 0.
    """
    M = a.shape[1]
    agreement = np.zeros(len(a), dtype=np.int64)
    for slot in range(M - 1):  # against all later slots
        ahead_a = np.sign(a[:, slot + 1 :] - a[:, slot, None])
        ahead_b = np.sign(b[:, slot + 1 :] - b[:, slot, None])
        agreement += (ahead_a * ahead_b).sum(axis=1)
    return agreement / (M * (M - 1) / 2)


def mean_steps(fills: np.ndarray, rows: int) -> np.ndarray:
    """(M,): the mean step, from 1, at which each slot was filled, of fills (M, steps)."""
    return fills @ np.arange(1, fills.shape[1] + 1) / rows


def summarise(sums: EvalSums) -> dict[str, Any]:
    """The figures that are reported for a split."""
    summary = {
        "rows": sums.rows,
        "exact_match": sums.exact / sums.rows,
        "token_accuracy": sums.tokens / (sums.rows * len(sums.fills)),
        "mean_step": mean_steps(sums.fills, sums.rows).tolist(),  # by slot
    }
    return summary if sums.tau is None else {**summary, "kendall_tau": sums.tau / sums.rows}


# --- several decoders, by name; the first gives the headline figures -------------------------------------------------


def add_by_decoder(a: Mapping[str, EvalSums], b: Mapping[str, EvalSums]) -> dict[str, EvalSums]:
    """What the same decoders gave on further rows."""
    assert list(a) == list(b)
    return {name: a[name] + b[name] for name in a}


def headline(sums: Mapping[str, EvalSums]) -> EvalSums:
    return next(iter(sums.values()))


def summarise_by_decoder(sums: Mapping[str, EvalSums], costs: Mapping[str, Cost]) -> dict[str, Any]:
    """The headline figures, and under `decoders` those of each one with what an answer costs."""
    decoders = {name: summarise(part) | asdict(costs[name]) for name, part in sums.items()}
    return summarise(headline(sums)) | {"decoders": decoders}


def orders_by_decoder(sums: Mapping[str, EvalSums]) -> dict[str, Any]:
    """In which order answers were written: fills[slot][step - 1] of `rows` answers filled this slot at this step."""
    return {name: {"rows": part.rows, "fills": part.fills.tolist()} for name, part in sums.items()}
