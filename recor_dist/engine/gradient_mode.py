"""Whether actors compute gradients, or only roll out and leave the learning to the learner. The result is the same.

With batches, the learner computes the gradients of all tickets by itself while actors roll out. With gradients, a
ticket is computed completely where it is rolled out, by actors and by the learner, so the whole step gets faster with
every actor, but each ticket sends as many numbers as the model has weights.
"""

import logging

import ray

from recor_dist.core.config import Config
from recor_dist.core.messages import Shape
from recor_dist.core.setting import Mistake
from recor_dist.engine.placement import actors_expected
from recor_dist.methods import METHODS

log = logging.getLogger(__name__)
# For an estimate of which way is faster; only their ratio matters, and only roughly.
FLOPS = {"cpu": 3e10, "cuda": 2e13}  # per second and process; a CPU's per thread
BYTES = {"one node": 4e9, "nodes": 1e9}  # per second, through the object store or over the network
STORE_SHARE = 0.5  # of the smallest object store, for gradients


def obstacle(config: Config) -> str | None:
    """Why actors cannot compute the gradients of this run, if so."""
    method = METHODS[config.method.name]
    if method.statistics(config.method) is not None:
        return "the loss needs statistics over all tickets of a step"
    if _uses_weights(config) and config.lag:
        return f"with lag={config.lag}, rollouts use older weights than the gradient"
    return None


def check_gradients(config: Config) -> None:
    """Refuses actors.gradients=true if it is impossible."""
    if config.actors.gradients is True and (why := obstacle(config)):
        raise Mistake(f"actors.gradients=true: not possible here, {why}; omit it, or set actors.gradients=auto")


def choose_gradients(config: Config, shape: Shape, weights: int) -> bool:
    """The mode of a run on the connected cluster; for a model with this many weights. Logs an automatic choice."""
    if isinstance(config.actors.gradients, bool):
        return config.actors.gradients
    if why := obstacle(config):
        return _chosen(False, why)
    groups = config.batch_size // config.rollout_size
    if groups == 1:
        return _chosen(True, "a step is one ticket, which the learner computes by itself")
    with_batches, with_gradients = (actors_expected(config, gradients) for gradients in (False, True))
    workers = with_gradients + 1 if config.device == "cpu" else with_gradients  # on a GPU, the learner shares one
    computing = _flops_of_ticket(config, shape) / _speed(config)  # seconds for rollout and gradient
    rolling_out = 0.25 * computing if _uses_weights(config) else 0.0
    nodes = sum(node["Alive"] for node in ray.nodes())
    sending = 4 * weights / BYTES["nodes" if nodes > 1 else "one node"]
    seconds_with_batches = groups * max(computing - rolling_out, rolling_out / with_batches)
    seconds_with_gradients = max(-(-groups // workers) * computing, groups * sending)
    gain = seconds_with_batches / seconds_with_gradients
    expected = f"expected to take {1 / gain:.2f} of the time with batches; actors: {with_gradients}"
    return _chosen(gain > 1, expected)


def tickets_in_store(weights: int) -> int:
    """How many gradients may wait for the learner at a time, or be on their way."""
    stores = [node["Resources"].get("object_store_memory", 0.0) for node in ray.nodes() if node["Alive"]]
    return max(2, int(STORE_SHARE * min(stores) / (4 * weights)))


def _chosen(gradients: bool, why: str) -> bool:
    what = "compute gradients, as the learner does" if gradients else "roll out, and the learner learns"
    log.info("actors.gradients=auto: actors %s (%s)", what, why)
    return gradients


def _flops_of_ticket(config: Config, shape: Shape) -> float:
    """Of rollout and update, roughly: two per weight of a block and position, three times that for an update."""
    queries = getattr(config.method, "token_queries", 1) + getattr(config.method, "order_queries", 0)
    positions = shape.N + shape.M * (1 + queries)
    forward = 2 * 12 * config.model.layers * config.model.width**2 * positions
    passes = 4 if _uses_weights(config) else 3
    return config.rollout_size * config.method.states() * passes * forward


def _uses_weights(config: Config) -> bool:
    return METHODS[config.method.name].uses_weights(config.method)


def _speed(config: Config) -> float:
    return FLOPS[config.device] * (config.threads if config.device == "cpu" else 1)
