"""How good the answers are, and in which order they were written.

Evaluation is cut into tickets of a fixed size, too, the last one padded, so that its figures do not depend on who
computed them.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from recor_dist.core.messages import Cost, EvalSums, Generation, Rows


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
    known = rows.orders is not None and M > 1
    agreement = int(agreement_of(steps, rows.orders.argsort(axis=1)).sum()) if known else None
    return EvalSums(count, int(right.all(1).sum()), int(right.sum()), fills, agreement)


def agreement_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(R,) int64: of the steps (R, M) at which slots were filled, the pairs of slots that both order alike, less those
    that they do not. Two slots of one step are in no order and count 0."""
    agreement = np.zeros(len(a), dtype=np.int64)
    for slot in range(a.shape[1] - 1):  # against all later slots
        ahead_a = np.sign(a[:, slot + 1 :] - a[:, slot, None])
        ahead_b = np.sign(b[:, slot + 1 :] - b[:, slot, None])
        agreement += (ahead_a * ahead_b).sum(axis=1)
    return agreement


def kendall_tau(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(R,): Kendall's tau between steps, 1 for the same order, -1 for the reverse, 0 for no relation."""
    return agreement_of(a, b) / math.comb(a.shape[1], 2)


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
    if sums.agreement is None:
        return summary
    return {**summary, "kendall_tau": sums.agreement / math.comb(len(sums.fills), 2) / sums.rows}


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
