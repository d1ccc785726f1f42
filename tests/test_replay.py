"""The replay page holds the answers of the run's own test, and nothing can break out of its data."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recor_dist.core.command import plain_command
from recor_dist.core.config import Mistake
from recor_dist.core.names import name_of
from recor_dist.replay import ABOUT, ReplayConfig, as_script, main, write_replay

NASTY = ["</script>", "<!--<script>", "&lt;", "\u2028", "'\"`${1}", "ünï 一"]


class Scripts(HTMLParser):
    """The content of every script of a page, as a browser takes it apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, _: Any) -> None:
        self.inside = tag == "script"
        if self.inside:
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found[-1] += data


def content_of(page: str) -> dict[str, Any]:
    data, program = Scripts(Path(page).read_text()).found
    assert "use strict" in program
    return json.loads(data)


@pytest.mark.parametrize("words", [("method=recor",), ("method=mdm",), ("method=ao_arm", "eval.size=16")])
def test_the_answers_are_those_that_the_test_counted(
    words: tuple[str, ...], trained: Callable[..., Path], tmp_path: Path
) -> None:
    out = trained(*words)
    decoders = json.loads((out / "result.json").read_text())["test"]["decoders"]
    content = content_of(write_replay(str(out), decoders=list(decoders), rows=1000, file=f"{tmp_path}/all.html"))
    truth = np.array([example["truth"] for example in content["examples"]])
    assert truth.shape == (40, 4)
    assert [panel["name"] for panel in content["panels"]] == [name_of(name) for name in decoders]
    for panel, figures in zip(content["panels"], decoders.values(), strict=True):
        right = np.array([answer["tokens"] for answer in panel["answers"]]) == truth
        steps = np.array([answer["steps"] for answer in panel["answers"]])
        assert right.all(1).mean() == pytest.approx(figures["exact_match"])
        assert 0 < right.mean() == pytest.approx(figures["token_accuracy"])
        assert steps.mean(0) == pytest.approx(figures["mean_step"])
        assert panel["figures"] == f"{figures['exact_match']:.1%} of 40 test answers exact"
        for answer in panel["answers"]:
            assert all(1 <= step <= panel["steps"] for step in answer["steps"])
            assert all(0 < confidence <= 1 for confidence in answer["confidences"])


def test_the_page_lies_in_the_folder_of_its_run_and_asks_for_nothing_else(trained: Callable[..., Path]) -> None:
    out = trained("method=recor")
    assert write_replay(str(out)) == f"{out}/replay.html"
    page = (out / "replay.html").read_text()
    assert not re.findall(r"https?://|\bsrc=|url\(|@import|<link|innerHTML", page)
    assert len(content_of(f"{out}/replay.html")["examples"]) == 12


def test_no_token_breaks_out_of_the_page(trained: Callable[..., Path], tmp_path: Path) -> None:
    rows = [{"prompt": [a, b], "response": [b, a]} for a in NASTY for b in NASTY]
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = trained("task=custom", f"data.source={tmp_path}")
    content = content_of(write_replay(str(out), rows=36, file=f"{tmp_path}/page.html"))
    assert [example["truth"] for example in content["examples"]] == [row["response"] for row in rows]
    assert [example["layout"]["prompt"] for example in content["examples"]] == [row["prompt"] for row in rows]
    assert json.loads(as_script({"x": "".join(NASTY)})) == {"x": "".join(NASTY)}
    assert not set(as_script(NASTY)) & set("<>&\u2028")


def test_a_sudoku_shows_its_givens(trained: Callable[..., Path], tmp_path: Path) -> None:
    content = content_of(write_replay(str(trained("task=sudoku")), rows=3, file=f"{tmp_path}/page.html"))
    for example in content["examples"]:
        assert (example["layout"]["size"], example["layout"]["box"]) == (4, [2, 2])
        assert 4 <= len(example["layout"]["givens"]) < 16
        assert example["names"] == example["truth"]


def test_a_table_of_houses_shows_its_clues_in_words(trained: Callable[..., Path], tmp_path: Path) -> None:
    content = content_of(write_replay(str(trained("task=zebra")), rows=3, file=f"{tmp_path}/page.html"))
    for example in content["examples"]:
        shown = example["layout"]
        assert example["names"][: shown["houses"]] == [str(house + 1) for house in range(shown["houses"])]
        second = example["names"][shown["wide"] : shown["wide"] + shown["houses"]]
        assert sorted(second) == [f"a{value}" for value in range(shown["houses"])]
        for clue in shown["clues"]:
            assert re.search(r"house|neighbours|left of|in this order", clue["text"])
            assert all(row <= shown["attributes"] and value < shown["houses"] for row, value in clue["about"])


def test_two_runs_stand_side_by_side_if_they_answered_the_same(trained: Callable[..., Path], tmp_path: Path) -> None:
    page = f"{tmp_path}/page.html"
    one, other = str(trained("method=recor")), str(trained("method=mdm"))
    content = content_of(write_replay([one, other], file=page))
    assert [panel["name"] for panel in content["panels"]] == ["ReCOR", "AdaMDM, top probability"]
    assert [panel["steps"] for panel in content["panels"]] == [4, 20]
    twice = content_of(write_replay([one, one, str(trained("method=recor", "seed=1"))], file=page))
    assert [panel["name"] for panel in twice["panels"]] == ["ReCOR, seed 0 (1)", "ReCOR, seed 0 (2)", "ReCOR, seed 1"]
    with pytest.raises(Mistake, match="was tested on other rows"):
        write_replay([one, str(trained("task.seed=5"))], file=page)
    with pytest.raises(Mistake, match=r"^decoders=clm: no such decoder; there are recor, adamdm_prob"):
        write_replay([one, other], decoders=["clm"], file=page)


def test_rows_that_are_gone_are_made_again(trained: Callable[..., Path], tmp_path: Path) -> None:
    out = trained("task=mul")
    before = Path(write_replay(str(out), file=f"{tmp_path}/before.html")).read_text()
    shutil.move(out.parent / "shards", tmp_path / "shards")
    try:
        assert Path(write_replay(str(out), file=f"{tmp_path}/after.html")).read_text() == before
    finally:
        shutil.move(tmp_path / "shards", out.parent / "shards")


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        ("recor", "ReCOR"),
        ("ar_gt", "AR-GT"),
        ("mdm", "MDM"),
        ("sufmdm_T2", "SufMDM, T=2"),
        ("adasufmdm_margin", "AdaSufMDM, top margin"),
        ("adamdm_prob_T2", "AdaMDM, top probability, T=2"),
    ],
)
def test_decoders_are_called_as_in_the_paper(decoder: str, name: str) -> None:
    assert name_of(decoder) == name


def test_the_command_says_where_the_page_is(trained: Callable[..., Path], tmp_path: Path) -> None:
    words = [f"out={trained('method=recor')}", "rows=3", "file=pages/some.html"]
    command = [sys.executable, "-m", "recor_dist.replay", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "saved in pages/some.html\n", done.stderr
    assert len(content_of(f"{tmp_path}/pages/some.html")["examples"]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rows=3"], "out: is needed; write out=... (--help tells more)"),
        (["out=nowhere"], "nowhere: holds no run; give the folder that a run said it was saved in"),
        (["out=x", "rows=none"], "rows=none: must be a whole number"),
        (["out=x", "rows=0"], "rows=0: must be at least 1"),
        (
            ["out=x", "beide=y"],
            "beide: no such setting; allowed: out, beside, decoders, rows, file; did you mean beside?",
        ),
        (["out"], "out: not a setting; write out=value"),
    ],
)
def test_what_is_wrong_with_the_words_is_told_in_a_line(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("recor_dist.replay.set_up_logging", lambda: None)  # it is for a process of its own
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
