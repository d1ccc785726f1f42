"""The replay page, driven by slider and keys, in both themes."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recor_dist.answers.replay_page import write_replay
from tests.answers.test_replay_page import content_of
from tests.browser.conftest import Page

pytestmark = pytest.mark.slow  # a browser has to start

NASTY = ["</script>", "<img src=x onerror=document.title='broken'>", "<!--<script>", "\u2028", "a long token of words"]
TASKS = [("method=recor",), ("task=mul",), ("task=sudoku",), ("task=sudoku", "task.size=9"), ("task=zebra",)]

STATE = """({
    step: Number(document.getElementById("slider").value),
    count: document.getElementById("count").textContent,
    example: Number(document.getElementById("example").value),
    written: [...document.querySelectorAll(".panel")].map(p => p.querySelectorAll(".cell.right, .cell.wrong").length),
    now: document.querySelectorAll(".panel .cell.now").length,
})"""

# Contrast, as defined by WCAG, of the text of elements against their background.
CONTRAST = """(() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const channels = colour => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = element => {
        for (let at = element; at; at = at.parentElement) {
            const colour = channels(getComputedStyle(at).backgroundColor);
            if (colour[3] === 255) return [colour];
            // A pattern: all of its colours.
            const pattern = getComputedStyle(at).backgroundImage.match(/rgba?\\([^)]*\\)/g);
            if (pattern) return pattern.map(channels);
        }
        return [[255, 255, 255]];
    };
    const found = {};
    for (const [name, selector] of Object.entries(%s)) {
        const element = document.querySelector(selector);
        const ink = light(channels(getComputedStyle(element).color));
        found[name] = Math.min(...behind(element).map(light).map(
            paper => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)));
    }
    return found;
})()"""


def address(file: str, fragment: str = "") -> str:
    return Path(file).as_uri() + fragment


def test_slider_and_keys_move_through_steps_and_examples(
    page: Page, trained: Callable[..., Path], tmp_path: Path
) -> None:
    outs = [str(trained("method=recor")), str(trained("method=mdm"))]
    page.open(address(write_replay(outs, rows=5, file=f"{tmp_path}/page.html")))
    assert page.js(STATE) == {"step": 0, "count": "step 0 / 20", "example": 0, "written": [0, 0], "now": 0}
    assert page.js("document.querySelectorAll('.panel').length") == 2

    for _ in range(3):
        page.press("ArrowRight")
    state = page.js(STATE)
    assert (state["step"], state["written"][0]) == (3, 3)
    page.press("ArrowLeft")
    assert page.js(STATE)["written"][0] == 2
    page.press("End")
    assert (page.js(STATE)["step"], page.js(STATE)["written"]) == (20, [4, 4])
    page.press("ArrowRight")
    assert page.js(STATE)["step"] == 20, "the last step stays"
    page.press("Home")
    assert page.js(STATE)["written"] == [0, 0]

    page.click("#slider", 0.5)
    assert (page.js(STATE)["step"], page.js(STATE)["written"][0]) == (10, 4)
    page.press("ArrowRight")
    assert page.js(STATE)["step"] == 11, "a key moves a focused slider by one, not by two"
    assert page.js("document.getElementById('slider').getAttribute('aria-valuetext')") == "step 11 of 20"

    page.press("n")
    assert (page.js(STATE)["example"], page.js(STATE)["step"]) == (1, 0)
    page.press("p")
    page.press("p")
    assert page.js(STATE)["example"] == 4, "from the first to the last"
    page.click("#next")
    assert page.js(STATE)["example"] == 0

    page.js("document.activeElement.blur()")
    page.press(" ")
    assert "Pause" in page.js("document.getElementById('play').textContent")
    page.wait_for(f"{STATE}.step >= 2")
    page.press(" ")
    paused = page.js(STATE)["step"]
    assert "Play" in page.js("document.getElementById('play').textContent")
    page.press("ArrowRight")
    assert page.js(STATE)["step"] == paused + 1
    page.press("End")
    page.click("#play")
    page.wait_for(f"{STATE}.step < 20 && {STATE}.step > 0")  # it starts again
    page.wait_for(f"{STATE}.step === 20 && document.getElementById('play').textContent.includes('Play')")
    assert page.errors == []


def test_bars_show_how_many_slots_each_pass_writes_and_lead_there(
    page: Page, trained: Callable[..., Path], tmp_path: Path
) -> None:
    out = str(trained("task=sudoku", "method=mdm"))
    decoders = ["entropy_bounded:2", "adamdm_margin:T=3", "mdm_confidence"]
    file = write_replay(out, decoders=decoders, rows=3, file=f"{tmp_path}/page.html")
    page.open(address(file))
    panels = content_of(file)["panels"]
    bars = page.js("[...document.querySelectorAll('.panel')].map(p => p.querySelectorAll('.passes button').length)")
    assert bars == [panels[0]["answers"][0]["last"], 3, 0], "a decoder of one slot per pass has no bars"
    steps = panels[1]["answers"][0]["steps"]
    page.js("document.querySelectorAll('.panel')[1].querySelectorAll('.passes button')[1].click()")
    state = page.js(STATE)
    assert (state["step"], state["written"][1]) == (2, sum(step <= 2 for step in steps))
    title = page.js("document.querySelector('.panel .passes .now').title")
    assert title.startswith("Step 2: ")
    page.press("End")
    said = page.js("document.querySelectorAll('.panel .said')[1].textContent")
    assert said == "Done after 3 steps."


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_follow_the_system_and_the_switch(
    theme: str, page: Page, trained: Callable[..., Path], tmp_path: Path
) -> None:
    other = {"light": "dark", "dark": "light"}[theme]
    paper = "getComputedStyle(document.body).backgroundColor"
    page.prefer(theme)
    file = write_replay(str(trained("task=sudoku")), rows=5, file=f"{tmp_path}/page.html")
    page.open(address(file, "#step=9"))
    assert page.js("document.documentElement.dataset.theme") == theme
    before = page.js(paper)
    assert (sum(map(int, before[4:-1].split(","))) > 3 * 128) == (theme == "light")
    texts = {"text": "h1", "soft": "header p", "right": ".cell.right .token", "wrong": ".cell.wrong .token"}
    texts |= {"given": ".cell.given .token", "mark": ".cell.wrong .mark", "button": "#play", "count": "#count"}
    for name, contrast in page.js(CONTRAST % json.dumps(texts)).items():
        assert contrast >= 4.5, f"{name} has contrast {contrast:.2f} in the {theme} theme"
    page.press("t")
    assert page.js("document.documentElement.dataset.theme") == other
    assert page.js(paper) != before
    page.open(address(file))
    assert page.js("document.documentElement.dataset.theme") == other, "the choice is remembered"
    page.click("#theme")
    assert page.js(paper) == before
    assert page.errors == []


@pytest.mark.parametrize("words", TASKS, ids=["arg", "mul", "sudoku4", "sudoku9", "zebra"])
def test_every_task_fits_a_phone_and_has_labels(
    words: tuple[str, ...], page: Page, trained: Callable[..., Path], tmp_path: Path
) -> None:
    file = write_replay(str(trained(*words)), rows=3, file=f"{tmp_path}/page.html")
    for width in (320, 390, 1200):
        page.resize(width, 800)
        page.open(address(file, "#example=2&step=999"))
        assert page.js("document.documentElement.scrollWidth") <= width
        beyond = (
            "[...document.querySelectorAll('.cell')].filter(c => c.getBoundingClientRect().right > innerWidth).length"
        )
        assert page.js(beyond) == 0
    cells = page.js(
        "[...document.querySelectorAll('.panel .cell')].map(c => [c.className, c.getAttribute('aria-label'), "
        "c.querySelector('.mark').textContent, getComputedStyle(c).borderTopStyle, c.querySelector('i').clientWidth])"
    )
    assert {"✓", "✗"} >= {mark for _, _, mark, _, _ in cells}
    for name, said, mark, border, bar in cells:
        wrong = "wrong" in name.split()
        assert ("wrong, should be" in said, mark, border) == ((True, "✗", "dashed") if wrong else (False, "✓", "solid"))
        assert re.search(r"confidence [\d.]+%$", said)
        assert bar > 0, "the bar shows the confidence"
    assert any("wrong" in name for name, *_ in cells), "a model trained for seconds makes mistakes"
    if words[0] == "task=zebra":
        assert page.js("document.querySelectorAll('.clues li').length") > 3
    assert page.errors == []
    assert {url.split(":")[0] for url in page.requests} <= {"file", "about"}, "nothing else is requested"


def test_givens_are_bold_and_boxes_are_separated(page: Page, trained: Callable[..., Path], tmp_path: Path) -> None:
    page.open(address(write_replay(str(trained("task=sudoku")), rows=1, file=f"{tmp_path}/page.html")))
    weights = page.js("[...document.querySelectorAll('.panel .given .token')].map(t => getComputedStyle(t).fontWeight)")
    assert set(weights) == {"800"}
    shown = page.js("[...document.querySelectorAll('.panel .cell .token')].map(t => t.textContent).join('')")
    assert len(shown) == len(weights), "before the first step, only the givens are shown"
    lefts = page.js(
        "[...document.querySelectorAll('.panel .cell')].slice(0, 4).map(c => c.getBoundingClientRect().left)"
    )
    gaps = [b - a for a, b in itertools.pairwise(lefts)]
    assert gaps[1] > gaps[0] + 3 and gaps[0] == pytest.approx(gaps[2], abs=0.5)


def test_clues_about_the_newest_token_are_highlighted(page: Page, trained: Callable[..., Path], tmp_path: Path) -> None:
    page.open(address(write_replay(str(trained("task=zebra")), rows=1, file=f"{tmp_path}/page.html")))
    marked = []
    for _ in range(page.js("Number(document.getElementById('slider').max)")):
        page.press("ArrowRight")
        written = page.js("[...document.querySelectorAll('.panel .cell.now .token')].map(t => t.textContent)")
        clues = page.js("[...document.querySelectorAll('.clues li.now')].map(c => c.textContent)")
        marked += clues
        for clue in clues:
            assert any(name in clue for name in written)
    assert marked


def test_no_token_runs_as_code(page: Page, trained: Callable[..., Path], tmp_path: Path) -> None:
    rows = [{"prompt": [a, b, a], "response": [b, a]} for a in NASTY for b in NASTY]
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = trained("task=custom", f"data.source={tmp_path}")
    page.resize(320, 800)
    page.open(address(write_replay(str(out), rows=25, file=f"{tmp_path}/page.html"), "#step=2"))
    for row in rows:
        assert page.js("document.querySelector('.tokens').textContent") == "".join(row["prompt"])
        assert page.js("document.documentElement.scrollWidth") <= 320
        page.press("n")
    assert page.js("document.title") == "Replay · recor_dist"
    assert page.js("document.images.length + document.scripts.length") == 2
    assert page.errors == []
