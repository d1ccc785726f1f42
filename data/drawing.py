"""Layouts drawn for the terminal, one cell per slot. Not in layouts.py, so that a served model does not need rich."""

from rich.table import Table
from rich.text import Text

from data.layouts import Layout


def draw(layout: Layout, cells: list[Text]) -> Table:
    """One cell per slot as a line, a board with its boxes, or a table."""
    return {"line": _draw_line, "board": _draw_board, "table": _draw_table}[layout.kind](layout, cells)


def draw_side_by_side(layout: Layout, panels: dict[str, list[str]]) -> Table:
    """Several drawings of one layout under their titles; lines go below one another."""
    if layout.kind == "line":
        return _draw_lines(layout, {title: [Text(cell) for cell in cells] for title, cells in panels.items()})
    grid = Table(*panels, box=None, padding=(0, 4, 0, 0), header_style="")
    grid.add_row(*(draw(layout, [Text(cell) for cell in cells]) for cells in panels.values()))
    return grid


def _draw_line(layout: Layout, cells: list[Text]) -> Table:
    return _draw_lines(layout, {"answer": cells})


def _draw_lines(layout: Layout, lines: dict[str, list[Text]]) -> Table:
    """The prompt, and lines of one cell per slot, slot below slot; the prompt's tokens too, where they are paired."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim")
    table.add_column()
    aligned = [*lines.values(), *([[Text(token) for token in layout.prompt]] if layout.paired else [])]
    widths = [max(map(len, column)) for column in zip(*aligned, strict=True)]
    if layout.paired:
        table.add_row("prompt", " ".join(t.rjust(w) for t, w in zip(layout.prompt, widths, strict=True)))
    elif layout.prompt:
        table.add_row("prompt", " ".join(layout.prompt))
    for title, cells in lines.items():
        table.add_row(title, Text(" ").join(_right(cell, width) for cell, width in zip(cells, widths, strict=True)))
    return table


def _draw_board(layout: Layout, cells: list[Text]) -> Table:
    high, wide = layout.box
    width = max(map(len, cells))
    cells = [_right(cell, width) for cell in cells]
    table = Table.grid()
    for row in range(layout.rows):
        start = row * layout.stride
        groups = [Text(" ").join(cells[start + g : start + g + wide]) for g in range(0, layout.columns, wide)]
        if row and row % high == 0:
            table.add_row(Text("─┼─".join("─" * len(group) for group in groups), style="dim"))
        table.add_row(Text(" │ ").join(groups))
    return table


def _draw_table(layout: Layout, cells: list[Text]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column()
    for _ in range(layout.columns):
        table.add_column(justify="right")
    for row in range(layout.rows):
        start = row * layout.stride
        table.add_row(layout.row_names[row], *cells[start : start + layout.columns])
    return table


def _right(cell: Text, width: int) -> Text:
    cell = cell.copy()
    cell.align("right", width)
    return cell
