"""The report of `python -m recor_dist.check_gpu`, on a CPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recor_dist import check_gpu
from recor_dist.check_gpu import Check, CheckConfig
from recor_dist.core.setting import Mistake


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Of one method and one small ticket."""
    monkeypatch.setattr(check_gpu, "METHODS", ["recor"])
    monkeypatch.setattr(check_gpu, "TICKETS", {"ARG": {"cpu": 1}})
    monkeypatch.setattr(check_gpu, "STEPS", {"cpu": 4})
    monkeypatch.setattr(check_gpu, "TURNS", 1)
    return Check("cpu", tmp_path)


def test_the_report_has_bits_losses_and_speed(check: Check) -> None:
    machine, bits, losses, speed = (
        "\n".join(part()) for part in (check.machine, check.same_bits_twice, check.precisions, check.speed)
    )
    assert re.match(r"### check_gpu on \w+\n\nrecor_dist [\d.]+, python 3", machine)
    assert bits.count("same bits") == 2 and not check.failed
    assert len(re.findall(r"^\| [1-4] \| 1\.\d{4} \| 1\.\d{4} \|$", losses, re.M)) == 4
    assert re.search(r"^Largest difference in 4 steps: \d\.\d%\.$", losses, re.M)
    assert len(re.findall(r"^\| (?:rollout|update) of ARG \| float32 \| 1 \| [\d. |]+ \| - \|$", speed, re.M)) == 2


def test_bits_that_differ_are_counted(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = iter("ab")
    monkeypatch.setattr(check, "_sha256", lambda *_: next(hashes))
    monkeypatch.setattr(check_gpu, "TICKETS", {})
    assert "| **DIFFERENT BITS** |" in "\n".join(check.same_bits_twice())
    assert check.failed == 1


@pytest.mark.slow  # everything that the command does
def test_the_command_checks_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recor_dist.check_gpu", "device=cpu"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| same bits |") == 9
    assert "**All is well.**" in done.stdout


def test_a_missing_gpu_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Mistake, match=r"device=cuda: torch sees no GPU here; use device=cpu or device=auto"):
        check_gpu.main(CheckConfig(device="cuda"))
