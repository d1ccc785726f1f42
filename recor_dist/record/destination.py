"""Where the record of a run goes: MLflow, TensorBoard's files, Weights & Biases' files.

Each destination reads the journal and ends up with exactly its points, whatever was killed in between: delivery.py asks
MLflow what it has, and journal_copy.py writes files anew. track.py has the table of destinations and drives them.
"""

from collections.abc import Callable
from typing import Protocol

from recor_dist.core.config import TrackConfig


class Destination(Protocol):
    """Any call may fail in any way. Every method can be repeated, and then does what is left to do."""

    @property
    def store(self) -> str:
        """Its place, as it may be shown."""
        ...

    def open(self) -> int:
        """Gets ready to send; returns how many records of the journal it lacks. `send` does it if necessary."""
        ...

    def send(self, advance: Callable[[int], None] = lambda count: None) -> None:
        """Sends all records in the journal that were not sent yet; `advance` gets the number sent each time."""
        ...

    def finish(self, *, training: bool = False) -> None:
        """After the last record: sends what only a run that has ended has. With `training` the run goes on."""
        ...

    def where(self) -> str:
        """Where the record is, for people."""
        ...


def destinations_of(track: TrackConfig) -> list[str]:
    """The names of the destinations that the settings of a run ask for."""
    chosen = {"mlflow": track.enabled, "tensorboard": track.tensorboard, "wandb": track.wandb}
    return [name for name, on in chosen.items() if on]
