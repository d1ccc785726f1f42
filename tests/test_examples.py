"""The example notebook runs, and what is committed of it is what it printed, without a trace of the machine."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "examples/orders.ipynb"
SMALLER = {
    "scale=laptop": "scale=smoke",
    "train_rows=32000": "train_rows=600",
    "checkpoint.every=50": "checkpoint.every=9",
}


def code_cells() -> list[Any]:
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]


def test_the_cells_of_the_notebook_run_at_smoke_scale(capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, one after another."""
    space: dict[str, Any] = {}
    for cell in code_cells():
        source = cell.source
        for usual, small in SMALLER.items():
            source = source.replace(usual, small)
        exec(compile(source, str(NOTEBOOK), "exec"), space)
    printed = capsys.readouterr().out
    for words in (
        "kendall_tau",
        "step 6",
        "with the solver: Agreement(",
        "answers without a mistake:",
        "regret of the",
    ):
        assert words in printed
    assert {"draw_orders", "draw_steps", "answered"} <= space.keys()


def test_the_committed_outputs_are_complete_and_name_no_path() -> None:
    text = NOTEBOOK.read_text()
    for place in ("/tmp", "/home", "/root", "/Users", str(NOTEBOOK.parent.parent), "Traceback", "Warning"):
        assert place not in text
    cells = code_cells()
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "from top to bottom, once"
    assert all(cell.outputs for cell in cells[1:])
    assert len(text) < 500_000


@pytest.mark.slow  # trains for 20 seconds, in a Jupyter kernel
def test_the_notebook_runs_in_jupyter_and_finds_the_order(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    printed = "".join(output.get("text", "") for output in outputs)
    tau = float(printed.split("kendall_tau")[1].split()[0])
    assert tau > 0.5, json.dumps(printed)
