"""Checkpoints: what a resumed run needs, committed such that a kill at any byte leaves a loadable one.

    checkpoints/step-00000500/model.safetensors    v_500 by parameter name: any program can load it
    checkpoints/step-00000500/state.safetensors    AdamW's moments, and v_{500-lag} .. v_499, as flat buffers
    checkpoints/step-00000500/checkpoint.json      the commit: written last, with the checksums of the others

A folder without checkpoint.json does not count. If the files do not match it, the previous checkpoint is loaded.
"""

import hashlib
import logging
from collections.abc import Mapping

import numpy as np
import safetensors.numpy
from pyarrow import fs

from data.vocab import Vocabulary
from learner.learner import LearnerState
from recor_dist.core.config import unflatten
from recor_dist.core.files import exists, read_bytes, read_json, write_atomically, write_json
from recor_dist.core.messages import Shape
from recor_dist.core.setting import Mistake
from recor_dist.methods import lay_out
from recor_dist.model.transformer import Model
from recor_dist.record.run_folder import COMMIT, STATE, WEIGHTS, RunFolder

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
    """Commits a checkpoint, then removes all but the newest `keep`. `about` is stored with it."""
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
    write_json(out, f"{name}/{COMMIT}", {"step": state.step, "files": checksums, **about})
    committed = folder.checkpoints()
    # Later ones were damaged and skipped when this run resumed from an earlier one; they must not crowd out good ones.
    later = [step for step in committed if step > state.step]
    for step in later + committed[len(later) + keep :]:
        _remove(out, folder.checkpoint(step))


def load_newest(folder: RunFolder, model: Model) -> LearnerState | None:
    """The newest complete checkpoint of a run; None if there is none."""
    out = folder.files
    for step in folder.checkpoints():
        name, content = folder.checkpoint(step), {}
        try:
            commit = read_json(out, f"{name}/{COMMIT}")
            content = {file: read_bytes(out, f"{name}/{file}") for file in commit["files"]}
            damaged = [n for n, sha in commit["files"].items() if hashlib.sha256(content[n]).hexdigest() != sha]
        except (OSError, ValueError, KeyError) as error:
            damaged = [str(error).splitlines()[0]]
        if damaged:
            log.warning("checkpoint of step %d is damaged (%s): loading the previous one", step, ", ".join(damaged))
            continue
        state = safetensors.numpy.load(content[STATE])
        versions = {int(k.removeprefix("version.")): v for k, v in state.items() if k.startswith("version.")}
        versions[step] = model.flat_weights(safetensors.numpy.load(content[WEIGHTS]))
        return LearnerState(step, versions, state["exp_avg"], state["exp_avg_sq"])
    return None


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
