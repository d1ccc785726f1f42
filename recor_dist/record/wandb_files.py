"""An offline run of Weights & Biases, in `wandb/` of the run's folder. Nothing is sent: `wandb sync` does that."""

import os
from typing import Any

from recor_dist.core.config import digest
from recor_dist.record.description import Description
from recor_dist.record.journal import points_of
from recor_dist.record.journal_copy import FileFormat

PREFIX = "recor-"  # of ids; runs with other ids are not ours


class OfflineRun:
    def __init__(self, folder: str, run: Description, experiment: str, time: float) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # before the import, which would set up reports over the network
        import wandb

        quiet = wandb.Settings(
            silent=True,
            reinit="create_new",
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,  # the journal has our own
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self.run = wandb.init(
            mode="offline",
            dir=folder,
            project=experiment,
            # The same for all senders of a run, so that `wandb sync` of a later copy replaces an earlier one.
            id=PREFIX + digest([run.name, run.params, time])[:16],
            name=run.name,
            config={key: tag for key, tag in run.tags.items() if not key.startswith("mlflow.")} | run.params,
            settings=quiet,
        )
        # W&B's own steps only count upwards, but the line of an evaluation may come after those of later steps.
        self.run.define_metric("*", step_metric="step")

    def write(self, record: dict[str, Any]) -> None:
        time = {"_timestamp": record["time"]} if "time" in record else {}
        self.run.log({**points_of(record), "step": record["step"], **time})

    def flush(self) -> None:
        """W&B's own process writes within a second."""

    def close(self, status: str) -> None:
        import wandb

        self.run.finish(exit_code=0 if status == "finished" else 1)
        wandb.teardown()  # `finish` returns before W&B's own process has written everything; this waits for its end


WANDB = FileFormat(
    name="Weights & Biases",
    files=f"wandb/offline-run-*-{PREFIX}*",
    shown_by=f"wandb sync {{}}/offline-run-*-{PREFIX}*",
    begin=OfflineRun,
)
