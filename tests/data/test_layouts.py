"""Rows as people see them: lines, boards and tables."""

from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.text import Text

from data import arg, mul, path, sudoku, zebra
from data.drawing import draw
from data.layouts import line
from data.prepare import show_row
from data.tasks import TASKS
from data.zebra_clues import PADDING
from recor_dist.core.config import TaskConfig
from recor_dist.core.messages import Rows


def shown(task: TaskConfig, prompt: list[int], response: list[int], order: list[int] | None = None) -> list[str]:
    prompts, responses = (np.array([row], dtype=np.uint8) for row in (prompt, response))
    rows = Rows(prompts, responses, None if order is None else np.array([order], dtype=np.int16))
    vocabulary = TASKS[task.name].vocabulary
    assert vocabulary is not None
    return show_row(task, vocabulary(task), rows).splitlines()


def test_a_sudoku_is_a_puzzle_an_answer_and_the_steps_of_its_blanks() -> None:
    puzzle = [0, 2, 3, 4, 3, 4, 0, 2, 2, 0, 4, 3, 4, 3, 2, 1]
    answer = [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]
    order = [*np.flatnonzero(puzzle), 6, 0, 9]
    assert shown(sudoku.SudokuConfig(size=4), puzzle, answer, order) == [
        "puzzle       answer       step",
        "· 2 │ 3 4    1 2 │ 3 4    2 · │ · ·",
        "3 4 │ · 2    3 4 │ 1 2    · · │ 1 ·",
        "────┼────    ────┼────    ────┼────",
        "2 · │ 4 3    2 1 │ 4 3    · 3 │ · ·",
        "4 3 │ 2 1    4 3 │ 2 1    · · │ · ·",
    ]


def test_a_zebra_is_its_clues_in_words_and_the_table_of_houses() -> None:
    task = zebra.ZebraConfig(houses="3", attributes="3", prompt_length=40)
    text = "= LHS c 0 1 RHS n 0 2 CLUE_END ends LHS c 2 0 CLUE_END inbetween LHS c 1 2 RHS c 0 0 c 2 1 CLUE_END"
    prompt = zebra.vocabulary(task).encode(text.split(), 40).tolist()
    response = [0, 1, 2, 2, 0, 1, 2, 1, 0, 0, 2, 1]
    order = [0, 1, 2, 5, 4, 3, 6, 7, 8, 11, 9, 10]
    compact, text = replace(task, tokens="compact"), "= a1 h3 - ends c0 - - inbetween b2 a0 c1"
    same = zebra.vocabulary(compact).encode(text.split(), 40).tolist()
    assert shown(compact, same, response, order) == shown(task, prompt, response, order)
    assert shown(task, prompt, response, order) == [
        "  1. a1 and house 3 are in the same house",
        "  2. c0 is in the first or the last house",
        "  3. b2, a0 and c1 are in this order from left to right",
        "",
        "answer                 step",
        " house   1   2   3      house  ·  ·  ·",
        " A      a2  a0  a1      A      3  2  1",
        " B      b2  b1  b0      B      4  5  6",
        " C      c0  c2  c1      C      8  9  7",
    ]


def test_the_whole_table_is_shown_even_if_no_clue_names_its_last_house_or_attribute() -> None:
    task = zebra.ZebraConfig()
    prompt = zebra.vocabulary(task).encode(["=", "LHS", "c", "0", "0", "RHS", "n", "0", "1", "CLUE_END"], 40).tolist()
    table = np.full((7, 6), PADDING, dtype=np.uint8)
    table[:4, :4] = [0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [2, 3, 0, 1]
    free = [slot for slot in range(42) if slot // 6 in (0, 4, 5, 6) or slot % 6 >= 4]
    order = [*free, *(slot for slot in range(42) if slot not in free)]
    assert shown(task, prompt, table.reshape(-1).tolist(), order)[3:] == [
        " house   1   2   3   4      house  ·   ·   ·   ·",
        " A      a1  a0  a3  a2      A      1   2   3   4",
        " B      b3  b2  b1  b0      B      5   6   7   8",
        " C      c2  c3  c0  c1      C      9  10  11  12",
    ]


def test_digits_are_a_line_below_their_prompt() -> None:
    assert shown(arg.ArgConfig(length=4, modulus=11), [1, 2, 3, 10], [4, 5, 6, 10], [3, 2, 1, 0]) == [
        "prompt 1 2 3 10",
        "answer 4 5 6 10",
        "step   4 3 2  1",
    ]
    assert shown(mul.MulConfig(digits=2, factor_digits=1), [1, 2, 10, 3, 11], [0, 3, 6]) == [
        "prompt 1 2 * 3 =",
        "answer 0 3 6",
    ]
    assert shown(path.PathConfig(arms=2, length=1), [0, 1, 0, 2, 0, 2], [0, 2], [1, 0]) == [
        "prompt 0 1 0 2 0 2",
        "answer 0 2",
        "step   2 1",
    ]


def test_a_line_wider_than_the_terminal_wraps_and_keeps_its_labels() -> None:
    layout = line([f"w{i}" for i in range(50)], M=40)
    console = Console(width=60, color_system=None)
    with console.capture() as shown:
        console.print(draw(layout, [Text(str(slot)) for slot in range(40)]))
    text = shown.get()
    assert text.startswith("prompt w0 w1")
    assert "\nanswer 0 1" in text.replace("  ", " ")
    assert all(word in text.split() for word in ("w49", "39"))


def test_coordinates_say_where_the_slots_are() -> None:
    board = TASKS["sudoku"].slot_coordinates(sudoku.SudokuConfig(size=6))
    assert [board[name][13] for name in ("row", "column", "box")] == [2, 1, 2]
    table = TASKS["zebra"].slot_coordinates(zebra.ZebraConfig(houses="3", attributes="4"))
    assert [table[name][7] for name in ("row", "column")] == [2, 1]
    assert TASKS["arg"].slot_coordinates(arg.ArgConfig(length=3))["place"].tolist() == [0, 1, 2]


def test_prompt_tokens_and_slots_share_coordinates() -> None:
    board = TASKS["sudoku"].coordinates(sudoku.SudokuConfig(size=4), 16, 16)
    assert all(np.array_equal(values[:16], values[16:]) for values in board.values())
    digits = TASKS["mul"].coordinates(mul.MulConfig(digits=2, factor_digits=1), 5, 3)
    assert digits["place"].tolist() == [1, 0, -1, 0, -1, 2, 1, 0]  # 37*8=296
    assert digits["number"].tolist() == [0, 0, 1, 2, 3, 4, 4, 4]


def test_a_compact_clue_is_a_coordinate_and_so_is_the_field_in_it() -> None:
    task = zebra.ZebraConfig(houses="3", attributes="3", prompt_length=8, tokens="compact")
    where = TASKS["zebra"].coordinates(task, 8, 12)
    assert where["clue"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, *[-1] * 12]
    assert where["field"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, *[-1] * 12]
    assert where["row"].tolist() == [*[-1] * 8, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert where["column"].tolist() == [*[-1] * 8, *[0, 1, 2] * 4]
    assert set(TASKS["zebra"].coordinates(replace(task, tokens="public"), 8, 12)) == {"place", "row", "column"}
