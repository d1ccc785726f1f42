"""`python -m recor_dist.status`, as a command."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.engine.observer import Observer
from recor_dist.status import Settings, main

Configure = Callable[..., Config]


def test_the_status_of_a_run_in_one_process(
    config_in: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    stepped = Observer.stepped

    def look(self: Observer, step: int) -> None:
        """As another process does, in the middle of the run."""
        stepped(self, step)
        if step == 5:
            self.write()
            command = [sys.executable, "-m", "recor_dist.status", f"out={tmp_path}/out"]
            said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    monkeypatch.setattr(Observer, "stepped", look)
    train(config_in())
    (text,) = said
    first, driver, step, doing, faults = text.splitlines()
    assert first == f"{tmp_path}/out: running"
    assert " lives: seen 0:0" in driver
    assert step.startswith("step 5 of 18, ")
    assert doing.startswith(f"this process  pid {os.getpid()}  computes step 4, for ")
    assert faults == "no faults"


def test_the_status_of_a_finished_run_and_of_a_folder_without_a_run(
    config_in: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config_in())
    capsys.readouterr()
    main(Settings(f"{tmp_path}/out"))
    assert capsys.readouterr().out == f"{tmp_path}/out: finished\nstep 18 of 18\nno faults\n"
    with pytest.raises(Mistake, match="holds no run"):
        main(Settings(f"{tmp_path}/nothing"))
