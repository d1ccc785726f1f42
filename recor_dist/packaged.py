"""`python -m recor_dist.packaged out=DIR`: packages a trained model as an MLflow model, without any pickle.

    MLmodel, requirements.txt ...    MLflow's own files: signature, requirements, the file in code/ as loader
    data/solver/model.safetensors    the weights by name
    data/solver/about.json           settings, shape and vocabulary
    code/recor_dist_model_….py       all the code that answers, in one file (answers/one_file.py)

The input is a column `prompt` of text; answers/prompts.py says how prompts are written. The output has the columns
    response     the answer, as text
    order        its slots, from 0, in the order in which they were filled
    steps        by slot: the step, from 1, at which it was filled; masked diffusion fills several slots per step
    confidences  by slot: the probability of its token when it was written
The parameter `decoder` chooses a decoder, such as threshold:0.9; about.json lists their names. Loading and serving a
packaged model needs MLflow, torch, NumPy and safetensors, and nothing of this project.
"""

import hashlib
import json
import tempfile
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mlflow.pyfunc
import safetensors.numpy
from mlflow.models import ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, ParamSchema, ParamSpec, Schema
from omegaconf import MISSING
from pyarrow import fs

from recor_dist.answers.one_file import describe_model, write_one_file
from recor_dist.answers.prompts import how_written
from recor_dist.answers.pyfunc import PackagedModel
from recor_dist.answers.solver import Solver, load_solver
from recor_dist.core.files import exists, join, open_folder
from recor_dist.core.setting import Mistake, setting
from recor_dist.record.run_folder import ABOUT, MODEL, PACKAGED, WEIGHTS, RunFolder

REQUIREMENTS = ("mlflow", "torch", "numpy", "safetensors")
LOADER = "def _load_pyfunc(path):  # MLflow calls this\n    return PackagedModel(load(path))\n"
USAGE = [
    "Packages the newest weights of a run as an MLflow model: safetensors and code, no pickle.",
    "",
    "  python -m recor_dist.packaged out=runs/demo folder=model",
    "  mlflow models serve --model-uri model --env-manager local",
]


@dataclass
class PackageConfig:
    """The run, and where its model is saved."""

    out: str = setting(MISSING, "folder of a run")
    folder: str | None = setting(None, "folder for the model; by default `model` in `out`")


def save_model(out: str, folder: str) -> None:
    """Packages the newest weights of the run in `out` as an MLflow model in `folder`; replaces a model there."""
    place = open_folder(folder)
    if place.get_file_info(fs.FileSelector("", allow_not_found=True)) and not exists(place, "MLmodel"):
        raise Mistake(f"{folder}: holds files, but no MLflow model; choose another folder")
    solver = load_solver(out)
    weights = solver.model.named_weights(solver.model.weights())
    content = safetensors.numpy.save({name: value.copy() for name, value in weights.items()})
    # A process may load several models, so each has a module of its own.
    module = f"recor_dist_model_{hashlib.sha256(content).hexdigest()[:16]}"
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*input example was not provided")  # we give the signature ourselves
        data, made = Path(scratch, Path(PACKAGED).name), Path(scratch, "model")
        data.mkdir()
        (data / WEIGHTS).write_bytes(content)
        (data / ABOUT).write_text(json.dumps(describe_model(solver), indent=2) + "\n")
        code = write_one_file(solver, "Answers prompts for MLflow.", ABOUT, PackagedModel, tail=LOADER)
        Path(scratch, f"{module}.py").write_text(code)
        mlflow.pyfunc.save_model(
            str(made),
            loader_module=module,
            data_path=str(data),
            code_paths=[str(Path(scratch, f"{module}.py"))],
            signature=_signature(solver),
            pip_requirements=[f"{name}=={version(name).split('+')[0]}" for name in REQUIREMENTS],
            metadata={
                "task": solver.config.task.name,
                "method": solver.config.method.name,
                "decoders": solver.names,
                "prompts": how_written(solver.vocabulary),
            },
        )
        place.base_fs.delete_dir_contents(place.base_path, missing_dir_ok=True)
        open_folder(folder, create=True)
        fs.copy_files(str(made), place.base_path, fs.LocalFileSystem(), place.base_fs)


def _signature(solver: Solver) -> ModelSignature:
    outputs = {
        "response": DataType.string,
        "order": Array(DataType.long),
        "steps": Array(DataType.long),
        "confidences": Array(DataType.double),
    }
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "prompt")]),
        outputs=Schema([ColSpec(kind, name) for name, kind in outputs.items()]),
        params=ParamSchema([ParamSpec("decoder", DataType.string, solver.choose(None))]),
    )


def load_packaged(folder: str) -> Solver:
    """The solver in an MLflow model folder that `save_model` made."""
    data = Path(folder, PACKAGED)
    if not (data / ABOUT).exists():
        raise Mistake(f"{folder}: is not a model packaged by recor_dist")
    return _load(data)


def _load(data: Path) -> Solver:
    about = json.loads((data / ABOUT).read_text())
    return Solver.of_weights(about, safetensors.numpy.load_file(data / WEIGHTS))


def _load_pyfunc(path: str) -> PackagedModel:
    """MLflow calls this to load a model that was packaged before each had a loader of its own."""
    return PackagedModel(_load(Path(path)))


if __name__ == "__main__":
    from recor_dist.core.command import plain_command  # here because it imports Hydra

    def main(config: PackageConfig) -> None:
        folder = config.folder or join(config.out, MODEL)
        save_model(config.out, folder)
        if not config.folder:
            RunFolder.open(config.out).note_artifact(MODEL)
        print(f"saved in {folder}")

    plain_command(PackageConfig, main, USAGE)
