"""How an answer is laid out for people: a line of tokens, a Sudoku board, or a table of houses.

A layout is plain JSON, for the replay page and the terminal alike:
    {"kind": "line", "prompt": [...], "paired": whether prompt and response go together token by token}
    {"kind": "sudoku", "size": 9, "box": [3, 3], "givens": [slots that the puzzle tells]}
    {"kind": "zebra", "wide": slots of a row, "houses": 4, "attributes": 3, "clues": [{"text", "about": entities}]}
"""

from typing import Any

from data import zebra
from data.sudoku import SudokuConfig
from data.sudoku_rules import BOX
from data.vocab import PAD
from data.zebra import ZebraConfig
from recor_dist.core.config import TaskConfig


def layout(task: TaskConfig, prompt: list[str], M: int, response: list[str] | None = None) -> dict[str, Any]:
    """Of an answer to a prompt. `response`: the right one, where it is known, for the size of a table."""
    told = [token for token in prompt if token != PAD]
    if isinstance(task, SudokuConfig):
        givens = [slot for slot, token in enumerate(prompt) if token != "0"]
        return {"kind": "sudoku", "size": task.size, "box": list(BOX[task.size]), "givens": givens}
    if isinstance(task, ZebraConfig):
        clues, wide = zebra.parse(told), task.range_of("houses")[1]
        houses, attributes = zebra.size(clues)
        for slot, token in enumerate(response or []):
            if token != PAD:
                houses, attributes = max(houses, slot % wide + 1), max(attributes, slot // wide)
        listed = [
            {"text": text, "about": [list(entity) for entity in entities]}
            for text, (_, entities) in zip(zebra.sentences(clues), clues, strict=True)
        ]
        return {"kind": "zebra", "wide": wide, "houses": houses, "attributes": attributes, "clues": listed}
    return {"kind": "line", "prompt": told, "paired": len(told) == M}


def called(shown: dict[str, Any], slot: int, token: str) -> str:
    """What a token in a slot is called there."""
    if token == PAD:
        return "–"
    if shown["kind"] == "zebra" and token.isdecimal():
        row = slot // shown["wide"]
        return str(int(token) + 1) if row == 0 else zebra.name(row, int(token))
    return token
