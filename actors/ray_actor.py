"""The Ray shell around a worker: it takes a ticket and a reference to weights, and returns a receipt and a result.

The result, a batch or a gradient, stays in the object store of the actor's machine until the learner fetches it; the
driver sees only receipts.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import RayError

from actors.worker import Worker
from data.shards import Dataset
from recor_dist.core.messages import EvalTicket, Receipt, Ticket
from recor_dist.core.ray_member import Fingerprint, RayMember
from recor_dist.core.tracing import span

NICENESS = 10  # on top of what Ray gives its workers


class WeightsLost(Exception):
    """The weights of a ticket were lost with the machine that held them."""


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


class RolloutActor(RayMember):
    def __init__(self, fingerprint: Callable[[], Fingerprint], make_worker: Callable[[Dataset], Worker]) -> None:
        """Both functions are passed in, so this shell depends on neither methods nor configuration."""
        super().__init__(fingerprint)
        self.make_worker = make_worker
        self.worker: Worker | None = None

    def begin(self, data: Dataset, shards: StoredShards | None) -> None:
        """Opens the data, through the object store if this machine cannot reach the driver's folder."""
        # Where cores are scarce, the learner comes first because all actors wait for it. On Linux this applies to the
        # calling thread, not the process, and Ray runs all tickets in this thread.
        os.nice(NICENESS)
        self.worker = self.make_worker(data.read_from(shards) if shards else data)

    @ray.method(num_returns=2)
    def roll_out(self, ticket: Ticket, weights: list[ray.ObjectRef]) -> tuple[Receipt, Any]:
        return self._computed(ticket.version, weights, lambda worker: worker.roll_out(ticket))

    @ray.method(num_returns=2)
    def differentiate(self, ticket: Ticket, weights: list[ray.ObjectRef] | list[np.ndarray]) -> tuple[Receipt, Any]:
        return self._computed(ticket.version, weights, lambda worker: worker.differentiate(ticket))

    @ray.method(num_returns=2)
    def evaluate(self, ticket: EvalTicket, weights: list[ray.ObjectRef]) -> tuple[Receipt, Any]:
        return self._computed(ticket.version, weights, lambda worker: worker.evaluate(ticket.split, ticket.group))

    def _computed(
        self, version: int, weights: list[ray.ObjectRef] | list[np.ndarray], compute: Callable[[Worker], Any]
    ) -> tuple[Receipt, Any]:
        """Computes a ticket, and before that fetches its weights, unless it needs none or they are loaded already. A
        reference to them is in a list because Ray would always fetch a bare one."""
        assert self.worker is not None
        began = time.perf_counter()
        pulled = 0
        if weights and self.worker.version != version:
            with span("fetch weights"):
                try:
                    flat = weights[0] if isinstance(weights[0], np.ndarray) else ray.get(weights[0])
                except RayError as error:
                    raise WeightsLost(f"v_{version}") from error
                self.worker.load(version, flat)
            pulled = flat.nbytes
        loaded = time.perf_counter()
        answer = compute(self.worker)
        return Receipt(time.perf_counter() - loaded, loaded - began, pulled), answer
