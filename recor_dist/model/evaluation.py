"""How good answers are, and in which order they were written.

Evaluation, too, is cut into tickets of a fixed size, the last one padded, so the metrics do not depend on which worker
computes which ticket.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from recor_dist.core.messages import Cost, EvalSums, Generation, Rows, Work
from recor_dist.core.rng import rng


def evaluation_rng(seed: int, split: str, decoder: str, index: int) -> np.random.Generator:
    """The generator a decoder draws from in evaluation ticket `index` of a split; it depends on no other decoder."""
    return rng(seed, f"evaluate/{split}/{decoder}", index)


def pad_rows(rows: Rows, size: int) -> Rows:
    """Repeats the last row until there are `size` rows."""
    return rows if len(rows) == size else rows.select(np.minimum(np.arange(size), len(rows) - 1))


def score(generation: Generation, rows: Rows) -> EvalSums:
    """Compares answers with rows; surplus answers belong to padding and do not count."""
    count, M = rows.responses.shape
    responses, steps = generation.responses[:count], generation.steps[:count]
    right = responses == rows.responses
    fills = np.zeros((M, generation.last_step), dtype=np.int64)
    np.add.at(fills, (np.arange(M), steps - 1), 1)
    agreement = None
    if rows.orders is not None and M > 1:
        agreement = int(agreement_of(steps, rows.orders.argsort(axis=1)).sum())
    work = None
    if generation.passes is not None and generation.flops is not None:
        passes = generation.passes[:count]
        work = Work(int(passes.sum()), int(passes.max(initial=0)), int(generation.flops[:count].sum()))
    return EvalSums(count, int(right.all(1).sum()), int(right.sum()), fills, agreement, work)


def agreement_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(R,) int64: concordant minus discordant pairs of slots, given the steps (R, M) at which a and b filled each slot.

    Two slots filled at the same step are not ordered and count 0."""
    agreement = np.zeros(len(a), dtype=np.int64)
    for slot in range(a.shape[1] - 1):  # against all later slots
        ahead_a = np.sign(a[:, slot + 1 :] - a[:, slot, None])
        ahead_b = np.sign(b[:, slot + 1 :] - b[:, slot, None])
        agreement += (ahead_a * ahead_b).sum(axis=1)
    return agreement


def kendall_tau(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(R,): Kendall's tau between steps a and b (R, M): 1 for the same order, -1 for the reverse."""
    return agreement_of(a, b) / math.comb(a.shape[1], 2)


def mean_steps(fills: np.ndarray, rows: int) -> np.ndarray:
    """(M,): the mean step, counted from 1, at which each slot was filled; fills (M, steps)."""
    return fills @ np.arange(1, fills.shape[1] + 1) / rows


def summarise(sums: EvalSums) -> dict[str, Any]:
    """The metrics reported for a split."""
    summary = {
        "rows": sums.rows,
        "exact_match": sums.exact / sums.rows,
        "token_accuracy": sums.tokens / (sums.rows * len(sums.fills)),
        "mean_step": mean_steps(sums.fills, sums.rows).tolist(),  # by slot
    }
    if sums.agreement is None:
        return summary
    return {**summary, "kendall_tau": sums.agreement / math.comb(len(sums.fills), 2) / sums.rows}


# --- several decoders, by name; the first gives the headline metrics -------------------------------------------------


def add_by_decoder(a: Mapping[str, EvalSums], b: Mapping[str, EvalSums]) -> dict[str, EvalSums]:
    """Adds the sums of the same decoders over more rows."""
    assert list(a) == list(b)
    return {name: a[name] + b[name] for name in a}


def headline(sums: Mapping[str, EvalSums]) -> EvalSums:
    return next(iter(sums.values()))


def summarise_by_decoder(sums: Mapping[str, EvalSums], costs: Mapping[str, Cost]) -> dict[str, Any]:
    """The headline metrics, and under `decoders` those of each decoder with its cost per answer."""
    decoders = {name: summarise(part) | cost_per_answer(part, costs.get(name)) for name, part in sums.items()}
    return summarise(headline(sums)) | {"decoders": decoders}


def cost_per_answer(sums: EvalSums, cost: Cost | None) -> dict[str, float]:
    """The mean cost of an answer where it was counted row by row, otherwise `cost`, which is that of every answer."""
    if sums.work is None:
        assert cost is not None
        return asdict(cost)
    work, rows = sums.work, sums.rows
    return {
        "forward_passes": work.passes / rows,
        "most_forward_passes": work.most_passes,
        "flops": work.flops / rows,
    }


def orders_by_decoder(sums: Mapping[str, EvalSums]) -> dict[str, Any]:
    """In which order answers were written: fills[slot][step - 1] of `rows` answers filled this slot at this step."""
    return {name: {"rows": part.rows, "fills": part.fills.tolist()} for name, part in sums.items()}
