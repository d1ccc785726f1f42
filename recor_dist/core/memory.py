"""Refuses settings that this machine's memory cannot hold, before the first byte is asked for.

The estimates are lower bounds: what passes may still be too large, what is refused would certainly be.
"""

from pathlib import Path

import psutil
import torch

from recor_dist.core.config import Config
from recor_dist.core.messages import Shape
from recor_dist.core.setting import Mistake

CGROUP = Path("/sys/fs/cgroup/memory.max")  # the limit of a container


def check_memory(config: Config, shape: Shape) -> None:
    """Raises Mistake, which names the setting, for a run that does not fit on the device of this process."""
    memory = memory_of(config.device)
    for key, needed in needs(config, shape).items():
        if needed > memory:
            raise Mistake(
                f"{key}: needs at least {needed / 1e9:,.1f} GB of memory, and this machine has {memory / 1e9:,.1f}; "
                "lower it, or the sizes of the model and the task"
            )


def needs(config: Config, shape: Shape) -> dict[str, int]:
    """Bytes that are needed at the same time, at least, by the setting that decides them."""
    model, method = config.model, config.method
    layers, width = model.layers, model.width
    bytes_each = 2 if config.precision == "bfloat16" else 4
    asked = getattr(method, "token_queries", 0) + getattr(method, "order_queries", 0)
    positions = shape.N + shape.M + shape.M * asked
    # Of each position and block, backward needs at least its input, query, key, value, and the MLP's layer twice.
    activations = 12 * width * bytes_each * layers * model.loops
    weights = 12 * layers * width**2 + (shape.V + shape.N + shape.M) * width
    shard = min(config.data.shard_rows, config.task.rows() or 0)
    return {
        f"model.layers={layers}, model.width={width}": 4 * 4 * weights,  # with gradient and the optimizer's state
        f"rollout_size={config.rollout_size}": config.rollout_size * method.states() * positions * activations,
        f"batch_size={config.batch_size}": config.batch_size * method.states() * (shape.N + shape.M),  # token ids
        f"data.shard_rows={config.data.shard_rows}": shard * (shape.N + shape.M),
        f"eval.size={config.eval.size}": config.eval.size * (shape.N + shape.M) * 2 * width * bytes_each * layers,
    }


def memory_of(device: str) -> int:
    """Bytes of memory of the GPU, or of this machine or container."""
    if device == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties().total_memory
    total = psutil.virtual_memory().total
    limit = CGROUP.read_text().strip() if CGROUP.exists() else "max"
    return min(total, int(limit)) if limit.isdigit() else total
