"""`python -m benchmarks.track`: what the record in MLflow costs a training step, side by side in one run.

Three arms take turns on the same model and data: without a sender; with one that follows the journal and sends it to
MLflow's default store; with one whose server accepts connections and never responds. A sender is suspended (SIGSTOP)
outside its turn. First all cores are available to every process, then all processes share one core. The results are
ratios of neighbouring turns, because single times are noisy.
"""

import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import chdir
from pathlib import Path

import psutil

from data.prepare import open_data
from data.tasks import task_of
from learner.learner import initial_state
from recor_dist.core.compose import compose
from recor_dist.core.device import set_up_torch
from recor_dist.engine.local_engine import LocalEngine
from recor_dist.engine.system import SystemMetrics
from recor_dist.methods import lay_out
from recor_dist.record.identity import open_run, write_status
from recor_dist.record.journal import Journal
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.sending import Tracker

ROUNDS, STEPS = 15, 10
FIXED = ["scale=laptop", "engine=local", "device=cpu", "precision=float32", "epochs=20", "track.wait=1"]


class Arm:
    """A journal, and the sender that follows it, if any."""

    def __init__(self, name: str, uri: str | None) -> None:
        self.config = compose([*FIXED, "data.dir=shards", f"out={name}"])
        self.folder = RunFolder.open(name, create=True)
        about = open_run(self.config, task_of(self.config), self.folder)
        write_status(about, self.folder, "running")
        self.journal, self.system, self.step = Journal(self.folder).__enter__(), SystemMetrics(), 0
        self.tracker = Tracker(self.config.track)
        self.sender: psutil.Process | None = None
        if uri:
            os.environ["MLFLOW_TRACKING_URI"] = uri
            self.tracker.start(name, self.journal.path)
            assert self.tracker.process is not None
            self.sender = psutil.Process(self.tracker.process.pid)

    def sent(self) -> int:
        stores = (self.folder.read_delivered() or {"stores": {}})["stores"]
        return max((store.get("sent", 0) for store in stores.values()), default=0)

    def seconds_per_step(self, engine: LocalEngine, steps: int) -> float:
        if self.sender:
            self.sender.resume()
        began = time.perf_counter()
        for _ in range(steps):
            self.step += 1
            self.journal.step(self.step, engine.step() | self.system.sample())
        seconds = (time.perf_counter() - began) / steps
        if self.sender:
            self.sender.suspend()
        return seconds

    def close(self) -> None:
        if self.sender:
            self.sender.resume()
        self.tracker.__exit__(None, None, None)
        self.journal.__exit__(None, None, None)


def hang(listener: socket.socket, connections: list[socket.socket]) -> None:
    while True:
        try:
            connections.append(listener.accept()[0])
        except OSError:
            return


def compare(title: str, arms: dict[str, Arm], engine: LocalEngine, cores: list[int]) -> None:
    for process in [psutil.Process(), *(arm.sender for arm in arms.values() if arm.sender)]:
        process.cpu_affinity(cores)
    rounds: dict[str, list[float]] = {name: [] for name in arms}
    before = {name: arm.sender.cpu_times() for name, arm in arms.items() if arm.sender}
    for n in range(ROUNDS):
        for name in list(arms) if n % 2 else list(arms)[::-1]:
            rounds[name].append(arms[name].seconds_per_step(engine, STEPS))
    print(f"\n{title}: {ROUNDS} rounds of {STEPS} steps")
    plain = rounds["without"]
    print(f"  without                      {1e3 * statistics.median(plain):7.1f} ms per step")
    for name, now in ((name, arm.sender.cpu_times()) for name, arm in arms.items() if arm.sender):
        ratios = sorted(a / b for a, b in zip(rounds[name], plain, strict=True))
        used = now.user + now.system - before[name].user - before[name].system
        spread = f"(rounds: {ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"  {name:<28} {statistics.median(ratios):7.3f} of that  {spread}", end="")
        print(f"  its sender: {1e3 * used / (ROUNDS * STEPS):.1f} ms of a core per step")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # suspended senders must not outlive this process
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        config = compose([*FIXED, "data.dir=shards"])
        set_up_torch(config)
        data = open_data(config, task_of(config))
        engine = LocalEngine(config, data, 100_000, initial_state(lay_out(config, data.shape), config.seed), [])
        listener, connections = socket.create_server(("127.0.0.1", 0)), []
        threading.Thread(target=hang, args=(listener, connections), daemon=True).start()
        arms = {
            "without": Arm("without", None),
            "with MLflow's default store": Arm("store", f"sqlite:///{Path(folder) / 'mlflow.db'}"),
            "with a hung server": Arm("hung", f"http://127.0.0.1:{listener.getsockname()[1]}"),
        }
        try:
            store, began = arms["with MLflow's default store"], time.monotonic()
            while not (store.sent() and connections):  # imported, connected, and the tables of a new store created
                store.journal.step(store.step + 1, engine.step())
                store.step += 1
                assert time.monotonic() - began < 300
            assert store.sender is not None
            start = store.sender.cpu_times()
            for arm in arms.values():
                arm.seconds_per_step(engine, 3)
            cores = psutil.Process().cpu_affinity()
            compare(f"{len(cores)} cores for training and its sender", arms, engine, cores)
            compare("one core for both", arms, engine, cores[:1])
            print(f"\nstarting the sender took {start.user + start.system:.1f} s of a core, including a new store")
        finally:
            for arm in arms.values():
                arm.close()
            for connection in [listener, *connections]:
                connection.close()


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main()
