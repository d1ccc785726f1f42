"""`python -m benchmarks.memory [measure]`: memory of the paper's four runs by process, computed from shapes.

Everything that a process allocates for one ticket is added up while torch computes shapes only (FakeTensorMode), which
takes seconds and no memory. In bfloat16 these are the bytes that tensors take on a GPU, if attention uses a kernel
that keeps no matrix of scores, as it does here. What CUDA itself takes, fragments of memory and workspaces come
on top. With `measure`, the same code computes fewer rows on this CPU, and the peak is read from the system.
"""

import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from data.tasks import TASKS
from recor_dist.core.compose import compose
from recor_dist.core.config import Config
from recor_dist.core.device import autocast, set_up_torch
from recor_dist.core.messages import Rows, Shape
from recor_dist.core.rng import rng
from recor_dist.methods import METHODS, build_model, make_learner

MEASURED_ROWS = {"arg": 64, "mul": 64, "sudoku": 8, "zebra": 4}
PARTS = ("actor", "learner", "answers")


class Allocated(TorchDispatchMode):
    """Adds up the bytes of all tensors that exist, and remembers the most."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak = 0, 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


class Host(TorchFunctionMode):
    """Tensors without values come back to the host as zeros."""

    def __torch_function__(self, call: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if call is Tensor.numpy:
            return np.zeros(args[0].shape, dtype=str(args[0].dtype).removeprefix("torch."))
        if call is Tensor.__float__:
            return 1.0
        return call(*args, **(kwargs or {}))


def configure(task: str, precision: str, scale: str = "scale=paper") -> tuple[Config, Shape]:
    config = compose([f"task={task}", "method=recor", scale, "device=cpu", f"precision={precision}"])
    row = TASKS[task]
    assert row.lengths is not None and row.vocabulary is not None
    return config, Shape(*row.lengths(config.task), len(row.vocabulary(config.task).tokens))


def part_of(config: Config, shape: Shape, part: str, rows: int) -> Callable[[], object]:
    """What a process does with one ticket, from the making of its model on."""
    method, random = METHODS["recor"], rng(0, "memory")
    given = Rows(*(random.integers(0, shape.V, (rows, length), dtype=np.uint8) for length in (shape.N, shape.M)))

    def actor() -> None:
        model = build_model(config, shape)
        with autocast(config):
            method.prepare(config.method, model, given, random, 0)

    def answers() -> None:
        model = build_model(config, shape)
        with autocast(config):
            next(iter(method.decoders(config.method).values())).answer(model, given.prompts, random)

    def learner() -> None:
        learns = make_learner(config, shape, 100)
        with autocast(config):
            batch = method.prepare(config.method, learns.model, given, random, 0)
        learns.update([batch])

    return {"actor": actor, "answers": answers, "learner": learner}[part]


def computed(task: str, part: str, rows: int, precision: str) -> int:
    """Bytes."""
    config, shape = configure(task, precision)
    with FakeTensorMode(allow_non_fake_inputs=True), Host(), Allocated() as allocated:
        part_of(config, shape, part, rows)()
    return allocated.peak


def measured(task: str, part: str, rows: int) -> int:
    """Bytes by which the part raises the memory of this process."""
    config, shape = configure(task, "float32")
    set_up_torch(config)
    compute = part_of(config, shape, part, rows)
    part_of(*configure("arg", "float32", "scale=smoke"), part, 1)()  # loads what torch loads when first used
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    compute()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def show_computed() -> None:
    print(
        "| run | rows of a ticket | actor, float32 | learner, float32 | actor, bfloat16 | learner, bfloat16 "
        "| answers, bfloat16 |"
    )
    print("|---|---|---|---|---|---|---|")
    for task in MEASURED_ROWS:
        config, _ = configure(task, "float32")
        cells = [
            computed(task, part, config.rollout_size, precision)
            for precision in ("float32", "bfloat16")
            for part in ("actor", "learner")
        ]
        cells.append(computed(task, "answers", config.eval.size, "bfloat16"))
        print(
            f"| {task} | {config.rollout_size} | {' | '.join(f'{cell / 1e9:.2f} GB' for cell in cells)} |", flush=True
        )


def show_measured() -> None:
    print("\n| run, float32 on a CPU | part | rows | computed | measured | ratio |\n|---|---|---|---|---|---|")
    for task, rows in MEASURED_ROWS.items():
        for part in PARTS:
            expected = computed(task, part, rows, "float32")
            command = [sys.executable, "-m", "benchmarks.memory", task, part, str(rows)]  # a new process
            peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            ratio = f"{expected / 1e6:.0f} MB | {peak / 1e6:.0f} MB | {peak / expected:.2f}"
            print(f"| {task} | {part} | {rows} | {ratio} |", flush=True)


def main() -> None:
    words = sys.argv[1:]
    torch.backends.mkldnn.set_flags(False)  # tensors in oneDNN's layout do not tell their size
    if len(words) == 3:
        print(measured(words[0], words[1], int(words[2])))
        return
    show_computed()
    if "measure" in words:
        show_measured()


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main()
