"""Metrics of a run for Prometheus: each node of a Ray cluster exports those of its processes, and Ray's own.

docs/grafana.json is a dashboard of them. Ray puts `ray_` in front of each name.
"""

import time
from dataclasses import replace

from ray.util.metrics import Counter, Gauge

from actors.pool import Pool
from recor_dist.engine.meter import Meter

COUNTERS = {
    "recor_dist_steps": "steps that the learner has taken",
    "recor_dist_tickets_reissued": "tickets that were issued again",
    "recor_dist_bytes_moved": "bytes of weights, batches and gradients that were sent",
}
GAUGES = {
    "recor_dist_step": "the step that the run has reached",
    "recor_dist_examples_per_second": "training rows per second",
    "recor_dist_learner_starved": "share of the time in which the learner had nothing to do",
    "recor_dist_actors_idle": "share of the time in which the actors had nothing to do",
    "recor_dist_actors_alive": "actors at work",
}
PERIOD = 5.0  # seconds between two exports; Ray sends them to Prometheus every ten


class Exports:
    def __init__(self, run: str, meter: Meter, pool: Pool) -> None:
        """`run`: tells runs of one cluster apart."""
        self.meter, self.pool = meter, pool
        tags = {"run": run}
        self.counters = {n: Counter(n, about, ("run",)).set_default_tags(tags) for n, about in COUNTERS.items()}
        self.gauges = {n: Gauge(n, about, ("run",)).set_default_tags(tags) for n, about in GAUGES.items()}
        self._remember(time.monotonic())

    def _remember(self, now: float) -> None:
        self.at, self.step, self.reissued = now, self.pool.learned, self.pool.reissued
        self.before = replace(self.meter.whole)

    def export(self, now: float) -> None:
        """Every few seconds: what has changed since the last time."""
        if now < self.at + PERIOD:
            return
        whole, before, steps = self.meter.whole, self.before, max(0, self.pool.learned - self.step)
        for name, more in {
            "recor_dist_steps": steps,
            "recor_dist_tickets_reissued": self.pool.reissued - self.reissued,
            "recor_dist_bytes_moved": whole.moved - before.moved,
        }.items():
            if more > 0:
                self.counters[name].inc(more)
        for name, value in {
            "recor_dist_step": self.pool.learned,
            "recor_dist_examples_per_second": steps * self.meter.batch_size / (now - self.at),
            "recor_dist_learner_starved": _share(whole.starved - before.starved, whole.seconds - before.seconds),
            "recor_dist_actors_idle": _share(whole.idle - before.idle, whole.present - before.present),
            "recor_dist_actors_alive": len(self.pool.actors),
        }.items():
            self.gauges[name].set(value)
        self._remember(now)


def _share(part: float, of: float) -> float:
    return part / of if of > 0 else 0.0
