"""The record in MLflow: everything a run wrote into its folder, carried there by a process of its own.

    training ──► out/metrics.jsonl, run.json, result.json ──► sender ──► MLflow
                 written first, whatever happens              `python -m recor_dist.track send`

Training starts the sender before its first step and closes its pipe after its last; in between nobody calls anybody.
No process but the sender imports MLflow before the last step. So a server that is down, slow or hung costs a training
step nothing. When the pipe closes, be it that the run ended or that its process was killed, the sender brings the rest,
sets the status and ends. What it could not bring, `python -m recor_dist.track sync out=DIR` brings later.

Nothing is sent twice: `track.json` says how far the sender came, and before it goes on after a fault or a new start it
asks the server which steps it has. A point carries the journal's time, so that a store which got it twice keeps one.
"""

import fcntl
import getpass
import hashlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from pyarrow import fs

from recor_dist.core.config import Config, Mistake, TrackConfig
from recor_dist.core.files import exclusive, exists, open_folder, read_bytes, read_json, write_json
from recor_dist.core.progress import progress_bar, set_up_logging
from recor_dist.record import journal

STATE = "track.json"  # how far the sender came, by store
SWEEP = "sweep.json"  # what a sweep's folder has in place of run.json
LOG = "track.log"  # what MLflow printed
LOCK = ".track.lock"
KEY_TAG = "recor_dist.record"  # tells a run that was created, but whose id was never noted
PARENT_TAG = "mlflow.parentRunId"  # MLflow shows runs with it under their parent
ARTIFACTS = ("result.json", "replay.html", "pictures", "model")

PERIOD, LONGEST_PAUSE = 2.0, 30.0  # seconds between two looks at the journal; at most, while the server fails
SECONDS_AFTER_STOP = 5.0
INCOMPLETE = 3  # exit code of a sender that could not bring everything
MLFLOW_STATUS = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
# By default one call to a server that is down would block for minutes; the sender tries again by itself.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# What MLflow takes, see its utils/validation.py.
MOST_POINTS, MOST_PARAMS, LONGEST_PARAM, LONGEST_TAG, LONGEST_NAME = 1000, 100, 6000, 5000, 250

log = logging.getLogger(__name__)


# --- the driver's side -----------------------------------------------------------------------------------------------


class Tracker:
    """Starts the sender of a run, and at the end waits for it, for a bounded time."""

    def __init__(self, config: Config, sweep: str | None = None) -> None:
        self.config, self.sweep = config, sweep
        self.process: subprocess.Popen | None = None

    def start(self, journal_path: str) -> None:
        """Once, before the first step."""
        if not self.config.track.enabled:
            return
        words = [f"out={self.config.out}", f"journal={journal_path}", *words_of(self.config.track)]
        words += [f"sweep={self.sweep}"] if self.sweep else []
        folder = open_folder(self.config.out)
        local = isinstance(folder.base_fs, fs.LocalFileSystem)
        try:
            with open(os.path.join(folder.base_path, LOG) if local else os.devnull, "a") as errors:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "recor_dist.track", "send", *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for the run; the sender still has to say how it ended
                )
        except OSError as error:
            log.warning("tracking: no sender could be started (%s)", error)
            return
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            log.info("tracking: %s", line.rstrip())

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is None:
            return
        stopped = kind is not None and not issubclass(kind, Exception)
        seconds = min(self.config.track.wait, SECONDS_AFTER_STOP) if stopped else self.config.track.wait
        self.process.stdin.close()
        try:
            if not finish_within(self.process, seconds):
                log.warning("tracking: the record is not complete; %s brings the rest", sync_command(self.config.out))
        finally:
            self.reader.join()
            self.process.stdout.close()


def words_of(track: TrackConfig) -> list[str]:
    """The settings of a sender, as words of its command line."""
    words = [f"experiment={track.experiment}", f"wait={track.wait}"]
    return words + ([f"register={track.register}"] if track.register else [])


def sync_command(out: str) -> str:
    return f"`python -m recor_dist.track sync out={out}`"


def finish_within(process: subprocess.Popen, seconds: float) -> bool:
    """Waits for a sender that was told to end; True if it brought everything. Then, or in time, it is gone."""
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(2.0, seconds))
        if process.poll() is None:
            log.info("tracking: waiting for MLflow, %g s at most", seconds)
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, seconds - 2.0))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    return process.returncode == 0


# --- what a folder tells ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class About:
    """What is said of a run, or of a sweep, beside its points."""

    name: str
    params: dict[str, Any]
    tags: dict[str, str]
    status: str


def about_of(folder: fs.SubTreeFileSystem) -> About:
    name = os.path.basename(folder.base_path.rstrip("/"))
    if exists(folder, SWEEP):
        sweep = read_json(folder, SWEEP)
        tags = {"sweep": " ".join(sweep["words"]), "mlflow.source.name": "recor_dist.run --multirun"}
        params = dict(word.lstrip("+").split("=", 1) for word in sweep["words"])
        status = sweep["status"]
    elif exists(folder, "run.json"):
        run = read_json(folder, "run.json")
        result = read_json(folder, "result.json") if exists(folder, "result.json") else {}
        params, status = run["settings"], run.get("status", "finished" if result else "running")
        tags = {
            "task": params["task.name"],
            "method": params["method.name"],
            "scale": params["scale"],
            "engine": run.get("engine", params["engine"]),
            "lag": params["lag"],
            "seed": params["seed"],
            "data": run.get("data"),
            "reproducible": run["reproducible"],
            "error": run.get("error"),
            "weights_sha256": result.get("weights_sha256"),
            "mlflow.source.name": "recor_dist.run",
        }
        for code in run.get("code", []):  # several where the run went on with other code
            for key, value in code.items():
                tags[key] = ", ".join(dict.fromkeys([*tags.get(key, value).split(", "), value]))
            tags["mlflow.source.git.commit"] = code.get("git_commit")
    else:
        raise Mistake(
            f"{folder.base_path.rstrip('/')}: holds neither a run nor a sweep; give the folder that it was saved in"
        )
    told = {key: str(value)[:LONGEST_TAG] for key, value in tags.items() if value is not None}
    return About(name, params, told, status)


class Lines:
    """The journal's records, each given once; a line that is being written comes next time."""

    def __init__(self, folder: fs.SubTreeFileSystem, path: str | None) -> None:
        local = isinstance(folder.base_fs, fs.LocalFileSystem)
        self.folder, self.path = folder, path or (os.path.join(folder.base_path, journal.FILE) if local else None)
        self.position = 0

    def read(self) -> list[dict[str, Any]]:
        lines = self._rest().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        self.position += sum(map(len, lines))
        return journal.read_records(lines)

    def _rest(self) -> bytes:
        try:
            if self.path:
                with open(self.path, "rb") as file:
                    file.seek(self.position)
                    return file.read()
        except FileNotFoundError:
            pass  # the local copy of an object store's journal is gone with the run, and was uploaded before
        return read_bytes(self.folder, journal.FILE)[self.position :] if exists(self.folder, journal.FILE) else b""


# --- the sender's side -----------------------------------------------------------------------------------------------


class Delivery:
    """Brings one folder to one MLflow store. Every method may be repeated, and does then what is left to do."""

    def __init__(
        self,
        out: str,
        *,
        journal_path: str | None = None,
        experiment: str | None = None,
        register: str | None = None,
        sweep: str | None = None,
        prefer_earlier_store: bool = False,
    ) -> None:
        self.out, self.folder = out, open_folder(out)
        settings = about_of(self.folder).params
        self.experiment = experiment or settings.get("track.experiment", TrackConfig.experiment)
        self.register = register or settings.get("track.register")
        self.sweep, self.prefer_earlier_store = sweep, prefer_earlier_store
        self.lines = Lines(self.folder, journal_path)
        self.waiting: list[dict[str, Any]] = []  # records that are read and not sent
        self.client: Any = None
        self.run_id = ""
        self.empty = False  # the server has no points of this run but those that this process brought
        self.on_server: dict[str, np.ndarray] = {}  # steps by metric, sorted, once asked for
        self.last_time: float | None = None

    # the state of the sender

    def _load_state(self) -> None:
        whole = {}
        with suppress(FileNotFoundError, ValueError):
            whole = read_json(self.folder, STATE)
        self.whole = {"key": uuid.uuid4().hex, "stores": {}} | whole
        self.uri = self._tracking_uri()
        shown = without_password(self.uri)
        self.whole["store"] = shown
        self.state: dict[str, Any] = self.whole["stores"].setdefault(shown, {})
        self._save_state()  # the key must be known before a run is created with it

    def _save_state(self) -> None:
        write_json(self.folder, STATE, self.whole)

    def _tracking_uri(self) -> str:
        import mlflow

        earlier = self.whole.get("store") if self.prefer_earlier_store else None
        uri = os.environ.get("MLFLOW_TRACKING_URI") or earlier or mlflow.get_tracking_uri()
        database = re.fullmatch(r"sqlite:///([^/].*)", uri)
        return f"sqlite:///{os.path.abspath(database[1])}" if database else uri

    # opening

    def open(self) -> None:
        """Finds or creates the run, with its parameters and tags. Asks the server, whatever the state says."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._load_state()
        client, about = MlflowClient(self.uri), about_of(self.folder)
        run = self._find(client)
        self.empty, self.on_server = run is None, {}
        self.waiting, self.lines.position = [], 0
        self._read_on()
        if run is None:
            first = self.waiting[0].get("time") if self.waiting else None
            tags = {KEY_TAG: self.whole["key"], "mlflow.user": _user(), "mlflow.source.type": "LOCAL"}
            run = client.create_run(
                self._experiment_id(client),
                start_time=_milliseconds(first or time.time()),
                tags=tags | about.tags,
                run_name=about.name,
            )
        self.run_id = self.state["run_id"] = run.info.run_id
        # The journal that was saved of a lost machine may have other lines than were sent: then the server is asked.
        sent = self.state.get("sent", 0)
        known = 0 < sent <= len(self.waiting) and self.waiting[sent - 1].get("time") == self.state.get("time")
        self.state["sent"] = sent if known else 0
        del self.waiting[: self.state["sent"]]
        self._save_state()
        params = {_name(key): _text(value) for key, value in about.params.items()}
        missing = [Param(key, value) for key, value in params.items() if key not in run.data.params]
        for part in _parts(missing, MOST_PARAMS):
            client.log_batch(self.run_id, params=part)
        self.client = client
        self._tell_about(about, about.status)
        if self.sweep:
            self._hang_under_parent("RUNNING")

    def _find(self, client: Any) -> Any | None:
        """The MLflow run of this folder; None if there is none, or if somebody deleted it."""
        from mlflow.exceptions import MlflowException

        if run_id := self.state.get("run_id"):
            try:
                run = client.get_run(run_id)
                if run.info.lifecycle_stage == "active":
                    return run
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            self.state.clear()
        found = client.search_runs(
            [self._experiment_id(client)], f"tags.`{KEY_TAG}` = '{self.whole['key']}'", max_results=1
        )
        return found[0] if found else None

    def _experiment_id(self, client: Any) -> str:
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            try:
                return client.create_experiment(self.experiment)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run was faster
                    raise
                experiment = client.get_experiment_by_name(self.experiment)
        if experiment.lifecycle_stage != "active":
            raise Mistake(f"track.experiment={self.experiment}: was deleted there; restore it, or choose another name")
        return experiment.experiment_id

    def _hang_under_parent(self, status: str) -> None:
        """The sweep's own run: whoever comes first creates it."""
        with alone(open_folder(self.sweep), wait=True):
            parent = Delivery(self.sweep, experiment=self.experiment, prefer_earlier_store=self.prefer_earlier_store)
            parent.open()
            if status != "RUNNING":
                parent.client.update_run(parent.run_id, status)
        self.client.set_tag(self.run_id, PARENT_TAG, parent.run_id)
        self.state["parent"] = parent.run_id
        self._save_state()

    def _tell_about(self, about: About, status: str) -> None:
        from mlflow.entities import RunTag

        self.client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in about.tags.items()])
        known = self.client.get_run(self.run_id)
        if "error" in known.data.tags and "error" not in about.tags:
            self.client.delete_tag(self.run_id, "error")
        if status == "running":
            self.client.update_run(self.run_id, "RUNNING")
        else:
            end = _milliseconds(self.last_time or time.time())
            self.client.set_terminated(self.run_id, MLFLOW_STATUS[status], end)

    # points

    def bring(self, advance: Callable[[int], None] = lambda count: None) -> None:
        """Sends all records that are in the journal and not yet there."""
        try:
            if self.client is None:
                self.open()
            self._read_on()
            while self.waiting:
                points, count = self._next_batch()
                self._log(points)
                self.state["time"] = self.waiting[count - 1].get("time")
                del self.waiting[:count]
                self.state["sent"] += count
                self._save_state()
                advance(count)
        except BaseException:
            self.client = None  # what the server has is not known any more
            raise

    def _read_on(self) -> None:
        fresh = self.lines.read()
        self.waiting += fresh
        if fresh:
            self.last_time = fresh[-1].get("time")

    def _next_batch(self) -> tuple[list[Any], int]:
        """The points of as many waiting records as one request may hold, and how many records these are."""
        points: list[Any] = []
        for count, record in enumerate(self.waiting):
            more = points_of(record)
            if count and len(points) + len(more) > MOST_POINTS:
                return points, count
            points += more
        return points, len(self.waiting)

    def _log(self, points: list[Any]) -> None:
        missing = points if self.empty else [point for point in points if not self._is_on_server(point)]
        for part in _parts(missing, MOST_POINTS):
            self._log_or_halve(part)

    def _is_on_server(self, point: Any) -> bool:
        if point.key not in self.on_server:
            history = self.client.get_metric_history(self.run_id, point.key)
            self.on_server[point.key] = np.sort(np.array([known.step for known in history], dtype=np.int64))
        steps = self.on_server[point.key]
        place = int(np.searchsorted(steps, point.step))
        return place < len(steps) and int(steps[place]) == point.step

    def _log_or_halve(self, points: list[Any]) -> None:
        """One point that the server will never take must not hold up the others."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_batch(self.run_id, metrics=points)
        except MlflowException as error:
            if error.error_code not in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise
            if self.client.get_run(self.run_id).info.lifecycle_stage != "active":
                raise
            if len(points) == 1:
                tell(f"refused there, and left out: {points[0].key} of step {points[0].step} ({_reason(error)})")
                return
            middle = len(points) // 2
            self._log_or_halve(points[:middle])
            self._log_or_halve(points[middle:])

    # the end

    def finish(self, *, training: bool = False) -> None:
        """After the last record: how the run ended; then artifacts and the registered model, which may take long."""
        about = about_of(self.folder)
        killed = about.status == "running" and not training
        if self.sweep and (killed or about.status == "stopped"):
            self._hang_under_parent("KILLED")
        self._tell_about(about, "stopped" if killed else about.status)
        self._bring_artifacts()
        if self.register and exists(self.folder, "model/MLmodel"):
            self._register_model()

    def _bring_artifacts(self) -> None:
        sent = self.state.setdefault("artifacts", {})
        try:
            for name in self._artifacts():
                content = read_bytes(self.folder, name)
                checksum = hashlib.sha256(content).hexdigest()
                if sent.get(name) == checksum:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, os.path.basename(name))
                    with open(path, "wb") as file:
                        file.write(content)
                    self.client.log_artifact(self.run_id, path, os.path.dirname(name) or None)
                sent[name] = checksum
        finally:
            self._save_state()  # not after each: one that is sent twice overwrites itself

    def _artifacts(self) -> Iterator[str]:
        for name in ARTIFACTS:
            info = self.folder.get_file_info(name)
            if info.type == fs.FileType.File:
                yield name
            elif info.type == fs.FileType.Directory:
                inside = self.folder.get_file_info(fs.FileSelector(name, recursive=True))
                yield from sorted(part.path for part in inside if part.type == fs.FileType.File)

    def _register_model(self) -> None:
        import mlflow

        mlflow.set_tracking_uri(self.uri)
        versions = self.client.search_model_versions(f"run_id = '{self.run_id}'")
        if self.register not in {version.name for version in versions}:
            mlflow.register_model(f"runs:/{self.run_id}/model", self.register)

    def where(self) -> str:
        run = self.client.get_run(self.run_id).info
        page = f"/#/experiments/{run.experiment_id}/runs/{self.run_id}" if self.uri.startswith("http") else ""
        return f"run {run.run_name} ({self.run_id}) at {without_password(self.uri)}{page}"


def points_of(record: dict[str, Any]) -> list[Any]:
    """A record's metrics. MLflow takes NaN and infinity."""
    from mlflow.entities import Metric

    at = _milliseconds(record.get("time", 0.0))
    return [
        Metric(_name(key), float(value), at, record["step"])
        for key, value in record.items()
        if key not in ("step", "time") and isinstance(value, int | float)
    ]


def _name(key: str) -> str:
    """A name that MLflow takes: letters, digits, `_-. :/`, and a path that goes straight on."""
    parts = re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:LONGEST_NAME].rstrip("/") or "_"


def _text(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= LONGEST_PARAM else text[: LONGEST_PARAM - 1] + "…"


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


def _reason(error: BaseException) -> str:
    """The innermost cause, in one line."""
    while error.__cause__ or (error.__context__ and not error.__suppress_context__):
        error = error.__cause__ or error.__context__
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def without_password(uri: str) -> str:
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


@contextmanager
def alone(folder: fs.SubTreeFileSystem, *, wait: bool = False) -> Iterator[None]:
    """Keeps a second sender of this machine out of a local folder. Elsewhere two would only do the work twice."""
    if not isinstance(folder.base_fs, fs.LocalFileSystem):
        yield
        return
    with open(os.path.join(folder.base_path, LOCK), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Mistake(
                f"{folder.base_path.rstrip('/')}: another process is sending its record; wait for it"
            ) from None
        yield


def prepare_mlflow() -> None:
    """To be called before MLflow is imported: no telemetry, no minutes of waiting, unless somebody wants them."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)


# --- the commands ----------------------------------------------------------------------------------------------------


def tell(line: str) -> None:
    """To whoever started this process."""
    with suppress(BrokenPipeError):  # a killed driver hears nothing
        print(line, file=sys.__stdout__, flush=True)


def send(words: dict[str, str]) -> int:
    """Follows a run until the driver closes the pipe, or dies; then brings the rest, in bounded time."""
    os.nice(10)  # the training comes first
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `ray job stop` signals all; how the run ended is still to be told
    sys.stdout = sys.stderr  # whatever MLflow prints: the other end of the pipe may be gone
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()
        time.sleep(float(words["wait"]))
        os._exit(INCOMPLETE)

    threading.Thread(target=watch, daemon=True).start()
    folder = open_folder(words["out"])
    with alone(folder, wait=True):  # the sender of a killed run may be at it
        delivery = Delivery(
            words["out"],
            journal_path=words["journal"],
            experiment=words["experiment"],
            register=words.get("register"),
            sweep=words.get("sweep"),
        )
        pause, answered, failing = PERIOD, False, False
        while True:
            last = ended.is_set()
            # The one place where anything may go wrong: a server can fail in every way, and training must not care.
            try:
                delivery.bring()
                if not answered:
                    tell(delivery.where())
                if last:
                    delivery.finish()
                    return 0
                if failing:
                    tell("MLflow answers again")
                pause, answered, failing = PERIOD, True, False
            except Exception as error:
                log.warning("not brought", exc_info=True)
                over, where = ended.is_set(), without_password(getattr(delivery, "uri", "MLflow"))
                if over and (failing or not answered):  # nobody is made to wait for a server that is not there
                    tell(f"{where} fails ({_reason(error)})")
                    return INCOMPLETE
                if not over and not failing:
                    tell(f"{where} fails ({_reason(error)}); training goes on, the record waits in its folder")
                    failing = True
                pause = min(2 * pause, LONGEST_PAUSE)
            if last:
                time.sleep(1.0)
            else:
                ended.wait(pause)


def sync(words: dict[str, str]) -> int:
    """Brings to MLflow what is in a folder and not yet there; of a sweep, its runs as well."""
    set_up_logging()
    folder = open_folder(words["out"])
    about = about_of(folder)
    if exists(folder, SWEEP):
        for child in read_json(folder, SWEEP)["runs"]:
            if exists(open_folder(child["out"]), "run.json"):
                sync({**words, "out": child["out"], "sweep": words["out"]})
    options = {key: words.get(key) for key in ("experiment", "register", "sweep")}
    with alone(folder):
        delivery = Delivery(words["out"], prefer_earlier_store=True, **options)
        try:
            delivery.open()
            if delivery.waiting:
                with progress_bar(f"sending {about.name}", len(delivery.waiting)) as advance:
                    delivery.bring(advance)
            delivery.finish(training=_is_training(folder))
            log.info("complete: %s", delivery.where())
            return 0
        except Mistake:
            raise
        except Exception as error:
            log.debug("not brought", exc_info=True)
            raise Mistake(
                f"{without_password(getattr(delivery, 'uri', 'MLflow'))}: fails ({_reason(error)}); what was sent "
                "counts, and the same command goes on from there"
            ) from error


def _is_training(folder: fs.SubTreeFileSystem) -> bool:
    try:
        with exclusive(folder, "training"):
            return False
    except Mistake:
        return True


def main() -> int:
    usage = "write `python -m recor_dist.track sync out=DIR [experiment=NAME] [register=NAME]`"
    commands = {"sync": (sync, {"out", "experiment", "register"})}
    commands["send"] = (send, {"out", "experiment", "register", "journal", "sweep", "wait"})
    command, *rest = sys.argv[1:] or [""]
    words = dict(word.split("=", 1) for word in rest if "=" in word)
    try:
        if command not in commands or len(words) != len(rest) or not words.get("out"):
            raise Mistake(usage)
        if unknown := words.keys() - commands[command][1]:
            raise Mistake(f"{min(unknown)}: no such setting; {usage}")
        prepare_mlflow()
        return commands[command][0](words)
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
