"""The cost of an answer, counted by torch while a model of the run's shape generates one."""

import math

import numpy as np
import torch
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
        # torch counts attention only where it is computed as separate matrix products, and no products by oneDNN.
        by_onednn = {torch.ops.aten.mkldnn_linear: flops_of_linear}
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=by_onednn) as counter:
            decoder.answer(model, prompts, rng(0, "cost"))
        costs[name] = Cost(decoder.passes, counter.get_total_flops())
    return costs


def flops_of_linear(x: torch.Size, weight: torch.Size, *_: torch.Size, **__: torch.Size) -> int:
    return 2 * math.prod(x) * weight[0]
