"""Command lines: every command is `command(main)` or `plain_command(schema, main, about)`.

`command` is for those that take the configuration of a run, which Hydra composes (see compose.py); `plain_command` for
those with a few settings of their own. A user's mistake becomes one line and exit code 2, a bug keeps its traceback.
"""

import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields, is_dataclass
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig
from omegaconf.errors import OmegaConfBaseException

from recor_dist.core.compose import (
    CONF,
    GROUPS,
    SWEEP,
    ScaleOfRun,
    explain,
    mistake_behind,
    one_line,
    options,
    prepare,
    to_config,
    type_in_words,
)
from recor_dist.core.config import SCHEMAS, Config, validate
from recor_dist.core.setting import Mistake, check_ranges, nearest

Plain = TypeVar("Plain")
# What the operating system refuses because of the user's folders or disk; any other OSError is a bug.
REFUSALS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR),
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE),
}


# --- commands that take the configuration of a run -------------------------------------------------------------------


def command(
    main: Callable[[Config], None],
    end_sweep: Callable[[str], None] = lambda status: None,
    scale_of_run: ScaleOfRun = lambda out: None,
) -> NoReturn:
    """Runs `main` on the configuration of the command line, and exits.

    In a sweep, the remaining settings run even if one fails; at its end, `end_sweep` gets `finished`, `failed` or
    `stopped`. `scale_of_run` reads the scale of the run in a folder: with an `out` that holds a run, `scale=auto` means
    that scale.
    """
    # Hydra would shorten tracebacks and exit with 1 for everything; we tell mistakes from bugs ourselves.
    os.environ["HYDRA_FULL_ERROR"] = "1"

    arguments = get_args_parser().parse_args(sys.argv[1:])
    if arguments.help:
        with _closed_pipe_ends():
            print(_help_of_a_run())
        sys.exit(0)
    codes: list[int] = []  # the exit code of each setting of a sweep
    begun = False  # True once Hydra has composed a configuration

    @hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    def run(raw: DictConfig) -> None:
        nonlocal begun
        begun = True
        sweeping = HydraConfig.get().mode == RunMode.MULTIRUN
        job = f"{' '.join(HydraConfig.get().overrides.task)}: " if sweeping else ""
        if sweeping:
            codes.append(0)
        try:
            config = to_config(raw)
            validate(config)
            main(config)
        except Exception as error:
            reason = _mistake_in(error)
            if not sweeping:
                if reason is None:
                    raise
                _refuse(reason)
            if reason is None:
                _print_error(job + traceback.format_exc())
            else:
                _print_mistake(job + reason)
            codes[-1] = 1 if reason is None else 2

    status = "stopped"
    try:
        prepare(arguments.overrides, scale_of_run)
        run()
        status = "failed" if any(codes) else "finished"
    except Mistake as mistake:
        _refuse(str(mistake))
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(explain(error, arguments.overrides))
    except (OSError, ValueError) as error:
        if begun:
            raise
        _refuse(f"Hydra cannot use these settings: {one_line(error)}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if codes:
            end_sweep(status)
    if any(codes):
        _print_error(f"{sum(map(bool, codes))} of {len(codes)} settings failed; see above")
    sys.exit(1 if 1 in codes else max(codes, default=0))


def overrides_of_command_line() -> list[str]:
    return get_args_parser().parse_args(sys.argv[1:]).overrides


# --- commands with a few settings of their own -----------------------------------------------------------------------


def plain_command(
    schema: type[Plain], main: Callable[[Plain], int | None], about: list[str], positional: Sequence[str] = ()
) -> NoReturn:
    """Runs `main` on the settings of the command line, and exits with the code it returns, or 0. `about` heads --help.

    Words without `=` are the values of the settings in `positional`, in that order. A setting typed `tuple[str, ...]`
    may be given several times. A value is everything after the first `=`: prompts are full of characters that Hydra's
    grammar would interpret.
    """
    words = sys.argv[1:]
    code = None
    try:
        with _closed_pipe_ends():
            if {"--help", "-h"} & set(words):
                print("\n".join([_usage(schema, positional), "", *about, "", "Settings:", "", *_settings(schema)]))
            else:
                code = main(read_settings(schema, words, positional))
    except (Mistake, OSError) as error:
        reason = _mistake_in(error)
        if reason is None:
            raise
        _refuse(reason)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code or 0)


@contextmanager
def _closed_pipe_ends() -> Iterator[None]:
    """Exits without a traceback when the reader of our output closes it, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def read_settings(schema: type[Plain], words: Sequence[str], positional: Sequence[str] = ()) -> Plain:
    """The settings given by the words of a command line, with the types and ranges of the schema."""
    by_key = _by_key(schema)
    types = get_type_hints(schema)
    places = iter(positional)
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals and (place := next(places, None)):
            key, text = place, word
        elif key not in by_key:
            raise Mistake(f"{key}: no such setting; allowed: {', '.join(by_key)}{nearest(key, by_key)}")
        elif not equals:
            raise Mistake(f"{word}: not a setting; write {key}=value")
        name = by_key[key].name
        if not text and not by_key[key].metadata["may_be_empty"]:
            raise Mistake(f"{key}=: has no value; write {key}=VALUE, or omit it")
        value = _parse(key, text, types[name])
        values[name] = (*values.get(name, ()), value) if get_origin(types[name]) is tuple else value
    for key, f in by_key.items():
        if f.default is MISSING and f.name not in values:
            raise Mistake(f"{key}: missing; write {key.upper() if key in positional else f'{key}=...'} (see --help)")
    settings = schema(**values)
    check_ranges(settings)
    return settings


def _parse(key: str, text: str, hint: Any) -> Any:
    """Text as a value of the type in a hint; `X | None` and `tuple[X, ...]` count as X."""
    kind = next(t for t in (get_args(hint) or (hint,)) if t is not type(None))
    try:
        return kind(text)
    except ValueError:
        raise Mistake(f"{key}={text}: must be {type_in_words(kind())}") from None


def _mistake_in(error: Exception) -> str | None:
    """What the user can correct, in a line; None for a bug."""
    if isinstance(error, Mistake | OmegaConfBaseException):
        return str(mistake_behind(error) or one_line(error))
    if isinstance(error, OSError) and error.errno in REFUSALS:
        return f"{one_line(error)}; correct this, or choose another folder"
    return None


def _refuse(message: str) -> NoReturn:
    _print_mistake(message)
    sys.exit(2)


def _print_mistake(message: str) -> None:
    """Prints one line, even if a value in the message has several."""
    _print_error("\\n".join(message.splitlines()))


def _print_error(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)


# --- help ------------------------------------------------------------------------------------------------------------


def _help_of_a_run() -> str:
    lines = [
        "recor_dist trains models that find out in which order to write an answer.",
        "",
        "  python -m recor_dist.run task=arg method=recor scale=laptop seed=0    train, resume, or show the result",
        "  python -m data.prepare task=arg scale=laptop                          make or repair its data",
        "  python -m recor_dist.status out=runs/...                              what a running run does",
        "  python -m recor_dist.replay out=runs/...                              a page that replays its test answers",
        "  python -m recor_dist.solve model=runs/... prompt=...                  answer with a trained model",
        "  python -m recor_dist.evaluate out=runs/... decoders=...               score it with more decoders or rows",
        "  python -m recor_dist.report runs=runs                                 tables and figures of recorded runs",
        "  python -m recor_dist.export out=runs/... folder=...                   its model, which needs only torch",
        "  python -m recor_dist.packaged out=runs/...                            its model in the form of MLflow",
        "  python -m recor_dist.track sync out=runs/...                          send MLflow what it does not have yet",
        "  python -m recor_dist.check_gpu                                        check bits and speed on this machine",
        "",
        "Groups, one choice of each:",
        "",
        *(f"    {group:<29}{' | '.join(options(group))}" for group in GROUPS),
        f"    {'+' + SWEEP:<29}{' | '.join(options(SWEEP))}    (optional: the paper's ablations, one run per setting)",
        "",
        "Settings, with their [defaults]; the scale sets many of them (--cfg job prints the result):",
        "",
        *_settings(Config),
    ]
    for f in fields(Config):
        if is_dataclass(f.default_factory):
            lines += ["", f"  {f.name}", *_settings(f.default_factory, f"{f.name}.")]
    for group, named in SCHEMAS.items():
        for name, schema in named.items():
            about = (schema.__doc__ or "").split("\n")[0]
            lines += ["", f"  {f'{group}={name}':<31}{about}", *_settings(schema, f"{group}.")]
    return "\n".join([*lines, "", "Hydra's own options: --cfg job, --multirun, --hydra-help."])


def _usage(schema: type, positional: Sequence[str]) -> str:
    """`usage: python -m data.import_public TASK FILE [key=value ...]`: what must be given, then the rest."""
    spec = sys.modules["__main__"].__spec__
    module = spec.name if spec and schema.__module__ == "__main__" else schema.__module__
    required = {key: f.default is MISSING for key, f in _by_key(schema).items()}
    words = [key.upper() if required[key] else f"[{key.upper()}]" for key in positional]
    words += [f"{key}=..." for key, needed in required.items() if needed and key not in positional]
    return " ".join(["usage: python -m", module, *words, "[key=value ...]"])


def _settings(schema: type, prefix: str = "") -> Iterator[str]:
    """A line for each setting: its key, default, sentence and choices."""
    for f in fields(schema):
        if "about" in f.metadata and f.name != "name":
            about = f.metadata["about"]
            # `null` says nothing unless the sentence explains it.
            shown = f.default not in (MISSING, (), None) or (f.default is None and "null" in about)
            default = f"[{json.dumps(f.default).strip(chr(34))}] " if shown else ""
            choices = f" ({' | '.join(f.metadata['choices'])})" if len(f.metadata["choices"] or ()) > 1 else ""
            repeated = "; may be repeated" if f.default == () else ""
            yield f"    {prefix + _key(f):<29}{default}{about}{choices}{repeated}"


def _by_key(schema: type) -> dict[str, Field]:
    return {_key(f): f for f in fields(schema)}


def _key(f: Field) -> str:
    """The key under which a setting is written."""
    return f.metadata.get("key") or f.name
