"""The configuration: the paper's tables, what is refused, and what decides a result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recor_dist.core.command import CONF, compose
from recor_dist.core.config import SCHEMAS, Mistake, flatten, total_steps

# The paper's two hyperparameter tables, ReCOR's columns, as printed.
PAPER = {
    "arg": dict(layers=3, batch=1024, epochs=100, lr=1e-3, focal=2.0, K=1, C=0, exploration="uniform"),
    "mul": dict(layers=3, batch=1024, epochs=100, lr=1e-3, focal=2.0, K=1, C=0, exploration="uniform"),
    "sudoku": dict(layers=3, batch=512, epochs=40, lr=3e-4, focal=0.0, K=8, C=8, exploration="entropy"),
    "zebra": dict(layers=6, batch=512, epochs=50, lr=3e-4, focal=0.0, K=2, C=2, exploration="entropy"),
}


@pytest.mark.parametrize("task", PAPER)
def test_the_paper_scale_holds_the_papers_tables(task: str) -> None:
    by_task = OmegaConf.load(CONF / f"scale/by_task/paper_{task}.yaml")
    method = OmegaConf.load(CONF / f"scale/by_method/paper_{task}_recor.yaml")["method"]
    expected = PAPER[task]
    assert by_task["model"] == {"layers": expected["layers"], "width": 384, "heads": 12}
    assert (by_task["batch_size"], by_task["epochs"]) == (expected["batch"], expected["epochs"])
    assert float(by_task["learner"]["lr"]) == expected["lr"]
    assert (by_task["learner"]["weight_decay"], by_task["learner"]["warmup"]) == (0.1, 0)
    assert (method["gamma"], method["eta"], method["focal"]) == (0.0, 0.8, expected["focal"])
    assert (method["token_queries"], method["order_queries"]) == (expected["K"], expected["C"])
    assert method["exploration"] == expected["exploration"]
    assert method.get("alpha", 0.1) == 0.1


@pytest.mark.parametrize("task", PAPER)
def test_the_paper_scale_composes_to_the_papers_tables(task: str) -> None:
    config, expected = compose([f"task={task}", "scale=paper"]), PAPER[task]
    assert (config.batch_size, config.epochs) == (expected["batch"], expected["epochs"])
    assert config.learner.lr == expected["lr"]
    assert (config.method.focal, config.method.exploration) == (expected["focal"], expected["exploration"])
    assert not config.method.include_greedy
    assert (config.learner.beta1, config.learner.beta2, config.learner.clip) == (0.9, 0.999, 1.0)
    assert config.task.train_rows == {"arg": 10**6, "mul": 10**5, "sudoku": 1_800_000, "zebra": 1_500_000}[task]
    assert (config.task.val_rows, config.task.test_rows) == (448, 10**5 if task in ("sudoku", "zebra") else 1000)


def test_the_papers_puzzles_have_the_papers_lengths() -> None:
    assert compose(["task=sudoku", "scale=paper"]).task.slots() == 81
    zebra = compose(["task=zebra", "scale=paper"]).task
    assert (zebra.prompt_length, zebra.slots()) == (455, 42)


@pytest.mark.parametrize("task", ["arg", "mul"])
@pytest.mark.parametrize("method", ["clm", "ar_gt", "mdm", "ao_arm"])
def test_baselines_get_twice_the_rows_and_epochs_at_the_papers_scale(task: str, method: str) -> None:
    config = compose([f"task={task}", f"method={method}", "scale=paper"])
    assert (config.batch_size, config.epochs, config.learner.lr) == (2048, 200, 1e-3)
    assert (config.learner.weight_decay, config.learner.warmup) == (0.1, 0)
    assert (config.model.layers, config.model.width, config.model.heads) == (3, 384, 12)


def test_masked_diffusion_takes_twenty_steps_with_linear_and_token_weights() -> None:
    method = compose(["task=arg", "method=mdm", "scale=paper"]).method
    assert (method.diffusion_steps, method.steps) == (20, 20)
    assert (method.time_weight, method.reweight_tokens, method.alpha, method.gamma) == ("linear", True, 0.25, 1.0)
    assert method.suffix is False


@pytest.mark.parametrize("scale", ["paper", "laptop", "smoke"])
@pytest.mark.parametrize("task", ["arg", "mul"])
def test_every_method_takes_as_many_gradient_steps_as_recor(task: str, scale: str) -> None:
    steps = set()
    for method in SCHEMAS["method"]:
        config = compose([f"task={task}", f"method={method}", f"scale={scale}"])
        steps.add(total_steps(config, config.task.train_rows))
    assert len(steps) == 1


@pytest.mark.parametrize("method", ["recor", "clm", "ar_gt", "mdm", "ao_arm"])
@pytest.mark.parametrize("scale", ["paper", "laptop", "smoke", "auto"])
@pytest.mark.parametrize("task", ["arg", "mul", "sudoku", "zebra", "custom"])
def test_every_task_has_every_scale(task: str, scale: str, method: str) -> None:
    words = [f"task={task}", f"scale={scale}"] + (["data.source=rows.jsonl"] if task == "custom" else [])
    words.append(f"method={method}")
    config = compose(words)
    assert config.scale == ("laptop" if scale == "auto" else scale), "without a GPU, auto is laptop"


# words -> what the one line must say
REFUSED = {
    "lrr=1": ["lrr: no such setting", "did you mean learner.lr?"],
    "learner.lrate=1": ["learner.lrate: no such setting", "learner.lr", "learner.clip"],
    "eta=0.9": ["did you mean method.eta?"],
    "task.digits=3": ["task.digits: no such setting", "task.length"],
    "+speed=9": ["speed: no such setting"],
    "+learner.speed=9": ["learner.speed: no such setting"],
    "task=argg": ["task=argg", "allowed: arg, custom, mul, sudoku, zebra", "did you mean arg?"],
    "method=recorr": ["did you mean recor?"],
    "scale=papr": ["did you mean paper?"],
    "seed=x": ["seed=x: must be a whole number"],
    "seed=1.5": ["seed=1.5: must be a whole number"],
    "learner.lr=fast": ["learner.lr=fast: must be a number"],
    "method.include_greedy=perhaps": ["must be true or false"],
    "seed": ["seed: not a setting; write key=value"],
    "seed=[": ["not a setting; write key=value"],
    "seed=-1": ["seed=-1: must be at least 0"],
    "method.eta=0": ["method.eta=0.0: must be above 0 and below 1"],
    "method.eta=1": ["method.eta=1.0: must be above 0 and below 1"],
    "method.gamma=1.5": ["method.gamma=1.5: must be at least 0 and at most 1"],
    "learner.lr=0": ["learner.lr=0.0: must be above 0"],
    "learner.lr=inf": ["learner.lr=inf: must be above 0"],
    "epochs=nan": ["epochs=nan: must be above 0"],
    "lag=-1": ["lag=-1: must be at least 0"],
    "device=gpu": ["device=gpu: allowed: auto, cpu, cuda"],
    "method.exploration=entrpy": ["allowed: uniform, entropy, topk", "did you mean entropy?"],
    "model.heads=3": ["model.heads=3: must divide model.width=16", "allowed: 1, 2, 4, 8, 16"],
    "batch_size=40": ["batch_size=40: must be a multiple of rollout_size=16", "nearest: 48"],
    "task.modulus=9": ["task.modulus=9: must be a prime"],
    "method.token_queries=5": ["method.token_queries=5: a response has M=4 slots; allowed: 1 to 4"],
    "method.algorithm=sql_mse": ["method.reward=sparse", "use method.reward=dense or method.algorithm=sql_bce"],
    "method.algorithm=ppo": ["method.reward=sparse"],
    "method.algorithm=sql_mse method.reward=dense method.focal=2": ["method.focal=2.0", "allowed here: 0"],
    "method.algorithm=ppo method.reward=dense method.gamma=0.5": ["method.gamma=0.5", "allowed: 0"],
    "method.focal=0.5": ["method.focal=0.5", "allowed: 0, or 1 and more"],
    "method.exploration=entropy method.alpha=0": ["method.alpha=0", "exploration=topk"],
    "method.alpha=1e-9": ["method.alpha=1e-09", "allowed: 0, or 1e-6 and more"],
    "task=null": ["task=null: allowed: arg, custom, mul, sudoku, zebra"],
    "~method.eta": ["settings cannot be taken away"],
    "seed=0,1": ["several values make a sweep; put --multirun before them all"],
    "learner=1": ["learner: no such setting; allowed there: learner.beta1"],
    "data.dir=null": ["data.dir=null: must be text"],
    "data.dir=": ["data.dir=: names no folder or file"],
    "out=s3://": ["out=s3://: names no folder or file"],
    "track.register=a/b": ["track.register=a/b: MLflow's model names have no slash and no colon"],
    "track.experiment=": ["track.experiment: names no experiment"],
    "track.wait=-1": ["track.wait=-1.0: must be at least 0"],
    "threads=100000": ["threads=100000: must be at least 1 and at most 256"],
    "task.train_rows=10": ["10 training rows give not one batch of 32"],
    "method.lm_weight=0 method.order_weight=0": ["nothing would be learned"],
    "method=mdm method.steps=0": ["method.steps=0: must be at least 1"],
    "method=mdm method.diffusion_steps=0": ["method.diffusion_steps=0: must be at least 1"],
    "method=mdm method.decoder=top_p": ["allowed: vanilla, top_prob, top_margin", "did you mean top_prob?"],
    "method=mdm method.gamma=0.5": ["method.gamma=0.5", "allowed: 0, or 1 and more"],
    "method=mdm method.eta=0.5": ["method.eta: no such setting", "method.suffix"],
    "method=clm method.order_queries=2": ["method.order_queries: no such setting"],
    "method=ar_gt method.order_weight=0": ["method.order_weight=0.0: must be above 0"],
    "method=sufmdm": ["allowed: ao_arm, ar_gt, clm, mdm, recor", "did you mean mdm?"],
    "data.source=rows.jsonl": ["data.source: only custom, sudoku and zebra read a source"],
    "task=sudoku task.size=5": ["task.size=5: allowed: 4, 6, 9"],
    "task=sudoku task.size=16": ["task.size=16: must be at least 4 and at most 9"],
    "task=sudoku task.hard=train": ["task.hard=train: allowed: none, test, all"],
    "task=sudoku task.hard=test": ["task.hard=test: no 4x4 puzzle", "use task.size=6 or 9"],
    "task=zebra task.houses=2": ["task.houses=2: must be a number from 3 to 6, or a range like 3-6"],
    "task=zebra task.attributes=5-4": ["task.attributes=5-4: must be a number from 3 to 6"],
    "task=zebra task.houses=3-4-5": ["task.houses=3-4-5: must be"],
    "task=zebra task.houses=three": ["task.houses=three: must be"],
    "task=zebra task.prompt_length=0": ["task.prompt_length=0: must be at least 1"],
    "task=zebra method.token_queries=13": ["a response has M=12 slots"],
    "data.jobs=-1": ["data.jobs=-1: must be at least 0"],
    "task=custom": ["task=custom needs data.source=PATH"],
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_mistake_is_one_line_with_the_remedy(words: str) -> None:
    with pytest.raises(Mistake) as refusal:
        compose(["scale=smoke", *words.split(" ")])
    line = str(refusal.value)
    assert "\n" not in line
    for part in REFUSED[words]:
        assert part in line


@pytest.mark.parametrize(
    "words", [["lrr=1"], ["method.eta=2"], ["task=zebr"], ["+a=1"], ["seed=1,2"], ["learner.lr=x"]]
)
@pytest.mark.parametrize("command", ["recor_dist.run", "data.prepare"])
def test_commands_refuse_with_one_line_and_exit_code_two(command: str, words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", command, "scale=smoke", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert not list(tmp_path.iterdir()), "nothing was started"


def test_help_names_every_setting(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recor_dist.run", "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
    for method in SCHEMAS["method"]:
        for key in flatten(compose(["scale=smoke", f"method={method}"])):
            assert key in shown or key.endswith(".name")


def test_identity_leaves_out_placement_and_nothing_else() -> None:
    newer = ["learner.compile=true", "model.deviation=0.1"]  # left out at their defaults: they came later
    config = compose(["scale=smoke", *newer])
    everything, identity = set(flatten(config)), set(flatten(config, identity_only=True))
    assert everything - identity == {
        "scale", "engine", "out", "resume", "allow_mixed", "data.dir", "data.source", "data.jobs", "eval.every",
        "checkpoint.every", "checkpoint.keep", "actors.count", "actors.num_cpus", "actors.num_gpus",
        "learner.num_cpus", "learner.num_gpus", "deadline.answer", "deadline.join", "deadline.stop",
        "track.enabled", "track.experiment", "track.register", "track.wait",
    }  # fmt: skip


def test_auto_keeps_the_scale_a_run_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"settings": {"scale": "paper"}}))
    assert compose([f"out={tmp_path}"]).scale == "paper"
    assert compose([f"out={tmp_path}"]).batch_size == 1024


def test_a_mistake_that_the_scale_needs_to_know_of_is_told_as_it_is(tmp_path: Path) -> None:
    """`scale=auto` looks into `out`, inside of Hydra, which words what it catches anew."""
    command = [sys.executable, "-m", "recor_dist.run", "task=zebra", "engine=local", "out=nowhere://a/b"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2
    assert told.stderr.startswith("error: nowhere://a/b: cannot be used as a folder"), told.stderr
