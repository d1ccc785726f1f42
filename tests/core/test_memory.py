"""What a machine cannot hold is refused with the setting to lower; what it can hold never is."""

import subprocess
import sys

import pytest

from recor_dist.core.compose import compose
from recor_dist.core.memory import check_memory, needs
from recor_dist.core.messages import Shape
from recor_dist.core.setting import Mistake


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["batch_size=1000000000000", "rollout_size=1000000000000", "epochs=1e12"], "rollout_size=1000000000000"),
        (["batch_size=100000000000000", "rollout_size=1", "epochs=1e14"], "batch_size=100000000000000"),
        (["eval.size=999999999999"], "eval.size=999999999999"),
        (["model.width=65536", "model.layers=1024", "model.heads=1"], "model.layers=1024, model.width=65536"),
        (["task.train_rows=1000000000000000", "data.shard_rows=1000000000000000"], "data.shard_rows=1000000000000000"),
    ],
)
def test_an_absurd_size_is_refused(overrides: list[str], key: str) -> None:
    config = compose(["scale=smoke", "device=cpu", "precision=float32", *overrides])
    with pytest.raises(Mistake, match=rf"^{key}: needs at least [\d,.]+ GB of memory, and this machine has [\d,.]+; "):
        check_memory(config, Shape(4, 4, 5))


def test_a_process_counts_only_what_it_holds_itself() -> None:
    config, shape = compose(["scale=smoke", "device=cpu", "precision=float32"]), Shape(4, 4, 5)
    run, actor = needs(config, shape), needs(config, shape, "actor")
    weights, (answers,) = next(iter(run)), (key for key in run if key.startswith("eval.size="))
    assert actor == {weights: run[weights] // 4, answers: run[answers]}, "no gradient, no optimizer"
    assert needs(config, shape, "actor with gradients")[weights] == run[weights] // 2
    learner = needs(config, shape, "learner")
    assert learner.keys() < run.keys() and all(learner[key] == run[key] for key in learner)
    assert learner[weights] and answers not in learner


def test_masked_diffusion_needs_no_cache_to_answer() -> None:
    shape, key = Shape(4, 4, 5), "eval.size=999999999999"
    recor, mdm = (
        compose(["scale=smoke", "device=cpu", "precision=float32", f"method={name}", key]) for name in ("recor", "mdm")
    )
    assert needs(recor, shape)[key] == 2 * recor.model.layers * needs(mdm, shape)[key] > 0


MEASURE = """
import sys
from pathlib import Path
import numpy as np
from data.prepare import open_data
from data.tasks import task_of
from recor_dist.core.compose import compose
from recor_dist.core.messages import Ticket
from recor_dist.engine.local_engine import LocalEngine
from learner.learner import initial_state
from recor_dist.methods import lay_out
config = compose(sys.argv[1:])
data = open_data(config, task_of(config))
state = initial_state(lay_out(config, data.shape), 0)
def peak():  # of this process; `ru_maxrss` would begin with that of the process that started it
    (line,) = [line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith('VmHWM')]
    return 1024 * int(line.split()[1])
before = peak()
LocalEngine(config, data, 10, state, []).step()
print(peak() - before)
"""


@pytest.mark.parametrize(
    "method", ["recor", *(pytest.param(m, marks=pytest.mark.slow) for m in ("clm", "mdm", "ao_arm"))]
)
def test_the_estimate_is_a_lower_bound(method: str, tmp_path: object) -> None:
    """One step of a ticket that needs some hundred megabytes, each in a process of its own."""
    settings = ["scale=smoke", "device=cpu", "precision=float32", f"method={method}", f"data.dir={tmp_path}"]
    settings += ["batch_size=2000", "rollout_size=2000", "epochs=10", "model.width=64", "model.heads=4"]
    done = subprocess.run([sys.executable, "-c", MEASURE, *settings], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    estimate = max(needs(compose(settings), Shape(4, 4, 5)).values())
    assert 50e6 < estimate < float(done.stdout)
