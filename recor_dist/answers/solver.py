"""A trained model that answers prompts, from the folder of its run or from its weights."""

from typing import Any

import numpy as np
import torch

from data.vocab import Vocabulary
from recor_dist.answers.answering import Answering
from recor_dist.answers.prompts import reader_of
from recor_dist.core.config import unflatten
from recor_dist.core.messages import Shape
from recor_dist.methods import METHODS, families_of, lay_out
from recor_dist.model.transformer import Model
from recor_dist.record.checkpoint import load_model
from recor_dist.record.run_folder import RunFolder


class Solver(Answering):
    """Knows the settings of its run, too."""

    def __init__(self, about: dict[str, Any], model: Model) -> None:
        """`about`: settings, shape and vocabulary as in run.json; `model`: with its weights loaded."""
        self.config = config = unflatten(about["settings"])
        if config.device != "cpu" and torch.cuda.is_available():
            model = model.move("cuda")
        super().__init__(
            model,
            Vocabulary(tuple(about["vocabulary"])),
            METHODS[config.method.name].decoders(config.method),
            families_of(config),
            config.seed,
            config.task,
            reader_of(config.task),
        )

    @staticmethod
    def of_weights(about: dict[str, Any], named: dict[str, np.ndarray]) -> "Solver":
        """From weights by name, as in a safetensors file."""
        model = lay_out(unflatten(about["settings"]), Shape(**about["shape"]))
        model.load(model.flat_weights(named))
        return Solver(about, model)


def load_solver(out: str) -> Solver:
    """The newest weights of the run in `out`."""
    model, _ = load_model(out)
    return Solver(RunFolder.open(out).require_run(), model)
