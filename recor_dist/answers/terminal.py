"""An answer in the terminal, filled in step by step and coloured by the model's confidence."""

import time

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text as Styled

from data.drawing import draw
from data.layouts import Layout
from data.tasks import TASKS
from recor_dist.answers.solver import Solver
from recor_dist.core.messages import Generation

SECONDS_PER_STEP = 0.35  # shorter if there are many steps
SECONDS = 8.0  # for all steps, at most
SURE, UNSURE = 0.9, 0.5  # lowest confidence of a green token, and of a yellow one


def fill_in(solver: Solver, prompt: np.ndarray, generation: Generation) -> None:
    """Replays the one answer of `generation` to a prompt (N,)."""
    console = Console()
    task, M = solver.config.task, generation.responses.shape[1]
    layout = TASKS[task.name].layout(task, solver.vocabulary.decode(prompt), M, None)
    for number, clue in enumerate(layout.clues, start=1):
        console.print(Styled(f"{number:3}. {clue['text']}", style="dim"))
    last = int(generation.last_steps[0])
    pause = min(SECONDS_PER_STEP, SECONDS / last)
    with Live(console=console, auto_refresh=False) as live:
        for step in range(last + 1):
            cells = _cells(solver, prompt, generation, layout, step)
            count = f"step {step} of {last}"
            live.update(Group(draw(layout, cells), Styled(count, "dim")), refresh=True)
            if step < last:
                time.sleep(pause)
    sure, unsure = (f"sure ({SURE} or more)", "green"), (f"unsure (below {UNSURE})", "red")
    console.print(Styled.assemble(sure, "  ", ("less sure", "yellow"), "  ", unsure))


def _cells(solver: Solver, prompt: np.ndarray, generation: Generation, layout: Layout, step: int) -> list[Styled]:
    """The answer after a step, by slot."""
    task = solver.config.task
    tokens = solver.vocabulary.decode(generation.responses[0])
    steps, confidences = generation.steps[0], generation.confidences[0]
    cells = []
    for slot, token in enumerate(tokens):
        if steps[slot] <= step:
            now = "bold reverse " if steps[slot] == step else ""
            cells.append(
                Styled(TASKS[task.name].display_name(task, slot, token), now + _style(float(confidences[slot])))
            )
        elif slot in layout.givens:
            cells.append(Styled(solver.vocabulary.tokens[prompt[slot]], "bold"))
        else:
            cells.append(Styled("·", "dim"))
    return cells


def _style(confidence: float) -> str:
    return "green" if confidence >= SURE else "yellow" if confidence >= UNSURE else "red"
