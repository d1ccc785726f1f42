"""Delivers the record in one folder to one MLflow store.

Nothing is delivered twice: track.json in the folder says how much was sent, and after a failure or a restart the server
is asked which steps it has. A point carries the time of its line in the journal, so a store that gets it twice keeps
one.

"""

import getpass
import hashlib
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from recor_dist.core.config import TrackConfig
from recor_dist.core.files import read_bytes
from recor_dist.core.setting import Mistake
from recor_dist.record.dataset_input import log_dataset
from recor_dist.record.description import Description, describe
from recor_dist.record.evaluations import points_of_evaluation, read_evaluations
from recor_dist.record.journal import JournalReader, points_of
from recor_dist.record.logged_model import checksum_of_model, find_model, send_model
from recor_dist.record.run_folder import MODEL, RunFolder

KEY_TAG = "recor_dist.record"  # finds a run that was created, but whose id was not saved
PARENT_TAG = "mlflow.parentRunId"  # MLflow shows runs with it under their parent
MLFLOW_STATUS = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
MLFLOW_SCHEMES = ("runs:/", "models:/", "mlflow-artifacts:/")  # of models' URIs
# By default one call to a server that is down would block for minutes; the sender does its own retries.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# MLflow's limits, see its utils/validation.py.
MOST_POINTS, MOST_PARAMS, LONGEST_PARAM, LONGEST_NAME = 1000, 100, 6000, 250


def prepare_mlflow() -> None:
    """Call this before importing MLflow: no telemetry and short timeouts, unless the environment says otherwise."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)


def failures_of_mlflow() -> tuple[type[Exception], ...]:
    """What MLflow raises if its store fails: errors of its own, or those of a database."""
    from mlflow.exceptions import MlflowException  # here, because they take seconds to import
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError


def download_model(key: str, uri: str) -> str:
    """The local folder of a model that MLflow has. A Mistake names the setting `key`, which holds the URI."""
    prepare_mlflow()
    import mlflow.artifacts  # here, because it takes seconds to import

    try:
        return mlflow.artifacts.download_artifacts(artifact_uri=uri)
    except failures_of_mlflow() as error:
        place, reason = mlflow.get_tracking_uri(), str(error).splitlines()[0]
        raise Mistake(f"{key}={uri}: cannot be loaded from MLflow at {place}: {reason}") from None


def say(line: str) -> None:
    """Prints a line for the process that started this one."""
    with suppress(BrokenPipeError):  # it may have been killed
        print(line, file=sys.__stdout__, flush=True)


class Delivery:
    """A `Destination`: one MLflow store that gets the record of one folder."""

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
        """`sweep`: the folder of the run's sweep. `prefer_earlier_store`: without MLFLOW_TRACKING_URI, deliver to the
        store that was used last."""
        self.folder = RunFolder.open(out)
        settings = describe(self.folder).params
        self.experiment = experiment or settings.get("track.experiment", TrackConfig.experiment)
        self.register = register or settings.get("track.register")
        self.sweep, self.prefer_earlier_store = sweep, prefer_earlier_store
        self.journal = JournalReader(self.folder, journal_path)
        self.waiting: list[dict[str, Any]] = []  # records that were read and not sent
        self.client: Any = None
        self.uri, self.run_id = "", ""
        self.empty = False  # the server has no points of this run except those sent by this process
        self.on_server: dict[str, np.ndarray] = {}  # the steps of each metric, sorted, once the server was asked
        self.last_time: float | None = None

    # what was delivered so far

    def _load_state(self) -> None:
        self.delivered = {"key": uuid.uuid4().hex, "stores": {}} | (self.folder.read_delivered() or {})
        self.uri = self._tracking_uri()
        self.delivered["store"] = self.store
        self.state: dict[str, Any] = self.delivered["stores"].setdefault(self.store, {})
        self._save_state()  # the key must be saved before a run is created with it

    def _save_state(self) -> None:
        self.folder.write_delivered(self.delivered)

    def _tracking_uri(self) -> str:
        import mlflow

        earlier = self.delivered.get("store") if self.prefer_earlier_store else None
        uri = os.environ.get("MLFLOW_TRACKING_URI") or earlier or mlflow.get_tracking_uri()
        database = re.fullmatch(r"sqlite:///([^/].*)", uri)
        return f"sqlite:///{os.path.abspath(database[1])}" if database else uri

    @property
    def store(self) -> str:
        """The tracking URI as it may be shown."""
        return without_password(self.uri) or "MLflow"

    # opening

    def open(self) -> int:
        """Finds or creates the run, with its parameters and tags. Asks the server, whatever the saved state says."""
        from mlflow import MlflowClient

        self._load_state()
        client, description = MlflowClient(self.uri), describe(self.folder)
        run = self._find(client)
        self.empty, self.on_server = run is None, {}
        self.waiting, self.journal.position = [], 0
        self._read_journal()
        run = run or self._create(client, description)
        self.run_id = self.state["run_id"] = run.info.run_id
        self._skip_sent()
        self._save_state()
        self._send_params(client, description, run.data.params)
        log_dataset(client, self.run_id, self.folder)
        self.client = client
        self._send_tags_and_status(description, description.status)
        if self.sweep:
            self._attach_to_sweep("RUNNING")
        return len(self.waiting)

    def _find(self, client: Any) -> Any | None:
        """The MLflow run of this folder; None if there is none, or if it was deleted."""
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
            [self._experiment_id(client)], f"tags.`{KEY_TAG}` = '{self.delivered['key']}'", max_results=1
        )
        return found[0] if found else None

    def _create(self, client: Any, description: Description) -> Any:
        first = self.waiting[0].get("time") if self.waiting else None
        tags = {KEY_TAG: self.delivered["key"], "mlflow.user": _user(), "mlflow.source.type": "LOCAL"}
        return client.create_run(
            self._experiment_id(client),
            start_time=_milliseconds(first or time.time()),
            tags=tags | description.tags,
            run_name=description.name,
        )

    def _experiment_id(self, client: Any) -> str:
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            try:
                return client.create_experiment(self.experiment)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run created it in the meantime
                    raise
                experiment = client.get_experiment_by_name(self.experiment)
        if experiment.lifecycle_stage != "active":
            raise Mistake(f"track.experiment={self.experiment}: was deleted in MLflow; restore it, or choose another")
        return experiment.experiment_id

    def _skip_sent(self) -> None:
        """Drops the waiting records that were sent. After the loss of a machine the journal may have different lines
        than those that were sent; then none are dropped, and the server is asked for each point."""
        sent = self.state.get("sent", 0)
        known = 0 < sent <= len(self.waiting) and self.waiting[sent - 1].get("time") == self.state.get("time")
        self.state["sent"] = sent if known else 0
        del self.waiting[: self.state["sent"]]

    def _send_params(self, client: Any, description: Description, known: dict[str, str]) -> None:
        from mlflow.entities import Param

        params = {legal_name(key): _text(value) for key, value in description.params.items()}
        missing = [Param(key, value) for key, value in params.items() if key not in known]
        for part in _parts(missing, MOST_PARAMS):
            client.log_batch(self.run_id, params=part)

    def _send_tags_and_status(self, description: Description, status: str) -> None:
        from mlflow.entities import RunTag

        self.client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in description.tags.items()])
        known = self.client.get_run(self.run_id)
        if "error" in known.data.tags and "error" not in description.tags:
            self.client.delete_tag(self.run_id, "error")
        if status == "running":
            self.client.update_run(self.run_id, "RUNNING")
        else:
            end = _milliseconds(self.last_time or time.time())
            self.client.set_terminated(self.run_id, MLFLOW_STATUS[status], end)

    def _attach_to_sweep(self, status: str) -> None:
        """Makes the sweep's MLflow run the parent of this one; the first run of a sweep creates it."""
        assert self.sweep is not None
        with RunFolder.open(self.sweep).sender_lock(wait=True):
            parent = Delivery(self.sweep, experiment=self.experiment, prefer_earlier_store=self.prefer_earlier_store)
            parent.open()
            if status != "RUNNING":
                parent.client.update_run(parent.run_id, status)
        self.client.set_tag(self.run_id, PARENT_TAG, parent.run_id)
        self.state["parent"] = parent.run_id
        self._save_state()

    # points

    def send(self, advance: Callable[[int], None] = lambda count: None) -> None:
        """Sends all records in the journal that were not sent yet; `advance` gets the number sent by each request."""
        try:
            if self.client is None:
                self.open()
            self._read_journal()
            while self.waiting:
                points, count = self._next_batch()
                self._send_points(points)
                self.state["time"] = self.waiting[count - 1].get("time")
                del self.waiting[:count]
                self.state["sent"] += count
                self._save_state()
                advance(count)
        except BaseException:
            self.client = None  # it is unknown what the server received, so the next call opens again
            raise

    def _read_journal(self) -> None:
        fresh = self.journal.read()
        self.waiting += fresh
        if fresh:
            self.last_time = fresh[-1].get("time")

    def _next_batch(self) -> tuple[list[Any], int]:
        """The points of as many waiting records as fit into one request, and the number of these records."""
        points: list[Any] = []
        for count, record in enumerate(self.waiting):
            more = _metrics_of(record)
            if count and len(points) + len(more) > MOST_POINTS:
                return points, count
            points += more
        return points, len(self.waiting)

    def _send_points(self, points: list[Any]) -> None:
        if self.empty:
            for part in _parts(points, MOST_POINTS):
                self._send_or_halve(part)
        else:
            self._send_missing(points)

    def _send_missing(self, points: list[Any]) -> None:
        missing = [point for point in points if not self._is_on_server(point)]
        for part in _parts(missing, MOST_POINTS):
            self._send_or_halve(part)

    def _is_on_server(self, point: Any) -> bool:
        if point.key not in self.on_server:
            history = self.client.get_metric_history(self.run_id, point.key)
            self.on_server[point.key] = np.sort(np.array([known.step for known in history], dtype=np.int64))
        steps = self.on_server[point.key]
        place = int(np.searchsorted(steps, point.step))
        return place < len(steps) and int(steps[place]) == point.step

    def _send_or_halve(self, points: list[Any]) -> None:
        """Sends points in one request. If the server rejects it, halves it until the bad point is alone and skipped."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_batch(self.run_id, metrics=points)
        except MlflowException as error:
            if error.error_code not in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise
            if self.client.get_run(self.run_id).info.lifecycle_stage != "active":
                raise
            if len(points) == 1:
                say(f"rejected by MLflow and skipped: {points[0].key} of step {points[0].step} ({reason_of(error)})")
                return
            middle = len(points) // 2
            self._send_or_halve(points[:middle])
            self._send_or_halve(points[middle:])

    # the end

    def finish(self, *, training: bool = False) -> None:
        """After the last record: sends the status, then artifacts and the model, which may take a while. A run that is
        `running` according to its folder was killed, unless it is still `training`."""
        description = describe(self.folder)
        killed = description.status == "running" and not training
        if self.sweep and (killed or description.status == "stopped"):
            self._attach_to_sweep("KILLED")
        self._send_tags_and_status(description, "stopped" if killed else description.status)
        self._send_evaluations()
        self._send_artifacts()
        if self.folder.has_model():
            self._send_model(description)
            if self.register:
                self._register_model()

    def _send_evaluations(self) -> None:
        """What was evaluated after the run, see evaluations.py. The server is asked for each figure, so this can be
        repeated."""
        for line in read_evaluations(self.folder):
            self._send_missing(_metrics_of(points_of_evaluation(line)))

    def _send_artifacts(self) -> None:
        sent = self.state.setdefault("artifacts", {})
        try:
            for name in self.folder.artifacts():
                if name.startswith(f"{MODEL}/"):
                    continue  # it is sent as a model
                content = read_bytes(self.folder.files, name)
                checksum = hashlib.sha256(content).hexdigest()
                if sent.get(name) == checksum:
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    path = os.path.join(scratch, os.path.basename(name))
                    with open(path, "wb") as file:
                        file.write(content)
                    self.client.log_artifact(self.run_id, path, os.path.dirname(name) or None)
                sent[name] = checksum
        finally:
            self._save_state()  # not after each one: an artifact that is sent twice overwrites itself

    def _send_model(self, description: Description) -> None:
        run = self.client.get_run(self.run_id)
        state = {
            "id": getattr(find_model(self.client, run), "model_id", None),
            "sha256": checksum_of_model(self.folder),
        }
        if self.state.get("model") != state:
            self.state["model"] = state | {"id": send_model(self.client, run, self.folder, description)}
            self._save_state()

    def _register_model(self) -> None:
        import mlflow

        mlflow.set_tracking_uri(self.uri)
        versions = self.client.search_model_versions(f"run_id = '{self.run_id}'")
        if self.register not in {version.name for version in versions}:
            mlflow.register_model(f"models:/{self.state['model']['id']}", self.register)

    def where(self) -> str:
        """Where the run is in MLflow."""
        run = self.client.get_run(self.run_id).info
        page = f"/#/experiments/{run.experiment_id}/runs/{self.run_id}" if self.uri.startswith("http") else ""
        return f"run {run.run_name} ({self.run_id}) at {self.store}{page}"


def _metrics_of(record: dict[str, Any]) -> list[Any]:
    """The points in a record as MLflow's metrics, which may be NaN and infinity."""
    from mlflow.entities import Metric

    at = _milliseconds(record.get("time", 0.0))
    return [Metric(legal_name(key), value, at, record["step"]) for key, value in points_of(record).items()]


def legal_name(key: str) -> str:
    """The key as a name that MLflow accepts: letters, digits and `_-. :/`, a path without empty parts, `.` or `..`."""
    parts = re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:LONGEST_NAME].rstrip("/") or "_"


def without_password(uri: str) -> str:
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


def reason_of(error: BaseException) -> str:
    """The innermost cause, in one line."""
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = cause
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


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
    except (KeyError, OSError):  # the user of a container may have no name
        return "unknown"
