"""What a run is: the settings that decide its result, kept in run.json of its folder from the first start on.

A resumed run must have the same identity; its placement may change. Values that were `auto` are decided at the first
start and kept.
"""

import hashlib
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from data.shards import Dataset
from data.tasks import Task
from recor_dist.core.config import Config, digest, flatten
from recor_dist.core.files import join
from recor_dist.core.setting import Mistake
from recor_dist.record.run_folder import RUN, RunFolder


def identity_of(config: Config, task: Task) -> dict[str, Any]:
    """Everything that decides the result, by name; for the data, what its rows are a pure function of."""
    return {**flatten(config, identity_only=True), "data": digest(task.spec)}


def default_out(config: Config, task: Task) -> str:
    """A folder named after task, method, scale, seed and identity, never after the time."""
    name = f"{config.task.name}-{config.method.name}-{config.scale}-seed{config.seed}"
    return join("runs", f"{name}-{digest(identity_of(config, task))[:8]}")


def scale_of_run(out: str) -> str | None:
    """The scale that the run in a folder was started with; None if the folder holds no run."""
    run = RunFolder.open(out).read_run()
    return run["settings"]["scale"] if run else None


def keep_earlier_choices(config: Config) -> None:
    """In an explicit `out` that holds a run, `auto` and the weights of `init` are those of the run's first start."""
    about = RunFolder.open(config.out).read_run() if config.out else None
    if about is None:
        return
    for key in ("device", "precision"):
        if getattr(config, key) == "auto":
            setattr(config, key, about["settings"][key])
    if config.init_sha256 is None and config.init == about["settings"].get("init"):
        config.init_sha256 = about["settings"].get("init_sha256")


def open_run(config: Config, task: Task, folder: RunFolder) -> dict[str, Any]:
    """The content of run.json, written at the first start. Refuses a different identity and names the keys."""
    identity, about = identity_of(config, task), folder.read_run()
    shape = {"N": task.N, "M": task.M, "V": len(task.vocabulary.tokens)}
    vocabulary = list(task.vocabulary.tokens)
    if about:
        if not isinstance(about.get("identity"), dict):
            raise Mistake(f"out={config.out}: {RUN} has no identity; restore the file, or choose another out")
        if differing := _differences(about["identity"], identity):
            raise Mistake(f"out={config.out}: holds a run with different settings: {differing}; choose another out")
        if (about.get("shape"), about.get("vocabulary")) != (shape, vocabulary):
            raise Mistake(
                f"out={config.out}: {RUN} has other tokens or lengths than the task; restore it, or choose another out"
            )
        return about
    if folder.has_checkpoints() or folder.has_result():
        raise Mistake(
            f"out={config.out}: holds checkpoints or a result, but no {RUN}; restore it, or choose another out"
        )
    about = {
        "settings": flatten(config),
        "identity": identity,
        "reproducible": True,
        "shape": shape,
        "vocabulary": vocabulary,
    }
    folder.write_run(about)
    return about


def check_data(config: Config, data: Dataset, about: dict[str, Any], folder: RunFolder) -> None:
    """Refuses rows other than those the run was started with. The same settings may give different rows with another
    version of numpy; the checksum in the manifest shows this."""
    checksum = data.manifest.checksum
    if "data" not in about:
        about["data"] = checksum
        folder.write_run(about)
    if about["data"] != checksum:
        raise Mistake(f"out={config.out}: was started with different rows than those in {data.uri}; choose another out")


def check_machine(
    config: Config, about: dict[str, Any], folder: RunFolder, machine: dict[str, str | int]
) -> dict[str, str | int]:
    """Keeps the fingerprint of the first machine that computes, and returns it. Refuses a machine that would compute
    different bits, unless the user allows it; the run is then permanently marked as not reproducible."""
    if "machine" not in about:
        about["machine"] = machine
        folder.write_run(about)
    differing = _differences(about["machine"], machine)
    if not differing:
        return about["machine"]
    if not config.allow_mixed:
        raise Mistake(
            f"out={config.out}: was started on a different kind of machine: {differing}; "
            "allow_mixed=true resumes anyway, and marks the run reproducible=false"
        )
    about["reproducible"] = False
    folder.write_run(about)
    return about["machine"]


def write_status(about: dict[str, Any], folder: RunFolder, status: str, error: str | None = None) -> None:
    """Writes the run's status into run.json: running, finished, stopped, or failed with an error."""
    about["status"] = status
    about.pop("error", None)
    if error is not None:
        about["error"] = error
    folder.write_run(about)


def note_start(config: Config, about: dict[str, Any]) -> None:
    """Notes the engine of this start, and its code version if the run has not been computed with it before."""
    about["engine"] = config.engine
    if (code := code_version()) not in about.setdefault("code", []):
        about["code"].append(code)


def code_version() -> dict[str, str]:
    """`git_commit` if this project is in its own repository; `source_sha256` if not, or if there are local changes."""
    packages = ("recor_dist", "actors", "learner", "data")
    root = Path(__file__).parents[2]
    version = {}
    if (root / ".git").exists():  # and not some repository that contains site-packages
        try:
            git = partial(subprocess.run, cwd=root, capture_output=True, text=True, check=True, timeout=10)
            version["git_commit"] = git(["git", "rev-parse", "HEAD"]).stdout.strip()
            if not git(["git", "status", "--porcelain", "--", *packages]).stdout:
                return version
        except (OSError, subprocess.SubprocessError):
            pass
    sha = hashlib.sha256()
    files = [path for package in packages for path in (root / package).rglob("*") if path.suffix in (".py", ".yaml")]
    for path in sorted(files):
        sha.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {**version, "source_sha256": sha.hexdigest()}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    absent = "absent"
    keys = [key for key in sorted({*before, *now}) if before.get(key, absent) != now.get(key, absent)]
    return "; ".join(f"{key} (was {before.get(key, absent)}, now {now.get(key, absent)})" for key in keys)
