"""`python -m recor_dist.track sync out=DIR`: sends MLflow the part of a run's or sweep's record that it lacks.

`send` is the other half of record/sending.py: the process that follows a training run. Users have no reason to call it.
"""

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

from omegaconf import MISSING

from recor_dist.core.command import plain_command
from recor_dist.core.progress import progress_bar, set_up_logging
from recor_dist.core.setting import Mistake, setting
from recor_dist.record.delivery import Delivery, describe, prepare_mlflow, reason_of, say
from recor_dist.record.run_folder import RunFolder

PERIOD, LONGEST_PAUSE = 2.0, 30.0  # seconds between two reads of the journal; at most, while the server fails
INCOMPLETE = 3  # exit code of a sender that could not deliver everything
ABOUT = [
    "Sends MLflow everything that a run or a sweep has recorded in its folder and that MLflow does not have yet.",
    "",
    "  python -m recor_dist.track sync out=runs/demo",
    "  MLFLOW_TRACKING_URI=http://host:5000 python -m recor_dist.track sync out=runs/sweep-0a1b2c3d",
    "",
    "The record goes to MLFLOW_TRACKING_URI; if that is not set, to the store that was used last, else to MLflow's own",
    "default. Repeat the command as often as you like: nothing is sent twice.",
]
log = logging.getLogger(__name__)


@dataclass
class TrackCommand:
    """What to send, and where."""

    action: str = setting(MISSING, "sync; training itself calls send", choices=("sync", "send"))
    out: str = setting(MISSING, "the folder of a run or a sweep")
    experiment: str | None = setting(None, "the MLflow experiment; by default the run's track.experiment")
    register: str | None = setting(
        None, "name under which to register the trained model; by default the run's track.register"
    )
    journal: str | None = setting(None, "send only: path of the journal to follow")
    sweep: str | None = setting(None, "send only: folder of the sweep that the run belongs to")
    wait: float | None = setting(None, "send only: seconds to deliver the rest after the run has ended", at_least=0)


def main(config: TrackCommand) -> int:
    prepare_mlflow()
    if config.action == "send":
        return send(config)
    for key in ("journal", "sweep", "wait"):
        if (value := getattr(config, key)) is not None:
            raise Mistake(f"{key}={value}: is for send only; omit it")
    set_up_logging()
    sync(config.out, experiment=config.experiment, register=config.register)
    return 0


# --- sync ------------------------------------------------------------------------------------------------------------


def sync(out: str, *, experiment: str | None = None, register: str | None = None, sweep: str | None = None) -> None:
    """Sends what a folder has and MLflow does not; for a sweep, its runs as well."""
    folder = RunFolder.open(out)
    name = describe(folder).name
    for run in (folder.read_sweep() or {"runs": []})["runs"]:
        if RunFolder.open(run["out"]).has_run():
            sync(run["out"], experiment=experiment, register=register, sweep=out)
    with folder.sender_lock():
        delivery = Delivery(out, experiment=experiment, register=register, sweep=sweep, prefer_earlier_store=True)
        try:
            delivery.open()
            if delivery.waiting:
                with progress_bar(f"sending {name}", len(delivery.waiting)) as advance:
                    delivery.send(advance)
            delivery.finish(training=folder.is_training())
            log.info("complete: %s", delivery.where())
        except Mistake:
            raise
        except Exception as error:
            log.debug("not delivered", exc_info=True)
            raise Mistake(
                f"{delivery.store}: fails ({reason_of(error)}); run the same command again to send the rest"
            ) from error


# --- send ------------------------------------------------------------------------------------------------------------


def send(config: TrackCommand) -> int:
    """Follows a run until the driver closes the pipe or dies, then delivers the rest in bounded time."""
    os.nice(10)  # training comes first
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `ray job stop` signals all; the status is still to be sent
    sys.stdout = sys.stderr  # for what MLflow prints: the other end of the pipe may be gone
    ended = _end_of_driver(config.wait or 0.0)
    with RunFolder.open(config.out).sender_lock(wait=True):  # the sender of a killed run may still hold it
        delivery = Delivery(
            config.out,
            journal_path=config.journal,
            experiment=config.experiment,
            register=config.register,
            sweep=config.sweep,
        )
        return _follow(delivery, ended)


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


def _follow(delivery: Delivery, ended: threading.Event) -> int:
    """Sends the journal as it grows and, after the end, the rest; returns the exit code."""
    pause, answered, failing = PERIOD, False, False
    while True:
        last = ended.is_set()
        # The one place that catches everything: a server can fail in any way, and training must not notice.
        try:
            delivery.send()
            if not answered:
                say(delivery.where())
            if last:
                delivery.finish()
                return 0
            if failing:
                say("MLflow responds again")
            pause, answered, failing = PERIOD, True, False
        except Exception as error:
            log.warning("not delivered", exc_info=True)
            over = ended.is_set()
            if over and (failing or not answered):  # do not make the user wait for a server that is down
                say(f"{delivery.store} fails ({reason_of(error)})")
                return INCOMPLETE
            if not over and not failing:
                say(f"{delivery.store} fails ({reason_of(error)}); training continues, the record stays in its folder")
                failing = True
            pause = min(2 * pause, LONGEST_PAUSE)
        if last:
            time.sleep(1.0)
        else:
            ended.wait(pause)


if __name__ == "__main__":
    plain_command(TrackCommand, main, ABOUT, positional=("action",))
