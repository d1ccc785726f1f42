"""Device, threads and precision of a process, and a fingerprint of everything that affects the last bit."""

import ctypes
import os
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake


def resolve_device(config: Config, found: str | None = None) -> None:
    """Replaces `auto` in device and precision, in place; `found`: the cluster's device, this machine's if None."""
    found = found or ("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and found != "cuda":
        raise Mistake("device=cuda: torch sees no GPU here; use device=cpu or device=auto")
    if config.device == "auto":
        config.device = found
    if config.precision == "auto":
        config.precision = "bfloat16" if config.device == "cuda" else "float32"


def resolve_or_use_cpu(config: Config) -> None:
    """The same for the model of a finished run: one that was trained on a GPU may answer on a machine without."""
    try:
        resolve_device(config)
    except Mistake:
        config.device, config.precision = "cpu", "float32"


def set_up_torch(config: Config) -> None:
    """Makes torch deterministic. Every process of a run calls this first."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
    _keep_freed_memory()
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True)
    # No code here reads memory before writing it, and filling every new tensor would cost 4 % of a small step. The
    # checker does not know this attribute because torch makes it at run time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.benchmark = False
    if config.learner.compile:
        from torch._inductor import config as inductor  # takes a second to import

        inductor.deterministic = True  # kernels are chosen without timing them


def _keep_freed_memory() -> None:
    """Makes malloc keep freed memory. If it returned the memory to the system after every step, the kernel would have
    to clear and map those pages again: 5 to 10 % of a small update."""
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in <malloc.h>
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, 2**30)
        mallopt(mmap_threshold, 2**25)  # the maximum in glibc


def autocast(config: Config) -> AbstractContextManager:
    return torch.autocast(config.device, torch.bfloat16) if config.precision == "bfloat16" else nullcontext()


def staged(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy of an array in host memory, which may be shared and read-only; pinned if it goes on to a GPU, because only
    copies from pinned memory run while this process prepares the next one."""
    copy = torch.tensor(array)
    return copy.pin_memory() if device.type == "cuda" else copy


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy of an array on a device. This process does not wait for it, but later work on the device does."""
    return staged(array, device).to(device, non_blocking=True)


def fingerprint(config: Config) -> dict[str, str | int]:
    """What two processes must have in common to agree bit for bit."""
    # Where torch has no oneDNN, MKL or its substitute multiplies.
    onednn = {"onednn": int(torch.backends.mkldnn.is_available())} if config.model.onednn else {}
    return onednn | {
        "device": torch.cuda.get_device_name() if config.device == "cuda" else platform.machine(),
        "cpu": _cpu_vendor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": config.threads,
        "precision": config.precision,
    }


def differing(expected: Mapping[str, str | int], found: Mapping[str, str | int]) -> str:
    """In which entries a fingerprint differs from the expected one, in words; empty if in none."""
    return ", ".join(
        f"{key} {found.get(key)} instead of {value}" for key, value in expected.items() if found.get(key) != value
    )


def _cpu_vendor() -> str:
    """MKL takes different code paths on different vendors' processors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), platform.processor())
