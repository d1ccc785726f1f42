"""The settings for GPUs, tested on a CPU: the same code, and the same bits in every run."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from recor_dist.core.config import Config, flatten
from recor_dist.core.device import resolve_device, staged, to_device
from recor_dist.engine.loop import train

Configure = Callable[..., Config]
TINY = ["model.layers=1", "model.width=8", "model.heads=1", "epochs=0.1", "task.test_rows=5", "task.val_rows=5"]


@pytest.mark.parametrize(
    ("overrides", "found", "device", "precision"),
    [
        ([], "cuda", "cuda", "bfloat16"),
        ([], "cpu", "cpu", "float32"),
        (["precision=float32"], "cuda", "cuda", "float32"),
        (["device=cpu"], "cuda", "cpu", "float32"),
        (["precision=bfloat16"], "cpu", "cpu", "bfloat16"),
    ],
)
def test_auto_suits_the_device_and_overrides_take_precedence(
    overrides: list[str], found: str, device: str, precision: str, config_in: Configure
) -> None:
    config = config_in(*overrides)
    resolve_device(config, found)
    assert (config.device, config.precision) == (device, precision)


def test_a_setting_added_later_does_not_change_the_identity_of_earlier_runs(config_in: Configure) -> None:
    before, with_it = (
        flatten(config_in(*overrides), identity_only=True) for overrides in ([], ["learner.compile=true"])
    )
    assert "learner.compile" not in before
    assert with_it == {**before, "learner.compile": True}


def test_the_grace_period_of_ray_job_stop_limits_how_long_the_learner_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from recor_dist.core.config import Config; print(Config().deadline.stop)"
    shown = {}
    for wait in ("", "60"):
        monkeypatch.setenv("RAY_JOB_STOP_WAIT_TIME_S", wait) if wait else None
        shown[wait] = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip()
    assert shown == {"": "2.0", "60": "40.0"}


def test_bfloat16_gives_a_different_result_and_the_same_bits_every_time(config_in: Configure, tmp_path: Path) -> None:
    runs = {
        name: train(config_in(*TINY, f"precision={name.rstrip('+')}", f"out={tmp_path}/{name}"))["weights_sha256"]
        for name in ("bfloat16", "bfloat16+", "float32")
    }
    assert runs["bfloat16"] == runs["bfloat16+"] != runs["float32"]


@pytest.mark.slow  # the compiler is slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # from torch's own compiler
@pytest.mark.parametrize("method", ["recor", "clm", "mdm"])
def test_a_compiled_learner_gives_the_same_bits_every_time_and_nearly_the_result_of_the_plain_one(
    method: str, config_in: Configure, tmp_path: Path
) -> None:
    overrides = [*TINY, f"method={method}", "task.test_rows=200", "eval.size=200"]
    plain = train(config_in(*overrides, f"out={tmp_path}/plain"))
    compiled = [train(config_in(*overrides, "learner.compile=true", f"out={tmp_path}/{n}")) for n in range(2)]
    assert compiled[0]["weights_sha256"] == compiled[1]["weights_sha256"]
    assert compiled[0]["test"]["token_accuracy"] == pytest.approx(plain["test"]["token_accuracy"], abs=0.02)


def test_copies_to_a_gpu_start_from_pinned_memory_and_nothing_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def to(tensor: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        calls.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: calls.append("pinned") or tensor)
    monkeypatch.setattr(Tensor, "to", to)
    array = np.arange(3)
    to_device(array, torch.device("cuda"))
    assert calls == ["pinned", ("cuda", True)]
    staged(array, torch.device("cpu"))
    assert calls[2:] == []


def test_a_copy_shares_nothing_with_an_array_that_may_be_read_only() -> None:
    array = np.arange(3, dtype=np.int16)
    array.setflags(write=False)  # as it comes out of the object store
    copy = to_device(array, torch.device("cpu"))
    copy += 1
    assert array.tolist() == [0, 1, 2] and copy.dtype == torch.int16
