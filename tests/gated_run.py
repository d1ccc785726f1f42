"""`python -m recor_dist.run`, but waiting before some steps: `GATES=20,30 python -m tests.gated_run key=value ...`.

Before step N of the gates it waits until the file `gate-N` exists in the working directory, so that a test can disturb
a server, or this process, at a known step. With FILES=PATH it writes, as JSON, every source file whose code the main
thread ran between its first step and its last, and the modules that were imported by then.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from learner.learner import Learner
from recor_dist import run
from recor_dist.core.command import command
from recor_dist.core.config import Config
from recor_dist.engine import loop
from recor_dist.record.identity import scale_of_run

GATES = [int(step) for step in os.environ.get("GATES", "").split(",") if step]
FILES = os.environ.get("FILES")
seen: set[str] = set()
modules: list[str] = []  # imported by the end of the last step
update = Learner.update


def note(frame: FrameType, event: str, _: Any) -> None:
    seen.add(frame.f_code.co_filename)


def gated(learner: Learner, batches: list) -> dict[str, float]:
    if FILES:
        sys.setprofile(note)  # for this thread only
    if learner.step + 1 in GATES:
        gate = Path(f"gate-{learner.step + 1}")
        while not gate.exists():
            time.sleep(0.02)
    return update(learner, batches)


def main(config: Config) -> None:
    train = loop.train

    def train_and_note(*arguments: Any) -> dict[str, Any]:
        try:
            return train(*arguments)
        finally:
            sys.setprofile(None)
            modules.extend(sorted(sys.modules))

    loop.train = train_and_note
    run.main(config)
    if FILES:
        Path(FILES).write_text(json.dumps({"files": sorted(seen), "modules": modules}))


if __name__ == "__main__":
    with patch.object(Learner, "update", gated):
        command(main, run.end, scale_of_run)
