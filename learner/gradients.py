"""Gradients of a method's loss, added up ticket by ticket in one flat buffer.

The learner adds the tickets of a step to its buffer, in group order. An actor computes the gradient of one ticket
alone; added to the learner's buffer in the same order, it gives the same bits, because torch also computes the gradient
of each parameter as a whole before adding it to the buffer.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from learner.losses import LossSums
from recor_dist.core.config import Config
from recor_dist.core.device import autocast, to_device
from recor_dist.core.messages import Ticket, TicketGradient
from recor_dist.core.tracing import span
from recor_dist.model.transformer import Model

Loss = Callable[[Any, Model, Any, Any], LossSums]  # method, model, batch, statistics of the step
Compute = Callable[[Ticket, np.ndarray], TicketGradient]  # a ticket with the weights of its step


class Gradients:
    def __init__(self, config: Config, model: Model, loss: Loss) -> None:
        self.config, self.model, self.loss = config, model, loss
        self.flat = model.share_gradients()

    def add(self, batch: Any, statistics: Any = None) -> LossSums:
        """Adds the gradient of a ticket with the model's weights; returns its loss sums."""
        with span("forward"), autocast(self.config):
            sums = self.loss(self.config.method, self.model, batch, statistics)
        with span("backward"):
            sums.total.backward()
        return sums

    def of(self, batch: Any) -> TicketGradient:
        """The gradient of one ticket alone. On a CPU it is the buffer itself, which the next call overwrites."""
        self.flat.zero_()
        sums = self.add(batch)
        metrics = {name: np.float32(value.item()) for name, value in sums.metrics.items()}
        return TicketGradient(self.flat.cpu().numpy(), sums.count, metrics)

    def add_computed(self, gradient: np.ndarray) -> None:
        """Adds a ticket's gradient that was computed elsewhere. The array may be shared and read-only."""
        if self.flat.device.type == "cpu":
            flat = self.flat.numpy()
            np.add(flat, gradient, out=flat)
        else:
            self.flat += to_device(gradient, self.flat.device)
