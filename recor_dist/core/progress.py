"""What a user sees while waiting: one live line on a terminal, plain log lines elsewhere."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console(stderr=True)
log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 10.0


def set_up_logging() -> None:
    """Sends log lines to stderr, above the live line if there is one."""
    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False, show_level=False, markup=False)
        handler.setFormatter(logging.Formatter("%(message)s", datefmt="%X"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%X"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, elsewhere a line at most every ten seconds; yields a function that advances it."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.advance(task, done)
        return
    log.info("%s: %s to do", title, f"{total:,}")
    done = 0
    began = printed = time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, printed
        done += count
        now = time.monotonic()
        if now - printed > SECONDS_BETWEEN_LINES:
            left = clock((now - began) / done * (total - done))
            log.info("%s: %s of %s, %s left", title, f"{done:,}", f"{total:,}", left)
            printed = now

    yield advance


class TrainingDisplay:
    """Step, rate, losses, reward, validation accuracy and remaining time, in one line."""

    def __init__(self, start: int, steps: int) -> None:
        self.first, self.steps = start, steps
        self.began = self.printed = time.monotonic()  # so the first step includes the start of all processes
        self.accuracy = "-"
        columns = (TextColumn("{task.fields[line]}"), BarColumn(bar_width=20), TextColumn("{task.fields[left]}"))
        self.bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        if self.bar:
            self.task = self.bar.add_task("train", total=steps, completed=start, line="", left="")

    def __enter__(self) -> "TrainingDisplay":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def evaluating(self, split: str, done: int, total: int) -> None:
        """`done` of `total` tickets of an evaluation are answered."""
        if split != "test":
            return
        if self.bar:
            self.bar.update(self.task, line=f"answering {split}: {done}/{total}", left="")
        elif time.monotonic() - self.printed > SECONDS_BETWEEN_LINES:
            log.info("answering %s: %d of %d", split, done, total)
            self.printed = time.monotonic()

    def evaluated(self, split: str, figures: dict[str, Any]) -> None:
        if split == "val":
            self.accuracy = f"{figures['exact_match']:.3f}"

    def step(self, done: int, metrics: dict[str, float]) -> None:
        """`done` steps are complete; `metrics` are those of the last one."""
        now = time.monotonic()
        if not self.bar and now - self.printed < SECONDS_BETWEEN_LINES and done != self.steps:
            return
        rate = (done - self.first) / (now - self.began)
        losses = "  ".join(f"{k.removeprefix('loss/')} {v:.3f}" for k, v in metrics.items() if k.startswith("loss/"))
        reward = f"  reward {metrics['reward/mean']:.3f}" if "reward/mean" in metrics else ""
        line = f"step {done:,}/{self.steps:,}  {rate:.1f}/s  {losses}{reward}  val {self.accuracy}"
        left = f"{clock((self.steps - done) / rate)} left"
        if self.bar:
            self.bar.update(self.task, completed=done, line=line, left=left)
        else:
            log.info("%s  %s", line, left)
            self.printed = now


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:05:09 or 5:09."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
