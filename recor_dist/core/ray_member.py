"""What every Ray process of a run can do: introduce itself, let the driver notice when it dies or see where it hangs,
and record what it does."""

import os
import socket
import threading
import time
from collections.abc import Callable

import ray

from recor_dist.core import stacks, tracing
from recor_dist.core.messages import Hello, Trace

Fingerprint = dict[str, str | int]  # what two processes must share to compute the same bits


class RayMember:
    """The base of the shells of actors and learner. Its Ray class needs the concurrency groups `watch` and `state`."""

    def __init__(self, fingerprint: Callable[[], Fingerprint]) -> None:
        """`fingerprint` is called in this process, so it describes the machine that Ray chose."""
        self.fingerprint = fingerprint

    def hello(self) -> Hello:
        node = ray.get_runtime_context().get_node_id()
        thread = threading.get_native_id()  # Ray calls all methods of a concurrency group in one thread
        return Hello(node, socket.gethostname(), os.getpid(), self.fingerprint(), thread, stacks.prepare())

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Never returns: its reference fails as soon as this process is gone, busy or idle."""
        threading.Event().wait()

    def start_profile(self) -> None:
        """Between two calls, in the thread that computes."""
        tracing.start()

    def stop_profile(self) -> Trace:
        return tracing.stop()

    @ray.method(concurrency_group="state")
    def clock(self) -> float:
        return time.time()
