"""The rows of a run as MLflow knows them: a dataset, named after the task, with the checksum of the rows."""

import json
from typing import Any

from recor_dist.record.run_folder import RunFolder

LONGEST_DIGEST = 32  # MLflow keeps 36 characters; the tag `data` of the run has all 64


def dataset_of(folder: RunFolder) -> Any | None:
    """The dataset of a run; None for a sweep, and for a run that ended before its data was ready."""
    from mlflow.entities import Dataset

    run = folder.read_run()
    if run is None or not run.get("data"):
        return None
    settings = run["settings"]
    keys = [key for key in settings if key.startswith("task.") or key in ("data.source", "data.shard_rows")]
    profile = {"num_rows": settings.get("task.train_rows"), **run.get("shape", {}), "sha256": run["data"]}
    return Dataset(
        name=settings["task.name"],
        digest=run["data"][:LONGEST_DIGEST],
        source_type="code",  # generated or read as these settings say
        source=json.dumps({"tags": {key: str(settings[key]) for key in sorted(keys) if settings[key] is not None}}),
        profile=json.dumps({key: value for key, value in profile.items() if value is not None}),
    )


def log_dataset(client: Any, run_id: str, folder: RunFolder) -> None:
    """Makes the rows the run's training data. MLflow keeps one input per dataset and run, however often it is sent."""
    from mlflow.entities import DatasetInput, InputTag

    if dataset := dataset_of(folder):
        client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
