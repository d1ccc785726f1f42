"""Prompts as people write them, and the messages for wrong ones."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import arg, mul, sudoku, zebra
from data.arg import ArgConfig
from data.custom import CustomConfig
from data.mul import MulConfig
from data.sudoku import SudokuConfig
from data.vocab import PAD, Vocabulary
from data.zebra import ZebraConfig
from recor_dist.answers.prompts import Text, decode, encode_prompt, encode_response, join, tokens_of
from recor_dist.core.setting import Mistake

WORDS = Vocabulary(("left of", "b", "10", PAD))
CLUES = "= LHS c 0 2 RHS n 0 1 CLUE_END ends LHS c 2 1 CLUE_END"
COMPACT = "= a2 h2 - ends c1 - -"


def test_digits_are_read_with_and_without_spaces() -> None:
    task = ArgConfig(length=4, modulus=5)
    for written in ("0123", "0 1 2 3", " 01 23\n", ["0", "1", "2", "3"], [0, 1, 2, 3]):
        assert encode_prompt(task, arg.vocabulary(task), 4, written).tolist() == [0, 1, 2, 3]


def test_numbers_beyond_nine_are_written_with_spaces_or_as_a_list() -> None:
    task = ArgConfig(length=3, modulus=13)
    for written in ("10 0 12", '["10", "0", "12"]', "[10, 0, 12]"):
        assert encode_prompt(task, arg.vocabulary(task), 3, written).tolist() == [10, 0, 12]


def test_blank_cells_of_a_sudoku_are_dots_or_zeros() -> None:
    task = SudokuConfig(size=4)
    for written in (".3.4..2.1...4...", "0304002010004000", ".3.4\n..2.\n1...\n4..."):
        ids = encode_prompt(task, sudoku.vocabulary(task), 16, written)
        assert "".join(map(str, ids)) == "0304002010004000"


@pytest.mark.parametrize("written", ["1234*05=", "1234*5=", "1234*5", "1234 * 05 ="])
def test_a_factor_needs_neither_its_zeros_nor_the_equals_sign(written: str) -> None:
    task = MulConfig(digits=4, factor_digits=2)
    ids = encode_prompt(task, mul.vocabulary(task), 8, written)
    assert join(mul.vocabulary(task), mul.vocabulary(task).decode(ids)) == "1234*05="


def test_clues_are_padded() -> None:
    task = ZebraConfig(houses="3", attributes="3", prompt_length=40)
    ids = encode_prompt(task, zebra.vocabulary(task), 40, CLUES)
    assert zebra.vocabulary(task).decode(ids) == CLUES.split() + [PAD] * (40 - len(CLUES.split()))


@pytest.mark.parametrize("tokens", ["public", "compact"])
def test_clues_are_written_in_either_format_whatever_the_model_reads(tokens: str) -> None:
    task = ZebraConfig(houses="3", attributes="3", prompt_length=40, tokens=tokens)
    own = (CLUES if tokens == "public" else COMPACT).split()
    for written in (CLUES, COMPACT):
        for prompt in (written, written.split(), json.dumps(written.split()), f"{written} {PAD}"):
            ids = encode_prompt(task, zebra.vocabulary(task), 40, prompt)
            assert zebra.vocabulary(task).decode(ids) == own + [PAD] * (40 - len(own))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("012", "has 3 tokens, but this model takes 4"),
        ("0", "has 1 token, but this model takes 4"),
        ("01234", "has 5 tokens, but this model takes 4"),
        ("01x3", "token 3, 'x', is not in the vocabulary; known: 0 1 2 3 4"),
        (["0", "12"], "token 2, '12', is not in the vocabulary"),
        (None, "is missing, or is neither text nor a list of tokens"),
        (7.5, "is missing, or is neither text nor a list of tokens"),
    ],
)
def test_a_wrong_token_or_length_is_named(written: Text, message: str) -> None:
    task = ArgConfig(length=4, modulus=5)
    with pytest.raises(Mistake, match="^" + message.replace("(", r"\(")):
        encode_prompt(task, arg.vocabulary(task), 4, written)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (CLUES.replace("LHS c 0 2", "c 0 2"), "is not made of clues: `= c 0 2 RHS n 0 1` does not begin"),
        (CLUES + " =", "is not made of clues: the last clue has no CLUE_END"),
        ("", "has no clues"),
        (CLUES.replace("c 0 2", "c 5 2"), "is about 3 houses and 6 attributes; this model knows at most 3 and 3"),
        (" ".join([CLUES] * 3), "has 48 tokens, but this model takes at most 40"),
        (CLUES.replace("ends", "end"), "token 11, 'end', is not in the vocabulary"),
    ],
)
def test_what_is_wrong_with_clues_is_named(written: str, message: str) -> None:
    task = ZebraConfig(houses="3", attributes="3", prompt_length=40)
    with pytest.raises(Mistake, match="^" + message):
        encode_prompt(task, zebra.vocabulary(task), 40, written)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            COMPACT.removesuffix(" -"),
            "is not made of clues: `ends c1 -` is not a clue of four tokens like `ends a0 - -`",
        ),
        (COMPACT.replace("=", "b1"), "is not made of clues: `b1 a2 h2 -` does not begin with the kind of a clue"),
        (CLUES + " =", "is not made of clues: the last clue has no CLUE_END"),
        (f"{COMPACT} {CLUES}", "has 24 tokens, but this model takes at most 20"),
        (f"= a0 h1 - {CLUES}", "is not made of clues: `= LHS c 0` is not a clue of four tokens"),
        ("", "has no clues"),
        (COMPACT.replace("a2", "e4"), "is about 5 houses and 5 attributes; this model knows at most 3 and 3"),
        (CLUES.replace("c 0 2", "c 5 2"), "is about 3 houses and 6 attributes; this model knows at most 3 and 3"),
        (" ".join([COMPACT] * 3), "has 24 tokens, but this model takes at most 20"),
        (" ".join([CLUES] * 3), "has 24 tokens, but this model takes at most 20"),
        (COMPACT.replace("a2", "a7"), "token 2, 'a7', is not in the vocabulary"),
        (CLUES.replace("c 0 2", "c 0 7"), "token 5, '7', is not in the vocabulary"),
    ],
)
def test_what_is_wrong_with_compact_clues_is_named(written: str, message: str) -> None:
    task = ZebraConfig(houses="3", attributes="3", prompt_length=20, tokens="compact")
    with pytest.raises(Mistake, match="^" + message):
        encode_prompt(task, zebra.vocabulary(task), 20, written)


def test_a_large_vocabulary_is_listed_in_part() -> None:
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(1000)))
    with pytest.raises(Mistake, match=r"known: w0 .* w23 and 976 more$"):
        encode_prompt(CustomConfig(), vocabulary, 2, "w1 nothing")


def test_a_space_that_is_a_token_is_read() -> None:
    vocabulary = Vocabulary((" ", "a", "b"))
    assert encode_prompt(CustomConfig(), vocabulary, 3, "a b").tolist() == [1, 0, 2]


def test_pads_at_the_end_of_a_response_are_omitted() -> None:
    assert decode(WORDS, np.array([1, 2, 3, 3])) == "b 10"
    assert decode(WORDS, np.array([1, 3, 2, 3])) == f"b {PAD} 10"


@given(st.lists(st.sampled_from(WORDS.tokens[:3]), max_size=6))
def test_what_is_written_is_read_back(tokens: list[str]) -> None:
    assert tokens_of(WORDS, join(WORDS, tokens)) == tokens
    assert WORDS.decode(encode_response(WORDS, 6, join(WORDS, tokens)))[: len(tokens)] == tokens
