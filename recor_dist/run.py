"""`python -m recor_dist.run task=arg method=recor scale=laptop seed=0 ...`: trains, goes on, or shows the result."""

import logging
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from rich.console import Console
from rich.table import Table

from recor_dist.core.command import command
from recor_dist.core.config import Config
from recor_dist.core.files import exists, is_relative, join, open_folder
from recor_dist.core.progress import set_up_logging
from recor_dist.engine.loop import Stopped, train
from recor_dist.record.sweep import end_sweep, sweep_of_this_job
from recor_dist.track import Tracker, prepare_mlflow

log = logging.getLogger(__name__)


def main(config: Config) -> None:
    set_up_logging()
    if HydraConfig.get().runtime.choices["scale"] == "auto":
        log.info(
            "scale=auto takes %s: %s",
            config.scale,
            "there are GPUs" if config.scale == "paper" else "no GPU that torch can use",
        )
    if "runtime_resources" in Path.cwd().parts and (is_relative(config.out or "runs") or is_relative(config.data.dir)):
        log.warning(
            "%s is Ray's copy of --working-dir, and goes some day: submit without --working-dir, or give absolute out= "
            "and data.dir=",
            Path.cwd(),
        )
    sweep = sweep_of_this_job(config)
    with Tracker(config, sweep.folder if sweep else None) as tracker:

        def follow(journal: str) -> None:
            if sweep:
                sweep.add(config.out)
            tracker.start(journal)

        try:
            result = train(config, follow)
            show(result, config.out)
            if config.track.enabled and not exists(open_folder(config.out), "model/MLmodel"):
                draw(config.out)
        except Stopped as stopped:
            log.info("%s; the same command goes on from there", stopped)
            sys.exit(128 + stopped.signal_number)
        if sweep:
            sweep.add(config.out)  # one that was finished before has nothing to follow


def draw(out: str) -> None:
    """Pictures, the replay page and the MLflow model of a finished run, for the tracker to bring along."""
    # Here, as these imports take seconds, and a run should begin at once.
    prepare_mlflow()
    from recor_dist.figures.pictures import draw_pictures
    from recor_dist.packaged import save_model
    from recor_dist.replay import write_replay

    log.info("drawing its pictures, its replay page and its MLflow model into %s", out)
    for make in (draw_pictures, write_replay, lambda folder: save_model(folder, join(folder, "model"))):
        try:
            make(out)
        except Exception:  # the result stands, whatever becomes of its pictures
            log.warning("the run is finished, but not all of this could be made", exc_info=True)


def show(result: dict[str, Any], out: str) -> None:
    """The result as a short table, and where everything is."""
    console = Console()
    table = Table(title=f"{result['task']} · {result['method']} · {result['steps']:,} steps", title_justify="left")
    columns = ("", "rows", "decoder", "exact match", "token accuracy", "order (tau)", "passes", "MFLOPs")
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "decoder") else "right", no_wrap=column == "decoder")
    for split in ("val", "test"):
        for decoder, figures in sorted(result[split]["decoders"].items()):
            tau = f"{figures['kendall_tau']:.3f}" if "kendall_tau" in figures else "-"
            exact, tokens = f"{figures['exact_match']:.4f}", f"{figures['token_accuracy']:.4f}"
            passes, flops = f"{figures['forward_passes']}", f"{figures['flops'] / 1e6:,.2f}"
            table.add_row(split, f"{figures['rows']:,}", decoder, exact, tokens, tau, passes, flops)
    console.print(table)
    steps = " ".join(f"{step:.1f}" for step in result["test"]["mean_step"])
    print(f"mean step at which each slot was filled: {steps}")
    if not result["reproducible"]:
        console.print("reproducible=false: this run went on across different machines")
    print(f"saved in {out}")
    print(f"weights sha256 {result['weights_sha256']}")


if __name__ == "__main__":
    command(main, end_sweep)
