"""A training run that kills itself: `python -m tests.killed_run WHEN key=value ...`.

WHEN is `step:N`, in the middle of step N; `save:N:BYTES`, after that many bytes of the checkpoint of step N;
`remove:N`, while the save of step N removes an old checkpoint; or `upload:N:FILE`, half of that file uploaded to an
object store.
"""

import os
import signal
import sys
from unittest.mock import patch

from pyarrow import fs

from learner.learner import Learner, LearnerState
from recor_dist.core import files
from recor_dist.core.compose import compose
from recor_dist.core.progress import set_up_logging
from recor_dist.engine.loop import train
from recor_dist.model.transformer import Model
from recor_dist.record import checkpoint
from recor_dist.record.run_folder import RunFolder
from tests.record.test_checkpoint import DyingFolder, Killed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    set_up_logging()
    kind, step, *rest = sys.argv[1].split(":")
    if kind == "step":
        update = Learner.update

        def update_or_die(learner: Learner, batches: list) -> dict[str, float]:
            if learner.step == int(step):
                die()
            return update(learner, batches)

        patch.object(Learner, "update", update_or_die).start()
    elif kind == "upload":
        write = files.write_atomically

        def write_or_die(folder: fs.SubTreeFileSystem, name: str, content: bytes, *, durable: bool = True) -> None:
            if name != f"checkpoints/step-{int(step):08d}/{rest[0]}":
                write(folder, name, content, durable=durable)
                return
            stream = folder.open_output_stream(name)
            stream.write(content[: len(content) // 2])
            stream.flush()
            die()

        files.write_atomically = checkpoint.write_atomically = write_or_die
    else:
        save = checkpoint.save

        def save_or_die(folder: RunFolder, model: Model, state: LearnerState, about: dict, keep: int) -> None:
            if state.step != int(step):
                save(folder, model, state, about, keep)
                return
            dying = DyingFolder(folder.files, int(rest[0]) if kind == "save" else 10**9)
            if kind == "remove":
                dying.delete_dir = lambda name: die()
            try:
                save(RunFolder(folder.uri, dying), model, state, about, keep)
            except Killed:
                die()

        checkpoint.save = save_or_die
    train(compose(["engine=local", *sys.argv[2:]]))


if __name__ == "__main__":
    main()
