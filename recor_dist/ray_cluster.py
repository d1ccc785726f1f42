"""Reaching Ray: a running cluster where there is one, else Ray started on this machine."""

import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private import ray_constants
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import AuthenticationTokenLoader
from ray._raylet import Config as RayConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recor_dist.config import Config, Mistake
from recor_dist.messages import Hello

log = logging.getLogger(__name__)


@contextmanager
def session() -> Iterator[None]:
    """Leaves Ray as it was found: connected where the caller was, else shut down."""
    before = ray.is_initialized()
    try:
        yield
    finally:
        if not before:
            ray.shutdown()


def connect() -> bool:
    """Connects to the cluster that RAY_ADDRESS names or that `ray start` began here; False if there is none."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default; unset, every start warns
    if ray.is_initialized():
        return True
    address = None
    try:
        address = canonicalize_bootstrap_address(None)
        if address is None:
            return False
        # Ray finds the same address once more. If it was given, Ray would not look for the token in ~/.ray, with which
        # `ray start` closes its cluster as soon as there is one.
        ray.init(logging_level=logging.WARNING, log_to_driver=False)
    except (ConnectionError, ValueError):
        if os.environ.get("RAY_ADDRESS"):
            raise Mistake(
                f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}: no Ray cluster answers there; mend it, "
                "or unset it to start Ray on this machine"
            ) from None
        log.warning("the Ray that was started here before (%s) does not answer any more", address)
        return False
    log.info("using the Ray cluster at %s", address)
    return True


def start(config: Config) -> None:
    """Starts Ray on this machine, for this run alone and on loopback, with room for what the run asks for."""
    _admit_nobody_else()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray remembers its last 100,000 calls for a dashboard, which is not there.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    # Ray would have the learner give way to the driver and to Ray's own processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    count = config.actors.count if isinstance(config.actors.count, int) else 1
    wanted = learner_resources(config)["num_cpus"] + count * actor_resources(config)["num_cpus"]
    here = len(os.sched_getaffinity(0))
    if wanted > here:
        log.info("%g CPUs are asked for and %d are here: processes share them", wanted, here)
    log.info("starting Ray on this machine")
    with on_loopback():
        ray.init(
            address="local",
            num_cpus=max(here, int(-(-wanted // 1))),
            include_dashboard=False,
            logging_level=logging.WARNING,
            log_to_driver=False,
        )


def _admit_nobody_else() -> None:
    """A token that only this run's processes know: loopback alone admits everybody who has an account here."""
    if "RAY_AUTH_MODE" in os.environ:
        return
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    RayConfig.initialize("")  # Ray has read its settings when it was imported
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def on_loopback() -> Iterator[None]:
    """Ray started in here cannot be reached from outside, as on macOS. On Linux it would take the address in the
    network, even for `_node_ip_address="127.0.0.1"`, and listen to whoever sends it code to run."""
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def actor_resources(config: Config) -> dict[str, float]:
    return _resources(config, config.actors.num_cpus, config.actors.num_gpus)


def learner_resources(config: Config) -> dict[str, float]:
    return _resources(config, config.learner.num_cpus, config.learner.num_gpus)


def _resources(config: Config, cpus: float | None, gpus: float | None) -> dict[str, float]:
    return {
        "num_cpus": config.threads if cpus is None else cpus,
        "num_gpus": float(config.device == "cuda") if gpus is None else gpus,
    }


def device_of_cluster(config: Config | None = None) -> str:
    """`cuda` where the cluster has GPUs that torch can use. Ray counts what it was told; torch knows."""
    if config and config.device != "auto":
        return config.device
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    if not nodes:
        return "cpu"
    # Asked beside whoever has the GPU now, who may have it for days.
    where = NodeAffinitySchedulingStrategy(nodes[0]["NodeID"], soft=False)
    looks = ray.remote(num_cpus=0)(_sees_cuda).options(scheduling_strategy=where)
    try:
        seen = ray.get(looks.remote(), timeout=120)
    except ray.exceptions.RayError as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise Mistake(
            f"device=auto: {nodes[0]['NodeName']} has a GPU and does not say whether torch can use it ({why}); "
            "say scale=paper device=cuda, or device=cpu"
        ) from None
    if not seen:
        log.warning(
            "Ray counts %g GPUs on %s, but torch there cannot use them: does its wheel fit the driver (nvidia-smi)?",
            nodes[0]["Resources"]["GPU"],
            nodes[0]["NodeName"],
        )
    return "cuda" if seen else "cpu"


def _sees_cuda() -> bool:
    """In a process of its own: from one that was given no GPU Ray hides them."""
    visible = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    look = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", look], env=visible, capture_output=True).returncode == 0


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
