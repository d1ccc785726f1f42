"""The configuration: the paper's tables, what is refused, and what decides a result."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from data.tasks import TASKS
from data.zebra import ZebraConfig
from recor_dist.core.compose import CONF, SCALES, compose, preset
from recor_dist.core.config import SCHEMAS, GeneratedTaskConfig, flatten, total_steps
from recor_dist.core.method_settings import MdmConfig, RecorConfig
from recor_dist.core.setting import Mistake
from recor_dist.record.identity import scale_of_run

# The paper's two hyperparameter tables, ReCOR's columns, as printed.
PAPER = {
    "arg": dict(layers=3, batch=1024, epochs=100, lr=1e-3, focal=2.0, K=1, C=0, exploration="uniform"),
    "mul": dict(layers=3, batch=1024, epochs=100, lr=1e-3, focal=2.0, K=1, C=0, exploration="uniform"),
    "sudoku": dict(layers=3, batch=512, epochs=40, lr=3e-4, focal=0.0, K=8, C=8, exploration="entropy"),
    "zebra": dict(layers=6, batch=512, epochs=50, lr=3e-4, focal=0.0, K=2, C=2, exploration="entropy"),
}


@pytest.mark.parametrize("task", PAPER)
def test_the_paper_scale_holds_the_papers_tables(task: str) -> None:
    """Every value is in the file: none is left to a default of the schema."""
    chosen, expected = preset(OmegaConf.load(CONF / "paper.yaml"), task, "recor"), PAPER[task]
    assert chosen.model == {"layers": expected["layers"], "width": 384, "heads": 12}
    assert (chosen.batch_size, chosen.epochs) == (expected["batch"], expected["epochs"])
    assert (chosen.learner.lr, chosen.learner.weight_decay, chosen.learner.warmup) == (expected["lr"], 0.1, 0)
    method = chosen.method
    assert (method.gamma, method.eta, method.focal) == (0.0, 0.8, expected["focal"])
    assert (method.token_queries, method.order_queries) == (expected["K"], expected["C"])
    assert method.exploration == expected["exploration"]
    assert method.get("alpha", 0.1) == 0.1


def test_a_task_that_a_scale_does_not_name_uses_the_column_other() -> None:
    scale = OmegaConf.create(
        {
            "task": {"arg": {"length": 4}},
            "all": {"batch_size": {"arg": 32, "other": 16}, "data.jobs": {"arg": 1}, "model.width": 8},
            "baseline": {"batch_size": {"arg": 64, "other": 48}},
        }
    )
    named = {"task": {"length": 4}, "batch_size": 32, "data": {"jobs": 1}, "model": {"width": 8}}
    assert preset(scale, "arg", "recor") == named
    assert preset(scale, "arg", "baseline") == named | {"batch_size": 64}
    assert preset(scale, "new", "recor") == {"task": {}, "batch_size": 16, "model": {"width": 8}}
    assert preset(scale, "new", "baseline") == {"task": {}, "batch_size": 48, "model": {"width": 8}}


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_names_only_tasks_that_exist(scale: str) -> None:
    table = OmegaConf.load(CONF / f"{scale}.yaml")
    assert set(table) <= {"task", "all", "recor", "baseline"}
    rows = [row for block in ("all", "recor", "baseline") for row in table.get(block, {}).values()]
    columns = {column for row in rows if isinstance(row, DictConfig) for column in row}
    assert set(table.task) | columns <= {*TASKS, "other"}


@pytest.mark.parametrize("task", PAPER)
def test_the_paper_scale_composes_to_the_papers_tables(task: str) -> None:
    config, expected = compose([f"task={task}", "scale=paper"]), PAPER[task]
    assert (config.batch_size, config.epochs) == (expected["batch"], expected["epochs"])
    assert config.learner.lr == expected["lr"]
    method, rows = config.method, config.task
    assert isinstance(method, RecorConfig) and isinstance(rows, GeneratedTaskConfig)
    assert (method.focal, method.exploration) == (expected["focal"], expected["exploration"])
    assert not method.include_greedy
    assert (config.learner.beta1, config.learner.beta2, config.learner.clip) == (0.9, 0.999, 1.0)
    assert rows.train_rows == {"arg": 10**6, "mul": 10**5, "sudoku": 1_800_000, "zebra": 1_500_000}[task]
    assert (rows.val_rows, rows.test_rows) == (448, 10**5 if task in ("sudoku", "zebra") else 1000)


def test_the_papers_puzzles_have_the_papers_lengths() -> None:
    assert compose(["task=sudoku", "scale=paper"]).task.slots() == 81
    zebra = compose(["task=zebra", "scale=paper"]).task
    assert isinstance(zebra, ZebraConfig)
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
    assert isinstance(method, MdmConfig)
    assert (method.diffusion_steps, method.steps) == (20, 20)
    assert (method.time_weight, method.reweight_tokens, method.alpha, method.gamma) == ("linear", True, 0.25, 1.0)
    assert method.suffix is False


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("task", ["arg", "mul"])
def test_every_method_takes_as_many_gradient_steps_as_recor(task: str, scale: str) -> None:
    steps = set()
    for method in SCHEMAS["method"]:
        config = compose([f"task={task}", f"method={method}", f"scale={scale}"])
        steps.add(total_steps(config, config.task.rows()))
    assert len(steps) == 1


@pytest.mark.parametrize("method", ["recor", "clm", "ar_gt", "mdm", "ao_arm"])
@pytest.mark.parametrize("scale", [*SCALES, "auto"])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_every_scale(task: str, scale: str, method: str) -> None:
    source = ["data.source=rows.jsonl"] if task == "custom" else []
    config = compose([f"task={task}", f"scale={scale}", f"method={method}", *source])
    assert config.scale == ("laptop" if scale == "auto" else scale), "without a GPU, auto is laptop"


# overrides -> what the one line must say
REFUSED = {
    "lrr=1": ["lrr: no such setting", "did you mean learner.lr?"],
    "learner.lrate=1": ["learner.lrate: no such setting", "learner.lr", "learner.clip"],
    "eta=0.9": ["did you mean method.eta?"],
    "task.digits=3": ["task.digits: no such setting", "task.length"],
    "+speed=9": ["speed: no such setting"],
    "+learner.speed=9": ["learner.speed: no such setting"],
    "task=argg": ["task=argg", f"allowed: {', '.join(sorted(TASKS))}", "did you mean arg?"],
    "method=recorr": ["did you mean recor?"],
    "scale=papr": ["did you mean paper?"],
    "seed=x": ["seed=x: must be a whole number"],
    "model=${actors}": ["model: is a group of settings; write model.NAME=value"],
    "eval.size=99999999999999999999999999": ["eval.size=99999999999999999999...: must be at most 9223372036854775807"],
    f"learner.warmup={'9' * 400}": ["learner.warmup=99999999999999999999...: must be at most"],
    "epochs=1e308": ["epochs=1e+308: gives more steps than can be counted"],
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
    "model.onednn=true learner.compile=true": ["model.onednn=true", "learner.compile=false"],
    "model.heads=3": ["model.heads=3: must divide model.width=16", "allowed: 1, 2, 4, 8, 16"],
    "batch_size=40": ["batch_size=40: must be a multiple of rollout_size=16", "nearest: 48"],
    "task.modulus=9": ["task.modulus=9: must be a prime"],
    "method.token_queries=5": ["method.token_queries=5: a response has M=4 slots; allowed: 1 to 4"],
    "method.algorithm=sql_mse": ["method.reward=sparse", "use method.reward=dense or method.algorithm=sql_bce"],
    "method.algorithm=ppo": ["method.reward=sparse"],
    "method.algorithm=sql_mse method.reward=dense method.focal=2": ["method.focal=2.0", "allowed here: 0"],
    "method.algorithm=ppo method.reward=dense method.gamma=0.5": ["method.gamma=0.5", "allowed: 0"],
    "method.focal=0.5": ["method.focal=0.5", "allowed: 0, or at least 1"],
    "method.exploration=entropy method.alpha=0": ["method.alpha=0", "exploration=topk"],
    "method.random_contexts=1.5": ["method.random_contexts=1.5: must be at least 0 and at most 1"],
    "method.random_contexts_end=-1": ["method.random_contexts_end=-1.0: must be at least 0 and at most 1"],
    "method=ao_arm method.random_contexts=1": ["method.random_contexts: no such setting"],
    "method.alpha=1e-9": ["method.alpha=1e-09", "allowed: 0, or at least 1e-6"],
    "task=null": ["task=null: allowed: arg, custom, mul, path, sudoku, zebra"],
    "~method.eta": ["a setting cannot be removed"],
    "seed=0,1": ["several values make a sweep; put --multirun before all settings"],
    "learner=1": ["learner: no such setting; allowed there: learner.beta1"],
    "data.dir=null": ["data.dir=null: must be text"],
    "data.dir=": ["data.dir=: names no folder or file"],
    "out=s3://": ["out=s3://: names no folder or file"],
    "track.register=a/b": ["track.register=a/b: a model name in MLflow has no slash or colon"],
    "track.experiment=": ["track.experiment: names no experiment"],
    "track.wait=-1": ["track.wait=-1.0: must be at least 0"],
    "threads=100000": ["threads=100000: must be at least 1 and at most 256"],
    "task.train_rows=10": ["10 training rows do not fill one batch of 32"],
    "method.lm_weight=0 method.order_weight=0": ["nothing would be learned"],
    "method=mdm method.steps=0": ["method.steps=0: must be at least 1"],
    "method=mdm method.diffusion_steps=0": ["method.diffusion_steps=0: must be at least 1"],
    "method=mdm method.decoder=top_p": ["allowed: vanilla, top_prob, top_margin", "did you mean top_prob?"],
    "method=mdm method.gamma=0.5": ["method.gamma=0.5", "allowed: 0, or at least 1"],
    "method=mdm method.eta=0.5": ["method.eta: no such setting", "method.suffix"],
    "method=clm method.order_queries=2": ["method.order_queries: no such setting"],
    "method=ar_gt method.order_weight=0": ["method.order_weight=0.0: must be above 0"],
    "method=sufmdm": ["allowed: ao_arm, ar_gt, clm, mdm, recor", "did you mean mdm?"],
    "data.source=rows.jsonl": ["data.source: task=arg makes its own rows and reads no source; omit data.source"],
    "task=sudoku task.size=5": ["task.size=5: allowed: 4, 6, 9"],
    "task=sudoku task.size=16": ["task.size=16: must be at least 4 and at most 9"],
    "task=sudoku task.extra_givens=-1": ["task.extra_givens=-1: must be at least 0"],
    "task=sudoku task.extra_givens=1 data.source=rows": ["task.extra_givens=1: changes generated rows only"],
    "task=sudoku task.hard=train": ["task.hard=train: allowed: none, test, all"],
    "task=sudoku task.hard=test": ["task.hard=test: no 4x4 puzzle", "use task.size=6 or 9"],
    "task=zebra task.houses=2": ["task.houses=2: must be a number from 3 to 6, or a range like 3-6"],
    "task=zebra task.attributes=5-4": ["task.attributes=5-4: must be a number from 3 to 6"],
    "task=zebra task.houses=3-4-5": ["task.houses=3-4-5: must be"],
    "task=zebra task.houses=three": ["task.houses=three: must be"],
    "task=zebra task.prompt_length=0": ["task.prompt_length=0: must be at least 1"],
    "task=zebra task.tokens=short": ["task.tokens=short: allowed: public, compact"],
    "task=zebra task.tokens=compact task.prompt_length=90": [
        "task.prompt_length=90: must be a multiple of 4, the tokens of a clue with task.tokens=compact; nearest: 92"
    ],
    "task=zebra task.hints=37": ["task.hints=37: must be at least 0 and at most 36"],
    "task=zebra task.hints=2 data.source=rows": ["task.hints=2: changes generated rows only", "omit one of them"],
    "task=zebra method.token_queries=13": ["a response has M=12 slots"],
    "data.jobs=-1": ["data.jobs=-1: must be at least 0"],
    "task=custom": ["data.source: task=custom reads a file; write data.source=PATH"],
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_a_mistake_is_one_line_with_the_remedy(overrides: str) -> None:
    with pytest.raises(Mistake) as refusal:
        compose(["scale=smoke", *overrides.split(" ")])
    line = str(refusal.value)
    assert "\n" not in line
    for part in REFUSED[overrides]:
        assert part in line


@pytest.mark.parametrize("override", ["lrr=1", "method.eta=2", "task=zebr", "+a=1", "seed=1,2", "learner.lr=x"])
@pytest.mark.parametrize("command", ["recor_dist.run", "data.prepare"])
def test_commands_refuse_with_one_line_and_exit_code_two(command: str, override: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", command, "scale=smoke", override]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)
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


@pytest.mark.parametrize(
    "of_task",
    [
        ["task=arg"],
        ["task=sudoku", "task.extra_givens=2"],
        ["task=zebra", "task.tokens=compact", "task.prompt_length=52", "task.hints=2"],
    ],
    ids=lambda words: words[0],
)
def test_identity_omits_placement_and_nothing_else(of_task: list[str]) -> None:
    newer = [  # omitted at their defaults, because they are newer than the first runs
        "learner.optimizer=muon", "learner.muon_lr=0.1", "learner.muon_momentum=0.9",
        "learner.muon_decay=0.1", "model.deviation=0.1", "model.positions=coordinates", "model.loops=2",
        "method.random_contexts=0.5", "method.random_contexts_end=0.1", f"init_sha256={'0' * 64}",
    ]  # fmt: skip
    exclusive = "learner.compile=true", "model.onednn=true"
    configs = [compose(["scale=smoke", one, *newer, *of_task]) for one in exclusive]
    everything = set(flatten(configs[0]))
    identity = {key for config in configs for key in flatten(config, identity_only=True)}
    assert everything - identity == {
        "scale", "engine", "out", "init", "resume", "profile", "allow_mixed", "data.dir", "data.source", "data.jobs",
        "eval.every", "checkpoint.every", "checkpoint.keep", "actors.count", "actors.gradients", "actors.num_cpus",
        "actors.num_gpus", "learner.num_cpus", "learner.num_gpus", "deadline.answer", "deadline.join", "deadline.stop",
        "track.enabled", "track.experiment", "track.register", "track.wait", "track.tensorboard", "track.wandb",
    }  # fmt: skip


def test_the_share_of_random_contexts_changes_linearly_from_the_first_step_to_the_last() -> None:
    fading = RecorConfig(random_contexts=0.8, random_contexts_end=0.2)
    assert [fading.at(step, 4).random_contexts for step in range(4)] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    rising = RecorConfig(random_contexts_end=1.0)
    assert [rising.at(step, 3).random_contexts for step in range(3)] == [0.0, 0.5, 1.0]
    assert fading.at(0, 1).random_contexts == 0.8, "a run of one step"
    constant = RecorConfig(random_contexts=0.3)
    assert all(constant.at(step, 10) is constant for step in (0, 9))
    assert replace(fading.at(2, 4), random_contexts=0.8, random_contexts_end=0.2) == fading, "nothing else changes"


def test_auto_keeps_the_scale_a_run_was_started_with(tmp_path: Path) -> None:
    out = tmp_path / "my runs"
    out.mkdir()
    (out / "run.json").write_text(json.dumps({"settings": flatten(compose(["scale=paper"]))}))
    config = compose([f"out='{out}'"], scale_of_run)
    assert (config.scale, config.batch_size) == ("paper", 1024)


def test_a_mistake_found_inside_hydra_is_reported_unchanged(tmp_path: Path) -> None:
    """`scale=auto` looks into `out` while Hydra composes, and Hydra wraps the errors that it catches."""
    command = [sys.executable, "-m", "recor_dist.run", "task=zebra", "engine=local", "out=nowhere://a/b"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere://a/b: cannot be used as a folder"), done.stderr
