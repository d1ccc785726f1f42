"""`python -m recor_dist.packaged out=DIR`: packages a trained model as an MLflow model, without any pickle.

    MLmodel, requirements.txt ...    MLflow's own files: signature, requirements, `recor_dist.packaged` as loader
    data/solver/model.safetensors    the weights by name
    data/solver/about.json           settings, shape and vocabulary
    code/                            our four packages, so the model answers where they are not installed

The input is a column `prompt` of text; answers/prompts.py says how prompts are written. The output has the columns
    response     the answer, as text
    order        its slots, from 0, in the order in which they were filled
    steps        by slot: the step, from 1, at which it was filled; masked diffusion fills several slots per step
    confidences  by slot: the probability of its token when it was written
The parameter `decoder` chooses a decoder, such as threshold:0.9; about.json lists their names. Loading and serving a
packaged model does not need Hydra or Ray.
"""

import json
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
import safetensors.numpy
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, ParamSchema, ParamSpec, Schema
from omegaconf import MISSING
from pyarrow import fs

from recor_dist.answers.prompts import how_written
from recor_dist.answers.solver import Solver, load_solver, plain_answers
from recor_dist.core.files import exists, join, open_folder
from recor_dist.core.setting import Mistake, setting
from recor_dist.methods import parameters_of
from recor_dist.record.run_folder import ABOUT, MODEL, PACKAGED, WEIGHTS, RunFolder

ROOT = Path(__file__).parent.parent
PACKAGES = ("recor_dist", "actors", "learner", "data")
REQUIREMENTS = ("mlflow", "torch", "numpy", "pyarrow", "omegaconf", "safetensors", "numba")
BATCH = 256  # prompts of a request that are answered together
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
    run = RunFolder.open(out).require_run()
    groups = ("scale", "task", "method", "model", "seed")  # what answering needs; no paths of this machine
    about = {
        "settings": {key: value for key, value in run["settings"].items() if key.split(".")[0] in groups},
        "shape": run["shape"],
        "vocabulary": run["vocabulary"],
        "decoders": _decoders(solver),
    }
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*input example was not provided")  # we give the signature ourselves
        data, made = Path(scratch, Path(PACKAGED).name), Path(scratch, "model")
        data.mkdir()
        weights = solver.model.named_weights(solver.model.weights())
        safetensors.numpy.save_file({name: value.copy() for name, value in weights.items()}, data / WEIGHTS)
        (data / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
        mlflow.pyfunc.save_model(
            str(made),
            loader_module="recor_dist.packaged",
            data_path=str(data),
            code_paths=[str(_sources(package, Path(scratch))) for package in PACKAGES],
            signature=_signature(solver),
            pip_requirements=[f"{name}=={version(name).split('+')[0]}" for name in REQUIREMENTS],
            metadata={
                "task": solver.config.task.name,
                "method": solver.config.method.name,
                "decoders": _decoders(solver),
                "prompts": how_written(solver.vocabulary),
            },
        )
        place.base_fs.delete_dir_contents(place.base_path, missing_dir_ok=True)
        place.base_fs.create_dir(place.base_path)
        fs.copy_files(str(made), place.base_path, fs.LocalFileSystem(), place.base_fs)


def _decoders(solver: Solver) -> list[str]:
    """The names of all decoders of a model, those of its own test first."""
    return list(dict.fromkeys((*solver.decoders, *parameters_of(solver.config))))


def _sources(package: str, scratch: Path) -> Path:
    """A copy of a package, without the compiled files of Python and numba."""
    return shutil.copytree(ROOT / package, scratch / package, ignore=shutil.ignore_patterns("__pycache__"))


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


def _load_pyfunc(path: str) -> "PackagedModel":
    """MLflow calls this to load the model."""
    return PackagedModel(_load(Path(path)))


class PackagedModel:
    """The model that `mlflow.pyfunc.load_model` wraps and `mlflow models serve` serves."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Answers in the order of the prompts. An error names the row of the bad prompt, counted from 1."""
        try:
            decoder = self.solver.choose((params or {}).get("decoder"))
            texts = list(
                model_input.explode("prompt")["prompt"]
            )  # MLflow turns {"prompt": ["...", "..."]} into one row
            prompts = self.solver.encode(texts, lambda index: f"the prompt in row {index + 1}")
        except Mistake as mistake:
            raise MlflowException.invalid_parameter_value(str(mistake)) from None  # the server replies with 400
        answers = [
            answer
            for generation in self.solver.answer_all(prompts, decoder, BATCH)
            for answer in plain_answers(self.solver, generation)
        ]
        return pd.DataFrame(answers, columns=["response", "order", "steps", "confidences"])


if __name__ == "__main__":
    from recor_dist.core.command import plain_command  # here because it imports Hydra

    def main(config: PackageConfig) -> None:
        folder = config.folder or join(config.out, MODEL)
        save_model(config.out, folder)
        print(f"saved in {folder}")

    plain_command(PackageConfig, main, USAGE)
