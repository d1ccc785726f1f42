"""Recorded runs, read back: from their folders, or from MLflow. Both give the same `Run`.

Runs of equal identity end in the same weights, so a run that is found twice counts once.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyarrow import fs

from recor_dist.core.config import Config, Mistake, digest, flatten, unflatten
from recor_dist.core.files import exists, join, open_folder, read_bytes, read_json
from recor_dist.record import journal
from recor_dist.track import prepare_mlflow

log = logging.getLogger(__name__)

VALIDATION = "eval/val/exact_match"
TEST = "eval/test/"


@dataclass(frozen=True)
class Run:
    """What a run was, and what came out."""

    place: str  # its folder, or runs:/ID
    settings: dict[str, Any]  # by dotted name
    data: str | None  # checksum of its rows
    status: str  # finished, running, stopped, failed, ...
    decoders: dict[str, dict[str, float]]  # figures of the test, by decoder; empty until it is finished
    validation: list[tuple[int, float]]  # (step, exact match)
    steps: int  # that are recorded
    weights: str | None = None  # SHA-256 of the last ones
    reproducible: bool = True

    @cached_property
    def config(self) -> Config:
        return unflatten(self.settings)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that decides the result. A setting that this version does not know may, so it counts."""
        unknown = {k: _text(value) for k, value in self.settings.items() if k not in flatten(self.config)}
        return {**unknown, **flatten(self.config, identity_only=True), "rows": self.data}

    @property
    def finished(self) -> bool:
        return bool(self.decoders)


def _text(value: Any) -> str:
    """As MLflow has it."""
    return "null" if value is None else str(value)


def once(runs: Iterable[Run]) -> list[Run]:
    """The runs without those that are another one again; a finished one stands for an unfinished one."""
    kept: dict[str, Run] = {}
    for run in runs:
        key = digest(run.identity)
        before = kept.get(key)
        if before is None or (run.finished and not before.finished):
            kept[key] = run
        elif before.weights and run.weights and before.weights != run.weights:
            log.warning("%s and %s: same settings, other weights; the second is left out", before.place, run.place)
    return list(kept.values())


# --- folders ---------------------------------------------------------------------------------------------------------


def read_folder(uri: str) -> Iterator[Run]:
    """The run in a folder, or the runs in the folders below it."""
    folder = open_folder(uri)
    if exists(folder, "run.json"):
        found = [""]
    else:
        inside = folder.get_file_info(fs.FileSelector("", allow_not_found=True))
        found = sorted(info.path for info in inside if exists(folder, f"{info.path}/run.json"))
    if not found:
        raise Mistake(f"runs={uri}: holds no runs; give a run's folder, or one that holds such folders")
    for name in found:
        place = join(uri, name) if name else uri
        try:
            run = read_run(place)
            assert run.identity
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s: cannot be read as a run (%s: %s); left out", place, type(error).__name__, error)
        else:
            yield run


def read_run(place: str) -> Run:
    out = open_folder(place)
    about = read_json(out, "run.json")
    settings = about["settings"]
    known = flatten(unflatten(settings)).keys() | about.get("identity", settings).keys()
    result = _json(out, "result.json")
    records = read_metrics(out)
    return Run(
        place=place,
        settings={key: value for key, value in settings.items() if key in known},  # run.json tells what decides
        data=about.get("data"),
        status="finished" if result else about.get("status", "unknown"),
        decoders=_decoders(settings, result["test"]) if result else {},
        validation=[(record["step"], record[VALIDATION]) for record in records if VALIDATION in record],
        steps=max((record["step"] for record in records), default=0),
        weights=result["weights_sha256"] if result else None,
        reproducible=about.get("reproducible", True),
    )


def _decoders(settings: dict[str, Any], test: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Figures by decoder; before there were several, they stood by themselves."""
    return test.get("decoders") or {settings["method.name"]: test}


def read_metrics(out: fs.SubTreeFileSystem) -> list[dict[str, float]]:
    """The journal of a run; nothing where there is none."""
    content = read_bytes(out, journal.FILE) if exists(out, journal.FILE) else b""
    return journal.read_records(content.splitlines(keepends=True))


def _json(out: fs.SubTreeFileSystem, name: str) -> dict[str, Any] | None:
    """None for a file that is missing or half-written."""
    try:
        return read_json(out, name)
    except (FileNotFoundError, ValueError):
        return None


# --- MLflow ----------------------------------------------------------------------------------------------------------


def read_mlflow(uri: str) -> Iterator[Run]:
    """The runs that MLflow keeps at a tracking URI; runs of others, and parents of sweeps, are passed over."""
    prepare_mlflow()
    from mlflow import MlflowClient  # here, as it takes seconds to import
    from mlflow.exceptions import MlflowException

    client = MlflowClient(uri)
    try:
        token = None
        while True:
            experiments = client.search_experiments(page_token=token)
            for experiment in experiments:
                yield from _runs_of(client, experiment.experiment_id)
            token = experiments.token
            if not token:
                return
    except MlflowException as error:
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
                    log.warning(
                        "%s: cannot be read as a run (%s: %s); left out", run.place, type(error).__name__, error
                    )
                else:
                    yield run
        token = page.token
        if not token:
            return


def _from_mlflow(client: Any, found: Any) -> Run:
    metrics, tags = found.data.metrics, found.data.tags
    decoders: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        if key.startswith(TEST) and key.count("/") == 3:
            decoder, name = key.removeprefix(TEST).split("/")
            decoders.setdefault(decoder, {})[name] = value
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
    )
