"""What every Ray process of a run can do: introduce itself, and let the driver notice when it dies."""

import os
import socket
import threading
from collections.abc import Callable

import ray

from recor_dist.core.messages import Hello

Fingerprint = dict[str, str | int]  # what two processes must share to compute the same bits


class RayMember:
    """The base of the actor's and the learner's shell. Its Ray class needs `concurrency_groups={"watch": 1}`."""

    def __init__(self, fingerprint: Callable[[], Fingerprint]) -> None:
        """`fingerprint` is called in this process, so it describes the machine that Ray chose."""
        self.fingerprint = fingerprint

    def hello(self) -> Hello:
        node = ray.get_runtime_context().get_node_id()
        return Hello(node, socket.gethostname(), os.getpid(), self.fingerprint())

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Never returns: its reference fails as soon as this process is gone, busy or idle."""
        threading.Event().wait()
