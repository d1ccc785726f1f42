"""The table of methods. A method is a few functions and a row here; nothing else knows its name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actors.rollout import rollout
from actors.worker import Worker
from data.shards import Dataset
from learner.losses import LossSums, recor_loss, recor_statistics
from learner.update import Learner
from recor_dist.config import Config
from recor_dist.decode import generate
from recor_dist.device import set_up_torch
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


def lay_out(config: Config, shape: Shape) -> Model:
    """The model of a run, in this machine's memory."""
    return Model(config.model, shape, getattr(config.method, "order_queries", 0))


def build_model(config: Config, shape: Shape) -> Model:
    """The model of a run, on its device."""
    return lay_out(config, shape).move(config.device)


def make_worker(config: Config, data: Dataset) -> Worker:
    """What computes tickets, in this process."""
    set_up_torch(config)
    method = METHODS[config.method.name]
    return Worker(config, data, build_model(config, data.shape), method.prepare, method.generate)


def make_learner(config: Config, shape: Shape, steps: int) -> Learner:
    """What learns from tickets, in this process."""
    set_up_torch(config)
    method = METHODS[config.method.name]
    return Learner(config, build_model(config, shape), steps, method.loss, method.statistics)
