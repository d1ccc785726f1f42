"""What actors and the learner ask of a cluster, how many actors it has room for, and how a process there is ended."""

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
    """CPUs that the learner and the actors of a run ask for together; with actors.count=auto, one actor."""
    count = config.actors.count if isinstance(config.actors.count, int) else 1
    return learner_resources(config)["num_cpus"] + count * actor_resources(config)["num_cpus"]


def room_for_actors(config: Config, learner: Hello | None) -> int:
    """How many actors the nodes have room for beside the learner; until it has a place, wherever that may be."""
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
    """`1 CPU and 0.5 GPU`"""
    return " and ".join(
        f"{amount:g} {key.removeprefix('num_').upper()[:-1]}" for key, amount in resources.items() if amount
    )


def cluster_in_words() -> str:
    """What the cluster has, e.g. `2 nodes with 8 CPU and 1 GPU`"""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    total = {kind: sum(node["Resources"].get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {total['CPU']:g} CPU and {total['GPU']:g} GPU"


def end_process(hello: Hello) -> None:
    """Makes sure that a process which does not answer is gone: Ray asks it to exit, and a stopped one never hears."""
    where = NodeAffinitySchedulingStrategy(hello.node, soft=False)
    ray.remote(num_cpus=0, max_retries=0)(_kill).options(scheduling_strategy=where).remote(hello.pid)


def _kill(pid: int) -> None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"ray::" not in file.read():  # it is gone already, and another process has its number
                return
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass
