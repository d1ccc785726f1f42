"""What a run is: the settings that decide its result, kept in `run.json` of its folder from the first start on.

Whoever comes back to the folder must bring the same identity; where the run is computed may change. Values that were
`auto` are decided at the first start and kept.
"""

import hashlib
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow import fs

from data.shards import Dataset
from data.tasks import Task
from recor_dist.core.config import Config, Mistake, digest, flatten
from recor_dist.core.files import exists, join, open_folder, read_json, write_json

FILE = "run.json"


def identity_of(config: Config, task: Task) -> dict[str, Any]:
    """All that decides the result, by name; of the data, what its rows are a pure function of."""
    return {**flatten(config, identity_only=True), "data": digest(task.spec)}


def default_out(config: Config, task: Task) -> str:
    """A folder named after task, method, scale, seed and identity, never after the time."""
    name = f"{config.task.name}-{config.method.name}-{config.scale}-seed{config.seed}"
    return join("runs", f"{name}-{digest(identity_of(config, task))[:8]}")


def read_about(out: fs.SubTreeFileSystem) -> dict[str, Any] | None:
    """The content of run.json; None where no run was begun."""
    try:
        return read_json(out, FILE)
    except FileNotFoundError:
        return None
    except ValueError:
        raise Mistake(f"{out.base_path}{FILE}: is damaged; choose another out, or put back the file") from None


def keep_earlier_choices(config: Config) -> None:
    """In an explicit `out` that holds a run, `auto` means what it meant at its first start."""
    about = read_about(open_folder(config.out)) if config.out else None
    for key in ("device", "precision"):
        if about and getattr(config, key) == "auto":
            setattr(config, key, about["settings"][key])


def open_run(config: Config, task: Task, out: fs.SubTreeFileSystem) -> dict[str, Any]:
    """The content of run.json, written at the first start; another identity is refused with the keys that differ."""
    identity, about = identity_of(config, task), read_about(out)
    if about:
        if differing := _differences(about["identity"], identity):
            raise Mistake(f"out={config.out}: holds a run with other settings: {differing}; choose another out")
        return about
    if exists(out, "checkpoints") or exists(out, "result.json"):
        raise Mistake(f"out={config.out}: holds checkpoints or a result, but not the {FILE} that says of what run")
    about = {
        "settings": flatten(config),
        "identity": identity,
        "reproducible": True,
        "shape": {"N": task.N, "M": task.M, "V": len(task.vocabulary.tokens)},
        "vocabulary": list(task.vocabulary.tokens),
    }
    write_json(out, FILE, about)
    return about


def check_data(config: Config, data: Dataset, about: dict[str, Any], out: fs.SubTreeFileSystem) -> None:
    """Rows made by another numpy may differ although their settings do not: the manifest's checksum tells."""
    checksum = data.manifest.checksum
    if "data" not in about:
        about["data"] = checksum
        write_json(out, FILE, about)
    if about["data"] != checksum:
        raise Mistake(f"out={config.out}: was begun with other rows than {data.uri} holds; choose another out")


def check_machine(
    config: Config, about: dict[str, Any], out: fs.SubTreeFileSystem, machine: dict[str, str | int]
) -> dict[str, str | int]:
    """Keeps the fingerprint of whoever computes first, and returns it. Refuses to go on where other bits would come
    out, unless the user allows it; then the run says so for good."""
    if "machine" not in about:
        about["machine"] = machine
        write_json(out, FILE, about)
    differing = _differences(about["machine"], machine)
    if not differing:
        return about["machine"]
    if not config.allow_mixed:
        raise Mistake(
            f"out={config.out}: was begun on another kind of machine: {differing}; "
            "allow_mixed=true goes on, and marks the run reproducible=false"
        )
    about["reproducible"] = False
    write_json(out, FILE, about)
    return about["machine"]


def mark(about: dict[str, Any], out: fs.SubTreeFileSystem, status: str, error: str | None = None) -> None:
    """Says in run.json how the run stands."""
    about["status"] = status
    about.pop("error", None)
    if error is not None:
        about["error"] = error
    write_json(out, FILE, about)


def note_start(config: Config, about: dict[str, Any]) -> None:
    """Notes with what engine this start computes, and by which code; other code may have begun the run."""
    about["engine"] = config.engine
    if (code := code_version()) not in about.setdefault("code", []):
        about["code"].append(code)


def code_version() -> dict[str, str]:
    """`git_commit` where this project lies in a repository of its own; `source_sha256` where not, or it was changed."""
    packages = ("recor_dist", "actors", "learner", "data")
    root = Path(__file__).parents[2]
    version = {}
    if (root / ".git").exists():  # and not the repository around somebody's site-packages
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
