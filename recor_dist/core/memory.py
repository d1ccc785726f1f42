"""Refuses settings that this machine's memory cannot hold, before allocating anything.

The estimates are lower bounds: what passes may still be too large, what is refused would certainly be. A process on a
cluster counts only what it holds itself.
"""

from pathlib import Path
from typing import Literal

import psutil
import torch

from recor_dist.core.config import Config
from recor_dist.core.messages import Shape
from recor_dist.core.setting import Mistake

CGROUP = Path("/sys/fs/cgroup/memory.max")  # the limit of a container
Role = Literal["run", "learner", "actor", "actor with gradients"]  # `run`: all of it is on this machine
# What has the size of the weights: themselves, their gradient, and the optimizer's state, which counts twice.
COPIES: dict[Role, int] = {"run": 4, "learner": 4, "actor": 1, "actor with gradients": 2}


class TooSmall(Mistake):
    """This machine has not enough memory; another one may have."""


def check_memory(config: Config, shape: Shape, role: Role = "run") -> None:
    """Raises TooSmall, which names the setting, if this role does not fit on the device of this process."""
    memory = memory_of(config.device)
    for key, needed in needs(config, shape, role).items():
        if needed > memory:
            raise TooSmall(
                f"{key}: needs at least {needed / 1e9:,.1f} GB of memory, and this machine has {memory / 1e9:,.1f}; "
                "lower it, or the sizes of the model and the task"
            )


def needs(config: Config, shape: Shape, role: Role = "run") -> dict[str, int]:
    """Bytes that a role needs at the same time, at least, by the setting that decides them."""
    model, method = config.model, config.method
    layers, width = model.layers, model.width
    bytes_each = 2 if config.precision == "bfloat16" else 4
    asked = getattr(method, "token_queries", 0) + getattr(method, "order_queries", 0)
    positions = shape.N + shape.M + shape.M * asked
    # Of each position and block, backward needs at least its input, query, key, value, and the MLP's layer twice.
    activations = 12 * width * bytes_each * layers * model.loops
    weights = 12 * layers * width**2 + (shape.V + shape.N + shape.M) * width
    shard = min(config.data.shard_rows, config.task.rows() or 0)
    answer = 1 if method.name == "mdm" else 2 * layers  # vectors per position: the KV cache, which MDM does not have
    found = {f"model.layers={layers}, model.width={width}": 4 * COPIES[role] * weights}
    if role != "actor":
        found[f"rollout_size={config.rollout_size}"] = config.rollout_size * method.states() * positions * activations
    if role == "run":  # token ids
        found[f"batch_size={config.batch_size}"] = config.batch_size * method.states() * (shape.N + shape.M)
        found[f"data.shard_rows={config.data.shard_rows}"] = shard * (shape.N + shape.M)
    if role != "learner":
        size = config.eval.size
        found[f"eval.size={size}"] = size * (shape.N + shape.M) * answer * width * bytes_each
    return found


def memory_of(device: str) -> int:
    """Bytes of memory of the GPU, or of this machine or container."""
    if device == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties().total_memory
    total = psutil.virtual_memory().total
    limit = CGROUP.read_text().strip() if CGROUP.exists() else "max"
    return min(total, int(limit)) if limit.isdigit() else total
