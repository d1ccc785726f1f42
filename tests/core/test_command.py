"""Commands with a few settings of their own: how words become settings, --help, and exit codes."""

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from omegaconf import MISSING

from recor_dist.core.command import plain_command, read_settings
from recor_dist.core.setting import Mistake, setting


@dataclass
class CopyConfig:
    action: str = setting(MISSING, "what to do", choices=("copy", "move"))
    file: str = setting("all", "the file")
    to: str = setting(MISSING, "the folder")
    skip: tuple[str, ...] = setting((), "a name to skip")
    data_rows: int = setting(10, "rows per file", at_least=1, key="data.rows")
    speed: float | None = setting(None, "files per second")


def read(*words: str) -> CopyConfig:
    return read_settings(CopyConfig, words, positional=("action", "file"))


def test_words_become_settings() -> None:
    assert read("copy", "to=x") == CopyConfig(action="copy", to="x")
    assert read("to=a=b", "copy", "data.rows=3", "a file", "speed=2") == CopyConfig(
        action="copy", file="a file", to="a=b", data_rows=3, speed=2.0
    )
    assert read("action=move", "to=x", "skip=a", "skip=b").skip == ("a", "b")
    assert read("copy", "to=x", "to=y").to == "y", "the last one counts"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["to=x"], "action: missing; write ACTION (see --help)"),
        (["copy"], "to: missing; write to=... (see --help)"),
        (["cpy", "to=x"], "action=cpy: allowed: copy, move; did you mean copy?"),
        (["copy", "a", "b", "to=x"], "b: no such setting; allowed: action, file, to, skip, data.rows, speed"),
        (["copy", "a", "to"], "to: not a setting; write to=value"),
        (["copy", "to=x", "data.rows=many"], "data.rows=many: must be a whole number"),
        (["copy", "to=x", "data.rows=0"], "data.rows=0: must be at least 1"),
        (["copy", "to=x", "data_rows=1"], "data_rows: no such setting; .*did you mean data.rows?"),
    ],
)
def test_a_wrong_word_is_a_mistake(words: list[str], message: str) -> None:
    with pytest.raises(Mistake, match=message.replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")):
        read(*words)


def test_help_shows_the_usage_and_every_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["copy", "--help"])
    with pytest.raises(SystemExit) as end:
        plain_command(CopyConfig, lambda _: None, ["Copies files."], positional=("action", "file"))
    assert end.value.code == 0
    assert capsys.readouterr().out.splitlines() == [
        "usage: python -m tests.core.test_command ACTION [FILE] to=... [key=value ...]",
        "",
        "Copies files.",
        "",
        "Settings:",
        "",
        "    action                       what to do (copy | move)",
        "    file                         [all] the file",
        "    to                           the folder",
        "    skip                         a name to skip; may be repeated",
        "    data.rows                    [10] rows per file",
        "    speed                        files per second",
    ]


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_command_exits_with_the_code_it_returns(
    result: int | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["copy", "copy", "to=x"])
    with pytest.raises(SystemExit) as end:
        plain_command(CopyConfig, lambda _: result, [], positional=("action",))
    assert end.value.code == code


def test_what_the_system_refuses_is_one_line_and_other_errors_of_it_are_bugs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(number: int) -> None:
        monkeypatch.setattr("sys.argv", ["copy", "copy", "to=x"])

        def main(_: CopyConfig) -> None:
            raise OSError(number, os.strerror(number), "x/y")

        plain_command(CopyConfig, main, [], positional=("action",))

    with pytest.raises(SystemExit) as end:
        fail(errno.EACCES)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said == "error: [Errno 13] Permission denied: 'x/y'; correct this, or choose another folder\n"
    with pytest.raises(OSError, match="Invalid argument"):
        fail(errno.EINVAL)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("hydra/launcher=1", "Hydra cannot use these settings: Config group override must be a string"),
        ("hydra.run.dir=/proc/x", "Hydra cannot use these settings: [Errno 2] No such file or directory: '/proc/x'"),
        ("out=a\nb", "out=a\\nb: not a setting; write key=value"),
        ("optimizer.warmup=1", "optimizer.warmup: no such setting; did you mean learner.warmup?"),
        ("out=file/x", "file/x: FILE is a file; give a folder"),
        ("out=damaged", "DAMAGED/run.json: is damaged; restore the file, or choose another out (it is not JSON)"),
        ("out=folders", "FOLDERS/run.json: is damaged; restore the file, or choose another out (it is not a file)"),
        ("out=locked scale=smoke", "[Errno 21] Is a directory: 'LOCKED/.lock'; correct this, or choose another folder"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_even_if_hydra_finds_it(words: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/run.json").write_text('{"settings": {')
    (tmp_path / "folders/run.json").mkdir(parents=True)
    (tmp_path / "locked/.lock").mkdir(parents=True)
    command = [sys.executable, "-m", "recor_dist.run", "engine=local", *words.split(" ")]  # most with scale=auto
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    for name in ("file", "damaged", "folders", "locked"):
        message = message.replace(name.upper(), f"{tmp_path}/{name}")
    assert line.startswith(f"error: {message}")
