"""The evaluations of a run on Ray: the tickets of each, and the sums of those that are answered."""

import math

from data.shards import Dataset
from recor_dist.core.config import Config
from recor_dist.core.messages import EvalSums, EvalTicket
from recor_dist.engine.events import Evaluated, splits_due
from recor_dist.model.evaluation import add_by_decoder


class Evaluations:
    """Splits evaluations into tickets and adds up their answers, which may arrive in any order.

    It promises that each version is evaluated once, even if a new learner computes it again, and that a version is
    in `versions()` until its last ticket is answered, so its weights must be kept until then.
    """

    def __init__(self, config: Config, data: Dataset, steps: int) -> None:
        self.config, self.data, self.steps = config, data, steps
        self.asked: set[int] = set()  # versions
        self.unanswered: set[EvalTicket] = set()
        self.answers: dict[tuple[int, str], tuple[int, dict[str, EvalSums]]] = {}  # tickets answered, and their sums

    def due(self, version: int) -> list[EvalTicket]:
        """The tickets to compute now that this version is published; none the second time."""
        if version in self.asked:
            return []
        self.asked.add(version)
        tickets = [
            EvalTicket(version, split, group)
            for split in splits_due(self.config, version, self.steps)
            for group in range(self._total(split))
        ]
        self.unanswered.update(tickets)
        return tickets

    def add(self, ticket: EvalTicket, sums: dict[str, EvalSums]) -> Evaluated:
        """Adds an answer; returns what is known about its evaluation so far."""
        self.unanswered.remove(ticket)
        version, split, _ = ticket
        done, before = self.answers.pop((version, split), (0, None))
        done, sums = done + 1, add_by_decoder(before, sums) if before else sums
        total = self._total(split)
        if done < total:
            self.answers[version, split] = done, sums
        return Evaluated(version, split, sums, done, total)

    def versions(self) -> set[int]:
        """Versions whose weights unanswered tickets still need."""
        return {ticket.version for ticket in self.unanswered}

    def _total(self, split: str) -> int:
        return math.ceil(self.data.rows_of(split) / self.config.eval.size)
