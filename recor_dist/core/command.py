"""Command lines: Hydra puts a configuration together, and a user's mistake becomes one line and exit code 2.

Hydra reads `conf/` (groups `task`, `method`, `scale`) and the `key=value` words of a command. Every command of this
project is `command(main)`; whoever wants a configuration without a command line calls `compose`.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

import hydra
from hydra._internal.utils import get_args_parser
from hydra.conf import HelpConf
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recor_dist.core.config import SCHEMAS, Config, Mistake, check_ranges, digest, flatten, nearest, validate
from recor_dist.core.files import exists, open_folder, read_json

CONF = Path(__file__).parents[1] / "conf"
GROUPS = ("task", "method", "scale")
SWEEP = "sweep"  # the group of prepared sweeps: `+sweep=NAME` runs one
Plain = TypeVar("Plain")


@cache
def auto_scale() -> str:
    """What `scale=auto` means here: `paper` where there are GPUs, else `laptop`."""
    if os.environ.get("RAY_ADDRESS", "local") != "local":  # as in a submitted job, whose driver may see no GPU itself
        from recor_dist.core import ray_session

        return "paper" if ray_session.connect() and ray_session.device_of_cluster() == "cuda" else "laptop"
    import torch  # here, so that a mistake in the words is answered without waiting for it

    return "paper" if torch.cuda.is_available() else "laptop"


def _scale_of_out(words: list[str]) -> str | None:
    """The scale that the run in an explicit `out=` was started with: `auto` is decided once in a run's life."""
    for word in words:
        if word.startswith("out=") and word != "out=":
            out = open_folder(word.removeprefix("out="))
            return read_json(out, "run.json")["settings"]["scale"] if exists(out, "run.json") else None
    return None


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _help_text() -> str:
    lines = [
        "recor_dist trains models to find out in which order to write an answer.",
        "",
        "  python -m recor_dist.run task=arg method=recor scale=laptop seed=0    train, go on, or show the result",
        "  python -m data.prepare task=arg scale=laptop                          make or repair its data",
        "  python -m recor_dist.replay out=runs/...                              a page that plays its test answers",
        "  python -m recor_dist.solve model=runs/... prompt=...                  a trained model answers",
        "  python -m recor_dist.report runs=runs                                 tables and figures of recorded runs",
        "",
        "Groups, one choice of each:",
        *(f"    {group:<29}{' | '.join(_options(group))}" for group in GROUPS),
        f"    {'+' + SWEEP:<29}{' | '.join(_options(SWEEP))}    (optional: the paper's ablations, a run each)",
        "",
        "Settings, with the defaults of the schema; a scale sets its own (--cfg job shows the outcome):",
        "",
    ]
    sections: list[tuple[str, type]] = [("", Config)]
    sections += [(f.name, f.default_factory) for f in fields(Config) if is_dataclass(f.default_factory)]  # type: ignore
    sections += [
        (f"{group} ({group}={name})", schema) for group, named in SCHEMAS.items() for name, schema in named.items()
    ]
    for title, schema in sections:
        prefix = title.split(" ")[0]
        if title:
            lines += ["", f"  {title}"]
        lines += _settings(schema, prefix)
    return "\n".join([*lines, "", "Hydra's own options: --cfg job, --multirun, --hydra-help."])


def _settings(schema: type, prefix: str) -> Iterator[str]:
    """A line for each setting: its name, default, sentence and choices."""
    for f in fields(schema):
        if "about" in f.metadata and f.name != "name":
            default = "" if f.default is MISSING else f"[{json.dumps(f.default).strip(chr(34))}] "
            choices = f" ({' | '.join(f.metadata['choices'])})" if len(f.metadata["choices"] or ()) > 1 else ""
            key = f"{prefix}.{f.name}" if prefix else f.name
            yield f"    {key:<29}{default}{f.metadata['about']}{choices}"


@cache
def _register() -> None:
    """Tells Hydra the schemas, at first use: by then the table of tasks has been imported."""
    assert SCHEMAS["task"], "import data.tasks first: it lists the tasks"
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, named in SCHEMAS.items():
        for name, schema in named.items():
            store.store(group=group, name=f"{name}_schema", node=schema)
    help_node = HelpConf(app_name="recor_dist", header="", footer="", template=_help_text())
    store.store(group="hydra/help", name="recor_dist", node=help_node, provider="recor_dist")


OmegaConf.register_new_resolver("recor_or_baseline", lambda method: method if method == "recor" else "baseline")


def _bind(words: list[str]) -> None:
    """Lets `scale=auto` see the words it stands among: in an `out` that holds a run, it is the scale of that run."""

    def concrete(scale: str) -> str:
        return (_scale_of_out(words) or auto_scale()) if scale == "auto" else scale

    OmegaConf.register_new_resolver("concrete_scale", concrete, replace=True)
    # The same sweep goes on in the same folder, as a run does.
    OmegaConf.register_new_resolver("sweep_folder", lambda: f"runs/sweep-{digest(sorted(words))[:8]}", replace=True)


def _fitting(*counts: int, _root_: DictConfig) -> int | str:
    """Of some numbers of slots to ask for, those that an answer of the task has, as a sweep; the task's own if none."""
    M = OmegaConf.to_object(_root_.task).slots()  # type: ignore[union-attr]
    fit = [count for count in counts if M is None or count <= M] or [M]
    return fit[0] if len(counts) == 1 else ",".join(map(str, fit))


OmegaConf.register_new_resolver("fitting", _fitting, replace=True)


def compose(words: list[str]) -> Config:
    """The validated configuration that these `key=value` words name, for use without a command line."""
    _register()
    _check_words(words)
    _bind(words)
    try:
        config = _to_config(_compose(words))
    except (HydraException, OmegaConfBaseException) as error:
        raise Mistake(_explain(error, words)) from error
    validate(config)
    return config


def _compose(words: list[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=words)


def _to_config(raw: DictConfig) -> Config:
    config = OmegaConf.to_object(raw)
    assert isinstance(config, Config)
    for extra in _unknown(config):
        raise Mistake(f"{extra}: no such setting{nearest(extra, flatten(config))}")
    return config


def _unknown(config: Any, prefix: str = "") -> Iterator[str]:
    """What `+key=value` added without a place in the schema: OmegaConf hangs it onto the dataclass."""
    known = {f.name for f in fields(config)}
    for name, value in vars(config).items():
        if name not in known:
            yield prefix + name
        elif is_dataclass(value):
            yield from _unknown(value, f"{prefix}{name}.")


def words_of_command_line() -> list[str]:
    return get_args_parser().parse_args(sys.argv[1:]).overrides


def command(main: Callable[[Config], None], end_sweep: Callable[[str], None] = lambda status: None) -> NoReturn:
    """Runs `main` on the configuration of the command line. Mistakes: one line, exit 2. Bugs: a traceback.

    In a sweep the others go on when one setting fails; `end_sweep` is told in the end how it went: finished, failed or
    stopped."""
    # Hydra would shorten tracebacks and exit with 1 for everything; we tell mistakes from bugs ourselves.
    os.environ["HYDRA_FULL_ERROR"] = "1"

    words = words_of_command_line()
    codes: list[int] = []  # of the settings of a sweep

    @hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    def run(raw: DictConfig) -> None:
        sweeping = HydraConfig.get().mode == RunMode.MULTIRUN
        job = f"{' '.join(HydraConfig.get().overrides.task)}: " if sweeping else ""
        if sweeping:
            codes.append(0)
        try:
            config = _to_config(raw)
            validate(config)
            main(config)
        except (Mistake, OmegaConfBaseException) as mistake:
            _refuse(job + (str(mistake) if isinstance(mistake, Mistake) else _one_line(mistake)), end=not sweeping)
            codes[-1] = 2
        except Exception:
            if not sweeping:
                raise
            print(f"error: {job}{traceback.format_exc()}", file=sys.stderr)
            codes[-1] = 1

    status = "stopped"
    try:
        _register()
        _check_words(words)
        _bind(words)
        run()
        status = "failed" if any(codes) else "finished"
    except Mistake as mistake:
        _refuse(str(mistake))
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(_explain(error, words))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if codes:
            end_sweep(status)
    if any(codes):
        print(f"error: {sum(map(bool, codes))} of {len(codes)} settings failed; see above", file=sys.stderr)
    sys.exit(1 if 1 in codes else max(codes, default=0))


# --- commands that do not train --------------------------------------------------------------------------------------


def plain_command(schema: type[Plain], main: Callable[[Plain], None], about: list[str]) -> NoReturn:
    """Runs `main` on the settings of the command line, for a command with a few of its own. `about` heads its help.

    A value is taken as it is written, up to the end of the word: prompts are full of signs that Hydra's grammar reads.
    """
    words = sys.argv[1:]
    if {"--help", "-h"} & set(words):
        print("\n".join([*about, "", "Settings:", "", *_settings(schema, "")]))
        sys.exit(0)
    try:
        main(read_words(schema, words))
    except Mistake as mistake:
        _refuse(str(mistake))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(0)


def read_words(schema: type[Plain], words: list[str]) -> Plain:
    """Settings from `key=value` words, with the type and range that the schema gives them."""
    types = get_type_hints(schema)
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if key not in types:
            raise Mistake(f"{key}: no such setting; allowed: {', '.join(types)}{nearest(key, types)}")
        if not equals:
            raise Mistake(f"{word}: not a setting; write {key}=value")
        kind = next(t for t in (get_args(types[key]) or (types[key],)) if t is not type(None))
        try:
            values[key] = kind(text)
        except ValueError:
            raise Mistake(f"{word}: must be {_type_in_words(kind())}") from None
    missing = [f.name for f in fields(schema) if f.default is MISSING and f.name not in values]
    if missing:
        raise Mistake(f"{missing[0]}: is needed; write {missing[0]}=... (--help tells more)")
    config = schema(**values)
    check_ranges(config)
    return config


def _refuse(message: str, *, end: bool = True) -> None:
    print(f"error: {message}", file=sys.stderr)
    if end:
        sys.exit(2)


def _check_words(words: list[str]) -> None:
    """Refuses what is no `key=value`, and choices that a group does not have, before Hydra sees them."""
    for word in words:
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException:
            raise Mistake(
                f"{word}: not a setting; write key=value, for example seed=1 (quote values with spaces or brackets)"
            ) from None
        key = override.key_or_group
        if override.is_delete():
            raise Mistake(f"{word}: settings cannot be taken away; write {key}=value")
        if key == SWEEP and (not override.is_add() or override.value() not in _options(SWEEP)):
            asked, options = override.get_value_element_as_str(), _options(SWEEP)
            raise Mistake(f"{word}: write +{SWEEP}=NAME; allowed: {', '.join(options)}{nearest(asked, options)}")
        if key == "method" and word != "method=recor" and any(other.startswith(f"+{SWEEP}=") for other in words):
            raise Mistake(f"{word}: the prepared sweeps are about method=recor; leave out this or +{SWEEP}")
        if key in GROUPS and not override.is_sweep_override() and override.value() not in _options(key):
            asked, options = override.get_value_element_as_str(), _options(key)
            raise Mistake(f"{key}={asked}: allowed: {', '.join(options)}{nearest(asked, options)}")


def _explain(error: Exception, words: list[str]) -> str:
    """One line for what Hydra refused: the key, what is allowed, and the nearest right name."""
    cause: BaseException | None = error
    while cause is not None:  # resolvers of ours refuse as well, inside of Hydra
        if isinstance(cause, Mistake):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    overrides = [OverridesParser.create().parse_override(word) for word in words]
    groups = [o.input_line for o in overrides if o.key_or_group in GROUPS and not o.is_sweep_override()]
    try:
        known = flatten(_to_config(_compose(groups)))
    except (HydraException, OmegaConfBaseException):
        return _one_line(error)
    for override in overrides:
        key = override.key_or_group
        if key.startswith(("hydra", SWEEP)):
            continue
        if "--multirun" not in sys.argv and override.is_sweep_override():
            return f"{override.input_line}: several values make a sweep; put --multirun before them all"
        if key in GROUPS or override.is_sweep_override():
            continue
        if key not in known or override.is_add():
            inside = [k for k in known if k.startswith(f"{key}.")] or [
                k for k in known if k.rpartition(".")[0] == key.rpartition(".")[0]
            ]
            return f"{key}: no such setting; allowed there: {', '.join(sorted(inside))}{nearest(key, known)}"
        try:
            _compose([*groups, override.input_line])
        except (HydraException, OmegaConfBaseException):
            return f"{override.input_line}: must be {_type_in_words(known[key])}"
    return _one_line(error)


def _type_in_words(example: Any) -> str:
    if isinstance(example, bool):
        return "true or false"
    if isinstance(example, int):
        return "a whole number"
    return "a number" if isinstance(example, float) else "text"


def _one_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return " ".join(str(cause).split())
