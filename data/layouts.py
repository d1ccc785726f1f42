"""How an answer is laid out for display: tokens in a line, a board with boxes, or a table with clues.

A `Layout` is plain data: drawing.py shows it in the terminal, and the replay page reads it as JSON.
"""

from dataclasses import dataclass, field
from typing import Any

from data.vocab import PAD


@dataclass(frozen=True)
class Layout:
    """Slot s of a board or table is in row s // stride, column s % stride; beyond `rows` and `columns` is padding."""

    kind: str  # line, board or table
    prompt: list[str]  # its tokens, without PAD
    paired: bool = False  # in a line: prompt token i belongs to slot i
    rows: int = 1
    columns: int = 0
    stride: int = 0
    box: tuple[int, int] = (1, 1)  # rows and columns of a box
    row_names: list[str] = field(default_factory=list)
    givens: list[int] = field(default_factory=list)  # slots that the prompt shows: slot i holds prompt token i
    free: list[int] = field(default_factory=list)  # slots that need no deduction
    clues: list[dict[str, Any]] = field(default_factory=list)  # {"text": sentence, "about": [[row, value], ...]}


def line(prompt: list[str], M: int) -> Layout:
    """Tokens in a line, below those of the prompt where there are as many."""
    told = [token for token in prompt if token != PAD]
    return Layout("line", told, paired=len(told) == M)
