"""A run's answers to test rows, made again with its newest weights or with those of an earlier checkpoint.

With the newest weights, they are the answers of the run's own test: the same tickets, the same random numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from data.prepare import find_data
from data.shards import Dataset, read_notes
from data.tasks import task_of
from recor_dist.core.config import Config, unflatten
from recor_dist.core.device import resolve_or_use_cpu, set_up_torch
from recor_dist.core.messages import Generation, Rows
from recor_dist.core.setting import Mistake
from recor_dist.methods import METHODS, find_decoders, lay_out
from recor_dist.model.answering import answer_tickets, whole_tickets
from recor_dist.model.transformer import Model
from recor_dist.record.checkpoint import load_model
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.warm_start import read_source

ROWS = 400  # test rows, at most
PAIRS = 200_000  # pairs of a state and a slot, at most: fewer rows if answers are long
PAIRS_AT_ONCE = 8_192


@dataclass(frozen=True)
class Answered:
    """Answers of a run to its first test rows."""

    config: Config
    model: Model
    rows: Rows
    notes: dict[str, np.ndarray]  # what is known about each row, by name: Sudoku's `givens` and `hardest`, say
    generation: Generation

    def select(self, rows: slice) -> "Answered":
        some = self.rows.select(np.arange(len(self.rows))[rows])
        notes = {name: note[rows] for name, note in self.notes.items()}
        return replace(self, rows=some, notes=notes, generation=self.generation.select(rows))

    def first(self, rows: int) -> "Answered":
        """The first answers."""
        return self.select(slice(rows))

    def parts(self) -> "Iterator[Answered]":
        """A few answers at a time, for what queries every slot in every state."""
        size = max(1, PAIRS_AT_ONCE // self.model.shape.M**2)
        for start in range(0, len(self.rows), size):
            yield self.select(slice(start, start + size))

    @property
    def steps(self) -> np.ndarray:
        """(R, M): the step, from 1, at which each slot was filled."""
        return self.generation.steps

    @property
    def known_steps(self) -> np.ndarray | None:
        """(R, M): the step at which the known order, the solver's, fills each slot; None if there is none."""
        return None if self.rows.orders is None else self.rows.orders.argsort(axis=1) + 1

    @property
    def wrong(self) -> np.ndarray:
        """(R, M): True where a token is wrong."""
        return np.not_equal(self.generation.responses, self.rows.responses)

    @property
    def right(self) -> np.ndarray:
        """(R,): True where every token of an answer is right."""
        return np.asarray(np.logical_not(self.wrong).all(axis=1))


def checkpoints_of(out: str) -> list[int]:
    """The steps whose weights a run still has, oldest first; `checkpoint.keep` says how many it keeps."""
    return RunFolder.open(out).checkpoints()[::-1]


def answer_test(out: str, rows: int | None = None, decoder: str | None = None, step: int | None = None) -> Answered:
    """Answers the first test rows, up to 400 by default, with the headline decoder or another (as `solve` takes it),
    and with the newest weights or those of the checkpoint of `step`."""
    config, data = _find(out)
    model = _load(out, config, step)
    resolve_or_use_cpu(config)
    set_up_torch(config)
    found = (
        find_decoders(config, "decoder", decoder) if decoder else METHODS[config.method.name].decoders(config.method)
    )
    name, chosen = next(iter(found.items()))
    total = data.rows_of("test")
    wanted = min(rows or affordable(model.shape.M), total)
    some = data.read_split("test", 0, whole_tickets(config, wanted, total))
    generation = Generation.concatenate(list(answer_tickets(config, model, name, chosen, some, "test")))
    return Answered(config, model, some, _notes(data, len(some)), generation).first(wanted)


def notes_of_test(out: str, rows: int) -> dict[str, np.ndarray]:
    """What is known about the first test rows, by name."""
    _, data = _find(out)
    return _notes(data, rows)


def _find(out: str) -> tuple[Config, Dataset]:
    config = unflatten(RunFolder.open(out).require_run()["settings"])
    data = find_data(config, task_of(config))
    if data is None:
        raise Mistake(f"data.dir={config.data.dir}: does not hold the rows of the run in {out}")
    return config, data


def affordable(M: int) -> int:
    """How many rows of M slots are answered by default."""
    return int(np.clip(PAIRS // M**2, 16, ROWS))


def _load(out: str, config: Config, step: int | None) -> Model:
    if step is None:
        return load_model(out)[0]
    folder = RunFolder.open(out)
    if step not in folder.checkpoints():
        kept = ", ".join(map(str, checkpoints_of(out)))
        raise Mistake(f"step={step}: the run in {out} has checkpoints of {kept}; checkpoint.keep=N keeps more")
    model = lay_out(config, load_model(out)[0].shape)
    model.load(model.flat_weights(read_source(folder.place(folder.checkpoint(step))).named))
    return model


def _notes(data: Dataset, rows: int) -> dict[str, np.ndarray]:
    parts, left = [], rows
    for index, entry in enumerate(data.manifest.splits["test"]):
        if left > 0:
            parts.append(read_notes(data.folder, "test", index)[0])
        left -= entry.rows
    return {name: np.concatenate([part[name] for part in parts])[:rows] for name in (parts[0] if parts else ())}
