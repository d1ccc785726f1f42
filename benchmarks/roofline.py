"""`python -m benchmarks.roofline`: how close rollout and update come to the speed of a plain matrix product.

For each shape, one core rolls out a ticket, learns from it, and multiplies two large matrices, in turns. The share of a
part is its FLOPs per second divided by those of the matrix product around it: 1 would mean that nothing but matrix
products takes time. Every number is a median over the turns. Torch multiplies with MKL; with oneDNN (model.onednn),
which is faster on some CPUs, a share can exceed 1.

Names of shapes as arguments choose among them. With `precision=bfloat16`, both parts run in that precision, too, and
a line says whether it pays on this CPU. `profile` prints which operators take the time.
"""

import statistics
import sys
import tempfile

import torch
from torch.profiler import ProfilerActivity, profile

from recor_dist import check_gpu
from recor_dist.check_gpu import Part, flops_of, seconds_of

TURNS = 9
TURNS_OF_LARGE = 3  # for parts of many seconds
LARGE = 10**12  # FLOPs
SIDE = 1024  # of the matrices
FEW = ["task.test_rows=50", "task.val_rows=50", "epochs=10"]
SIX = ["scale=laptop", "task=sudoku", "task.size=6", "model.layers=3", "batch_size=64", "rollout_size=32"]
SHAPES = {
    "laptop ARG": ["scale=laptop", "task=arg", "task.length=8", "model.onednn=false", "task.train_rows=2000", *FEW],
    "laptop Sudoku": ["scale=laptop", "task=sudoku", "task.train_rows=500", *FEW],
    "6x6 Sudoku, 3 layers of width 64": [*SIX, "task.train_rows=500", *FEW],
    "paper ARG": ["scale=paper", "task=arg", "task.train_rows=2000", "batch_size=256", "rollout_size=256", *FEW],
    "paper Sudoku": ["scale=paper", "task=sudoku", "task.train_rows=200", "batch_size=32", "rollout_size=32", *FEW],
}
FIXED = ["device=cpu", "threads=1"]


def make_parts(folder: str, overrides: list[str]) -> dict[str, Part]:
    """Rolling out a ticket, and learning from it, on one core."""
    return check_gpu.make_parts([*FIXED, "precision=float32", *overrides, f"data.dir={folder}"])


def with_onednn(parts: dict[str, Part], folder: str, overrides: list[str]) -> dict[str, Part]:
    """The same parts with model.onednn, in addition."""
    faster = make_parts(folder, [*overrides, "model.onednn=true"])
    return parts | {f"{name} with oneDNN": part for name, part in faster.items()}


def measure(parts: dict[str, Part], dtype: torch.dtype = torch.float32) -> None:
    matrices = [torch.randn(SIDE, SIDE, dtype=dtype) for _ in range(2)]
    product = lambda: matrices[0] @ matrices[1]  # noqa: E731
    # Torch does not count products by oneDNN; the same part without it has the same ones.
    flops = {name: flops_of(parts[name.removesuffix(" with oneDNN")]) for name in parts}
    shares: dict[str, list[float]] = {name: [] for name in parts}
    speeds = [2 * SIDE**3 / seconds_of(product)]
    for _ in range(TURNS if max(flops.values()) < LARGE else TURNS_OF_LARGE):
        for name, part in parts.items():
            speed = flops[name] / seconds_of(part)
            speeds.append(2 * SIDE**3 / seconds_of(product))
            shares[name].append(2 * speed / (speeds[-2] + speeds[-1]))
    print(f"  matrix product: {statistics.median(speeds) / 1e9:.0f} GFLOPS")
    for name, values in shares.items():
        middle = statistics.median(values)
        print(f"  {name}: {middle:.2f} of it  ({min(values):.2f} to {max(values):.2f}; {flops[name] / 1e9:.2f} GFLOPs)")
    sys.stdout.flush()


def compare_precisions(folder: str, overrides: list[str]) -> None:
    """How much faster bfloat16 is: turns of float32 and bfloat16 alternate."""
    settings = {
        "float32": ["precision=float32"],
        "float32 with oneDNN": ["precision=float32", "model.onednn=true"],
        "bfloat16": ["precision=bfloat16"],
    }
    parts = {kind: make_parts(folder, [*overrides, *words]) for kind, words in settings.items()}
    for name in parts["float32"]:
        turns = [{kind: seconds_of(parts[kind][name]) for kind in parts} for _ in range(TURNS)]
        for kind in list(parts)[:2]:
            ratio = statistics.median(turn[kind] / turn["bfloat16"] for turn in turns)
            print(f"  {name} in bfloat16: {ratio:.2f} times as fast as in {kind}")
    sys.stdout.flush()


def show_profile(parts: dict[str, Part]) -> None:
    for name, part in parts.items():
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(5):
                part()
        print(f"\n{name}\n{profiler.key_averages().table(sort_by='self_cpu_time_total', row_limit=22)}")


def main() -> None:
    words = sys.argv[1:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in [name for name in SHAPES if name in words] or SHAPES:
            print(name)
            overrides = SHAPES[name]
            parts = make_parts(folder, overrides)
            if "profile" in words:
                show_profile(parts)
                continue
            measure(with_onednn(parts, folder, overrides))
            if "precision=bfloat16" in words:
                compare_precisions(folder, overrides)


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main()
