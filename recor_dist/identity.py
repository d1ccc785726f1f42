"""What a run is: the settings that decide its result, kept in `run.json` of its folder from the first start on.

Whoever comes back to the folder must bring the same identity; where the run is computed may change. Values that were
`auto` are decided at the first start and kept.
"""

from typing import Any

from pyarrow import fs

from data.shards import Dataset
from recor_dist.config import Config, Mistake, digest, flatten
from recor_dist.device import fingerprint
from recor_dist.files import exists, join, open_folder, read_json, write_json

FILE = "run.json"


def identity_of(config: Config, data: Dataset) -> dict[str, Any]:
    """All that decides the result, by name."""
    return {**flatten(config, identity_only=True), "data": data.manifest.checksum}


def default_out(config: Config, data: Dataset) -> str:
    """A folder named after task, method, scale, seed and identity, never after the time."""
    name = f"{config.task.name}-{config.method.name}-{config.scale}-seed{config.seed}"
    return join("runs", f"{name}-{digest(identity_of(config, data))[:8]}")


def keep_earlier_choices(config: Config) -> None:
    """In an `out` that holds a run, `auto` means what it meant at its first start; refused where resume=never."""
    if config.out is None:
        return
    out = open_folder(config.out)
    if exists(out, FILE):
        settings = read_json(out, FILE)["settings"]
        for key in ("device", "precision"):
            if getattr(config, key) == "auto":
                setattr(config, key, settings[key])


def refuse_existing(config: Config) -> None:
    """resume=never: an `out` with anything in it is not touched."""
    assert config.out is not None
    if config.resume == "never" and open_folder(config.out).get_file_info(fs.FileSelector("", allow_not_found=True)):
        raise Mistake(f"out={config.out}: exists, and resume=never; choose another out, or resume=auto to go on there")


def open_run(config: Config, data: Dataset, out: fs.SubTreeFileSystem) -> dict[str, Any]:
    """The content of run.json, written at the first start; another identity is refused with the keys that differ."""
    identity = identity_of(config, data)
    if exists(out, FILE):
        about = read_json(out, FILE)
        if differing := _differences(about["identity"], identity):
            raise Mistake(f"out={config.out}: holds a run with other settings: {differing}; choose another out")
        return about
    about = {
        "settings": flatten(config),
        "identity": identity,
        "machine": fingerprint(config),
        "reproducible": True,
        "shape": vars(data.shape),
        "vocabulary": data.manifest.vocabulary,
    }
    write_json(out, FILE, about)
    return about


def check_machine(config: Config, about: dict[str, Any], out: fs.SubTreeFileSystem) -> None:
    """Refuses to go on where other bits would come out, unless the user allows it; then the run says so for good."""
    differing = _differences(about["machine"], fingerprint(config))
    if not differing:
        return
    if not config.allow_mixed:
        raise Mistake(
            f"out={config.out}: was begun on another kind of machine: {differing}; "
            "allow_mixed=true goes on, and marks the run reproducible=false"
        )
    about["reproducible"] = False
    write_json(out, FILE, about)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    absent = "absent"
    keys = [key for key in sorted({*before, *now}) if before.get(key, absent) != now.get(key, absent)]
    return "; ".join(f"{key} (was {before.get(key, absent)}, now {now.get(key, absent)})" for key in keys)
