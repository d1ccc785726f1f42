"""Where the time of a run on Ray goes, as the driver sees it: metrics of each step, and advice at the end."""

from dataclasses import dataclass, field

from recor_dist.core.messages import LedStep, Receipt


@dataclass
class Totals:
    """Sums over a period."""

    seconds: float = 0.0
    starved: float = 0.0  # seconds in which the learner had no tickets to take
    present: float = 0.0  # actor-seconds of all actors that had joined
    idle: float = 0.0  # actor-seconds in which they computed nothing
    learning: float = 0.0  # seconds in which the learner fetched batches and computed
    publish: float = 0.0  # seconds beyond that until the driver had the answer
    pull: float = 0.0  # seconds in which actors fetched weights
    pulls: int = 0
    moved: int = 0  # bytes of weights and batches
    most_present: int = 0

    def starved_share(self) -> float:
        return self.starved / self.seconds if self.seconds else 0.0

    def idle_share(self) -> float:
        return self.idle / self.present if self.present else 0.0


@dataclass
class Meter:
    batch_size: int
    groups: int  # tickets per step
    lag: int
    gradients: bool  # actors compute them, and the learner hands out tickets
    now: float
    whole: Totals = field(default_factory=Totals)  # since the engine started
    step: Totals = field(default_factory=Totals)  # since the last step

    def passed(self, now: float, *, present: int, idle: int, learning: bool) -> None:
        """Counts the time since the last call as spent in this state; counts none before the first actor joins."""
        seconds, self.now = now - self.now, now
        if not present:
            return
        for totals in (self.whole, self.step):
            totals.seconds += seconds
            totals.starved += 0.0 if learning else seconds
            totals.present += present * seconds
            totals.idle += idle * seconds
            totals.most_present = max(totals.most_present, present)

    def led(self, step: LedStep) -> None:
        """The learner has taken a step whose tickets it handed out."""
        for totals in (self.whole, self.step):
            totals.seconds += step.seconds
            totals.starved += step.waited
            totals.present += step.actors * step.seconds
            totals.idle += max(0.0, step.actors * step.seconds - step.busy)
            totals.learning += step.computed
            totals.publish += step.seconds - step.computed - step.waited
            totals.pull += step.pulled
            totals.pulls += step.actors
            totals.moved += step.moved_bytes
            totals.most_present = max(totals.most_present, step.actors)

    def led_between(self, seconds: float, actors: int) -> None:
        """Time of a learner that leads in which it took no step: between two calls, or after trouble."""
        for totals in (self.whole, self.step):
            totals.seconds += max(0.0, seconds)
            totals.starved += max(0.0, seconds)
            totals.present += actors * max(0.0, seconds)
            totals.idle += actors * max(0.0, seconds)

    def answered(self, receipt: Receipt) -> None:
        """An actor has finished a ticket."""
        for totals in (self.whole, self.step):
            totals.moved += receipt.moved_bytes
            if receipt.moved_bytes:
                totals.pull += receipt.moved_seconds
                totals.pulls += 1

    def took(self, receipt: Receipt, seconds: float) -> None:
        """The learner has taken tickets, this many seconds after it had all it needs, as seen by the driver."""
        work = min(receipt.seconds + receipt.moved_seconds, max(receipt.seconds, seconds))
        for totals in (self.whole, self.step):
            totals.moved += receipt.moved_bytes
            totals.learning += work
            totals.publish += max(0.0, seconds - work)

    def stepped(self, *, present: int, reissued: int) -> dict[str, float]:
        """The learner has taken the last tickets of a step. Returns the metrics of the step."""
        step, self.step = self.step, Totals()
        # If two steps are answered together, the second has taken no time except that of its update.
        took = max(step.seconds, step.learning)
        return {
            "engine/examples_per_second": self.batch_size / took if took else 0.0,
            "engine/learner_starved": step.starved_share(),
            "engine/actors_idle": step.idle_share(),
            "engine/actors_alive": present,
            "engine/tickets_reissued": reissued,
            "engine/publish_seconds": step.publish,
            "engine/pull_seconds": step.pull / step.pulls if step.pulls else 0.0,
            "engine/bytes_moved": step.moved,
            "engine/lag": self.lag,
        }

    def advice(self) -> str:
        """Which side was the bottleneck, and what to change."""
        starved, idle = self.whole.starved_share(), self.whole.idle_share()
        if self.gradients:
            return self._advice_with_gradients(starved, idle)
        shares = f"the learner waited {starved:.0%} of the time, the actors {idle:.0%}"
        if min(starved, idle) > 0.15:
            remedy = "a larger lag" if self.lag else "lag=1 (which changes the result)"
            return f"{shares}: they wait for each other; try {remedy}, or a smaller rollout_size to use more actors"
        if starved > max(idle, 0.1):
            return f"{shares}: rollouts are the bottleneck; add actors (actors.count, or more nodes)"
        if idle > 0.1:
            enough = max(1, round(self.whole.most_present * (1 - idle)))
            spare = (
                f"; {enough} of {self.whole.most_present} actors would be enough"
                if enough < self.whole.most_present
                else ""
            )
            return f"{shares}: the learner is the bottleneck{spare}; give it a faster device"
        return f"{shares}: both are busy"

    def _advice_with_gradients(self, starved: float, idle: float) -> str:
        """Actors and learner share the work. What they wait for is each other at the end of a step, or the learner's
        own part in it."""
        shares = f"the learner waited {starved:.0%} of the time, the actors {idle:.0%}"
        actors, workers = self.whole.most_present, self.whole.most_present + 1
        if max(starved, idle) <= 0.15:
            more = "add actors (actors.count, or more nodes)" if workers < self.groups else "no ticket is left for more"
            return f"{shares}: all are busy; {more}"
        if self.groups < actors:
            return f"{shares}: a step has {self.groups} tickets, so {self.groups} actors would be enough"
        if self.groups % workers and self.groups % actors:
            return (
                f"{shares}: {self.groups} tickets per step leave some of {actors} actors without work at its end; try "
                "a number of actors that divides it, or a smaller rollout_size (which changes the result)"
            )
        return (
            f"{shares}: sending weights and gradients, and adding them, takes the rest; try a larger rollout_size "
            "(which changes the result), or fewer actors"
        )
