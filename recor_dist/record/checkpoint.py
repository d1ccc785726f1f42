"""Checkpoints: what a resumed run needs, committed such that a kill at any byte leaves a loadable one.

    checkpoints/step-00000500/model.safetensors    v_500 by parameter name: any program can load it
    checkpoints/step-00000500/state.safetensors    the optimizer's state, and v_{500-lag} .. v_499, as flat buffers
    checkpoints/step-00000500/checkpoint.json      the commit: written last, with the checksums of the others

A folder without checkpoint.json does not count. If the files do not match it, or if the journal lacks lines from before
it, the previous checkpoint is loaded.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from pyarrow import fs

from data.vocab import Vocabulary
from learner.learner import LearnerState
from recor_dist.core.config import unflatten
from recor_dist.core.files import exists, read_bytes, write_atomically
from recor_dist.core.messages import Shape
from recor_dist.core.sealed import Damaged
from recor_dist.core.setting import Mistake
from recor_dist.methods import lay_out
from recor_dist.model.transformer import Model
from recor_dist.record.run_folder import CHECKPOINTS, COMMIT, JOURNAL, RESULT, STATE, WEIGHTS, RunFolder

log = logging.getLogger(__name__)


def weights_sha256(model: Model, weights: np.ndarray) -> str:
    """SHA-256 over all parameters, by name: the result of a run in one line."""
    return sha256_of(model.named_weights(weights))


def sha256_of(named: Mapping[str, np.ndarray]) -> str:
    sha = hashlib.sha256()
    for name, value in sorted(named.items()):
        sha.update(name.encode() + np.ascontiguousarray(value, dtype="<f4").tobytes())
    return sha.hexdigest()


def save(folder: RunFolder, model: Model, state: LearnerState, about: dict, keep: int) -> None:
    """Commits a checkpoint, then removes all but the newest `keep`. `about` is stored with it; `journal` in there is
    what `load_newest` passes to `recorded`."""
    out, name = folder.files, folder.checkpoint(state.step)
    older = {f"version.{v}": weights for v, weights in state.versions.items() if v != state.step}
    files = {
        WEIGHTS: safetensors.numpy.save(_contiguous(model.named_weights(state.versions[state.step]))),
        STATE: safetensors.numpy.save({"exp_avg": state.exp_avg, "exp_avg_sq": state.exp_avg_sq, **older}),
    }
    _remove(out, name)  # what a killed save may have left
    out.create_dir(name, recursive=True)
    for file, content in files.items():
        write_atomically(out, f"{name}/{file}", content)
    checksums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    folder.write_sealed(f"{name}/{COMMIT}", {**about, "step": state.step, "files": checksums})
    committed = folder.checkpoints()
    # Later ones were damaged and skipped when this run resumed from an earlier one; they must not crowd out good ones.
    later = [step for step in committed if step > state.step]
    for step in later + committed[len(later) + keep :]:
        _remove(out, folder.checkpoint(step))


def load_newest(
    folder: RunFolder,
    model: Model,
    recorded: Callable[[int, dict[str, Any] | None], bool] = lambda step, note: True,
) -> LearnerState | None:
    """The newest complete checkpoint of a run; None if there is none.

    `recorded`: whether the journal has all lines from before a checkpoint, see `Journal.holds`. Raises Mistake if it
    has them for no checkpoint."""
    unrecorded = []
    for step in folder.checkpoints():
        try:
            state, note = _load(folder, model, step)
        except (Damaged, OSError) as error:
            log.warning("checkpoint of step %d is damaged (%s): loading the previous one", step, _first_line(error))
            continue
        if recorded(step, note):
            return state
        log.warning("%s lacks lines from before step %d: loading the previous checkpoint", JOURNAL, step)
        unrecorded.append(step)
    if unrecorded:
        raise Mistake(
            f"{folder.path}/{JOURNAL}: is damaged or incomplete before step {min(unrecorded)}, which no checkpoint "
            f"precedes; restore the file, or remove {CHECKPOINTS} and {RESULT} there to train from the start"
        )
    return None


def _load(folder: RunFolder, model: Model, step: int) -> tuple[LearnerState, dict[str, Any] | None]:
    """The checkpoint of a step, and its note on the journal. Raises Damaged if it is not as it was saved."""
    name = folder.checkpoint(step)
    commit = folder.read_sealed(f"{name}/{COMMIT}") or {}
    checksums, note = commit.get("files"), commit.get("journal")
    if commit.get("step") != step or not isinstance(checksums, dict):
        raise Damaged(f"{COMMIT} is not that of this step")
    content = {file: read_bytes(folder.files, f"{name}/{file}") for file in (WEIGHTS, STATE)}
    if damaged := [file for file in content if hashlib.sha256(content[file]).hexdigest() != checksums.get(file)]:
        raise Damaged(", ".join(damaged))
    try:
        state = safetensors.numpy.load(content[STATE])
        versions = {int(k.removeprefix("version.")): v for k, v in state.items() if k.startswith("version.")}
        versions[step] = model.flat_weights(safetensors.numpy.load(content[WEIGHTS]))
    except (KeyError, ValueError):
        raise Damaged("it is of another model") from None
    return LearnerState(step, versions, state["exp_avg"], state["exp_avg_sq"]), note


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _remove(out: fs.SubTreeFileSystem, name: str) -> None:
    """Removes a checkpoint, its commit first: a removal that is cut short never looks like a checkpoint."""
    if exists(out, f"{name}/{COMMIT}"):
        out.delete_file(f"{name}/{COMMIT}")
    if exists(out, name):
        out.delete_dir(name)


def _contiguous(named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(value) for name, value in named.items()}


def load_model(out: str) -> tuple[Model, Vocabulary]:
    """The newest weights of a run, ready to answer prompts, and its vocabulary."""
    folder = RunFolder.open(out)
    about = folder.require_run()
    model = lay_out(unflatten(about["settings"]), Shape(**about["shape"]))
    state = load_newest(folder, model)
    if state is None:
        raise Mistake(f"{out}: holds no checkpoint yet")
    model.load(state.versions[state.step])
    return model, Vocabulary(tuple(about["vocabulary"]))
