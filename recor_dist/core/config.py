"""Every setting of a run: its name, type, default, allowed values, and one sentence.

The configuration has two parts. *Identity* decides the result: runs with equal identities end in the same weights, bit
for bit. *Placement* (`placement=True` below) says where and how the result is computed, and changes nothing in it.

Hydra puts a configuration together from `conf/` and `key=value` words (see command.py); the dataclasses here are its
schema.
"""

import difflib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from typing import Any, ClassVar

from omegaconf import MISSING, OmegaConf


class Mistake(ValueError):
    """Something the user can mend. Its text is one line with the remedy in it; commands print it and exit with 2."""


def setting(
    default: Any,
    about: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
    placement: bool = False,
    newer: bool = False,
) -> Any:
    """A dataclass field that carries its own sentence and range.

    `newer`: at its default it is left out of a run's identity, so that runs begun before it existed keep theirs.
    """
    limits = {"at least": at_least, "at most": at_most, "above": above, "below": below}
    metadata = {"about": about, "limits": limits, "choices": choices, "placement": placement, "newer": newer}
    return field(default=default, metadata=metadata)


# --- tasks -----------------------------------------------------------------------------------------------------------


@dataclass
class TaskConfig:
    """What every task has. A task's own settings are in its own file, see data/tasks.py."""

    reads_source: ClassVar[str] = "never"  # whether `data.source` is its data: never, optionally, or always

    name: str = setting(MISSING, "the task")

    def check(self) -> None:
        """Raises Mistake if these settings cannot go together."""

    def slots(self) -> int | None:
        """M, where the settings alone tell it."""
        return None

    def rows(self) -> int | None:
        """The number of training rows, where the settings alone tell it."""
        return None


@dataclass
class GeneratedTaskConfig(TaskConfig):
    """A task whose rows come from a generator of ours."""

    seed: int = setting(0, "seed of the generator; the run's `seed` leaves the data alone", at_least=0)
    train_rows: int = setting(1_000_000, "rows to train on", at_least=1)
    val_rows: int = setting(448, "rows held out for validation during training", at_least=1)
    test_rows: int = setting(1_000, "rows for the test at the end", at_least=1)

    def rows(self) -> int:
        return self.train_rows


# --- methods ---------------------------------------------------------------------------------------------------------


@dataclass
class MethodConfig:
    """What every method has."""

    name: str = setting(MISSING, "the method")

    def needs_order(self) -> bool:
        """Whether it learns from the known order of the rows."""
        return False


@dataclass
class RecorConfig(MethodConfig):
    """Reinforced Context Order Recovery."""

    name: str = setting("recor", "the method", choices=("recor",))
    token_queries: int = setting(1, "K: slots asked for at each step", at_least=1)
    order_queries: int = setting(0, "C: learned order queries; 0 reads Q off the main stream", at_least=0)
    exploration: str = setting(
        "uniform",
        "how the K slots are drawn: uniformly, from the policy, or best first",
        choices=("uniform", "entropy", "topk"),
    )
    include_greedy: bool = setting(False, "ask for the slot the policy fills, too, as query K+1")
    reward: str = setting("sparse", "1[p(y) >= eta], or log p(y)", choices=("sparse", "dense"))
    eta: float = setting(0.8, "probability from which a token counts as predicted", above=0, below=1)
    algorithm: str = setting("sql_bce", "how the order policy learns", choices=("sql_bce", "sql_mse", "ppo"))
    alpha: float = setting(0.1, "entropy coefficient of the policy softmax(Q/alpha)", at_least=0)
    gamma: float = setting(0.0, "discount: 0 looks at the next token only", at_least=0, at_most=1)
    focal: float = setting(0.0, "exponent of the focal factor |label - p| on the BCE; 0, or 1 and more", at_least=0)
    lm_weight: float = setting(1.0, "weight of the token loss", at_least=0)
    order_weight: float = setting(1.0, "weight of the order loss", at_least=0)


@dataclass
class ClmConfig(MethodConfig):
    """Causal language model: left to right."""

    name: str = setting("clm", "the method", choices=("clm",))


@dataclass
class ArGtConfig(MethodConfig):
    """Autoregression in the ground-truth order, which the order head imitates."""

    name: str = setting("ar_gt", "the method", choices=("ar_gt",))
    order_queries: int = setting(0, "C: learned order queries; 0 reads the order off the main stream", at_least=0)
    order_weight: float = setting(1.0, "weight of the order loss; the token loss weighs 1", above=0)

    def needs_order(self) -> bool:
        return True


@dataclass
class AoArmConfig(MethodConfig):
    """Any-order autoregression: every order is as likely as any other."""

    name: str = setting("ao_arm", "the method", choices=("ao_arm",))


@dataclass
class MdmConfig(MethodConfig):
    """Masked diffusion; one run is evaluated with every decoder."""

    name: str = setting("mdm", "the method", choices=("mdm",))
    suffix: bool = setting(False, "SufMDM: leave a suffix of random length unmasked in training")
    diffusion_steps: int = setting(20, "T in training: slots are masked with probability 1/T, 2/T .. 1", at_least=1)
    steps: int = setting(20, "T in decoding: forward passes an answer", at_least=1)
    decoder: str = setting(
        "top_prob",
        "the decoder of validation and of the headline figures",
        choices=("vanilla", "top_prob", "top_margin"),
    )
    rewrite: bool = setting(False, "adaptive decoders may change or mask again what they have written")
    time_weight: str = setting(
        "linear", "weight of a row masked at time t: T-t, 1/(t+1), or 1", choices=("linear", "original", "none")
    )
    reweight_tokens: bool = setting(True, "weigh a token's loss l by alpha (1 - exp(-l))^gamma: the hard ones more")
    alpha: float = setting(0.25, "factor of the token weights", above=0)
    gamma: float = setting(1.0, "exponent of the token weights; 0, or 1 and more", at_least=0)


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass
class ModelConfig:
    layers: int = setting(3, "transformer blocks", at_least=1, at_most=1024)
    width: int = setting(384, "D: hidden dimensions", at_least=1, at_most=65_536)
    heads: int = setting(12, "attention heads; must divide the width", at_least=1)
    deviation: float = setting(
        0.02,
        "of the initial weights; GPT-2's suits its widths, narrow models start sooner with more",
        above=0,
        newer=True,
    )


@dataclass
class ActorsConfig:
    """The rollout actors of engine=ray."""

    count: int | str = setting(
        "auto",
        "how many; auto takes as many as the cluster has room for, and more when nodes join",
        at_least=1,
        choices=("auto",),
        placement=True,
    )
    num_cpus: float | None = setting(None, "CPUs of each; null takes `threads`", at_least=0, placement=True)
    num_gpus: float | None = setting(
        None, "GPUs of each, fractions allowed; null takes 1 where device=cuda, else 0", at_least=0, placement=True
    )


# What `ray job stop` waits before it kills. The head's environment may say otherwise, and its jobs see the same one.
JOB_STOP_WAIT = float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", 3))


@dataclass
class DeadlineConfig:
    """How long engine=ray waits before it takes somebody for dead."""

    answer: float = setting(
        600.0, "seconds for a ticket or a learner step; who takes longer is replaced", above=0, placement=True
    )
    stop: float = setting(
        JOB_STOP_WAIT * 2 / 3,
        "seconds for the learner's last state after SIGTERM; two thirds of what `ray job stop` waits before it kills",
        above=0,
        placement=True,
    )
    join: float = setting(
        900.0, "seconds for an actor or the learner to find a place and start", above=0, placement=True
    )


@dataclass
class LearnerConfig:
    lr: float = setting(1e-3, "peak learning rate; a cosine brings it to 0 at the last step", above=0)
    warmup: int = setting(0, "steps of linear warm-up", at_least=0)
    weight_decay: float = setting(0.1, "AdamW's weight decay, on matrices only", at_least=0)
    beta1: float = setting(0.9, "AdamW's first moment", at_least=0, below=1)
    beta2: float = setting(0.999, "AdamW's second moment", at_least=0, below=1)
    clip: float = setting(1.0, "largest norm of the gradient", above=0)
    compile: bool = setting(
        False, "torch.compile of its forward and backward; pays on a GPU, after a slow first step", newer=True
    )
    num_cpus: float | None = setting(None, "CPUs under engine=ray; null takes `threads`", at_least=0, placement=True)
    num_gpus: float | None = setting(
        None, "GPUs under engine=ray; null takes 1 where device=cuda, else 0", at_least=0, placement=True
    )


@dataclass
class DataConfig:
    dir: str = setting("shards", "folder or URI that holds prepared data, a folder a data set", placement=True)
    source: str | None = setting(
        None,
        "for task=custom: a file, or a folder with train/val/test files; for puzzles: what data.import_public made",
        placement=True,
    )
    shard_rows: int = setting(50_000, "rows of a shard; how rows are cut decides their order", at_least=1)
    jobs: int = setting(
        0,
        "processes that make puzzles, in all of a cluster; 0 takes one for each core",
        at_least=0,
        at_most=1024,
        placement=True,
    )


@dataclass
class EvalConfig:
    every: int = setting(500, "steps between validations; 0 for none", at_least=0, placement=True)
    size: int = setting(250, "rows of an evaluation ticket", at_least=1)


@dataclass
class CheckpointConfig:
    every: int = setting(500, "steps between checkpoints", at_least=1, placement=True)
    keep: int = setting(2, "checkpoints to keep", at_least=1, placement=True)


@dataclass
class TrackConfig:
    """The record in MLflow, at MLFLOW_TRACKING_URI; without it in mlflow.db of the working directory."""

    enabled: bool = setting(
        True, "record the run in MLflow; metrics.jsonl in `out` is written in any case", placement=True
    )
    experiment: str = setting("recor_dist", "the MLflow experiment", placement=True)
    register: str | None = setting(
        None, "name under which the trained model is registered in MLflow; null leaves it out", placement=True
    )
    wait: float = setting(
        30.0,
        "seconds that the end of a run waits for MLflow at most; a stopped run waits 5",
        at_least=0,
        placement=True,
    )


@dataclass
class Config:
    """One run."""

    task: TaskConfig = MISSING
    method: MethodConfig = MISSING
    scale: str = setting(MISSING, "the preset these settings started from", placement=True)
    seed: int = setting(0, "seed of weights, row order and exploration", at_least=0)
    batch_size: int = setting(1024, "B: rows of a learner step", at_least=1)
    rollout_size: int = setting(
        64, "rows of a ticket, the unit of work of an actor; must divide batch_size", at_least=1
    )
    epochs: float = setting(100.0, "passes over the training rows; floor(epochs * rows / B) steps", above=0)
    lag: int = setting(0, "step n rolls out with the weights of step n - lag; 0 is on-policy", at_least=0, at_most=64)
    device: str = setting("auto", "auto takes a GPU where there is one", choices=("auto", "cpu", "cuda"))
    precision: str = setting(
        "auto", "auto is bfloat16 autocast on a GPU, else float32", choices=("auto", "float32", "bfloat16")
    )
    threads: int = setting(1, "torch threads of every process; other counts round differently", at_least=1, at_most=256)
    engine: str = setting(
        "ray",
        "who computes: Ray's actors and learner, or this process alone; the result is the same",
        choices=("ray", "local"),
        placement=True,
    )
    out: str | None = setting(
        None, "folder of the run; by default runs/<task>-<method>-<scale>-seed<seed>-<identity>", placement=True
    )
    resume: str = setting(
        "auto",
        "auto goes on where `out` stopped; never refuses an `out` that exists",
        choices=("auto", "never"),
        placement=True,
    )
    allow_mixed: bool = setting(
        False, "go on although hardware or torch changed; the run is marked reproducible=false", placement=True
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    deadline: DeadlineConfig = field(default_factory=DeadlineConfig)
    data: DataConfig = field(default_factory=DataConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    track: TrackConfig = field(default_factory=TrackConfig)


# The settings of each choice of the groups `task` and `method`. The table of tasks (data/tasks.py) adds its rows here:
# a task's settings are in its own file, and this layer imports no task.
SCHEMAS: dict[str, dict[str, type]] = {
    "task": {},
    "method": {"recor": RecorConfig, "clm": ClmConfig, "ar_gt": ArGtConfig, "mdm": MdmConfig, "ao_arm": AoArmConfig},
}


# --- flat views ------------------------------------------------------------------------------------------------------


def flatten(config: Any, *, identity_only: bool = False, prefix: str = "") -> dict[str, Any]:
    """All settings by dotted name, or those alone that decide the result."""
    flat: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            flat |= flatten(value, identity_only=identity_only, prefix=f"{prefix}{f.name}.")
        elif not (identity_only and (f.metadata["placement"] or (f.metadata["newer"] and value == f.default))):
            flat[f"{prefix}{f.name}"] = value
    return flat


def unflatten(settings: Mapping[str, Any]) -> Config:
    """The configuration that has this flat view, whose values may be text. What is not named keeps its default; names
    that no setting has (any more) are left out."""
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
    """SHA-256 of anything JSON can write."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- what is refused -------------------------------------------------------------------------------------------------


def validate(config: Config) -> None:
    """Raises Mistake for a value out of range or a combination that cannot be."""
    check_ranges(config)
    if config.model.width % config.model.heads:
        raise Mistake(
            f"model.heads={config.model.heads}: must divide model.width={config.model.width}; "
            f"allowed: {_listed(d for d in range(1, config.model.width + 1) if config.model.width % d == 0)}"
        )
    if config.batch_size % config.rollout_size:
        raise Mistake(
            f"batch_size={config.batch_size}: must be a multiple of rollout_size={config.rollout_size}; "
            f"nearest: {-(-config.batch_size // config.rollout_size) * config.rollout_size}"
        )
    if config.task.reads_source == "always" and not config.data.source:
        raise Mistake(
            f"data.source: task={config.task.name} reads a file; write data.source=PATH (Parquet or JSONL, "
            "with prompt and response)"
        )
    if config.task.reads_source == "never" and config.data.source:
        raise Mistake(f"data.source: task={config.task.name} makes its own rows and reads no source; omit data.source")
    config.task.check()
    if (rows := config.task.rows()) is not None and not config.data.source:
        total_steps(config, rows)
    for key in ("out", "data.dir", "data.source"):
        place = flatten(config)[key]
        if place == "" or (place and place.endswith("://")):
            raise Mistake(f"{key}={place}: names no folder or file; leave it out for the default")
    if config.track.register is not None and (not config.track.register or set(config.track.register) & set("/:")):
        raise Mistake(f"track.register={config.track.register}: MLflow's model names have no slash and no colon")
    if not config.track.experiment.strip():
        raise Mistake("track.experiment: names no experiment; leave it out for the default")
    if isinstance(config.method, RecorConfig):
        _check_recor(config.method)
    if isinstance(config.method, MdmConfig) and config.method.reweight_tokens and 0 < config.method.gamma < 1:
        raise Mistake(f"method.gamma={config.method.gamma}: its slope is infinite at 0; allowed: 0, or 1 and more")
    if (M := config.task.slots()) is not None:
        check_response_length(config, M)


def total_steps(config: Config, rows: int) -> int:
    """floor(epochs * rows / B), in exact arithmetic; refused if it is 0."""
    steps = math.floor(Fraction(str(config.epochs)) * rows / config.batch_size)
    if steps == 0:
        raise Mistake(
            f"epochs={config.epochs}: {rows} training rows give not one batch of {config.batch_size}; "
            "raise epochs or lower batch_size"
        )
    return steps


def check_response_length(config: Config, M: int) -> None:
    """Refuses what cannot be with M slots; for a custom task M is known only once its source was read."""
    K = getattr(config.method, "token_queries", 1)
    if K > M:
        raise Mistake(f"method.token_queries={K}: a response has M={M} slots; allowed: 1 to {M}")


def check_order(config: Config, known: bool) -> None:
    """Refuses a method that learns from the order of the rows where none is known."""
    if config.method.needs_order() and not known:
        raise Mistake(
            f"method={config.method.name}: learns from a known order, and task={config.task.name} has none; "
            "give every row of data.source an `order`, or use method=recor"
        )


def check_ranges(config: Any, prefix: str = "") -> None:
    """Raises Mistake for a value that its setting does not allow."""
    for f in fields(config):
        key, value = f"{prefix}{f.name}", getattr(config, f.name)
        if is_dataclass(value):
            check_ranges(value, f"{key}.")
            continue
        choices, limits = f.metadata["choices"], f.metadata["limits"]
        met = {
            "at least": lambda v, limit: v >= limit,
            "at most": lambda v, limit: v <= limit,
            "above": lambda v, limit: v > limit,
            "below": lambda v, limit: v < limit,
        }
        asked = {word: limit for word, limit in limits.items() if limit is not None}
        ranges = " and ".join(f"{word} {limit}" for word, limit in asked.items())
        if value is None:
            continue
        if isinstance(value, str):
            if choices and value not in choices:
                allowed = [*choices, f"a number, {ranges}"] if asked else choices
                raise Mistake(f"{key}={value}: allowed: {', '.join(allowed)}{nearest(str(value), choices)}")
            continue
        # `not met` instead of its opposite, so that NaN is refused as well.
        if not all(met[word](value, limit) for word, limit in asked.items()) or value == float("inf"):
            raise Mistake(f"{key}={value}: must be {ranges or 'finite'}")


def _check_recor(method: RecorConfig) -> None:
    if method.reward == "sparse" and method.algorithm != "sql_bce":
        raise Mistake(
            f"method.reward=sparse: log 0 has no place in method.algorithm={method.algorithm}; "
            "use method.reward=dense or method.algorithm=sql_bce"
        )
    if method.focal and method.algorithm != "sql_bce":
        raise Mistake(f"method.focal={method.focal}: only method.algorithm=sql_bce has a focal factor; allowed here: 0")
    if 0 < method.focal < 1:
        raise Mistake(f"method.focal={method.focal}: its slope is infinite at 0; allowed: 0, or 1 and more")
    if method.gamma and method.algorithm == "ppo":
        raise Mistake(f"method.gamma={method.gamma}: method.algorithm=ppo looks at the next token only; allowed: 0")
    # The PPO-like policy is softmax(z): there alpha only weighs the entropy.
    if method.exploration == "entropy" and method.algorithm != "ppo" and method.alpha < 1e-6:
        raise Mistake(
            f"method.alpha={method.alpha}: exploration=entropy divides by alpha; use 1e-6 and more, or exploration=topk"
        )
    if 0 < method.alpha < 1e-6:
        raise Mistake(f"method.alpha={method.alpha}: Q/alpha overflows; allowed: 0, or 1e-6 and more")
    if method.lm_weight == 0 and method.order_weight == 0:
        raise Mistake("method.lm_weight=0: with method.order_weight=0, too, nothing would be learned")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(n) for n in numbers)


def nearest(word: str, known: Iterable[str]) -> str:
    """The ending of an error line that names the nearest right name, if one is near."""
    known = list(known)
    by_ending = {key.rsplit(".", 1)[-1]: key for key in known}
    by_name = by_ending | {key: key for key in known}
    near = difflib.get_close_matches(word.rsplit(".", 1)[-1], by_ending, n=1, cutoff=0.75)
    near = near or difflib.get_close_matches(word, by_name, n=1, cutoff=0.5)
    return f"; did you mean {by_name[near[0]]}?" if near else ""
