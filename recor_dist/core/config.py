"""Every setting of a run: its name, type, default, allowed values, and one sentence.

The configuration has two parts. *Identity* decides the result: runs with equal identities end in the same weights, bit
for bit. *Placement* (`placement=True` below) says where and how the result is computed, and does not change it.

Hydra composes a configuration from `conf/` and `key=value` overrides (see compose.py); the dataclasses here are its
schema. The settings of the methods are in method_settings.py, those of a task in its own file (see data/tasks.py).
"""

import hashlib
import importlib.util
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from typing import Any, ClassVar

from omegaconf import MISSING, OmegaConf

from recor_dist.core.method_settings import AoArmConfig, ArGtConfig, ClmConfig, MdmConfig, MethodConfig, RecorConfig
from recor_dist.core.setting import LARGEST, Mistake, check_ranges, setting

# --- tasks -----------------------------------------------------------------------------------------------------------


@dataclass
class TaskConfig:
    """What every task has."""

    reads_source: ClassVar[str] = "never"  # whether its rows come from `data.source`: never, optionally, or always
    generated_only: ClassVar[tuple[str, ...]] = ()  # settings that must be 0 if its rows come from `data.source`

    name: str = setting(MISSING, "the task")

    def check(self) -> None:
        """Raises Mistake if these settings are incompatible."""

    def slots(self) -> int | None:
        """M, or None if it depends on the data."""
        return None

    def rows(self) -> int | None:
        """The number of training rows, or None if it depends on the data."""
        return None


@dataclass
class GeneratedTaskConfig(TaskConfig):
    """A task whose rows are generated."""

    seed: int = setting(0, "seed of the generator; the run's `seed` does not change the data", at_least=0)
    train_rows: int = setting(1_000_000, "training rows", at_least=1)
    val_rows: int = setting(448, "validation rows", at_least=1)
    test_rows: int = setting(1_000, "test rows", at_least=1)

    def rows(self) -> int:
        return self.train_rows


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass
class ModelConfig:
    layers: int = setting(3, "transformer blocks", at_least=1, at_most=1024)
    width: int = setting(384, "D: hidden dimensions", at_least=1, at_most=65_536)
    heads: int = setting(12, "attention heads; must divide model.width", at_least=1)
    deviation: float = setting(
        0.02,
        "standard deviation of the initial weights; GPT-2's 0.02 suits wide models, narrow ones need more",
        above=0,
        newer=True,
    )
    positions: str = setting(
        "absolute",
        "absolute: each position has a vector of its own; coordinates: its vector is a sum of vectors for its row, its "
        "column and so on, as the task defines them",
        choices=("absolute", "coordinates"),
        newer=True,
    )
    loops: int = setting(
        1, "passes through the blocks, with the same weights each time", at_least=1, at_most=1024, newer=True
    )
    onednn: bool = setting(
        False,
        "multiply float32 matrices with oneDNN instead of MKL when training on a CPU; faster on AMD with AVX-512, and "
        "rounds differently",
        newer=True,
    )


@dataclass
class ActorsConfig:
    """The rollout actors of engine=ray."""

    count: int | str = setting(
        "auto",
        "number of actors; auto means as many as fit in the cluster, including nodes that join later",
        at_least=1,
        choices=("auto",),
        placement=True,
    )
    gradients: bool | str = setting(
        "auto",
        "actors and the learner share the tickets of a step and compute gradients; otherwise actors only roll out, and "
        "the learner learns; auto decides by the size of the cluster, the step and the model",
        choices=("auto", "true", "false"),
        placement=True,
    )
    num_cpus: float | None = setting(None, "CPUs per actor; null means `threads`", at_least=0, placement=True)
    num_gpus: float | None = setting(
        None,
        "GPUs per actor, may be a fraction; null means 1 if device=cuda (0.9 with actors.gradients), else 0",
        at_least=0,
        placement=True,
    )


# Seconds that `ray job stop` waits before it kills. The environment of the head, which its jobs share, may change it.
JOB_STOP_WAIT = float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", 3))


@dataclass
class DeadlineConfig:
    """How long engine=ray waits before it considers a process dead."""

    answer: float = setting(
        600.0,
        "seconds for a ticket or a learner step; a process that takes longer is replaced",
        above=0,
        placement=True,
    )
    stop: float = setting(
        JOB_STOP_WAIT * 2 / 3,
        "seconds for the learner's last state after SIGTERM; by default 2/3 of the time `ray job stop` allows",
        above=0,
        placement=True,
    )
    join: float = setting(
        900.0, "seconds for an actor or the learner to be placed and to start", above=0, placement=True
    )


@dataclass
class LearnerConfig:
    lr: float = setting(1e-3, "peak learning rate, with cosine decay to 0", above=0)
    warmup: int = setting(0, "steps of linear warmup", at_least=0)
    weight_decay: float = setting(0.1, "weight decay of AdamW, on matrices only", at_least=0)
    beta1: float = setting(0.9, "beta1 of AdamW", at_least=0, below=1)
    beta2: float = setting(0.999, "beta2 of AdamW", at_least=0, below=1)
    clip: float = setting(1.0, "maximum norm of the gradient", above=0)
    optimizer: str = setting(
        "adamw",
        "muon: Muon for the matrices of the blocks, AdamW for everything else",
        choices=("adamw", "muon"),
        newer=True,
    )
    muon_lr: float = setting(
        0.02, "peak learning rate of Muon; follows the schedule of learner.lr", above=0, newer=True
    )
    muon_momentum: float = setting(0.95, "momentum of Muon", at_least=0, below=1, newer=True)
    muon_decay: float = setting(0.0, "weight decay of Muon", at_least=0, newer=True)
    compile: bool = setting(False, "use torch.compile; pays off on a GPU, after a slow first step", newer=True)
    num_cpus: float | None = setting(
        None,
        "CPUs with engine=ray; null means `threads`",
        at_least=0,
        placement=True,
    )
    num_gpus: float | None = setting(
        None,
        "GPUs with engine=ray; null means 1 if device=cuda (0.1 with actors.gradients), else 0",
        at_least=0,
        placement=True,
    )


@dataclass
class DataConfig:
    dir: str = setting("shards", "folder or URI of prepared data, with one folder per data set", placement=True)
    source: str | None = setting(
        None,
        "for task=custom: a file, or a folder with train/val/test files; for puzzles: the output of data.import_public",
        placement=True,
    )
    shard_rows: int = setting(50_000, "rows per shard; changes the order of the rows", at_least=1)
    jobs: int = setting(
        0,
        "processes that generate puzzles, across the cluster; 0 means one per core",
        at_least=0,
        at_most=1024,
        placement=True,
    )


@dataclass
class EvalConfig:
    every: int = setting(500, "steps between validations; 0 for none", at_least=0, placement=True)
    size: int = setting(250, "rows per evaluation ticket", at_least=1)


@dataclass
class CheckpointConfig:
    every: int = setting(500, "steps between checkpoints", at_least=1, placement=True)
    keep: int = setting(2, "checkpoints to keep", at_least=1, placement=True)


@dataclass
class TrackConfig:
    """The record in MLflow, at MLFLOW_TRACKING_URI, by default in mlflow.db in the working directory; and elsewhere."""

    enabled: bool = setting(True, "record the run in MLflow; metrics.jsonl in `out` is always written", placement=True)
    experiment: str = setting("recor_dist", "the MLflow experiment", placement=True)
    register: str | None = setting(
        None, "register the trained model in MLflow under this name; null does not register it", placement=True
    )
    tensorboard: bool = setting(
        False, "also write event files for TensorBoard, in `out`; needs the package tensorboard", placement=True
    )
    wandb: bool = setting(
        False,
        "also write an offline run of Weights & Biases, in `out`; needs the package wandb, and sends nothing",
        placement=True,
    )
    wait: float = setting(
        30.0,
        "maximum seconds to wait for MLflow at the end of a run; a stopped run waits 5",
        at_least=0,
        placement=True,
    )


@dataclass
class Config:
    """One run."""

    task: TaskConfig = MISSING
    method: MethodConfig = MISSING
    scale: str = setting(MISSING, "the preset; auto is paper if there are GPUs, else laptop", placement=True)
    seed: int = setting(0, "seed of initial weights, row order and exploration", at_least=0)
    batch_size: int = setting(1024, "B: rows per learner step", at_least=1)
    rollout_size: int = setting(64, "rows per ticket, an actor's unit of work; must divide batch_size", at_least=1)
    epochs: float = setting(100.0, "passes over the training rows; floor(epochs * rows / B) steps", above=0)
    init: str | None = setting(
        None,
        "starts from the weights of another model of the same shape: a run's folder, a packaged model (folder, or "
        "runs:/ID/model), or a .safetensors file",
        placement=True,
    )
    init_sha256: str | None = setting(
        None, "SHA-256 of the weights of `init`; null reads it from there at the first start", newer=True
    )
    lag: int = setting(
        0, "step n uses rollouts made with the weights of step n - lag; 0 is on-policy", at_least=0, at_most=64
    )
    device: str = setting("auto", "auto uses a GPU if there is one", choices=("auto", "cpu", "cuda"))
    precision: str = setting(
        "auto",
        "auto is bfloat16 autocast on a GPU, float32 on a CPU; bfloat16 pays for wide models on CPUs with avx512_bf16",
        choices=("auto", "float32", "bfloat16"),
    )
    threads: int = setting(
        1, "torch threads per process; a different number rounds differently", at_least=1, at_most=256
    )
    engine: str = setting(
        "ray",
        "run on Ray actors, or in this process alone; the result is the same",
        choices=("ray", "local"),
        placement=True,
    )
    out: str | None = setting(
        None, "folder or URI of the run; by default runs/<task>-<method>-<scale>-seed<seed>-<identity>", placement=True
    )
    resume: str = setting(
        "auto",
        "auto: resume the run in `out`; never: refuse an `out` that is not empty",
        choices=("auto", "never"),
        placement=True,
    )
    profile: bool = setting(
        False,
        "write a trace of ten steps of the driver, the learner and one actor, and log where their time goes",
        placement=True,
    )
    allow_mixed: bool = setting(
        False, "accept different hardware or torch versions; marks the run reproducible=false", placement=True
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    deadline: DeadlineConfig = field(default_factory=DeadlineConfig)
    data: DataConfig = field(default_factory=DataConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    track: TrackConfig = field(default_factory=TrackConfig)


# The schema of each choice of the groups `task` and `method`. The table of tasks (data/tasks.py) adds its rows here,
# because this layer imports no task.
SCHEMAS: dict[str, dict[str, type]] = {
    "task": {},
    "method": {"recor": RecorConfig, "clm": ClmConfig, "ar_gt": ArGtConfig, "mdm": MdmConfig, "ao_arm": AoArmConfig},
}


# --- flat views ------------------------------------------------------------------------------------------------------


def flatten(config: Any, *, identity_only: bool = False, prefix: str = "") -> dict[str, Any]:
    """All settings by dotted name, or only those that decide the result."""
    flat: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            flat |= flatten(value, identity_only=identity_only, prefix=f"{prefix}{f.name}.")
        elif not (identity_only and (f.metadata["placement"] or (f.metadata["newer"] and value == f.default))):
            flat[f"{prefix}{f.name}"] = value
    return flat


def unflatten(settings: Mapping[str, Any]) -> Config:
    """The inverse of `flatten`. Values may be text; missing settings keep their default, unknown names are ignored."""
    choices = {group: named[settings[f"{group}.name"]]() for group, named in SCHEMAS.items()}
    config = Config(**choices)
    raw = OmegaConf.structured(config)
    for key in flatten(config).keys() & settings.keys():
        value = settings[key]
        OmegaConf.update(raw, key, None if value in ("None", "null") else value)
    restored = OmegaConf.to_object(raw)
    assert isinstance(restored, Config)
    return restored


def digest(content: Any) -> str:
    """SHA-256 of anything that JSON can represent."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- what is refused -------------------------------------------------------------------------------------------------


def validate(config: Config) -> None:
    """Raises Mistake for a value out of range, or for incompatible settings."""
    check_ranges(config)
    _check_sizes(config)
    _check_source(config)
    config.task.check()
    if (rows := config.task.rows()) is not None and not config.data.source:
        total_steps(config, rows)
    _check_places(config)
    _check_packages(config)
    config.method.check()
    if (M := config.task.slots()) is not None:
        check_response_length(config, M)


def _check_sizes(config: Config) -> None:
    width, heads = config.model.width, config.model.heads
    if width % heads:
        divisors = ", ".join(str(d) for d in range(1, width + 1) if width % d == 0)
        raise Mistake(f"model.heads={heads}: must divide model.width={width}; allowed: {divisors}")
    if config.batch_size % config.rollout_size:
        raise Mistake(
            f"batch_size={config.batch_size}: must be a multiple of rollout_size={config.rollout_size}; "
            f"nearest: {-(-config.batch_size // config.rollout_size) * config.rollout_size}"
        )
    if config.model.onednn and config.learner.compile:
        raise Mistake("model.onednn=true: torch.compile chooses products itself; omit it, or use learner.compile=false")


def _check_source(config: Config) -> None:
    task = config.task
    if task.reads_source == "always" and not config.data.source:
        raise Mistake(
            f"data.source: task={task.name} reads a file; write data.source=PATH (Parquet or JSONL, "
            "with prompt and response)"
        )
    if task.reads_source == "never" and config.data.source:
        raise Mistake(f"data.source: task={task.name} makes its own rows and reads no source; omit data.source")
    for name in task.generated_only if config.data.source else ():
        if value := getattr(task, name):
            raise Mistake(
                f"task.{name}={value}: changes generated rows only, and data.source has rows; omit one of them"
            )


def _check_places(config: Config) -> None:
    """Folders, files, and names in MLflow."""
    places = {"out": config.out, "init": config.init, "data.dir": config.data.dir, "data.source": config.data.source}
    for key, place in places.items():
        if place == "" or (place and place.endswith("://")):
            raise Mistake(f"{key}={place}: names no folder or file; omit it for the default")
    register = config.track.register
    if register is not None and (not register or set(register) & set("/:")):
        raise Mistake(f"track.register={register}: a model name in MLflow has no slash or colon; write another name")
    if not config.track.experiment.strip():
        raise Mistake("track.experiment: names no experiment; omit it for the default")


def _check_packages(config: Config) -> None:
    for name in ("tensorboard", "wandb"):
        if getattr(config.track, name):
            check_package(f"track.{name}=true", name)


def check_package(word: str, package: str) -> None:
    """Refuses a word of the command line that needs an optional package, if that is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:  # a mere folder of this name has no origin
        raise Mistake(f"{word}: the package {package} is not installed; pip install {package} -c constraints.txt")


def total_steps(config: Config, rows: int) -> int:
    """floor(epochs * rows / B), in exact arithmetic. Raises Mistake if that is 0."""
    steps = math.floor(Fraction(str(config.epochs)) * rows / config.batch_size)
    if steps == 0:
        raise Mistake(
            f"epochs={config.epochs}: {rows} training rows do not fill one batch of {config.batch_size}; "
            "raise epochs or lower batch_size"
        )
    if steps > LARGEST:
        raise Mistake(f"epochs={config.epochs}: gives more steps than can be counted; lower epochs")
    return steps


def check_response_length(config: Config, M: int) -> None:
    """Refuses settings that M slots do not allow; for task=custom, M is known only after reading its source."""
    K = getattr(config.method, "token_queries", 1)
    if K > M:
        raise Mistake(f"method.token_queries={K}: a response has M={M} slots; allowed: 1 to {M}")


def check_order(config: Config, known: bool) -> None:
    """Refuses a method that learns from the order of the rows if none is known."""
    if config.method.needs_order() and not known:
        raise Mistake(
            f"method={config.method.name}: learns from a known order, and task={config.task.name} has none; "
            "give every row of data.source an `order`, or use method=recor"
        )
