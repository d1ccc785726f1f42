"""Makes a profile of a run on Ray: ten steps of the driver, the learner and one actor."""

import time

import ray

from recor_dist.core import tracing
from recor_dist.core.messages import Trace
from recor_dist.engine.crew import Crew, Member
from recor_dist.engine.profile import STEPS, WARM_UP, shifted

LONGEST_WAIT = 60.0  # seconds for which the driver waits for processes to begin or end
PINGS = 5  # to compare two clocks


class Profiling:
    """Profiles the processes of a run on Ray. Promises to change no result: it only asks processes to record."""

    def __init__(self, crew: Crew, step: int, patience: float) -> None:
        """`patience`: of the run with an answer. The driver waits here for a part of it, so that a process that hangs
        does not make it miss the answers of all others."""
        self.crew, self.patience = crew, min(LONGEST_WAIT, patience / 4)
        self.until = step + WARM_UP  # the step at which it begins, then the one at which it ends
        self.members: list[Member] = []  # that are recording

    def begin(self, actor: str, step: int) -> None:
        self.members = [self.crew.learner, self.crew.member(actor)]
        self.until = step + STEPS
        asked = [member.handle.start_profile.remote() for member in self.members]
        ray.get(asked, timeout=self.patience)
        tracing.start()

    def end(self) -> dict[str, Trace]:
        """The traces, by process, on the driver's clock."""
        traces = {"driver": tracing.stop()}
        members, self.members = self.members, []
        asked = [member.handle.stop_profile.remote() for member in members]
        give_up = time.monotonic() + self.patience
        for member, trace in zip(members, ray.get(asked, timeout=self.patience), strict=True):
            assert member.hello is not None
            ahead = 0.0 if member.hello.node == self.crew.node else self._ahead(member, give_up)
            traces[str(member)] = shifted(trace, -ahead)
        return traces

    def abandon(self) -> None:
        """Ends the recording, wherever it goes on."""
        for member in self.members:
            member.handle.stop_profile.remote()
        self.members = []
        if tracing.running():
            tracing.stop()

    def _ahead(self, member: Member, give_up: float) -> float:
        """Seconds by which the clock of another machine is ahead of ours, from the fastest of a few answers."""
        found = []
        for _ in range(PINGS):
            began = time.time()
            asked: ray.ObjectRef[float] = member.handle.clock.remote()
            there = ray.get(asked, timeout=max(0.0, give_up - time.monotonic()))
            took = time.time() - began
            found.append((took, there - (began + took / 2)))
        return min(found)[1]
