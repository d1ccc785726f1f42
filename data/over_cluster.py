"""Shards made by all machines of a Ray cluster.

Rows come back to the driver, which writes them: other nodes need not reach the folder, and a node that is lost while it
makes a shard costs no more than making that one again.
"""

from collections.abc import Iterator

import ray

from data.prepare import Job, Made, store_shard
from data.shards import NotedRows
from data.tasks import task_of
from recor_dist.core.config import Config, Mistake

A_CPU = 2  # shards under way for each CPU: one being made, one in hand


def make_over_cluster(jobs: list[Job]) -> Iterator[Made]:
    """Yields shards as they come; nodes that join are used. Ray must be connected."""
    remote = ray.remote(max_retries=3)(rows_of_shard)
    waiting, under_way = list(reversed(jobs)), {}
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
                    f"deadline.join={patience:g}: none of {len(under_way)} shards was made in that time; "
                    "are all CPUs of the cluster taken? See `ray status`; the same command goes on where it stopped"
                )
            for ref in ready:
                yield store_shard(*under_way.pop(ref), _rows(ref))
    finally:
        for ref in under_way:
            ray.cancel(ref)


def rows_of_shard(config: Config, split: str, index: int) -> NotedRows:
    """Runs anywhere."""
    return task_of(config).make_shard(split, index)


def _room(config: Config) -> int:
    """How many shards may be under way: data.jobs, or more when nodes have joined."""
    return config.data.jobs or A_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))


def _rows(ref: ray.ObjectRef) -> NotedRows:
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Mistake):
            raise error.cause from None
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError):
        raise Mistake(
            "a process that made puzzles was killed time and again, perhaps for want of memory; set data.jobs to make "
            "fewer at once; the same command goes on where it stopped"
        ) from None
