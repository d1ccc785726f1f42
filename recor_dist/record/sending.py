"""The driver's side of the record in MLflow and elsewhere: starting the process that sends it, and waiting for it.

    training ──► out/metrics.jsonl, run.json, result.json ──► sender ──► MLflow, TensorBoard's files, ...
                 always written, and written first            `python -m recor_dist.track send`

Training starts the sender before its first step and closes its pipe after its last; in between, neither calls the
other. Only the sender imports MLflow before the last step, so a server that is down, slow or hung costs a training step
nothing. When the pipe closes, because the run ended or because its process was killed, the sender delivers the rest,
sets the status and exits. `python -m recor_dist.track sync out=DIR` delivers later what it could not.
"""

import logging
import subprocess
import sys
import threading
from contextlib import suppress
from types import TracebackType

from recor_dist.core.config import TrackConfig
from recor_dist.record.destination import destinations_of
from recor_dist.record.run_folder import RunFolder

COMMAND = [sys.executable, "-m", "recor_dist.track"]
SECONDS_AFTER_STOP = 5.0
log = logging.getLogger(__name__)


class Tracker:
    """Starts the sender of a run, and waits for it at the end, for a bounded time."""

    def __init__(self, track: TrackConfig, sweep: str | None = None) -> None:
        """`sweep`: the folder of the sweep that the run belongs to."""
        self.track, self.sweep = track, sweep
        self.process: subprocess.Popen | None = None

    def start(self, out: str, journal_path: str) -> None:
        """Called once, before the first step, with the folder of the run."""
        track = self.track
        if not destinations_of(track):
            return
        self.out = out
        settings = [f"out={out}", f"journal={journal_path}", f"wait={track.wait}", *settings_of(track)]
        settings += [f"sweep={self.sweep}"] if self.sweep else []
        try:
            with open(RunFolder.open(out).sender_log_path, "a") as errors:
                self.process = subprocess.Popen(
                    [*COMMAND, "send", *settings],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,  # Ctrl-C stops the run; the sender still has to record how it ended
                )
        except OSError as error:
            log.warning("tracking: the sender could not be started (%s)", error)
            return
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process and self.process.stdout
        for line in self.process.stdout:
            log.info("tracking: %s", line.rstrip())

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is None:
            return
        stopped = kind is not None and not issubclass(kind, Exception)
        seconds = min(self.track.wait, SECONDS_AFTER_STOP) if stopped else self.track.wait
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            if not finish_within(self.process, seconds):
                log.warning("tracking: the record is incomplete; %s sends the rest", sync_command(self.out, self.track))
        finally:
            self.reader.join()
            self.process.stdout.close()


def settings_of(track: TrackConfig) -> list[str]:
    """The settings of `send` and `sync`, as they are written on a command line."""
    words = [f"to={','.join(destinations_of(track))}", f"experiment={track.experiment}"]
    return words + ([f"register={track.register}"] if track.register else [])


def sync_command(out: str, track: TrackConfig) -> str:
    """With `to=`, because without it MLflow gets the record, too, whether or not the run uses it."""
    return f"`python -m recor_dist.track sync out={out} to={','.join(destinations_of(track))}`"


def sync_within(out: str, track: TrackConfig, seconds: float) -> bool:
    """Sends what a folder has and MLflow does not, in another process; True if it sent everything in time."""
    process = subprocess.Popen([*COMMAND, "sync", f"out={out}", *settings_of(track)], start_new_session=True)
    return finish_within(process, seconds)


def finish_within(process: subprocess.Popen, seconds: float) -> bool:
    """Waits for a sender that was asked to finish, and kills it when the time is up; True if it sent everything."""
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(2.0, seconds))
        if process.poll() is None:
            log.info("tracking: waiting for the record, at most %g s", seconds)
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, seconds - 2.0))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    return process.returncode == 0
