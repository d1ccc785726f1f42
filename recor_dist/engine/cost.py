"""The cost of an answer, counted by torch while a model of the run's shape generates one."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recor_dist.core.config import Config
from recor_dist.core.messages import Cost, Shape
from recor_dist.core.rng import rng
from recor_dist.methods import METHODS, lay_out
from recor_dist.model.decoding import Decoder


def costs_of(config: Config, shape: Shape, decoders: Mapping[str, Decoder] | None = None) -> dict[str, Cost]:
    """Forward passes and FLOPs per answer, by decoder: of those given, or of those of the run's own test. They depend
    on shapes alone, so any weights and prompt will do. Decoders whose cost depends on the answer are left out."""
    model = lay_out(config, shape)
    prompts = np.zeros((1, shape.N), dtype=np.uint8)
    costs = {}
    for name, decoder in (decoders or METHODS[config.method.name].decoders(config.method)).items():
        if decoder.passes is None:
            continue
        # torch counts attention only where it is computed as separate matrix products, and no products by oneDNN.
        by_onednn = {torch.ops.aten.mkldnn_linear: flops_of_linear}
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=by_onednn) as counter:
            decoder.answer(model, prompts, rng(0, "cost"))
        costs[name] = Cost(decoder.passes, counter.get_total_flops())
    return costs


def flops_of_linear(x: torch.Size, weight: torch.Size, *_: torch.Size, **__: torch.Size) -> int:
    return 2 * math.prod(x) * weight[0]
