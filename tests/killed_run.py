"""A training run that kills itself: `python -m tests.killed_run WHEN key=value ...`.

WHEN is `step:N`, in the middle of step N; `save:N:BYTES`, while the checkpoint of step N is being written; or
`remove:N`, while the save of step N removes an old checkpoint.
"""

import os
import signal
import sys

from learner.update import Learner
from recor_dist import checkpoint
from recor_dist.command import compose
from recor_dist.loop import train
from recor_dist.progress import set_up_logging
from tests.test_checkpoint import DyingFolder, Killed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    set_up_logging()
    kind, step, *rest = sys.argv[1].split(":")
    if kind == "step":
        update = Learner.update

        def update_or_die(learner: Learner, batches: list) -> dict[str, float]:
            return update(learner, batches) if learner.step != int(step) else die()

        Learner.update = update_or_die
    else:
        save = checkpoint.save

        def save_or_die(out: object, model: object, state: object, about: dict, keep: int) -> None:
            if state.step != int(step):
                save(out, model, state, about, keep)
                return
            dying = DyingFolder(out, int(rest[0]) if kind == "save" else 10**9)
            if kind == "remove":
                dying.delete_dir = lambda _: die()
            try:
                save(dying, model, state, about, keep)
            except Killed:
                die()

        checkpoint.save = save_or_die
    train(compose(["engine=local", *sys.argv[2:]]))


if __name__ == "__main__":
    main()
