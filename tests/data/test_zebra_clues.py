"""The two formats of Zebra clues: against clues spelled out by hand, and against each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import zebra
from data.splits import SPLITS
from data.vocab import PAD
from data.zebra import ZebraConfig
from data.zebra_clues import FORMATS, PADDING, Clue, as_array, convert, sentences
from data.zebra_rules import ENTITIES, KINDS
from recor_dist.core.rng import rng

# Clues with one, two and three entities: in the public format, in the compact one, and in words.
WRITTEN = [
    ("ends LHS c 2 1 CLUE_END", "ends c1 - -", "c1 is in the first or the last house"),
    ("= LHS c 0 2 RHS n 0 1 CLUE_END", "= a2 h2 -", "a2 and house 2 are in the same house"),
    ("immediate-left LHS n 0 0 RHS c 5 5 CLUE_END", "immediate-left h1 f5 -", "house 1 is immediately left of f5"),
    (
        "inbetween LHS c 1 2 RHS c 0 0 n 0 5 CLUE_END",
        "inbetween b2 a0 h6",
        "b2, a0 and house 6 are in this order from left to right",
    ),
]


@st.composite
def clues(draw: st.DrawFn) -> Clue:
    kind, entity = draw(st.integers(0, len(KINDS) - 1)), st.tuples(st.integers(0, 6), st.integers(0, 5))
    return kind, [draw(entity) for _ in range(ENTITIES[kind])]


@pytest.mark.parametrize(("public", "compact", "words"), WRITTEN)
def test_a_clue_reads_the_same_in_both_formats(public: str, compact: str, words: str) -> None:
    for name, text in {"public": public, "compact": compact}.items():
        assert sentences(FORMATS[name].parse(text.split())) == [words]
        assert convert(public.split(), to=name) == convert(compact.split(), to=name) == text.split()


@given(st.lists(clues(), min_size=1, max_size=12))
def test_what_is_written_is_read_back(told: list[Clue]) -> None:
    for form in FORMATS.values():
        length = int(form.lengths(as_array(told))[0])
        prompt = form.vocabulary.decode(form.write(as_array(told), length + 3)[0])
        assert prompt[length:] == [PAD] * 3, "filled on the right"
        assert form.parse(prompt[:length]) == told


def test_the_formats_share_the_tokens_of_answers_and_a_compact_clue_always_has_four() -> None:
    public, compact = FORMATS["public"].vocabulary.tokens, FORMATS["compact"].vocabulary.tokens
    assert compact[: len(public)] == public
    assert len(public) == 20 and len(compact) == 20 + 1 + 6 + 36 == len(set(compact))
    assert compact[PADDING] == PAD
    assert set(FORMATS["compact"].sizes) == {4}


@pytest.mark.parametrize("split", SPLITS)
def test_both_formats_have_the_same_puzzles_in_the_same_split_with_the_same_order_of_clues(split: str) -> None:
    rows = {
        name: zebra.shard(ZebraConfig(prompt_length=456, tokens=name), split, rng(3, "test", 0), 100)
        for name in FORMATS
    }
    one, other = rows.values()
    np.testing.assert_array_equal(one.responses, other.responses)
    np.testing.assert_array_equal(one.orders, other.orders)
    for name in one.notes:
        np.testing.assert_array_equal(one.notes[name], other.notes[name])
    for public, compact in zip(one.prompts, other.prompts, strict=True):
        told = [
            form.parse(form.vocabulary.decode(prompt[prompt != PADDING]))
            for form, prompt in zip(FORMATS.values(), (public, compact), strict=True)
        ]
        assert told[0] == told[1]


def test_52_compact_tokens_hold_every_puzzle_of_three_houses_and_three_attributes() -> None:
    task = ZebraConfig(houses="3", attributes="3", prompt_length=52, tokens="compact")
    rows = zebra.shard(task, "train", rng(3, "test", 0), 5000)
    assert rows.left_out == 0
    assert rows.notes["clues"].max() <= 13


BAD_CLUES = {
    "public": {
        "= LHS c 0 1 RHS c 1 1": "no CLUE_END",
        "LHS c 0 1 CLUE_END": "does not begin with the kind",
        "= LHS c 0 1 CLUE_END": "does not have the entities",
        "ends LHS c 0 1 RHS c 1 1 CLUE_END": "does not have the entities",
        "= LHS c 0 1 RHS n 1 1 CLUE_END": "`n 1 1` is not an entity",
        "= LHS c c 1 RHS n 0 1 CLUE_END": "`c c 1` is not an entity",
        "CLUE_END": "does not begin",
    },
    "compact": {
        "a0 = b1 -": "`a0 = b1 -` does not begin with the kind of a clue",
        "= a0 - -": "`= a0 - -` is not a clue of four tokens like `= a0 b1 -`",
        "ends a0 - - = a0 h1": "`= a0 h1` is not a clue of four tokens like `= a0 b1 -`",
        "ends a0 b1 -": "`ends a0 b1 -` is not a clue of four tokens like `ends a0 - -`",
        "inbetween a0 b1 -": "is not a clue of four tokens like `inbetween a0 b1 c2`",
        "= a0 3 -": "`= a0 3 -` is not a clue",
    },
}


@pytest.mark.parametrize(("tokens", "text"), [(name, text) for name, texts in BAD_CLUES.items() for text in texts])
def test_what_is_not_a_clue_is_refused(tokens: str, text: str) -> None:
    with pytest.raises(ValueError, match=BAD_CLUES[tokens][text]):
        FORMATS[tokens].parse(text.split())


@pytest.mark.parametrize("text", ["", "=", "= a0 LHS -", "= LHS c 0 7 RHS n 0 1 CLUE_END", "hello - CLUE_END"])
def test_what_is_not_clearly_the_other_format_is_left_to_the_checks_of_its_own(text: str) -> None:
    for name in FORMATS:
        assert convert(text.split(), to=name) == text.split()
