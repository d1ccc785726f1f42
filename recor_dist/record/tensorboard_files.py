"""TensorBoard's event files, in `tensorboard/` of the run's folder. TensorBoard keeps values as float32."""

import os
from typing import Any

from recor_dist.record.description import Description
from recor_dist.record.journal import points_of
from recor_dist.record.journal_copy import FileFormat

SUFFIX = ".recor_dist"  # files without it are not ours


class EventFiles:
    def __init__(self, folder: str, run: Description, experiment: str, time: float) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        # The first event tells a TensorBoard that is open to drop what it has read from the files before.
        self.events = SummaryWriter(os.path.join(folder, "tensorboard"), purge_step=0, filename_suffix=SUFFIX)

    def write(self, record: dict[str, Any]) -> None:
        for key, value in points_of(record).items():
            self.events.add_scalar(key, value, record["step"], walltime=record.get("time"))

    def flush(self) -> None:
        self.events.flush()

    def close(self, status: str) -> None:
        self.events.close()


TENSORBOARD = FileFormat(
    name="TensorBoard",
    files=f"tensorboard/events.out.tfevents.*{SUFFIX}",
    shown_by="tensorboard --logdir {}",
    begin=EventFiles,
)
