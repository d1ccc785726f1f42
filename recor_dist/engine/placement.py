"""What actors and the learner request from a cluster, how many actors fit on it, and how to examine or kill a process
there."""

import math
import os
import signal
from collections.abc import Callable, Sequence

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recor_dist.core import stacks
from recor_dist.core.config import Config
from recor_dist.core.messages import Hello


def actor_resources(config: Config, gradients: bool) -> dict[str, float]:
    """`gradients`: actors compute them, and the learner hands out tickets and adds gradients."""
    return _resources(config, config.actors.num_cpus, config.actors.num_gpus, 0.9 if gradients else 1.0)


def learner_resources(config: Config, gradients: bool) -> dict[str, float]:
    """With gradients, an actor shares the learner's GPU, so that every GPU of a cluster computes tickets. On CPUs, the
    learner computes tickets, too."""
    return _resources(config, config.learner.num_cpus, config.learner.num_gpus, 0.1 if gradients else 1.0)


def _resources(config: Config, cpus: float | None, gpus: float | None, share_of_gpu: float) -> dict[str, float]:
    """What is set, or else the defaults."""
    return {
        "num_cpus": config.threads if cpus is None else cpus,
        "num_gpus": share_of_gpu * (config.device == "cuda") if gpus is None else gpus,
    }


def cpus_wanted(config: Config) -> float:
    """CPUs that the learner and all actors of a run request; with actors.count=auto, one actor."""
    count = config.actors.count if isinstance(config.actors.count, int) else 1
    return sum(
        number * resources(config, gradients=False)["num_cpus"]  # the same with gradients
        for number, resources in ((1, learner_resources), (count, actor_resources))
    )


def actors_expected(config: Config, gradients: bool) -> int:
    """How many actors the run will have on the cluster as it is now."""
    count = config.actors.count
    return count if isinstance(count, int) else room_for_actors(config, gradients, None)


def room_for_actors(config: Config, gradients: bool, learner: Hello | None) -> int:
    """How many actors fit next to the learner. Until Ray has placed it, as many as fit wherever it ends up."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    each, taken = actor_resources(config, gradients), learner_resources(config, gradients)

    def fit(node: dict, with_learner: bool) -> int:
        fits = []
        if each["num_cpus"]:
            left = node["Resources"].get("CPU", 0.0) - taken["num_cpus"] * with_learner
            fits.append(int(left / each["num_cpus"] + 1e-9))
        if each["num_gpus"]:
            fits.append(
                _fit_on_gpus(node["Resources"].get("GPU", 0.0), each["num_gpus"], taken["num_gpus"] * with_learner)
            )
        return max(0, min(fits, default=1))

    homes = [learner.node] if learner else [node["NodeID"] for node in nodes]
    return max(1, min((sum(fit(node, node["NodeID"] == home) for node in nodes) for home in homes), default=1))


def _fit_on_gpus(gpus: float, each: float, taken: float) -> int:
    """A share of a GPU is always of a single one, so 0.9 fits once on each and not 2 times on 2.5."""
    if each >= 1 or taken >= 1:
        gpus, taken = gpus - math.ceil(taken), 0.0
    if each >= 1:
        return int(gpus / each)
    shared = int((1 - taken) / each + 1e-9) if taken and gpus >= 1 else 0
    return shared + int(gpus - bool(taken)) * int(1 / each + 1e-9)


def in_words(resources: dict[str, float]) -> str:
    """For example `2 CPUs and 0.5 GPUs`."""
    kinds = (("CPU", resources["num_cpus"]), ("GPU", resources["num_gpus"]))
    return " and ".join(_count(round(amount, 2), kind) for kind, amount in kinds if round(amount, 2))


def cluster_in_words() -> str:
    """What the cluster has, for example `2 nodes with 8 CPUs and 1 GPU`."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    total = {kind: sum(node["Resources"].get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
    return f"{_count(len(nodes), 'node')} with {_count(total['CPU'], 'CPU')} and {_count(total['GPU'], 'GPU')}"


def _count(amount: float, noun: str) -> str:
    return f"{amount:g} {noun}{'s' * (amount != 1)}"


def examine(hellos: Sequence[Hello], seconds: float) -> list[str]:
    """What these processes do, and their stacks, as seen by a task on the node of each; takes at most this long."""
    asked = [_on_node(hello.node, stacks.examine, hello.pid, hello.thread, hello.stacks) for hello in hellos]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=seconds)
    return [_answer(ref) if ref in answered else f"its node returned no stacks within {seconds:g} s" for ref in asked]


def _answer(ref: ray.ObjectRef) -> str:
    try:
        return ray.get(ref)
    except RayError as error:
        return f"its node could not read its stacks ({type(error).__name__})"


def end_process(hello: Hello) -> None:
    """Kills a process that does not respond: Ray only asks it to exit, which a stopped process never does."""
    _on_node(hello.node, _kill, hello.pid)


def _on_node(node: str, function: Callable, *arguments: str | int) -> ray.ObjectRef:
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=where).remote(*arguments)


def _kill(pid: int) -> None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"ray::" not in file.read():  # it is gone, and another process has its pid
                return
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass
