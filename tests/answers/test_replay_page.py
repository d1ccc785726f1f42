"""The replay page shows the answers of the run's own test, and no token can break out of its data."""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recor_dist.answers.replay_page import as_script, write_replay
from recor_dist.core.names import name_of
from recor_dist.core.setting import Mistake

NASTY = ["</script>", "<!--<script>", "&lt;", "\u2028", "'\"`${1}", "ünï 一"]


class Scripts(HTMLParser):
    """The content of every script of a page, as a browser parses it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
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


@pytest.mark.parametrize("overrides", [("method=recor",), ("method=mdm",), ("method=ao_arm", "eval.size=16")])
def test_the_answers_are_those_of_the_test(
    overrides: tuple[str, ...], trained: Callable[..., Path], tmp_path: Path
) -> None:
    out = trained(*overrides)
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


def test_the_page_is_in_the_folder_of_its_run_and_self_contained(trained: Callable[..., Path]) -> None:
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
        assert [example["layout"][key] for key in ("rows", "columns", "box")] == [4, 4, [2, 2]]
        assert 4 <= len(example["layout"]["givens"]) < 16
        assert example["names"] == example["truth"]


@pytest.mark.parametrize("words", [(), ("task.tokens=compact", "task.prompt_length=52")], ids=["public", "compact"])
def test_a_zebra_puzzle_shows_its_clues_in_words(
    words: tuple[str, ...], trained: Callable[..., Path], tmp_path: Path
) -> None:
    content = content_of(write_replay(str(trained("task=zebra", *words)), rows=3, file=f"{tmp_path}/page.html"))
    for example in content["examples"]:
        shown = example["layout"]
        houses, stride = shown["columns"], shown["stride"]
        assert example["names"][:houses] == [str(house + 1) for house in range(houses)]
        assert sorted(example["names"][stride : stride + houses]) == [f"a{value}" for value in range(houses)]
        for clue in shown["clues"]:
            assert re.search(r"house|neighbours|left of|in this order", clue["text"])
            assert all(row < shown["rows"] and value < houses for row, value in clue["about"])


def test_runs_with_the_same_test_rows_are_shown_side_by_side(trained: Callable[..., Path], tmp_path: Path) -> None:
    page = f"{tmp_path}/page.html"
    one, other = str(trained("method=recor")), str(trained("method=mdm"))
    content = content_of(write_replay([one, other], file=page))
    assert [panel["name"] for panel in content["panels"]] == ["ReCOR", "AdaMDM, top probability"]
    assert [panel["steps"] for panel in content["panels"]] == [4, 20]
    twice = content_of(write_replay([one, one, str(trained("method=recor", "seed=1"))], file=page))
    assert [panel["name"] for panel in twice["panels"]] == ["ReCOR, seed 0 (1)", "ReCOR, seed 0 (2)", "ReCOR, seed 1"]
    with pytest.raises(Mistake, match="was tested on different rows"):
        write_replay([one, str(trained("task.seed=5"))], file=page)
    with pytest.raises(Mistake, match=r"^decoders=clm: no such decoder; allowed: recor, adamdm_prob"):
        write_replay([one, other], decoders=["clm"], file=page)


def test_deleted_rows_are_made_again(trained: Callable[..., Path], tmp_path: Path) -> None:
    out = trained("task=mul")
    before = Path(write_replay(str(out), file=f"{tmp_path}/before.html")).read_text()
    shutil.move(out.parent / "shards", tmp_path / "shards")
    try:
        assert Path(write_replay(str(out), file=f"{tmp_path}/after.html")).read_text() == before
    finally:
        shutil.move(tmp_path / "shards", out.parent / "shards")
