"""The trained model of a run as MLflow 3 knows it: a LoggedModel with its files, settings and test metrics.

It is called `model` and names its run, so MLflow finds it as models:/ID and as runs:/RUN/model.
"""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from pyarrow import fs

from recor_dist.core.files import read_bytes
from recor_dist.record.dataset_input import dataset_of
from recor_dist.record.description import Description
from recor_dist.record.run_folder import MODEL, RunFolder

GROUPS = ("task", "method", "model", "seed", "scale")  # the settings that a model shows
TAGS = ("weights_sha256", "data", "reproducible")
TEST = ("eval/test/", "order/test/")


def checksum_of_model(folder: RunFolder) -> str:
    """SHA-256 over the files of the packaged model."""
    names = [name for name in folder.artifacts() if name.startswith(f"{MODEL}/")]
    sums = [f"{name} {hashlib.sha256(read_bytes(folder.files, name)).hexdigest()}\n" for name in names]
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def send_model(client: Any, run: Any, folder: RunFolder, description: Description) -> str:
    """Creates or completes the LoggedModel of an MLflow run; returns its id. May be repeated."""
    model = find_model(client, run) or _create(client, run, description)
    if model.model_id not in linked_models(run):
        from mlflow.entities import LoggedModelOutput

        client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=0)])
    client.set_logged_model_tags(
        model.model_id, {key: description.tags[key] for key in TAGS if key in description.tags}
    )
    _send_metrics(client, run, model, folder)
    _send_files(client, run, model, folder)
    client.finalize_logged_model(model.model_id, "READY")
    return model.model_id


def linked_models(run: Any) -> set[str]:
    """The ids of the models that are outputs of a run. MLflow may give a run without any as one without `outputs`."""
    return {output.model_id for output in run.outputs.model_outputs} if run.outputs else set()


def find_model(client: Any, run: Any) -> Any | None:
    """The LoggedModel of a run; None if it has none."""
    token = None
    while True:
        page = client.search_logged_models([run.info.experiment_id], f"name = '{MODEL}'", page_token=token)
        for model in page:
            if model.source_run_id == run.info.run_id:
                return model
        token = page.token
        if not token:
            return None


def _create(client: Any, run: Any, description: Description) -> Any:
    shown = {key: str(value) for key, value in description.params.items() if key.split(".")[0] in GROUPS}
    method = description.params["method.name"]
    ids = {"experiment_id": run.info.experiment_id, "source_run_id": run.info.run_id}
    return client.create_logged_model(name=MODEL, params=shown, model_type=method, **ids)


def _send_metrics(client: Any, run: Any, model: Any, folder: RunFolder) -> None:
    """Links the run's test metrics to the model. They are sent with the time that they have in the run, so the run does
    not get them twice."""
    from mlflow.entities import Metric

    dataset = dataset_of(folder)
    about = {"dataset_name": dataset.name, "dataset_digest": dataset.digest} if dataset else {}
    known = {(metric.key, metric.step) for metric in model.metrics or []}
    run_id, linked = run.info.run_id, []
    for key in run.data.metrics:
        if key.startswith(TEST):
            last = max(client.get_metric_history(run_id, key), key=lambda metric: metric.step)
            if (key, last.step) not in known:
                at = last.value, last.timestamp, last.step
                linked.append(Metric(key, *at, model_id=model.model_id, run_id=run_id, **about))
    if linked:
        client.log_batch(run_id, metrics=linked)


def _send_files(client: Any, run: Any, model: Any, folder: RunFolder) -> None:
    from mlflow.models import Model

    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch, MODEL)
        local.mkdir()  # `copy_files` does not make it
        place = folder.files.base_path.rstrip("/")
        fs.copy_files(f"{place}/{MODEL}", str(local), folder.files.base_fs, fs.LocalFileSystem())
        about = Model.load(str(local))
        about.run_id, about.model_id, about.model_uuid = run.info.run_id, model.model_id, model.model_id
        about.artifact_path = model.artifact_location
        about.save(str(local / "MLmodel"))
        client.log_model_artifacts(model.model_id, str(local))
