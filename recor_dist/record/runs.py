"""Recorded runs, read from their folders or from MLflow. Both give the same `Run`.

Runs with the same identity end in the same weights, so a run that is found twice counts once.
"""

import logging
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import data.tasks  # noqa: F401, because `unflatten` needs the tasks' settings, which this table registers
from recor_dist.core.config import Config, digest, flatten, unflatten
from recor_dist.core.sealed import Damaged, open_file
from recor_dist.core.setting import Mistake
from recor_dist.record.delivery import failures_of_mlflow, prepare_mlflow
from recor_dist.record.evaluations import FIGURES, METRICS, TEST_ROWS, read_evaluations
from recor_dist.record.journal import read_metrics
from recor_dist.record.run_folder import ORDERS, RunFolder, find_runs

log = logging.getLogger(__name__)

VALIDATION = "eval/val/exact_match"
TEST = "eval/test/"


@dataclass(frozen=True)
class Run:
    """The settings and the outcome of a run."""

    place: str  # its folder, or runs:/ID
    settings: dict[str, Any]  # by dotted name
    data: str | None  # checksum of its rows
    status: str  # finished, running, stopped, failed, ...
    decoders: dict[str, dict[str, Any]]  # test metrics by decoder; empty until the run is finished
    validation: list[tuple[int, float]]  # (step, exact match)
    steps: int  # recorded so far
    weights: str | None = None  # SHA-256 of the final weights
    reproducible: bool = True
    orders: dict[str, Any] | None = None  # how often each slot was filled at each step, by decoder
    machine: dict[str, Any] | None = None  # what it was computed on
    seconds: float | None = None  # that it took, if it was not interrupted
    further: dict[str, dict[str, Any]] = field(default_factory=dict)  # like `decoders`, measured after the run

    @cached_property
    def config(self) -> Config:
        return unflatten(self.settings)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result. A setting unknown to this version may do so, too, and is included."""
        unknown = {k: _text(value) for k, value in self.settings.items() if k not in flatten(self.config)}
        return {**unknown, **flatten(self.config, identity_only=True), "rows": self.data}

    @cached_property
    def measured(self) -> dict[str, dict[str, Any]]:
        """Test metrics of all decoders, with those of `recor_dist.evaluate`."""
        return self.decoders | {name: figures for name, figures in self.further.items() if name not in self.decoders}

    @property
    def finished(self) -> bool:
        return bool(self.decoders)


def _text(value: Any) -> str:
    """A value as MLflow stores it."""
    return "null" if value is None else str(value)


def deduplicate(runs: Iterable[Run]) -> list[Run]:
    """One run per identity; a finished one is preferred to an unfinished one."""
    kept: dict[str, Run] = {}
    for run in runs:
        key = digest(run.identity)
        before = kept.get(key)
        if before is None or (run.finished and not before.finished):
            kept[key] = run
        elif before.weights and run.weights and before.weights != run.weights:
            log.warning("%s and %s: same settings but different weights; skipping the second", before.place, run.place)
    return list(kept.values())


# --- folders ---------------------------------------------------------------------------------------------------------


def read_folder(uri: str) -> Iterator[Run]:
    """The run in a folder, or the runs in the folders directly below it."""
    found = find_runs(uri)
    if not found:
        raise Mistake(f"runs={uri}: holds no runs; give a run's folder, or one that contains such folders")
    for folder in found:
        try:
            run = read_run(folder.uri)
            assert run.identity
        except (ValueError, KeyError, TypeError) as error:
            _warn_of_unreadable(folder.uri, error)
        else:
            yield run


def read_run(place: str) -> Run:
    folder = RunFolder.open(place)
    about = folder.require_run()
    settings = about["settings"]
    known = flatten(unflatten(settings)).keys() | about.get("identity", settings).keys()
    result = folder.read_result()
    records = read_metrics(folder)
    return Run(
        place=place,
        settings={key: value for key, value in settings.items() if key in known},  # run.json lists those that matter
        data=about.get("data"),
        status="finished" if result else about.get("status", "unknown"),
        decoders=_decoders(settings, result["test"]) if result else {},
        validation=[(record["step"], record[VALIDATION]) for record in records if VALIDATION in record],
        steps=max((record["step"] for record in records), default=0),
        weights=result["weights_sha256"] if result else None,
        reproducible=about.get("reproducible", True),
        orders=folder.read_orders() if result else None,
        machine=about.get("machine"),
        seconds=result.get("seconds_of_last_start") if result else None,
        further=_further(folder) if result else {},
    )


def _further(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """What was measured on the whole test split after the run."""
    return {
        line["decoder"]: {key: value for key, value in line.items() if key in FIGURES}
        for line in read_evaluations(folder)
        if line["name"] == TEST_ROWS
    }


def _decoders(settings: dict[str, Any], test: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Metrics by decoder. Old results have the metrics of one decoder, without its name."""
    return test.get("decoders") or {settings["method.name"]: test}


def _warn_of_unreadable(place: str, error: Exception) -> None:
    log.warning("%s: cannot be read as a run (%s: %s); skipped", place, type(error).__name__, error)


# --- MLflow ----------------------------------------------------------------------------------------------------------


def read_mlflow(uri: str) -> Iterator[Run]:
    """The runs that MLflow has at a tracking URI, without those of other projects and the parents of sweeps."""
    prepare_mlflow()
    from mlflow import MlflowClient  # here, because it takes seconds to import

    try:
        client, token = MlflowClient(uri), None
        while True:
            experiments = client.search_experiments(page_token=token)
            for experiment in experiments:
                yield from _runs_of(client, experiment.experiment_id)
            token = experiments.token
            if not token:
                return
    except failures_of_mlflow() as error:
        raise Mistake(f"mlflow={uri}: cannot be read ({str(error).splitlines()[0]})") from None


def _runs_of(client: Any, experiment: str) -> Iterator[Run]:
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        for found in page:
            if {"task.name", "method.name", "seed"} <= found.data.params.keys():
                run = _from_mlflow(client, found)
                try:
                    assert run.identity
                except (ValueError, KeyError, TypeError) as error:
                    _warn_of_unreadable(run.place, error)
                else:
                    yield run
        token = page.token
        if not token:
            return


def _from_mlflow(client: Any, found: Any) -> Run:
    metrics, tags = found.data.metrics, found.data.tags
    decoders, further = (_by_decoder(metrics, prefix) for prefix in (TEST, f"{METRICS}/{TEST_ROWS}/"))
    finished = found.info.status == "FINISHED"
    points = client.get_metric_history(found.info.run_id, VALIDATION) if VALIDATION in metrics else []
    last = client.get_metric_history(found.info.run_id, "loss/lm") if not finished and "loss/lm" in metrics else []
    return Run(
        place=f"runs:/{found.info.run_id}",
        settings=dict(found.data.params),
        data=tags.get("data"),
        status=found.info.status.lower(),
        decoders=decoders if finished else {},
        validation=sorted({(point.step, point.value) for point in points}),
        steps=max((point.step for point in [*points, *last]), default=0),
        weights=tags.get("weights_sha256"),
        reproducible=tags.get("reproducible", "True").lower() != "false",
        orders=_orders_in_mlflow(client, found.info.run_id) if finished else None,
        further=further if finished else {},
    )


def _by_decoder(metrics: dict[str, float], prefix: str) -> dict[str, dict[str, float]]:
    """The metrics PREFIX/DECODER/NAME by decoder and name."""
    decoders: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        if key.startswith(prefix) and key.count("/") == 3:
            decoder, name = key.removeprefix(prefix).split("/")
            decoders.setdefault(decoder, {})[name] = value
    return decoders


def _orders_in_mlflow(client: Any, run: str) -> dict[str, Any] | None:
    """Of a finished run; older runs have not sent them."""
    if not any(file.path == ORDERS for file in client.list_artifacts(run)):
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            return open_file(Path(client.download_artifacts(run, ORDERS, folder)).read_bytes())
        except Damaged as damaged:
            log.warning("runs:/%s: %s is damaged (%s), and is not used", run, ORDERS, damaged)
            return None
