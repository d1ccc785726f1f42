"""`python -m recor_dist.run task=arg method=recor scale=laptop seed=0 ...`: trains, resumes, or shows the result."""

import logging
import signal
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from rich.console import Console
from rich.table import Table

from recor_dist.core.command import command
from recor_dist.core.config import Config
from recor_dist.core.files import is_relative
from recor_dist.core.progress import set_up_logging
from recor_dist.record.delivery import prepare_mlflow
from recor_dist.record.identity import scale_of_run
from recor_dist.record.run_folder import MODEL, PICTURES, PROFILE, REPLAY, RunFolder
from recor_dist.record.sending import Tracker
from recor_dist.record.sweep import Sweep, end_sweep, sweep_of_this_job

log = logging.getLogger(__name__)


def main(config: Config) -> None:
    # While it trains, this signal makes a run print what it does; before and after, it must not end the process.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # Imported here, because torch takes seconds, and a mistake in the settings should be reported at once.
    from recor_dist.engine.loop import Stopped, train

    set_up_logging()
    if HydraConfig.get().runtime.choices["scale"] == "auto":
        why = "there are GPUs" if config.scale == "paper" else "no GPU that torch can use"
        log.info("scale=auto chose %s: %s", config.scale, why)
    if "runtime_resources" in Path.cwd().parts and (is_relative(config.out or "runs") or is_relative(config.data.dir)):
        log.warning(
            "%s is Ray's copy of --working-dir, which Ray may delete: submit without --working-dir, or give absolute "
            "paths for out= and data.dir=",
            Path.cwd(),
        )
    sweep = sweep_of_this_job(config)
    with Tracker(config.track, sweep.folder.uri if sweep else None) as tracker:

        def follow(out: str, journal: str) -> None:
            if sweep:
                sweep.add(out)
            tracker.start(out, journal)

        try:
            result = train(config, follow)
            assert config.out is not None  # train has set it
            show(result, config.out)
            if config.track.enabled:
                make_artifacts(config.out)
        except Stopped as stopped:
            log.info("%s; the same command resumes from there", stopped)
            sys.exit(128 + stopped.signal_number)
        if sweep:
            sweep.add(config.out)  # a run that was finished before has no journal to follow


def make_artifacts(out: str) -> None:
    """Makes the pictures, the replay page and the MLflow model of a finished run, which the tracker then sends; if it
    has them, only what is damaged or missing."""
    folder = RunFolder.open(out)
    unsound = folder.unsound_artifacts()
    if PROFILE in unsound:
        log.warning("%s cannot be made again: it shows steps that are over", folder.place(PROFILE))
    if not unsound - {PROFILE}:
        return
    # Imported here, because it takes seconds, and training should start at once.
    prepare_mlflow()
    from recor_dist.answers.replay_page import write_replay
    from recor_dist.figures.run_pictures import draw_pictures
    from recor_dist.packaged import save_model

    def package() -> None:
        folder.clear_model()
        save_model(out, folder.place(MODEL))
        folder.note_artifact(MODEL)

    log.info("making pictures, the replay page and the MLflow model in %s", out)
    makers = {PICTURES: lambda: draw_pictures(out), REPLAY: lambda: write_replay(out), MODEL: package}
    for make in (make for name, make in makers.items() if name in unsound):
        try:
            make()
        except Exception:  # the result is saved, with or without its pictures
            log.warning("the run is finished, but not all of these could be made", exc_info=True)


def draw_picture_of_sweep(sweep: Sweep) -> None:
    """Draws accuracy against the cost per answer, for all methods of a sweep."""
    from recor_dist.figures.run_pictures import draw_sweep  # here, because it takes seconds

    try:
        draw_sweep(sweep.finished(), sweep.folder.uri)
    except Exception:  # the sweep is saved, with or without its picture
        log.warning("the picture of the sweep could not be drawn", exc_info=True)


def end(status: str) -> None:
    """Ends the sweep, if this command was one."""
    end_sweep(status, draw_picture_of_sweep)


def show(result: dict[str, Any], out: str) -> None:
    """Prints the result as a short table, and the folder it was saved in."""
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
        console.print("reproducible=false: this run was computed on different kinds of machines")
    print(f"saved in {out}")
    print(f"weights sha256 {result['weights_sha256']}")


if __name__ == "__main__":
    command(main, end, scale_of_run=scale_of_run)
