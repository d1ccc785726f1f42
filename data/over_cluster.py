"""Makes shards on all nodes of a Ray cluster.

Tasks return rows to the driver, which writes them. So other nodes need no access to the folder, and if a node is lost,
only the shards it was making are made again.
"""

from collections.abc import Iterator

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

from data.prepare import Job, Made, store_shard
from data.tasks import task_of
from recor_dist.core.config import Config
from recor_dist.core.messages import Rows
from recor_dist.core.setting import Mistake

PER_CPU = 2  # shards in flight per CPU: one being made and one queued


def make_over_cluster(jobs: list[Job]) -> Iterator[Made]:
    """Yields shards as they are made; nodes that join later are used too. Ray must be connected."""
    remote = ray.remote(max_retries=3)(rows_of_shard)
    waiting = list(reversed(jobs))
    under_way: dict[ray.ObjectRef, Job] = {}
    try:
        while waiting or under_way:
            room = _room(jobs[0][0]) - len(under_way)
            for job in [waiting.pop() for _ in range(min(room, len(waiting)))]:
                config, split, index, _ = job
                under_way[remote.remote(config, split, index)] = job
            patience = jobs[0][0].deadline.join
            ready, _ = ray.wait(list(under_way), timeout=patience)
            if not ready:
                raise Mistake(
                    f"deadline.join={patience:g}: none of {len(under_way)} shards was made within that time; are all "
                    "CPUs of the cluster in use? See `ray status`; the same command resumes with the missing shards"
                )
            for ref in ready:
                yield store_shard(*under_way.pop(ref), _rows(ref))
    finally:
        for ref in under_way:
            ray.cancel(ref)


def rows_of_shard(config: Config, split: str, index: int) -> Rows:
    """Runs on any node."""
    return task_of(config).make_shard(split, index)


def _room(config: Config) -> int:
    """How many shards may be in flight: data.jobs, or by default in proportion to the CPUs now in the cluster."""
    return config.data.jobs or PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))


def _rows(ref: ray.ObjectRef) -> Rows:
    try:
        return ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, Mistake):
            raise error.cause from None
        raise
    except (WorkerCrashedError, NodeDiedError, OutOfMemoryError):
        raise Mistake(
            "data.jobs: a process that makes puzzles was killed repeatedly, perhaps because it ran out of memory; "
            "set a smaller number; the same command resumes with the missing shards"
        ) from None
