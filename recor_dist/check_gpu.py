"""`python -m recor_dist.check_gpu [device=auto]`: does recor_dist keep its promises here, and how fast is it?

Prints a report to paste into an issue. A GPU should take about two minutes. A CPU is checked in the same way, with
fewer rows. Exits with 1 if a result that must be the same differs.
"""

import logging
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from actors.worker import Worker
from data.prepare import open_data
from data.tasks import task_of
from learner.learner import Learner, initial_state
from recor_dist.core import ray_session
from recor_dist.core.command import plain_command
from recor_dist.core.compose import compose
from recor_dist.core.config import Config
from recor_dist.core.device import fingerprint, resolve_device, set_up_torch
from recor_dist.core.messages import Ticket
from recor_dist.core.progress import set_up_logging
from recor_dist.core.setting import setting
from recor_dist.engine.local_engine import LocalEngine
from recor_dist.engine.loop import train
from recor_dist.methods import METHODS, lay_out, make_learner, make_worker

log = logging.getLogger(__name__)
Part = Callable[[], object]

ABOUT = [
    "Checks whether results are the same bits on this machine, and how fast it is; prints a report for an issue.",
    "",
    "  python -m recor_dist.check_gpu > report.md",
]
FEW_ROWS = ["task.val_rows=10", "task.test_rows=10", "epochs=10"]  # puzzles take a while to generate
# Rows of a ticket: on a GPU those of the paper's runs, on a CPU as many as it computes in seconds.
TICKETS = {"ARG": {"cuda": 256, "cpu": 16}, "Sudoku": {"cuda": 64, "cpu": 2}}
STEPS = {"cuda": 200, "cpu": 20}  # in which float32 and bfloat16 are compared
TURNS = 5
SIDE = {"cuda": 4096, "cpu": 1024}  # of the matrices whose product is the limit


@dataclass
class CheckConfig:
    """What to check."""

    device: str = setting("auto", "auto is a GPU if there is one", choices=("auto", "cuda", "cpu"))


# --- parts, and how long they take; benchmarks/roofline.py uses them, too --------------------------------------------


def make_both(overrides: list[str]) -> tuple[Worker, Learner]:
    """A worker and a learner in this process, at the first step."""
    config = compose(["engine=local", *overrides])
    resolve_device(config)
    set_up_torch(config)
    data = open_data(config, task_of(config))
    worker, learner = make_worker(config, data), make_learner(config, data.shape, 100_000)
    worker.load(0, learner.versions[0])
    return worker, learner


def make_parts(overrides: list[str]) -> dict[str, Part]:
    """Rolling out a ticket, and learning from it."""
    worker, learner = make_both(overrides)
    batch = worker.roll_out(Ticket(0, 0, 0))
    return {"rollout": lambda: worker.roll_out(Ticket(0, 0, 0)), "update": lambda: learner.update([batch])}


def flops_of(part: Part) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # which counts plain products only
        part()
    return counter.get_total_flops()


def seconds_of(part: Part, at_least: float = 0.2) -> float:
    """Per call, over as many calls as fill that time."""
    calls, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < at_least:
        part()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        calls += 1
    return passed / calls


# --- the checks ------------------------------------------------------------------------------------------------------


@dataclass
class Check:
    device: str
    folder: Path
    failed: int = 0

    def overrides(self, *words: str) -> list[str]:
        return [f"device={self.device}", f"data.dir={self.folder}/shards", "track.enabled=false", *words]

    def verdict(self, same: bool) -> str:
        self.failed += not same
        return "same bits" if same else "**DIFFERENT BITS**"

    def report(self) -> Iterator[str]:
        """Lines of Markdown, as they become known."""
        yield from self.machine()
        yield from self.same_bits_twice()
        yield from self.local_and_ray()
        yield from self.precisions()
        yield from self.speed()
        yield ""
        yield f"**{self.failed} of the results that must be the same differ.**" if self.failed else "**All is well.**"

    def machine(self) -> Iterator[str]:
        config = compose(self.overrides("scale=smoke"))
        resolve_device(config)
        facts = {"recor_dist": version("recor_dist"), "python": platform.python_version(), **fingerprint(config)}
        if self.device == "cuda":
            properties = torch.cuda.get_device_properties(0)
            capability = f"{properties.major}.{properties.minor}"
            facts |= {"GPUs": torch.cuda.device_count(), "memory": f"{properties.total_memory / 2**30:.0f} GiB"}
            facts |= {"capability": capability, "CUDA": str(torch.version.cuda)}
        yield f"### check_gpu on {facts['device']}"
        yield ""
        yield ", ".join(f"{name} {value}" for name, value in facts.items())

    def same_bits_twice(self) -> Iterator[str]:
        """Whole runs of every method, and a step of the paper's models, whose shapes use other kernels."""
        yield from ("", "| computed twice | |", "|---|---|")
        for method in METHODS:
            hashes = {self._sha256(f"{method}-{n}", f"method={method}", "engine=local") for n in range(2)}
            yield f"| a run of `method={method} scale=smoke` | {self.verdict(len(hashes) == 1)} |"
        for task in TICKETS:
            first, second = (self._weights_after_a_step(task) for _ in range(2))
            yield f"| a step of {task} at the paper's size | {self.verdict(np.array_equal(first, second))} |"

    def _sha256(self, name: str, *words: str) -> str:
        log.info("training %s", name)
        return train(compose(self.overrides("scale=smoke", f"out={self.folder}/{name}", *words)))["weights_sha256"]

    def _weights_after_a_step(self, task: str) -> np.ndarray:
        log.info("a step of %s", task)
        worker, learner = make_both(self._paper(task))
        learner.update([worker.roll_out(Ticket(0, 0, 0))])
        return learner.versions[1]

    def _paper(self, task: str) -> list[str]:
        rows = TICKETS[task][self.device]
        sizes = [f"batch_size={rows}", f"rollout_size={rows}", f"task.train_rows={rows}"]
        return self.overrides("scale=paper", f"task={task.lower()}", *sizes, *FEW_ROWS)

    def local_and_ray(self) -> Iterator[str]:
        yield from ("", "| on Ray against one process | |", "|---|---|")
        local = self._sha256("recor-0", "method=recor", "engine=local")  # finished above
        halves = ["learner.num_gpus=0.5", "actors.num_gpus=0.5"] if self.device == "cuda" else []
        for gradients in ("false", "true"):
            where = [f"actors.gradients={gradients}", "engine=ray", "actors.count=1", *halves]
            with ray_session.session():
                ray = self._sha256(f"ray-{gradients}", "method=recor", *where)
            yield f"| actors.gradients={gradients} | {self.verdict(ray == local)} |"

    def precisions(self) -> Iterator[str]:
        steps = STEPS[self.device]
        losses = {}
        for precision in ("float32", "bfloat16"):
            log.info("%d steps in %s", steps, precision)
            config = compose(
                self.overrides("scale=laptop", "task=arg", f"precision={precision}", "task.train_rows=30000")
            )
            losses[precision] = self._losses(config, steps)
        yield from ("", "| token loss at step | float32 | bfloat16 |", "|---|---|---|")
        for step in (1, steps // 4, steps // 2, steps):
            yield f"| {step} | {losses['float32'][step - 1]:.4f} | {losses['bfloat16'][step - 1]:.4f} |"
        difference = max(abs(b / a - 1) for a, b in zip(losses["float32"], losses["bfloat16"], strict=True))
        yield from ("", f"Largest difference in {steps} steps: {difference:.1%}.")

    def _losses(self, config: Config, steps: int) -> list[float]:
        set_up_torch(config)
        data = open_data(config, task_of(config))
        engine = LocalEngine(config, data, steps, initial_state(lay_out(config, data.shape), config.seed), ())
        return [engine.step()["loss/lm"] for _ in range(steps)]

    def speed(self) -> Iterator[str]:
        yield from ("", "| | precision | rows | seconds | TFLOPS | share of a matrix product | peak memory |")
        yield "|---|---|---|---|---|---|---|"
        for task in TICKETS:
            for precision in ("float32", "bfloat16") if self.device == "cuda" else ("float32",):
                yield from self._speed_of(task, precision)

    def _speed_of(self, task: str, precision: str) -> Iterator[str]:
        log.info("speed of %s in %s", task, precision)
        parts = make_parts([*self._paper(task), f"precision={precision}"])
        peaks = {name: self._peak(part) for name, part in parts.items()}  # before the matrices take memory
        a, b = (torch.randn(SIDE[self.device], SIDE[self.device], device=self.device) for _ in range(2))
        a, b = (x.to(getattr(torch, precision)) for x in (a, b))
        for name, part in parts.items():
            flops, shares, taken = flops_of(part), [], []
            for _ in range(TURNS):
                product = 2 * len(a) ** 3 / seconds_of(lambda: a @ b)
                taken.append(seconds_of(part))
                shares.append(flops / taken[-1] / product)
            seconds, share = statistics.median(taken), statistics.median(shares)
            rows = TICKETS[task][self.device]
            speed = f"{seconds:.4f} | {flops / seconds / 1e12:.3f} | {share:.2f}"
            yield f"| {name} of {task} | {precision} | {rows} | {speed} | {peaks[name]} |"

    def _peak(self, part: Part) -> str:
        if self.device != "cuda":
            return "-"
        torch.cuda.reset_peak_memory_stats()
        part()
        return f"{torch.cuda.max_memory_allocated() / 1e9:.2f} GB"


def main(config: CheckConfig) -> int:
    set_up_logging()
    chosen = Config(device=config.device)
    resolve_device(chosen)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        check = Check(chosen.device, Path(folder))
        for line in check.report():
            print(line, flush=True)
    print(f"\nThis took {time.monotonic() - began:.0f} seconds.")
    return 1 if check.failed else 0


if __name__ == "__main__":
    plain_command(CheckConfig, main, ABOUT)
