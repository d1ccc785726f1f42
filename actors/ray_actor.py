"""The Ray shell around a worker: it gets a ticket and a reference to weights, and gives back a batch and a receipt.

The batch stays in the object store of the actor's machine until the learner takes it; the driver sees receipts only.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from actors.worker import Worker
from data.shards import Dataset
from recor_dist.core.messages import EvalTicket, Hello, Receipt, Ticket

NICENESS = 10  # on top of what Ray gives its workers


class WeightsLost(Exception):
    """The weights of a ticket went down with the machine that held them."""


class StoredShards:
    """A data set's files in Ray's object store, for machines that cannot reach its folder."""

    def __init__(self, files: Mapping[str, ray.ObjectRef]) -> None:
        self.files = dict(files)

    @staticmethod
    def put(data: Dataset) -> "StoredShards":
        files = {}
        for entry in (entry for split in data.manifest.splits.values() for entry in split):
            with data.folder.open_input_file(entry.file) as file:
                files[entry.file] = ray.put(np.frombuffer(file.read(), dtype=np.uint8))
        return StoredShards(files)

    def open_input_file(self, name: str) -> pa.NativeFile:
        return pa.BufferReader(ray.get(self.files[name]))


def introduce(fingerprint: dict[str, str | int]) -> Hello:
    """Who speaks, from inside an actor or the learner."""
    return Hello(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid(), fingerprint)


class RolloutActor:
    def __init__(
        self, fingerprint: Callable[[], dict[str, str | int]], make_worker: Callable[[Dataset], Worker]
    ) -> None:
        """Both functions are handed in, so that this shell knows neither methods nor configuration."""
        self.fingerprint, self.make_worker = fingerprint, make_worker
        self.worker: Worker | None = None

    def hello(self) -> Hello:
        return introduce(self.fingerprint())

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Never answers: its reference fails the moment this process is gone, at work or not."""
        threading.Event().wait()

    def begin(self, data: Dataset, shards: StoredShards | None) -> None:
        """Opens the data, through the object store where the driver's folder is out of reach."""
        # Where cores are scarce the learner goes first: everybody waits for it. Linux makes this thread nice, not the
        # process, and it is the one in which Ray runs all tickets.
        os.nice(NICENESS)
        self.worker = self.make_worker(data.read_from(shards) if shards else data)

    @ray.method(num_returns=2)
    def roll_out(self, ticket: Ticket, weights: list[ray.ObjectRef]) -> tuple[Receipt, Any]:
        return self._computed(ticket.version, weights, lambda worker: worker.roll_out(ticket))

    @ray.method(num_returns=2)
    def evaluate(self, ticket: EvalTicket, weights: list[ray.ObjectRef]) -> tuple[Receipt, Any]:
        return self._computed(ticket.version, weights, lambda worker: worker.evaluate(ticket.split, ticket.index))

    def _computed(
        self, version: int, weights: list[ray.ObjectRef], compute: Callable[[Worker], Any]
    ) -> tuple[Receipt, Any]:
        """Pulls the weights, unless none are needed or they are those of the ticket before. The reference comes in a
        list: Ray would fetch a bare one itself, needed or not."""
        assert self.worker is not None
        began = time.perf_counter()
        pulled = 0
        if weights and self.worker.version != version:
            try:
                flat = ray.get(weights[0])
            except ray.exceptions.RayError as error:
                raise WeightsLost(f"v_{version}") from error
            self.worker.load(version, flat)
            pulled = flat.nbytes
        loaded = time.perf_counter()
        answer = compute(self.worker)
        return Receipt(time.perf_counter() - loaded, loaded - began, pulled), answer
