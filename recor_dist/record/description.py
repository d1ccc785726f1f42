"""What a record says about a run or a sweep besides its points: name, settings, tags and status."""

from dataclasses import dataclass
from typing import Any

from recor_dist.core.setting import Mistake
from recor_dist.record.run_folder import RunFolder

LONGEST_TAG = 5000  # MLflow's limit, see its utils/validation.py


@dataclass(frozen=True)
class Description:
    """For trackers; each takes what it has a place for."""

    name: str
    params: dict[str, Any]
    tags: dict[str, str]
    status: str


def describe(folder: RunFolder) -> Description:
    if sweep := folder.read_sweep():
        tags = {"sweep": " ".join(sweep["words"]), "mlflow.source.name": "recor_dist.run --multirun"}
        params = dict(override.lstrip("+").split("=", 1) for override in sweep["words"])
        status = sweep["status"]
    elif run := folder.read_run():
        result = folder.read_result() or {}
        params, status = run["settings"], run.get("status", "finished" if result else "running")
        tags = _tags_of_run(run, result)
    else:
        raise Mistake(f"{folder.path}: holds neither a run nor a sweep; give the folder that it was saved in")
    texts = {key: str(value)[:LONGEST_TAG] for key, value in tags.items() if value is not None}
    return Description(folder.name, params, texts, status)


def _tags_of_run(run: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    settings = run["settings"]
    tags = {
        "task": settings["task.name"],
        "method": settings["method.name"],
        "scale": settings["scale"],
        "engine": run.get("engine", settings["engine"]),
        "lag": settings["lag"],
        "seed": settings["seed"],
        "data": run.get("data"),
        "reproducible": run["reproducible"],
        "error": run.get("error"),
        "weights_sha256": result.get("weights_sha256"),
        "mlflow.source.name": "recor_dist.run",
    }
    for code in run.get("code", []):  # several if the run was resumed with different code
        for key, value in code.items():
            tags[key] = ", ".join(dict.fromkeys([*tags.get(key, value).split(", "), value]))
        tags["mlflow.source.git.commit"] = code.get("git_commit")
    return tags
