"""A worker computes tickets with the weights they name. It holds a copy of the model and no other state of the run.

The same ticket with the same weights gives the same bits on every worker, every time.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from data.shards import Dataset
from recor_dist.core.config import Config, total_steps
from recor_dist.core.device import autocast
from recor_dist.core.messages import EvalSums, Rows, Ticket, TicketGradient
from recor_dist.core.rng import rng
from recor_dist.core.tracing import span
from recor_dist.model.answering import answer_ticket
from recor_dist.model.decoding import Decoder
from recor_dist.model.evaluation import score
from recor_dist.model.transformer import Model


class Worker:
    def __init__(
        self,
        config: Config,
        data: Dataset,
        model: Model,
        prepare: Callable[[Any, Model, Rows, np.random.Generator, int], Any],
        decoders: Mapping[str, Decoder],
        uses_weights: bool,
        make_gradients: Callable[[Model], Callable[[Any], TicketGradient]],
    ) -> None:
        """`decoders`: by name, the first one also for validation. `uses_weights`: True if `prepare` uses the model.
        `make_gradients`: returns a function from a batch to its gradient with the model's weights at that time."""
        self.config, self.data, self.model = config, data, model
        self.prepare, self.decoders, self.uses_weights = prepare, decoders, uses_weights
        self.make_gradients = make_gradients
        self.row_order = data.row_order(config.seed)
        self.version: int | None = None

    def load(self, version: int, weights: np.ndarray) -> None:
        if version != self.version:
            self.model.load(weights)
            self.version = version

    def roll_out(self, ticket: Ticket) -> Any:
        """The training batch of a ticket."""
        if self.uses_weights:
            assert self.version == ticket.version, f"{ticket} does not match the loaded weights v_{self.version}"
        start = ticket.step * self.config.batch_size + ticket.group * self.config.rollout_size
        rows = self.data.take(self.row_order, start, self.config.rollout_size)
        random = rng(self.config.seed, "rollout", ticket.step, ticket.group)
        method = self.config.method.at(ticket.step, self._steps)
        with span("roll out"), autocast(self.config):
            return self.prepare(method, self.model, rows, random, ticket.version)

    @cached_property
    def _steps(self) -> int:
        return total_steps(self.config, self.data.rows_of("train"))

    @cached_property
    def _gradient_of(self) -> Callable[[Any], TicketGradient]:
        """Made when first needed: its buffer is as large as the weights."""
        return self.make_gradients(self.model)

    def differentiate(self, ticket: Ticket) -> TicketGradient:
        """Rolls out a ticket and computes its gradient, with the weights of its step."""
        assert self.version == ticket.step, f"the gradient of {ticket} needs v_{ticket.step}, not v_{self.version}"
        return self._gradient_of(self.roll_out(ticket))

    def evaluate(self, split: str, index: int) -> dict[str, EvalSums]:
        """Scores evaluation ticket `index` of a split with the loaded weights, by decoder.

        The test split is scored with every decoder, the validation split with the first one only.
        """
        size = self.config.eval.size
        rows = self.data.read_split(split, index * size, size)
        with span("evaluate"):
            return {
                name: score(answer_ticket(self.config, self.model, name, self.decoders[name], rows, split, index), rows)
                for name in list(self.decoders)[: None if split == "test" else 1]
            }
