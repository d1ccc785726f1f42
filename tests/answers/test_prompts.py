"""Prompts as people write them, and what is said of those that cannot be."""

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
from recor_dist.core.config import Mistake

WORDS = Vocabulary(("left of", "b", "10", PAD))
CLUES = "= LHS c 0 2 RHS n 0 1 CLUE_END ends LHS c 2 1 CLUE_END"


def test_digits_are_read_with_and_without_spaces() -> None:
    task = ArgConfig(length=4, modulus=5)
    for written in ("0123", "0 1 2 3", " 01 23\n", ["0", "1", "2", "3"], [0, 1, 2, 3]):
        assert encode_prompt(task, arg.vocabulary(task), 4, written).tolist() == [0, 1, 2, 3]


def test_numbers_beyond_nine_are_written_with_spaces_or_as_a_list() -> None:
    task = ArgConfig(length=3, modulus=13)
    for written in ("10 0 12", '["10", "0", "12"]', "[10, 0, 12]"):
        assert encode_prompt(task, arg.vocabulary(task), 3, written).tolist() == [10, 0, 12]


def test_a_sudokus_blanks_are_dots_or_zeros() -> None:
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


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("012", "has 3 tokens, and this model takes 4"),
        ("0", "has 1 token, and this model takes 4"),
        ("01234", "has 5 tokens, and this model takes 4"),
        ("01x3", "token 3, 'x', is unknown to this model; known: 0 1 2 3 4"),
        (["0", "12"], "token 2, '12', is unknown"),
        (None, "is missing, or neither text nor a list of tokens"),
        (7.5, "is missing, or neither text nor a list of tokens"),
    ],
)
def test_what_cannot_be_is_named(written: Text, said: str) -> None:
    task = ArgConfig(length=4, modulus=5)
    with pytest.raises(Mistake, match="^" + said.replace("(", r"\(")):
        encode_prompt(task, arg.vocabulary(task), 4, written)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (CLUES.replace("LHS c 0 2", "c 0 2"), "is not made of clues: `= c 0 2 RHS n 0 1` does not begin"),
        (CLUES + " =", "is not made of clues: the last clue has no CLUE_END"),
        ("", "has no clues"),
        (CLUES.replace("c 0 2", "c 5 2"), "tells of 3 houses and 6 attributes, and this model knows 3 and 3"),
        (" ".join([CLUES] * 3), "has 48 tokens, and this model takes at most 40"),
        (CLUES.replace("ends", "end"), "token 11, 'end', is unknown"),
    ],
)
def test_what_is_no_clue_is_named(written: str, said: str) -> None:
    task = ZebraConfig(houses="3", attributes="3", prompt_length=40)
    with pytest.raises(Mistake, match="^" + said):
        encode_prompt(task, zebra.vocabulary(task), 40, written)


def test_a_large_vocabulary_is_not_listed_whole() -> None:
    vocabulary = Vocabulary(tuple(f"w{i}" for i in range(1000)))
    with pytest.raises(Mistake, match=r"known: w0 .* w23 and 976 more$"):
        encode_prompt(CustomConfig(), vocabulary, 2, "w1 nothing")


def test_a_blank_that_is_a_token_is_read() -> None:
    vocabulary = Vocabulary((" ", "a", "b"))
    assert encode_prompt(CustomConfig(), vocabulary, 3, "a b").tolist() == [1, 0, 2]


def test_pads_at_the_end_of_a_response_are_not_written() -> None:
    assert decode(WORDS, np.array([1, 2, 3, 3])) == "b 10"
    assert decode(WORDS, np.array([1, 3, 2, 3])) == f"b {PAD} 10"


@given(st.lists(st.sampled_from(WORDS.tokens[:3]), max_size=6))
def test_what_is_written_is_read_back(tokens: list[str]) -> None:
    assert tokens_of(WORDS, join(WORDS, tokens)) == tokens
    assert WORDS.decode(encode_response(WORDS, 6, join(WORDS, tokens)))[: len(tokens)] == tokens
