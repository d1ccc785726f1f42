"""`python -m recor_dist.track sync out=DIR`: completes the record of a run or a sweep in MLflow and other trackers.

`send` is the other half of record/sending.py: the process that follows a training run. Users have no reason to call it.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from omegaconf import MISSING

from recor_dist.core.command import plain_command
from recor_dist.core.config import TrackConfig, check_package
from recor_dist.core.progress import progress_bar, set_up_logging
from recor_dist.core.setting import Mistake, nearest, setting
from recor_dist.record.delivery import Delivery, prepare_mlflow, reason_of, say
from recor_dist.record.description import describe
from recor_dist.record.destination import Destination
from recor_dist.record.journal_copy import FileFormat, JournalCopy
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.tensorboard_files import TENSORBOARD
from recor_dist.record.wandb_files import WANDB

FORMATS: dict[str, FileFormat] = {"tensorboard": TENSORBOARD, "wandb": WANDB}
DESTINATIONS = ("mlflow", *FORMATS)
PERIOD, LONGEST_PAUSE = 2.0, 30.0  # seconds between two reads of the journal; at most, while the server fails
INCOMPLETE = 3  # exit code of a sender that could not deliver everything
ABOUT = [
    "Sends MLflow everything that a run or a sweep has recorded in its folder and that MLflow does not have yet.",
    "With to=tensorboard or to=wandb, writes it as files for TensorBoard or Weights & Biases, in the run's folder.",
    "",
    "  python -m recor_dist.track sync out=runs/demo",
    "  python -m recor_dist.track sync out=runs/demo to=tensorboard",
    "  MLFLOW_TRACKING_URI=http://host:5000 python -m recor_dist.track sync out=runs/sweep-0a1b2c3d",
    "",
    "MLflow is the one at MLFLOW_TRACKING_URI; if that is not set, the store that was used last, else MLflow's own",
    "default. Repeat the command as often as you like: nothing is sent twice.",
]
log = logging.getLogger(__name__)


@dataclass
class TrackCommand:
    """What to send, and where."""

    action: str = setting(MISSING, "sync; training itself calls send", choices=("sync", "send"))
    out: str = setting(MISSING, "the folder of a run or a sweep")
    to: str | None = setting(
        None, f"{', '.join(DESTINATIONS)}, or several with commas; by default MLflow and those that the run itself used"
    )
    experiment: str | None = setting(None, "the MLflow experiment; by default the run's track.experiment")
    register: str | None = setting(
        None, "name under which to register the trained model; by default the run's track.register"
    )
    journal: str | None = setting(None, "send only: path of the journal to follow")
    sweep: str | None = setting(None, "send only: folder of the sweep that the run belongs to")
    wait: float | None = setting(None, "send only: seconds to deliver the rest after the run has ended", at_least=0)


def main(config: TrackCommand) -> int:
    prepare_mlflow()
    chosen = _read_destinations(config.to) if config.to is not None else None
    if config.action == "send":
        return send(config, chosen or ["mlflow"])
    for key in ("journal", "sweep", "wait"):
        if (value := getattr(config, key)) is not None:
            raise Mistake(f"{key}={value}: is for send only; omit it")
    set_up_logging()
    sync(config.out, chosen, experiment=config.experiment, register=config.register)
    return 0


def _read_destinations(to: str) -> list[str]:
    names = to.split(",")
    for name in names:
        if name not in DESTINATIONS:
            raise Mistake(f"to={to}: allowed: {', '.join(DESTINATIONS)}{nearest(name, DESTINATIONS)}")
        if name in FORMATS:
            check_package(f"to={to}", name)
    return names


def open_copy(name: str, out: str, *, journal_path: str | None = None, experiment: str | None = None) -> JournalCopy:
    """The files of a tool other than MLflow."""
    recorded = describe(RunFolder.open(out)).params.get("track.experiment", TrackConfig.experiment)
    return JournalCopy(FORMATS[name], out, journal_path=journal_path, experiment=experiment or recorded)


# --- sync ------------------------------------------------------------------------------------------------------------


def sync(
    out: str,
    chosen: list[str] | None = None,
    *,
    experiment: str | None = None,
    register: str | None = None,
    sweep: str | None = None,
) -> None:
    """Completes a folder's record in the chosen destinations; for a sweep, that of its runs as well."""
    folder = RunFolder.open(out)
    about = describe(folder)
    names = chosen or ["mlflow", *(name for name in FORMATS if about.params.get(f"track.{name}") is True)]
    runs = (folder.read_sweep() or {"runs": []})["runs"]
    for run in runs:
        if RunFolder.open(run["out"]).has_run():
            sync(run["out"], chosen, experiment=experiment, register=register, sweep=out)
    with folder.sender_lock():
        for name in names:
            if name == "mlflow":
                options = {"experiment": experiment, "register": register, "sweep": sweep}
                _complete(Delivery(out, **options, prefer_earlier_store=True), folder, about.name)
            elif not runs:  # means over runs are in MLflow only
                _complete(open_copy(name, out, experiment=experiment), folder, about.name)


def _complete(destination: Destination, folder: RunFolder, name: str) -> None:
    """Sends all that a destination lacks."""
    try:
        if count := destination.open():
            with progress_bar(f"sending {name}", count) as advance:
                destination.send(advance)
        destination.finish(training=folder.is_training())
        log.info("complete: %s", destination.where())
    except Mistake:
        raise
    except Exception as error:
        log.debug("not delivered", exc_info=True)
        raise Mistake(
            f"{destination.store}: fails ({reason_of(error)}); run the same command again to send the rest"
        ) from error


# --- send ------------------------------------------------------------------------------------------------------------


def send(config: TrackCommand, names: list[str]) -> int:
    """Follows a run until the driver closes the pipe or dies, then delivers the rest in bounded time."""
    os.nice(10)  # training comes first
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `ray job stop` signals all; the status is still to be sent
    sys.stdout = sys.stderr  # for what MLflow prints: the other end of the pipe may be gone
    ended = _end_of_driver(config.wait or 0.0)
    with RunFolder.open(config.out).sender_lock(wait=True):  # the sender of a killed run may still hold it
        return _follow_all([partial(_open, name, config) for name in names], ended)


def _open(name: str, config: TrackCommand) -> Destination:
    if name != "mlflow":
        return open_copy(name, config.out, journal_path=config.journal, experiment=config.experiment)
    return Delivery(
        config.out,
        journal_path=config.journal,
        experiment=config.experiment,
        register=config.register,
        sweep=config.sweep,
    )


def _follow_all(opens: list[Callable[[], Destination]], ended: threading.Event) -> int:
    """Follows the run for each destination in a thread, so that a server that hangs does not delay files."""
    codes: list[int] = []
    threads = [threading.Thread(target=lambda make=make: codes.append(_follow(make(), ended))) for make in opens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(codes) if len(codes) == len(threads) else INCOMPLETE


def _end_of_driver(wait: float) -> threading.Event:
    """Set when the driver closes the pipe or dies; `wait` seconds later this process exits, whatever it is doing."""
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()
        time.sleep(wait)
        os._exit(INCOMPLETE)

    threading.Thread(target=watch, daemon=True).start()
    return ended


def _follow(destination: Destination, ended: threading.Event) -> int:
    """Sends the journal to one destination as it grows and, after the end, the rest; returns the exit code."""
    pause, answered, failing = PERIOD, False, False
    while True:
        last = ended.is_set()
        # The one place that catches everything: a server can fail in any way, and training must not notice.
        try:
            destination.send()
            if not answered:
                say(destination.where())
            if last:
                destination.finish()
                return 0
            if failing:
                say(f"{destination.store} responds again")
            pause, answered, failing = PERIOD, True, False
        except Exception as error:
            log.warning("not delivered", exc_info=True)
            over = ended.is_set()
            if over and (failing or not answered):  # do not make the user wait for a server that is down
                say(f"{destination.store} fails ({reason_of(error)})")
                return INCOMPLETE
            if not over and not failing:
                reason = f"{destination.store} fails ({reason_of(error)})"
                say(f"{reason}; training continues, the record stays in its folder")
                failing = True
            pause = min(2 * pause, LONGEST_PAUSE)
        if last:
            time.sleep(1.0)
        else:
            ended.wait(pause)


if __name__ == "__main__":
    plain_command(TrackCommand, main, ABOUT, positional=("action",))
