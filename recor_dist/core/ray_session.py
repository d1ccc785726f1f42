"""Connecting to Ray: to a running cluster if there is one, else to one started on this machine."""

import logging
import math
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants, worker
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake

log = logging.getLogger(__name__)
_started: dict[str, subprocess.Popen] = {}  # by the folder of a Ray that this process started: who removes its remains


@contextmanager
def session() -> Iterator[None]:
    """Leaves Ray as it was: connected if the caller was connected before, else shut down."""
    before = ray.is_initialized()
    try:
        yield
    except RuntimeError:
        while _started:
            log.info("the logs of Ray are in %s", _take_over())
        raise
    finally:
        if not before:
            ray.shutdown()
            while _started:
                shutil.rmtree(_take_over(), ignore_errors=True)


def connect() -> bool:
    """Connects to the cluster at RAY_ADDRESS or the one that `ray start` started here; False if there is none."""
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # Ray's future default; if unset, every start warns
    if ray.is_initialized():
        return True
    address = None
    try:
        # Its docstring allows None, which its annotation omits.
        address = canonicalize_bootstrap_address(None)  # pyright: ignore[reportArgumentType]
        if address is None:
            return False
        # Ray finds the same address again. Given an address, it would not look for the token in ~/.ray, which
        # `ray start` requires as soon as that file exists.
        _shorten_messages()
        ray.init(logging_level=logging.WARNING, log_to_driver=False)
    except (ConnectionError, ValueError):
        if os.environ.get("RAY_ADDRESS"):
            raise Mistake(
                f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}: no Ray cluster answers there; correct it, "
                "or unset it to start Ray on this machine"
            ) from None
        log.warning("the Ray cluster that was started on this machine (%s) no longer answers", address)
        return False
    log.info("using the Ray cluster at %s", address)
    return True


def start(cpus: float) -> None:
    """Starts Ray on this machine with at least this many CPUs, on loopback and only for this run."""
    _require_token()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray keeps its last 100,000 calls for the dashboard, which is off.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    # By default the learner would yield to the driver and to Ray's own processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Small weights and gradients come with the calls: the object store takes milliseconds for each, and on one machine
    # it saves no copy. Ray's own limit is 100 KB.
    os.environ.setdefault("RAY_max_direct_call_object_size", "1000000")
    here = len(os.sched_getaffinity(0))
    if cpus > here:
        log.info("the run requests %g CPUs and this machine has %d: its processes share them", cpus, here)
    log.info("starting Ray on this machine")
    _shorten_messages()
    with on_loopback():
        ray.init(
            address="local",
            num_cpus=max(here, math.ceil(cpus)),
            include_dashboard=False,
            logging_level=logging.WARNING,
            log_to_driver=False,
            _temp_dir=_private_folder(),
        )


def check() -> None:
    """Raises Mistake if a Ray that this process started has lost a process that it needs: Ray would end this process
    somewhat later, without a word."""
    node: Any = worker._global_node
    for kind, process in node.dead_processes() if _started and node else ():
        if kind in ("raylet", "gcs_server"):
            raise Mistake(
                f"engine=ray: Ray's {kind} on this machine ended (exit code {process.returncode}), perhaps because "
                "memory ran out; run the same command again to resume"
            )


def _shorten_messages() -> None:
    """Ray prints its messages to drivers, some of which hold pages of a log, several times. Logs their first line."""
    seen: set[str] = set()

    def say(data: dict[str, Any], **_: Any) -> None:
        line = next(iter("".join(data["lines"]).splitlines()), "")[:300]
        if line not in seen:
            seen.add(line)
            log.info("Ray: %s", line)

    worker.print_to_stdstream = say


def _take_over() -> str:
    """Ends the process that would remove the folder of Ray, and returns that folder."""
    folder, remains = _started.popitem()
    remains.kill()
    remains.communicate()
    return folder


def _private_folder() -> str:
    """A folder for the sockets and logs of Ray, in one that only this user can open: Ray lets everyone write into its
    own. It is removed when this process is gone, however it ended."""
    folder = tempfile.mkdtemp(prefix="recor-", dir=os.environ.get("RAY_TMPDIR"))
    _started[folder] = subprocess.Popen(
        [sys.executable, "-m", "recor_dist.core.ray_remains", folder],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is not for it
    )
    return os.path.join(folder, "ray")


def _require_token() -> None:
    """Sets a token that only this run's processes know: loopback alone would admit every user of this machine."""
    if "RAY_AUTH_MODE" in os.environ:
        return
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    raylet: Any = _raylet  # its stub lists only a part of it
    raylet.Config.initialize("")  # Ray read its settings when it was imported
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def on_loopback() -> Iterator[None]:
    """Ray started inside this context cannot be reached from other machines, as on macOS. On Linux it would use the
    machine's network address, even with `_node_ip_address="127.0.0.1"`, and run code that anyone sends it."""
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def device_of_cluster(config: Config | None = None) -> str:
    """`cuda` if the cluster has GPUs that torch can use. Ray counts the GPUs it was told about, usable or not."""
    if config and config.device != "auto":
        return config.device
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    if not nodes:
        return "cpu"
    # Without requesting the GPU: another run may hold it for days.
    where = NodeAffinitySchedulingStrategy(nodes[0]["NodeID"], soft=False)
    looks = ray.remote(num_cpus=0)(_sees_cuda).options(scheduling_strategy=where)
    try:
        seen = ray.get(looks.remote(), timeout=120)
    except RayError as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise Mistake(
            f"device=auto: {nodes[0]['NodeName']} has a GPU, but asking whether torch can use it failed ({why}); "
            "set scale=paper device=cuda, or device=cpu"
        ) from None
    if not seen:
        log.warning(
            "Ray counts %g GPUs on %s, but torch cannot use them: does its build match the driver (nvidia-smi)?",
            nodes[0]["Resources"]["GPU"],
            nodes[0]["NodeName"],
        )
    return "cuda" if seen else "cpu"


def _sees_cuda() -> bool:
    """In a new process, because Ray hides the GPUs from one that requested none."""
    visible = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    look = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", look], env=visible, capture_output=True).returncode == 0
