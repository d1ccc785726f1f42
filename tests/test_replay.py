"""`python -m recor_dist.replay`, as a command."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recor_dist.core.command import plain_command
from recor_dist.replay import ABOUT, ReplayConfig, main
from tests.answers.test_replay_page import content_of


def test_the_command_prints_the_path_of_the_page(trained: Callable[..., Path], tmp_path: Path) -> None:
    settings = [f"out={trained('method=recor')}", "rows=3", "file=pages/some.html"]
    command = [sys.executable, "-m", "recor_dist.replay", *settings]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "saved in pages/some.html\n", done.stderr
    assert len(content_of(f"{tmp_path}/pages/some.html")["examples"]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rows=3"], "out: missing; write out=... (see --help)"),
        (["out=nowhere"], "nowhere: holds no run; give the folder that a run was saved in"),
        (["out=x", "rows=none"], "rows=none: must be a whole number"),
        (["out=x", "rows=0"], "rows=0: must be at least 1"),
        (
            ["out=x", "beide=y"],
            "beide: no such setting; allowed: out, beside, decoders, rows, file; did you mean beside?",
        ),
        (["out"], "out: not a setting; write out=value"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("recor_dist.replay.set_up_logging", lambda: None)  # it is meant for a separate process
    monkeypatch.setattr(sys, "argv", ["replay", *words])
    with pytest.raises(SystemExit) as ended:
        plain_command(ReplayConfig, main, ABOUT)
    assert (ended.value.code, capsys.readouterr().err) == (2, f"error: {said}\n")


def test_help_lists_the_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["replay", "--help"])
    with pytest.raises(SystemExit) as ended:
        plain_command(ReplayConfig, main, ABOUT)
    assert ended.value.code == 0
    assert re.search(r"^    rows +\[12\] test answers on the page", capsys.readouterr().out, re.M)
