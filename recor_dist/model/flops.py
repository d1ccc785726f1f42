"""FLOPs of a forward pass by formula: 2 per multiply-add, matrix products and attention only, as torch counts them.

Where the passes of an answer depend on the answer, each row's are added up with this formula: a counter around a batch
would count the rows together, with their filling. tests/model/test_any_order.py compares both on single rows.
"""

from typing import TypeVar

from torch import Tensor

from recor_dist.model.transformer import Model

Count = TypeVar("Count", int, Tensor)  # a number, or one for each row


def flops_of_pass(model: Model, new: Count, read: Count, last: Count, keys: Count) -> Count:
    """`new` positions write keys and values; `read` positions read `keys` of them in every layer but the last, in which
    `last` positions do, and those get token logits."""
    depth, D = model.config.loops * model.config.layers, model.config.width
    first = (depth - 1) * _flops_of_layer(D, new, read, keys)
    return first + _flops_of_layer(D, new, last, keys) + 2 * D * model.shape.V * last


def _flops_of_layer(D: int, new: Count, read: Count, keys: Count) -> Count:
    written = 2 * D * D * new
    attended = 2 * D * read * keys + 2 * D * D * read
    return 2 * (written + attended + 8 * D * D * read)


def flops_of_positions(model: Model) -> int:
    """Of adding up the vectors of all positions, which model.positions=coordinates needs once per pass or cache."""
    if model.config.positions != "coordinates":
        return 0
    N, M, D = model.shape.N, model.shape.M, model.config.width
    return 2 * (N + 1 + M) * D * model.wpe.num_embeddings
