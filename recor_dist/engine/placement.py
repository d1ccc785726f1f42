"""What actors and the learner request from a cluster, how many actors fit on it, and how to kill a process there."""

import os
import signal

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recor_dist.core.config import Config
from recor_dist.core.messages import Hello


def actor_resources(config: Config) -> dict[str, float]:
    return _resources(config, config.actors.num_cpus, config.actors.num_gpus)


def learner_resources(config: Config) -> dict[str, float]:
    return _resources(config, config.learner.num_cpus, config.learner.num_gpus)


def _resources(config: Config, cpus: float | None, gpus: float | None) -> dict[str, float]:
    return {
        "num_cpus": config.threads if cpus is None else cpus,
        "num_gpus": float(config.device == "cuda") if gpus is None else gpus,
    }


def cpus_wanted(config: Config) -> float:
    """CPUs that the learner and all actors of a run request; with actors.count=auto, one actor."""
    count = config.actors.count if isinstance(config.actors.count, int) else 1
    return learner_resources(config)["num_cpus"] + count * actor_resources(config)["num_cpus"]


def room_for_actors(config: Config, learner: Hello | None) -> int:
    """How many actors fit next to the learner. Until Ray has placed it, as many as fit wherever it ends up."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    each, taken = actor_resources(config), learner_resources(config)

    def fit(node: dict, with_learner: bool) -> int:
        fits = [
            (node["Resources"].get(kind, 0.0) - (taken[key] if with_learner else 0.0)) / each[key]
            for kind, key in (("CPU", "num_cpus"), ("GPU", "num_gpus"))
            if each[key]
        ]
        return max(0, int(min(fits) + 1e-9)) if fits else 1

    homes = [learner.node] if learner else [node["NodeID"] for node in nodes]
    return max(1, min((sum(fit(node, node["NodeID"] == home) for node in nodes) for home in homes), default=1))


def in_words(resources: dict[str, float]) -> str:
    """For example `2 CPUs and 0.5 GPUs`."""
    kinds = (("CPU", resources["num_cpus"]), ("GPU", resources["num_gpus"]))
    return " and ".join(_count(amount, kind) for kind, amount in kinds if amount)


def cluster_in_words() -> str:
    """What the cluster has, for example `2 nodes with 8 CPUs and 1 GPU`."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    total = {kind: sum(node["Resources"].get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
    return f"{_count(len(nodes), 'node')} with {_count(total['CPU'], 'CPU')} and {_count(total['GPU'], 'GPU')}"


def _count(amount: float, noun: str) -> str:
    return f"{amount:g} {noun}{'s' * (amount != 1)}"


def end_process(hello: Hello) -> None:
    """Kills a process that does not respond: Ray only asks it to exit, which a stopped process never does."""
    where = NodeAffinitySchedulingStrategy(hello.node, soft=False)
    ray.remote(num_cpus=0, max_retries=0)(_kill).options(scheduling_strategy=where).remote(hello.pid)


def _kill(pid: int) -> None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"ray::" not in file.read():  # it is gone, and another process has its pid
                return
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass
