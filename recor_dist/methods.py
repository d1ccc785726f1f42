"""The table of methods. A method is a few functions and a row here; nothing else knows its name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actors.rollout import rollout
from learner.losses import LossSums, recor_loss, recor_statistics
from recor_dist.config import Config
from recor_dist.decode import generate
from recor_dist.messages import Generation, Rows, Shape
from recor_dist.model import Model


@dataclass(frozen=True)
class Method:
    """`prepare` runs on actors, `loss` (after `statistics` over all tickets of the step) on the learner."""

    prepare: Callable[
        [Any, Model, Rows, np.random.Generator, int], Any
    ]  # method, model, rows, random, version -> batch
    loss: Callable[[Any, Model, Any, Any], LossSums]  # method, model, batch, statistics
    statistics: Callable[[Any, Sequence[Any]], Any]  # method, batches of the step
    generate: Callable[[Model, np.ndarray], Generation]  # model, prompts


METHODS = {
    "recor": Method(prepare=rollout, loss=recor_loss, statistics=recor_statistics, generate=generate),
}


def build_model(config: Config, shape: Shape) -> Model:
    return Model(config.model, shape, getattr(config.method, "order_queries", 0)).move(config.device)
