"""The baselines' losses, as plain functions of a model and one ticket's batch, like ReCOR's in losses.py."""

import numpy as np
import torch
from torch import Tensor

from learner.losses import LossSums, cross_entropy
from recor_dist.core.device import to_device
from recor_dist.core.messages import MaskedBatch, OrderBatch
from recor_dist.core.method_settings import AoArmConfig, ArGtConfig, ClmConfig, MdmConfig
from recor_dist.model.transformer import Model, filled_slots


def clm_loss(_: ClmConfig, model: Model, batch: OrderBatch, __: None) -> LossSums:
    """-log p(y_i | x, y_<i), left to right."""
    prompts, tokens = _tensors(model, batch.prompts, batch.tokens)
    lm = cross_entropy(model.predict_all(prompts, tokens), tokens).sum()
    return LossSums(lm, tokens.numel(), {"loss/lm": lm.detach()})


def ar_gt_loss(method: ArGtConfig, model: Model, batch: OrderBatch, _: None) -> LossSums:
    """-log p(y_rho_t | s_t, rho_t) - log pi(rho_t | s_t), pi the softmax of the order logits over unfilled slots."""
    prompts, tokens, order = _tensors(model, batch.prompts, batch.tokens, batch.order)
    streams = model(prompts, tokens, order, order[..., None])
    lm = cross_entropy(streams.tokens[:, :, 0], tokens).sum()
    policy = cross_entropy(streams.order.masked_fill(filled_slots(order), -torch.inf), order).sum()
    metrics = {"loss/lm": lm.detach(), "loss/order": policy.detach()}
    return LossSums(lm + method.order_weight * policy, tokens.numel(), metrics)


def ao_arm_loss(_: AoArmConfig, model: Model, batch: OrderBatch, __: None) -> LossSums:
    """-log p(y_rho_t | s_t, rho_t) for rho drawn at random; the order head learns nothing."""
    prompts, tokens, order = _tensors(model, batch.prompts, batch.tokens, batch.order)
    lm = cross_entropy(model(prompts, tokens, order, order[..., None]).tokens[:, :, 0], tokens).sum()
    return LossSums(lm, tokens.numel(), {"loss/lm": lm.detach()})


def mdm_loss(method: MdmConfig, model: Model, batch: MaskedBatch, _: None) -> LossSums:
    """Weighted cross-entropy l of the masked slots: alpha (1 - exp(-l))^gamma by token, and by time t. Of progressive
    states, the mean over the masked slots of each state, in place of the weight by time."""
    prompts, responses = _tensors(model, batch.prompts, batch.responses)
    masked = to_device(batch.masked, model.flat.device)
    losses = cross_entropy(model.denoise(prompts, responses, masked), responses) * masked  # (R, M)
    if method.masking == "progressive":
        weights, count = 1 / masked.sum(1, keepdim=True), len(masked)
        plain = (losses * weights).sum()
    else:
        weights = to_device(time_weights(method, batch.times), losses.device)[:, None]
        plain, count = losses.sum(), int(batch.masked.sum())
    weighted = losses * weights
    if method.reweight_tokens:
        weighted = weighted * method.alpha * (-torch.expm1(-losses)) ** method.gamma
    total = weighted.sum()
    return LossSums(total, count, {"loss/lm": plain.detach(), "loss/weighted": total.detach()})


def time_weights(method: MdmConfig, times: np.ndarray) -> np.ndarray:
    """(R,) float32: the weight of a row masked at time t."""
    weights = {"linear": method.diffusion_steps - times, "original": 1 / (times + 1), "none": np.ones(len(times))}
    return weights[method.time_weight].astype(np.float32)


def _tensors(model: Model, *arrays: np.ndarray) -> list[Tensor]:
    """Copies of token ids and slots as int64, which torch indexes with. The batch may be shared and read-only."""
    return [to_device(array.astype(np.int64), model.flat.device) for array in arrays]
