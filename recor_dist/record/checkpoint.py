"""Checkpoints: what a run needs to go on, committed so that a kill at any byte leaves a loadable one.

    checkpoints/step-00000500/model.safetensors    v_500 by parameter name: anyone can load it
    checkpoints/step-00000500/state.safetensors    AdamW's moments, and v_{500-lag} .. v_499, as flat buffers
    checkpoints/step-00000500/checkpoint.json      written last, with the checksums of the others: the commit

A folder without checkpoint.json does not count. One whose files do not match it is passed over for the one before.
"""

import hashlib
import logging
import re

import numpy as np
import safetensors.numpy
from pyarrow import fs

from data.vocab import Vocabulary
from learner.learner import LearnerState
from recor_dist.core.config import Mistake, ModelConfig
from recor_dist.core.files import exists, open_folder, read_bytes, read_json, write_atomically, write_json
from recor_dist.core.messages import Shape
from recor_dist.model.transformer import Model
from recor_dist.record.identity import read_about

FOLDER = "checkpoints"
COMMIT = "checkpoint.json"
log = logging.getLogger(__name__)


def weights_sha256(model: Model, weights: np.ndarray) -> str:
    """SHA-256 over all parameters, by name: the result of a run in one line."""
    sha = hashlib.sha256()
    for name, value in sorted(model.named_weights(weights).items()):
        sha.update(name.encode() + np.ascontiguousarray(value, dtype="<f4").tobytes())
    return sha.hexdigest()


def save(out: fs.SubTreeFileSystem, model: Model, state: LearnerState, about: dict, keep: int) -> None:
    """Commits a checkpoint, then removes all but the newest `keep`. `about` is stored along, for those who load it."""
    folder = f"{FOLDER}/step-{state.step:08d}"
    older = {f"version.{v}": weights for v, weights in state.versions.items() if v != state.step}
    files = {
        "model.safetensors": safetensors.numpy.save(_contiguous(model.named_weights(state.versions[state.step]))),
        "state.safetensors": safetensors.numpy.save(
            {"exp_avg": state.exp_avg, "exp_avg_sq": state.exp_avg_sq, **older}
        ),
    }
    _remove(out, folder)  # what a killed save left there
    out.create_dir(folder, recursive=True)
    for name, content in files.items():
        write_atomically(out, f"{folder}/{name}", content)
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    write_json(out, f"{folder}/{COMMIT}", {"step": state.step, "files": checksums, **about})
    committed = _committed(out)
    # Later ones were passed over as damaged when this run resumed before them; they must not crowd out good ones.
    later = [step for step in committed if step > state.step]
    for step in later + committed[len(later) + keep :]:
        _remove(out, f"{FOLDER}/step-{step:08d}")


def load_newest(out: fs.SubTreeFileSystem, model: Model) -> LearnerState | None:
    """The newest complete checkpoint of a run; None if there is none."""
    for step in _committed(out):
        folder = f"{FOLDER}/step-{step:08d}"
        try:
            commit = read_json(out, f"{folder}/{COMMIT}")
            content = {name: read_bytes(out, f"{folder}/{name}") for name in commit["files"]}
            damaged = [n for n, sha in commit["files"].items() if hashlib.sha256(content[n]).hexdigest() != sha]
        except (OSError, ValueError, KeyError) as error:
            damaged = [str(error).splitlines()[0]]
        if damaged:
            log.warning("checkpoint of step %d is damaged (%s): taking the one before", step, ", ".join(damaged))
            continue
        state = safetensors.numpy.load(content["state.safetensors"])
        versions = {int(k.removeprefix("version.")): v for k, v in state.items() if k.startswith("version.")}
        versions[step] = model.flat_weights(safetensors.numpy.load(content["model.safetensors"]))
        return LearnerState(step, versions, state["exp_avg"], state["exp_avg_sq"])
    return None


def _committed(out: fs.SubTreeFileSystem) -> list[int]:
    """Steps with a commit, newest first."""
    found = out.get_file_info(fs.FileSelector(FOLDER, allow_not_found=True))
    steps = [int(info.base_name.removeprefix("step-")) for info in found if re.fullmatch(r"step-\d{8}", info.base_name)]
    return sorted((s for s in steps if exists(out, f"{FOLDER}/step-{s:08d}/{COMMIT}")), reverse=True)


def _remove(out: fs.SubTreeFileSystem, folder: str) -> None:
    """Removes a checkpoint, its commit first, so that half a removal never looks like a checkpoint."""
    if exists(out, f"{folder}/{COMMIT}"):
        out.delete_file(f"{folder}/{COMMIT}")
    if exists(out, folder):
        out.delete_dir(folder)


def _contiguous(named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(value) for name, value in named.items()}


def load_model(out: str) -> tuple[Model, Vocabulary]:
    """The newest weights of a run, ready to answer prompts, and the vocabulary they speak."""
    folder = open_folder(out)
    about = read_about(folder)
    if about is None:
        raise Mistake(f"{out}: holds no run; give the folder that a run said it was saved in")
    settings = about["settings"]
    sizes = ModelConfig(*(settings[f"model.{name}"] for name in ("layers", "width", "heads")))
    model = Model(sizes, Shape(**about["shape"]), settings.get("method.order_queries", 0))
    state = load_newest(folder, model)
    if state is None:
        raise Mistake(f"{out}: holds no checkpoint yet")
    model.load(state.versions[state.step])
    return model, Vocabulary(tuple(about["vocabulary"]))
