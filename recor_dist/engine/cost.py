"""The cost of an answer, counted by torch while a model of the run's shape generates one."""

import numpy as np
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recor_dist.core.config import Config
from recor_dist.core.messages import Cost, Shape
from recor_dist.core.rng import rng
from recor_dist.methods import METHODS, lay_out


def costs_of(config: Config, shape: Shape) -> dict[str, Cost]:
    """Forward passes and FLOPs per answer, by decoder. They depend on shapes alone: any weights and prompt will do."""
    model = lay_out(config, shape)
    prompts = np.zeros((1, shape.N), dtype=np.uint8)
    costs = {}
    for name, decoder in METHODS[config.method.name].decoders(config.method).items():
        # torch counts attention only where it is computed as separate matrix products.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            decoder.answer(model, prompts, rng(0, "cost"))
        costs[name] = Cost(decoder.passes, counter.get_total_flops())
    return costs
