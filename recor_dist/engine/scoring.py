"""Scoring rows with the weights of a finished run, here or on Ray.

The rows are cut into tickets like those of a run's own test, and a unit of work is one ticket and one decoder. Sums are
integers, so the units may be computed anywhere, in any order, and again after a crash.
"""

import logging
import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recor_dist.core.config import Config
from recor_dist.core.device import fingerprint, set_up_torch
from recor_dist.core.messages import EvalSums, Rows, Shape
from recor_dist.methods import build_model, find_decoders
from recor_dist.model.answering import answer_ticket
from recor_dist.model.decoding import Decoder
from recor_dist.model.evaluation import score
from recor_dist.model.transformer import Model

if TYPE_CHECKING:
    import ray

log = logging.getLogger(__name__)
Scored = tuple[str, EvalSums, dict[str, str | int]]  # decoder, its sums on a ticket, fingerprint of the machine
SILENCE = 60.0  # seconds without an answer after which a line says what is missing


@dataclass(frozen=True)
class Job:
    """What a process must know to score tickets."""

    config: Config
    shape: Shape
    source: str  # of the rows: random numbers depend on it, like on the split in a run's own test
    decoders: tuple[str, ...]  # by the names of their results


class Scorer:
    """A model with its weights, and the decoders of a job."""

    def __init__(self, job: Job, weights: np.ndarray) -> None:
        set_up_torch(job.config)
        self.job = job
        self.model: Model = build_model(job.config, job.shape)
        self.model.load(weights)
        self.decoders: dict[str, Decoder] = find_decoders(job.config, "decoders", ",".join(job.decoders))
        self.machine = fingerprint(job.config)

    def score(self, name: str, rows: Rows, index: int) -> Scored:
        """Of ticket `index`, whose rows are given."""
        config, split = self.job.config, self.job.source
        generation = answer_ticket(config, self.model, name, self.decoders[name], rows, split, index)
        return name, score(generation, rows), self.machine


def tickets_of(job: Job, rows: Rows) -> list[Rows]:
    size = job.config.eval.size
    return [
        rows.select(np.arange(index * size, min(index * size + size, len(rows))))
        for index in range(math.ceil(len(rows) / size))
    ]


def score_here(job: Job, weights: np.ndarray, rows: Rows) -> Generator[Scored, None, None]:
    """Yields the sums of every decoder and ticket, one decoder after another."""
    scorer = Scorer(job, weights)
    for name in job.decoders:
        for index, ticket in enumerate(tickets_of(job, rows)):
            yield scorer.score(name, ticket, index)


def score_on_ray(job: Job, weights: np.ndarray, rows: Rows) -> Generator[Scored, None, None]:
    """The same with a Ray task per decoder and ticket, in the order in which they are done. Ray repeats the tasks of a
    node that is lost."""
    import ray  # here, so that engine=local does not wait for it

    from recor_dist.core import ray_session
    from recor_dist.engine.placement import actor_resources, cpus_wanted

    with ray_session.session():
        if not ray_session.connect():
            ray_session.start(cpus_wanted(job.config))
        needs = actor_resources(job.config, gradients=False)
        task = ray.remote(_score_one).options(**needs, max_retries=-1)
        stored = ray.put((job, weights))
        waiting: dict[ray.ObjectRef, tuple[str, int]] = {
            task.remote([stored], name, ticket, index): (name, index)
            for name in job.decoders
            for index, ticket in enumerate(tickets_of(job, rows))
        }
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=SILENCE)
            if not done:
                first = next(iter(waiting.values()))
                log.warning("no answer for %g s; %d tickets are missing, first %s %d", SILENCE, len(waiting), *first)
            for reference in done:
                del waiting[reference]
                yield ray.get(reference)


_scorers: dict[str, Scorer] = {}  # of this Ray process, which computes many tickets: at most one


def _score_one(stored: "list[ray.ObjectRef]", name: str, rows: Rows, index: int) -> Scored:
    """`stored` refers to the job and its weights, in a list because Ray would always fetch a bare reference."""
    import ray

    key = stored[0].hex()
    if key not in _scorers:
        _scorers.clear()
        _scorers[key] = Scorer(*ray.get(stored[0]))
    return _scorers[key].score(name, rows, index)
