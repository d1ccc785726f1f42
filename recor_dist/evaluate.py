"""`python -m recor_dist.evaluate out=DIR decoders=...`: scores a finished run with further decoders or on further rows.

What the run recorded stays as it is. The figures go to evaluations.jsonl in its folder, and to its run in MLflow.
"""

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING
from rich import box
from rich.console import Console
from rich.table import Table

from recor_dist.answers.rows_to_score import NamedRows, read_rows
from recor_dist.answers.solver import Solver, load_solver
from recor_dist.core.command import plain_command
from recor_dist.core.config import unflatten
from recor_dist.core.device import differing, resolve_or_use_cpu
from recor_dist.core.messages import EvalSums
from recor_dist.core.progress import progress_bar, set_up_logging
from recor_dist.core.setting import Mistake, setting
from recor_dist.engine.cost import costs_of
from recor_dist.engine.scoring import Job, score_here, score_on_ray
from recor_dist.methods import find_decoders
from recor_dist.model.decoding import Decoder
from recor_dist.model.evaluation import cost_per_answer, summarise
from recor_dist.record.checkpoint import weights_sha256
from recor_dist.record.evaluations import TEST_ROWS, add_evaluation, find, read_evaluations
from recor_dist.record.run_folder import EVALUATIONS, RunFolder
from recor_dist.record.sending import sync_command, sync_within

WIDTH = 100  # of the table, at least
ABOUT = [
    "Scores a finished run with further decoders, and on further rows. What the run recorded is not touched.",
    "",
    "  python -m recor_dist.evaluate out=runs/arg-mdm-... decoders=threshold:0.9,entropy_bounded:0.1",
    "  python -m recor_dist.evaluate out=runs/arg-mdm-... decoders=threshold:0.3/0.5/0.9,adamdm_margin:T=5",
    "  python -m recor_dist.evaluate out=runs/arg-mdm-... decoders=sweep        every decoder with its usual values",
    "  python -m recor_dist.evaluate out=runs/sudoku-... decoders=recor,confidence input=puzzles.txt",
    "",
    "A decoder is NAME or NAME:VALUE; a wrong name lists those that the run's model has. A Sudoku file has one puzzle",
    "per line, which is solved to compare with; .jsonl and .parquet files have columns `prompt` and `response`.",
    "Figures that are recorded already are not computed again.",
]


@dataclass
class EvaluateConfig:
    """The run, how it answers, and what."""

    out: str = setting(MISSING, "folder of a finished run")
    decoders: str = setting(MISSING, "decoders with their values, separated by commas; sweep for all")
    split: str = setting("test", "rows of the run's own data", choices=("test", "val", "train"))
    input: str | None = setting(None, "a file of rows instead: .jsonl or .parquet, or puzzles as their task reads them")
    rows: int | None = setting(None, "only the first rows; by default all", at_least=1)
    engine: str = setting("local", "in this process, or on Ray", choices=("local", "ray"))


def evaluate(config: EvaluateConfig) -> list[dict[str, Any]]:
    """Computes and records what is not recorded yet; returns a line of evaluations.jsonl for each decoder."""
    folder = RunFolder.open(config.out)
    folder.require_run()
    result = folder.read_result()
    if result is None:
        raise Mistake(f"out={config.out}: this run is not finished; run its command again first")
    solver = load_solver(config.out)
    resolve_or_use_cpu(solver.config)
    if weights_sha256(solver.model, solver.model.weights()) != result["weights_sha256"]:
        raise Mistake(f"out={config.out}: its newest checkpoint does not hold the weights of its result; restore it")
    decoders = find_decoders(solver.config, "decoders", config.decoders)
    named = read_rows(solver, config.split, config.input, config.rows)
    about = {
        "name": named.name,
        "rows_sha256": named.sha256,
        "weights_sha256": result["weights_sha256"],
        "step": result["steps"],
    }
    own = result["test"]["decoders"] if named.name == TEST_ROWS else {}
    lines = {name: about | {"decoder": name} for name in decoders}
    known = {name: about | {"decoder": name, **own[name]} for name in decoders if name in own}
    recorded = read_evaluations(folder)
    known |= {name: found for name, line in lines.items() if (found := find(recorded, line))}
    left = {name: decoder for name, decoder in decoders.items() if name not in known}
    for name, figures in _score(config, solver, left, named):
        known[name] = lines[name] | figures
        add_evaluation(folder, known[name])
    for line in named.skipped:
        print(f"skipped: {line}")
    return [known[name] for name in decoders]


def _score(
    config: EvaluateConfig, solver: Solver, decoders: dict[str, Decoder], named: NamedRows
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The figures of each decoder and the machine, as soon as its last ticket is answered. All tickets must come from
    machines that compute the same bits; on Ray these need not be like this one."""
    if not decoders:
        return
    weights, shape = solver.model.weights(), solver.model.shape
    job = Job(solver.config, shape, named.source, tuple(decoders))
    costs = costs_of(solver.config, shape, decoders)
    total = math.ceil(len(named.rows) / solver.config.eval.size)
    sums: dict[str, tuple[int, EvalSums]] = {}
    machine: dict[str, str | int] = {}
    scored = (score_on_ray if config.engine == "ray" else score_here)(job, weights, named.rows)
    with progress_bar(f"scoring {named.name}", total * len(decoders)) as advance, closing(scored):
        for name, part, theirs in scored:
            machine = machine or theirs
            if difference := differing(machine, theirs):
                raise Mistake(
                    f"engine={config.engine}: the nodes would compute different bits: {difference}; use nodes of one "
                    "kind, or engine=local"
                )
            done, before = sums.get(name, (0, None))
            sums[name] = done + 1, before + part if before else part
            advance(1)
            if done + 1 == total:
                whole = sums.pop(name)[1]
                yield name, {**summarise(whole), **cost_per_answer(whole, costs.get(name)), "machine": machine}


def show(lines: list[dict[str, Any]]) -> None:
    table = Table(title=f"{lines[0]['name']}: {lines[0]['rows']:,} rows", title_justify="left", box=box.SIMPLE)
    for column in ("decoder", "exact", "tokens", "tau", "passes", "most", "MFLOPs"):
        table.add_column(column, justify="left" if column == "decoder" else "right", no_wrap=True)
    for line in lines:
        tau = f"{line['kendall_tau']:.3f}" if "kendall_tau" in line else "-"
        most = f"{line.get('most_forward_passes', line['forward_passes'])}"
        exact, tokens = f"{line['exact_match']:.4f}", f"{line['token_accuracy']:.4f}"
        passes, flops = f"{line['forward_passes']:.4g}", f"{line['flops'] / 1e6:,.2f}"
        table.add_row(line["decoder"], exact, tokens, tau, passes, most, flops)
    Console(width=max(Console().width, WIDTH)).print(table)  # a name that is cut cannot be used


def main(config: EvaluateConfig) -> None:
    set_up_logging()
    show(evaluate(config))
    folder = RunFolder.open(config.out)
    print(f"saved in {folder.place(EVALUATIONS)}")
    track = unflatten(folder.require_run()["settings"]).track
    if track.enabled and not sync_within(config.out, track, track.wait):
        print(f"MLflow does not have everything yet; {sync_command(config.out, track)} sends the rest")


if __name__ == "__main__":
    plain_command(EvaluateConfig, main, ABOUT)
