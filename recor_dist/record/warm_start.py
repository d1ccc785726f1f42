"""Runs that start from the weights of another model (`init=`), instead of from random ones.

The SHA-256 of those weights is part of the run's identity; where they were found is not. The run commits them as its
checkpoint of step 0, so it can be resumed when `init` no longer exists.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from learner.learner import LearnerState, initial_state
from recor_dist.core.config import Config, ModelConfig
from recor_dist.core.files import exists, read_bytes, read_json, split_name
from recor_dist.core.setting import Mistake
from recor_dist.model.transformer import Model
from recor_dist.record.checkpoint import load_model, sha256_of
from recor_dist.record.delivery import MLFLOW_SCHEMES, download_model
from recor_dist.record.run_folder import ABOUT, COMMIT, EXPORTED, PACKAGED, WEIGHTS, RunFolder

log = logging.getLogger(__name__)
NOT_IN_SHAPES = ("heads", "positions", "loops")  # settings of the model that weights of the same shape must share


@dataclass(frozen=True)
class Source:
    """The weights that a run starts from."""

    named: dict[str, np.ndarray]  # float32
    settings: dict[str, Any]  # that they were trained with; empty if unknown


def resolve_init(config: Config, model: Model) -> None:
    """Reads the SHA-256 of the weights of `init` if neither the run nor the user knows it yet. Refuses weights that do
    not fit the model, before the run has a folder."""
    if config.init is not None and config.init_sha256 is None:
        source = read_source(config.init)
        find_fresh(config, model, source)
        config.init_sha256 = sha256_of(source.named)


def first_state(config: Config, model: Model) -> LearnerState:
    """The state of step 0: v_0 is a function of the seed and of the weights of `init`."""
    state = initial_state(model, config.seed)
    if config.init_sha256 is None:
        return state
    if config.init is None:
        raise Mistake(f"init_sha256={config.init_sha256}: says what `init` holds, but not where it is; add init=PLACE")
    source = read_source(config.init)
    if (found := sha256_of(source.named)) != config.init_sha256:
        raise Mistake(
            f"init={config.init}: its weights have sha256 {found}, not init_sha256={config.init_sha256}; "
            "restore them, or choose another out"
        )
    ours, fresh = model.named_weights(state.versions[0]), find_fresh(config, model, source)
    for name in ours.keys() - set(fresh):
        np.copyto(ours[name], source.named[name])
    others = f"; not from there, but initialized as usual: {', '.join(fresh)}" if fresh else ""
    log.info("starting from the weights of %s, sha256 %s%s", config.init, config.init_sha256, others)
    return state


def find_fresh(config: Config, model: Model, source: Source) -> list[str]:
    """The names of the weights that are initialized as usual: those of the order head and the order queries, unless
    the source has all of them in the same shape. Mistake if others do not fit."""
    ours, theirs = model.named_weights(model.weights()), source.named
    ordering = {name for name in {*ours, *theirs} if name.startswith("order_")}
    same = all(_shape(ours, name) == _shape(theirs, name) for name in ordering)
    fresh = [] if same else [name for name in ours if name in ordering]
    shared = [name for name in ours if name not in fresh]
    for name in [*shared, *sorted(theirs.keys() - ours.keys() - ordering)]:
        if _shape(ours, name) != _shape(theirs, name):
            raise Mistake(
                f"init={config.init}: {name} is {_shape(theirs, name)} there and {_shape(ours, name)} here; "
                "start from a model of the same shape"
            )
    usual = ModelConfig()  # what a setting means that is newer than the source
    for name in NOT_IN_SHAPES if source.settings else ():
        key, here = f"model.{name}", getattr(config.model, name)
        if (there := source.settings.get(key, getattr(usual, name))) != here:
            raise Mistake(
                f"init={config.init}: was trained with {key}={there}, and here it is {here}; set {key}={there}"
            )
    return fresh


def _shape(named: dict[str, np.ndarray], name: str) -> str:
    return " x ".join(map(str, named[name].shape)) if name in named else "absent"


def read_source(place: str) -> Source:
    """The newest weights of a run; those of a checkpoint, or of a packaged or exported model, in a folder; or those in
    a file."""
    if place.endswith(".safetensors"):
        parent, name = split_name(place)
        return _read(place, RunFolder.open(parent), name, None)
    folder = RunFolder.open(download_model("init", place) if place.startswith(MLFLOW_SCHEMES) else place)
    if folder.has_run():
        model, _ = load_model(place)
        return Source(model.named_weights(model.weights()), folder.require_run()["settings"])
    beside = COMMIT if exists(folder.files, COMMIT) else EXPORTED
    for weights, about in ((f"{PACKAGED}/{WEIGHTS}", f"{PACKAGED}/{ABOUT}"), (WEIGHTS, beside)):
        if exists(folder.files, weights):
            return _read(place, folder, weights, about)
    raise Mistake(
        f"init={place}: holds no weights; give the folder of a run or of a packaged model, or a .safetensors file"
    )


def _read(place: str, folder: RunFolder, weights: str, about: str | None) -> Source:
    """From a safetensors file, and a JSON file that may hold the settings."""
    try:
        named = safetensors.numpy.load(read_bytes(folder.files, weights))
        known = read_json(folder.files, about) if about and exists(folder.files, about) else {}
    except FileNotFoundError:
        raise Mistake(f"init={place}: does not exist; give the folder of a run, or a .safetensors file") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise Mistake(f"init={place}: cannot be read as safetensors ({str(error).splitlines()[0]})") from None
    settings = known.get("settings", {}) if isinstance(known, dict) else {}
    return Source({name: np.asarray(value, dtype=np.float32) for name, value in named.items()}, settings)
