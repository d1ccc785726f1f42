"""The table of methods. A method is a few functions and a row here; no other code depends on its name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from actors.masking import mask
from actors.orders import known_order, left_to_right, random_order
from actors.rollout import rollout
from actors.worker import Worker
from data.shards import Dataset
from data.tasks import TASKS
from learner.baselines import ao_arm_loss, ar_gt_loss, clm_loss, mdm_loss
from learner.gradients import Compute, Gradients, Loss
from learner.learner import Learner, Statistics
from learner.losses import recor_loss, recor_statistics
from recor_dist.core.config import Config
from recor_dist.core.decoder_text import Parameter
from recor_dist.core.device import set_up_torch
from recor_dist.core.memory import Role, check_memory
from recor_dist.core.messages import Rows, Shape, Ticket, TicketGradient
from recor_dist.core.names import split_parameter
from recor_dist.model.any_order import StreamReader, WholeReader, any_order_decoders
from recor_dist.model.decoding import (
    Decoder,
    Family,
    always,
    find_in,
    generate,
    generate_in_random_order,
    generate_left_to_right,
)
from recor_dist.model.denoising import mdm_decoders, mdm_families
from recor_dist.model.transformer import Model


@dataclass(frozen=True)
class Method:
    """`prepare` runs on actors, `loss` on the learner or, if they compute gradients, on actors, too. If `statistics`
    returns a function, that function sees all tickets of a step before the first loss, and the learner waits for
    them."""

    # method, model, rows, random, version -> batch
    prepare: Callable[[Any, Model, Rows, np.random.Generator, int], Any]
    loss: Loss
    decoders: Callable[[Any], dict[str, Decoder]]  # method -> decoders by name; the first gives the headline metrics
    # method -> False if `prepare` ignores the model, so that a ticket may be computed with any weights
    uses_weights: Callable[[Any], bool] = lambda _: False
    # method -> what else can decode its models, by name; not evaluated at the end of a run, see `find_decoders`
    families: Callable[[Any], dict[str, Family]] = lambda _: {}
    statistics: Callable[[Any], Statistics | None] = lambda _: (
        None
    )  # method -> (method, batches of the step -> anything)


METHODS = {
    "recor": Method(
        prepare=rollout,
        loss=recor_loss,
        decoders=lambda method: {"recor": Decoder(generate, passes=2 + method.order_queries)},
        uses_weights=lambda _: True,
        families=lambda _: any_order_decoders("recor", StreamReader),
        statistics=lambda method: recor_statistics if method.algorithm == "ppo" else None,
    ),
    "clm": Method(
        prepare=left_to_right,
        loss=clm_loss,
        decoders=lambda _: {"clm": Decoder(generate_left_to_right, passes=1)},
    ),
    "ar_gt": Method(
        prepare=known_order,
        loss=ar_gt_loss,
        decoders=lambda method: {"ar_gt": Decoder(generate, passes=2 + method.order_queries)},
    ),
    "mdm": Method(
        prepare=mask,
        loss=mdm_loss,
        decoders=mdm_decoders,
        uses_weights=lambda method: method.masking == "progressive",
        families=lambda m: mdm_families(m) | any_order_decoders("sufmdm" if m.suffix else "mdm", WholeReader),
    ),
    "ao_arm": Method(
        prepare=random_order,
        loss=ao_arm_loss,
        decoders=lambda _: {"ao_arm": Decoder(generate_in_random_order, passes=2)},
        families=lambda _: any_order_decoders("ao_arm", StreamReader),
    ),
}


def headline_decoder(config: Config) -> str:
    """The decoder used for validation and for the headline metrics."""
    return next(iter(METHODS[config.method.name].decoders(config.method)))


def families_of(config: Config) -> dict[str, Family]:
    """All decoders of a run's model, by name: those of its own test, and those with a parameter."""
    method = METHODS[config.method.name]
    families = method.families(config.method)
    fixed = {name: decoder for name, decoder in method.decoders(config.method).items() if name not in families}
    plain = {name: Family(partial(always, decoder)) for name, decoder in fixed.items() if not split_parameter(name)[1]}
    return plain | families


def parameters_of(config: Config) -> dict[str, Parameter | None]:
    """The names of all decoders of a run's model, with their parameters."""
    return {name: family.parameter for name, family in families_of(config).items()}


def find_decoders(config: Config, key: str, text: str) -> dict[str, Decoder]:
    """The decoders that a text names (core/decoder_text.py), by the names of their results. `key`: of the setting."""
    return find_in(families_of(config), key, text)


def lay_out(config: Config, shape: Shape) -> Model:
    """The model of a run, in CPU memory."""
    coordinates = TASKS[config.task.name].coordinates(config.task, shape.N, shape.M)
    return Model(config.model, shape, getattr(config.method, "order_queries", 0), coordinates)


def build_model(config: Config, shape: Shape) -> Model:
    """The model of a run, on its device."""
    return lay_out(config, shape).move(config.device)


def make_worker(config: Config, data: Dataset, role: Role = "run") -> Worker:
    """Sets up torch and returns the worker that computes tickets in this process. TooSmall if they do not fit here."""
    set_up_torch(config)
    check_memory(config, data.shape, role)
    method = METHODS[config.method.name]
    model, decoders = build_model(config, data.shape), method.decoders(config.method)

    def make_gradients(model: Model) -> Callable[[Any], TicketGradient]:
        return Gradients(config, _for_training(config, model), method.loss).of

    return Worker(config, data, model, method.prepare, decoders, method.uses_weights(config.method), make_gradients)


def make_compute(config: Config, data: Dataset, shards: Any) -> Compute:
    """What a learner needs to compute tickets itself. `shards`: files of the data, if its folder cannot be reached."""
    worker = make_worker(config, data.read_from(shards) if shards else data, "learner")

    def compute(ticket: Ticket, weights: np.ndarray) -> TicketGradient:
        worker.load(ticket.version, weights)
        return worker.differentiate(ticket)

    return compute


def _for_training(config: Config, model: Model) -> Model:
    """The model itself, or with learner.compile, a compiled one with the same weights: rollouts, with their caches, are
    not compiled."""
    if not config.learner.compile:
        return model
    compiled = model.twin()
    for block in compiled.blocks:  # every method's forward goes through the blocks
        block.compile()
    return compiled


def make_learner(config: Config, shape: Shape, steps: int) -> Learner:
    """Sets up torch and returns the learner of a run with this many steps."""
    set_up_torch(config)
    check_memory(config, shape, "learner")
    method, model = METHODS[config.method.name], _for_training(config, build_model(config, shape))
    return Learner(config, model, steps, method.loss, method.statistics(config.method))
