"""From `key=value` overrides to a validated configuration.

Hydra composes it, in the order of `conf/config.yaml`: the schemas of `config.py`, the chosen task and method, and then
the preset, which is what `conf/<scale>.yaml` sets for that task and method.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recor_dist.core.config import SCHEMAS, Config, TaskConfig, digest, flatten, validate
from recor_dist.core.setting import Mistake, nearest

CONF = Path(__file__).parents[1] / "conf"
GROUPS = ("task", "method", "scale")
SCALES = ("paper", "laptop", "smoke")  # each a file in `conf`
SWEEP = "sweep"  # the group of prepared sweeps: `+sweep=NAME` runs one


ScaleOfRun = Callable[[str], str | None]  # the scale of the run in a folder; None if it holds none


def compose(overrides: list[str], scale_of_run: ScaleOfRun = lambda out: None) -> Config:
    """The validated configuration that these overrides name, for use without a command line."""
    prepare(overrides, scale_of_run)
    try:
        config = to_config(_compose(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise Mistake(explain(error, overrides)) from error
    validate(config)
    return config


def prepare(overrides: list[str], scale_of_run: ScaleOfRun = lambda out: None) -> None:
    """Prepares Hydra to compose these overrides. Raises Mistake for what can be refused before that."""
    _register()
    _check(overrides)
    _bind(overrides, scale_of_run)


def to_config(raw: DictConfig) -> Config:
    """The typed configuration, not yet validated. Raises Mistake for a key that the schema does not have."""
    config = OmegaConf.to_object(raw)
    assert isinstance(config, Config)
    for f in fields(Config):
        schema: Any = f.default_factory if is_dataclass(f.default_factory) else None
        if schema and not isinstance(getattr(config, f.name), schema):
            raise Mistake(f"{f.name}: is a group of settings; write {f.name}.NAME=value")
    for extra in _unknown(config):
        raise Mistake(f"{extra}: no such setting{nearest(extra, flatten(config))}")
    return config


def _compose(overrides: list[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=overrides)


def _unknown(config: Any, prefix: str = "") -> Iterator[str]:
    """Keys that `+key=value` added outside the schema: OmegaConf sets them as attributes of the dataclass."""
    known = {f.name for f in fields(config)}
    for name, value in vars(config).items():
        if name not in known:
            yield prefix + name
        elif is_dataclass(value):
            yield from _unknown(value, f"{prefix}{name}.")


def options(group: str) -> list[str]:
    """The choices of a group, by name."""
    if group == "scale":
        return sorted(["auto", *SCALES])
    return sorted(SCHEMAS[group] if group in SCHEMAS else (path.stem for path in (CONF / group).glob("*.yaml")))


# --- presets ---------------------------------------------------------------------------------------------------------


def preset(scale: DictConfig, task: str, kind: str) -> DictConfig:
    """What a scale sets for a task and a kind of method, `recor` or `baseline`.

    A scale is a table (see `conf/paper.yaml`). Its block `task` has a row per task; `all`, `recor` and `baseline` have
    a row per setting, with a column per task. A task without a column uses the column `other`; if there is none, the
    setting keeps its default.
    """
    chosen = OmegaConf.create({"task": scale.task.get(task, {})})
    for block in ("all", kind):
        for key, row in scale.get(block, {}).items():
            value = row.get(task, row.get("other")) if isinstance(row, DictConfig) else row
            if value is not None:
                OmegaConf.update(chosen, key, value)
    return chosen


@cache
def _register() -> None:
    """Gives Hydra the schemas and presets, at first use: by then the table of tasks has been imported."""
    assert SCHEMAS["task"], "import data.tasks first: it lists the tasks"
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, named in SCHEMAS.items():
        for name, schema in named.items():
            store.store(group=group, name=name, node=schema)
    store.store(group="scale", name="auto", node={"scale": "${concrete_scale:auto}"}, package="_global_")
    for name in SCALES:
        store.store(group="scale", name=name, node={"scale": name}, package="_global_")
        scale = OmegaConf.load(CONF / f"{name}.yaml")
        assert isinstance(scale, DictConfig)
        for task, kind in product(SCHEMAS["task"], ("recor", "baseline")):
            store.store(group="preset", name=f"{name}_{task}_{kind}", node=preset(scale, task, kind))
    for group, named in OmegaConf.load(CONF / "ablations.yaml").items():
        for name, method in named.items():
            store.store(group=f"{SWEEP}/{group}", name=name, node={"method": method}, package="_global_")


OmegaConf.register_new_resolver("recor_or_baseline", lambda method: method if method == "recor" else "baseline")


def _bind(overrides: list[str], scale_of_run: ScaleOfRun) -> None:
    """Passes the overrides to the resolvers: with an `out` that holds a run, `scale=auto` is the scale of that run."""

    def concrete(scale: str) -> str:
        return (_scale_of_out(overrides, scale_of_run) or auto_scale()) if scale == "auto" else scale

    OmegaConf.register_new_resolver("concrete_scale", concrete, replace=True)
    # The same sweep resumes in the same folder, as a run does.
    OmegaConf.register_new_resolver("sweep_folder", lambda: f"runs/sweep-{digest(sorted(overrides))[:8]}", replace=True)


def _scale_of_out(overrides: list[str], scale_of_run: ScaleOfRun) -> str | None:
    """The scale of the run in an explicit `out=`: `auto` is decided once in the life of a run."""
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.key_or_group == "out" and not override.is_sweep_override() and (out := override.value()):
            return scale_of_run(str(out))  # without the quotes that it may have
    return None


@cache
def auto_scale() -> str:
    """What `scale=auto` means for a new run: `paper` if there are GPUs, else `laptop`."""
    if os.environ.get("RAY_ADDRESS", "local") != "local":  # as in a submitted job, whose driver may see no GPU itself
        from recor_dist.core import ray_session

        return "paper" if ray_session.connect() and ray_session.device_of_cluster() == "cuda" else "laptop"
    import torch  # here, because it is slow, and a mistake in the overrides should be reported at once

    return "paper" if torch.cuda.is_available() else "laptop"


def _fitting(*counts: int, _root_: DictConfig) -> int | str:
    """Those of some numbers of queries that the task has slots for, as a sweep; its number of slots if none fits."""
    task = OmegaConf.to_object(_root_.task)
    assert isinstance(task, TaskConfig)
    M = task.slots()
    fit = list(counts) if M is None else [count for count in counts if count <= M] or [M]
    return fit[0] if len(counts) == 1 else ",".join(map(str, fit))


OmegaConf.register_new_resolver("fitting", _fitting, replace=True)


# --- what is refused -------------------------------------------------------------------------------------------------


def _check(overrides: list[str]) -> None:
    """Refuses what is not `key=value`, and choices that a group does not have, before Hydra sees them."""
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            raise Mistake(
                f"{text}: not a setting; write key=value, for example seed=1 (quote values with spaces, brackets or ~)"
            ) from None
        key = override.key_or_group
        if override.is_delete():
            raise Mistake(f"{text}: a setting cannot be removed; write {key}=value")
        if key == SWEEP and (not override.is_add() or override.value() not in options(SWEEP)):
            raise Mistake(f"{text}: write +{SWEEP}=NAME; {_allowed(override, options(SWEEP))}")
        if key == "method" and text != "method=recor" and any(other.startswith(f"+{SWEEP}=") for other in overrides):
            raise Mistake(f"{text}: the prepared sweeps are for method=recor; omit this or +{SWEEP}")
        if key in GROUPS and not override.is_sweep_override() and override.value() not in options(key):
            raise Mistake(f"{key}={override.get_value_element_as_str()}: {_allowed(override, options(key))}")


def _allowed(override: Override, choices: list[str]) -> str:
    return f"allowed: {', '.join(choices)}{nearest(override.get_value_element_as_str(), choices)}"


def explain(error: Exception, overrides: list[str]) -> str:
    """One line for what Hydra refused: the key, what is allowed, and the nearest right name."""
    if mistake := mistake_behind(error):
        return str(mistake)
    parsed = list(zip(overrides, OverridesParser.create().parse_overrides(overrides), strict=True))
    groups = [text for text, o in parsed if o.key_or_group in GROUPS and not o.is_sweep_override()]
    try:
        known = flatten(to_config(_compose(groups)))
    except (HydraException, OmegaConfBaseException):
        return one_line(error)
    ours = ((text, o) for text, o in parsed if not o.key_or_group.startswith(("hydra", SWEEP)))
    reasons = (_why_refused(text, o, groups, known) for text, o in ours)
    return next(filter(None, reasons), one_line(error))


def mistake_behind(error: BaseException | None) -> Mistake | None:
    """The Mistake that one of our resolvers raised inside Hydra, if any."""
    while error is not None and not isinstance(error, Mistake):
        error = error.__cause__ or error.__context__
    return error


def _why_refused(text: str, override: Override, groups: list[str], known: dict[str, Any]) -> str | None:
    """What is wrong with one override, given the chosen groups and all settings they have; None if it is fine."""
    key = override.key_or_group
    if override.is_sweep_override():
        in_sweep = "--multirun" in sys.argv
        return None if in_sweep else f"{text}: several values make a sweep; put --multirun before all settings"
    if key in GROUPS:
        return None
    if key not in known or override.is_add():
        inside = [k for k in known if k.startswith(f"{key}.")]
        beside = [k for k in known if k.rpartition(".")[0] == key.rpartition(".")[0]]
        allowed = f"; allowed there: {', '.join(sorted(inside or beside))}" if inside or beside else ""
        return f"{key}: no such setting{allowed}{nearest(key, known)}"
    try:
        _compose([*groups, text])
    except (HydraException, OmegaConfBaseException):
        return f"{text}: must be {type_in_words(known[key])}"
    return None


def type_in_words(example: Any) -> str:
    if isinstance(example, bool):
        return "true or false"
    if isinstance(example, int):
        return "a whole number"
    return "a number" if isinstance(example, float) else "text"


def one_line(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split())
