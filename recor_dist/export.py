"""`python -m recor_dist.export out=DIR folder=DIR`: a trained model as a folder that needs only torch to answer.

    model.safetensors   the weights by name
    config.json         settings, shape and vocabulary
    answer.py           all the code that answers, in one file (answers/one_file.py)
    README.md           a model card: results, order map, hash, how to use it
    order_map.png       when each slot is filled

The folder has the form of a Hugging Face repository. Nothing is pushed: `hf upload` does that.
"""

import json
import shlex
from dataclasses import dataclass
from typing import Any

import safetensors.numpy
from omegaconf import MISSING
from pyarrow import fs

from data.vocab import PAD
from recor_dist.answers.one_file import GROUPS, describe_model, write_one_file
from recor_dist.answers.prompts import how_written, join
from recor_dist.answers.replay_page import read_test_rows
from recor_dist.answers.solver import Solver, load_solver
from recor_dist.core.command import plain_command
from recor_dist.core.files import exists, open_folder, write_atomically
from recor_dist.core.files import join as join_uri
from recor_dist.core.names import name_of
from recor_dist.core.setting import Mistake, setting
from recor_dist.figures.order_map import draw_orders
from recor_dist.figures.run_pictures import title_of_run
from recor_dist.figures.style import to_bytes
from recor_dist.record.run_folder import EXPORTED, WEIGHTS, RunFolder

CODE, CARD, MAP = "answer.py", "README.md", "order_map.png"
ABOUT = [
    "Writes the newest weights of a run as a folder in the form of a Hugging Face repository: safetensors,",
    "config.json, a model card, and one Python file that answers prompts and needs torch, numpy and safetensors only.",
    "",
    "  python -m recor_dist.export out=runs/demo folder=exported",
    "  python exported/answer.py 001232104321",
    "",
    "Nothing is pushed; `hf upload NAME exported` does that.",
]


@dataclass
class ExportConfig:
    """The run, and where its model is written."""

    out: str = setting(MISSING, "folder of a run")
    folder: str = setting(MISSING, "folder for the files; those of an earlier export there are replaced")


def export(out: str, folder: str) -> None:
    """Writes the newest weights of the run in `out`, and what answers with them, to `folder`."""
    place = open_folder(folder)
    made_here = all(exists(place, name) for name in (WEIGHTS, EXPORTED, CODE))
    if place.get_file_info(fs.FileSelector("", allow_not_found=True)) and not made_here:
        raise Mistake(f"folder={folder}: holds files, but no exported model; choose another folder")
    solver, source = load_solver(out), RunFolder.open(out)
    run, weights = source.require_run(), solver.model.named_weights(solver.model.weights())
    title, picture = title_of_run(solver.config), _order_map(solver, source)
    files = {
        WEIGHTS: safetensors.numpy.save({name: value.copy() for name, value in weights.items()}),
        EXPORTED: (json.dumps(describe_model(solver), indent=2, ensure_ascii=False) + "\n").encode(),
        CODE: write_one_file(solver, f"{title}: answers prompts. Made by recor_dist.export.", EXPORTED).encode(),
        CARD: write_card(title, solver, source, run, bool(picture)).encode(),
    }
    place = open_folder(folder, create=True)
    if exists(place, MAP):
        place.delete_file(MAP)  # this run may have none
    for name, content in (files | ({MAP: picture} if picture else {})).items():
        write_atomically(place, name, content)


def _order_map(solver: Solver, source: RunFolder) -> bytes | None:
    """The picture of a finished run's orders; a run that is not finished has none."""
    orders = source.read_orders()
    if orders is None:
        return None
    return to_bytes(draw_orders(title_of_run(solver.config), solver.config, orders)["order_map"], "png")


# --- the model card --------------------------------------------------------------------------------------------------

CARD_TEXT = """\
---
library_name: recor_dist
tags: [recor, generation-order]
---

# {title}

This model decides in which order the slots of an answer are written. It was trained with recor_dist, which implements
ReCOR (*Reinforced Context Order Recovery*, NeurIPS 2025) and its baselines.

## Use

It needs torch, numpy and safetensors. Prompts are {how}.

```sh
{command}
```

```json
{answer}
```

In Python: `from answer import load`, then `load(folder).answers([prompt, ...])`. `order` has the slots, counted from 0,
in the order in which they were filled; `steps` and `confidences` are by slot. Decoders: {decoders}; the first is the
default.

## Results

{results}

{order}## Training

The run is a pure function of its settings and its rows, whose SHA-256 is `{rows}`. Those that define task, method and
model:

```
{settings}
```
"""


def write_card(title: str, solver: Solver, source: RunFolder, run: dict[str, Any], has_map: bool) -> str:
    """README.md: what the model is, how well it answers, and how it was made."""
    settings, (command, answer) = run["settings"], _example(solver)
    trained = "\n".join(f"{key}: {settings[key]}" for key in sorted(settings) if key.split(".")[0] in GROUPS)
    return CARD_TEXT.format(
        title=title,
        how=how_written(solver.vocabulary),
        command=command,
        answer=answer,
        decoders=", ".join(f"`{name}`" for name in solver.names),
        results=_results(source.read_result()),
        order=f"![How often each slot was filled at each step of the test]({MAP})\n\n" if has_map else "",
        rows=run.get("data"),
        settings=trained,
    )


def _example(solver: Solver) -> tuple[str, str]:
    """A command with a prompt of the test split, and what it prints."""
    try:
        (row,) = read_test_rows(solver.config, 1).prompts[:1]
    except Mistake:  # the user's own rows are gone
        return f"python {CODE} PROMPT", '{"prompt": "PROMPT", "response": ...}'
    prompt = join(solver.vocabulary, [token for token in solver.vocabulary.decode(row) if token != PAD])
    answer = {"prompt": prompt, **solver.answers([prompt])[0], "decoder": solver.choose(None)}
    return f"python {CODE} {shlex.quote(prompt)}", json.dumps(answer, ensure_ascii=False)


def _results(result: dict[str, Any] | None) -> str:
    if result is None:
        return "The run is not finished."
    lines = ["| decoder | test rows | exact match | token accuracy | Kendall's tau | passes |", "|---" * 6 + "|"]
    for decoder, figures in result["test"]["decoders"].items():
        tau = f"{figures['kendall_tau']:.3f}" if "kendall_tau" in figures else "-"
        accuracy = f"{figures['exact_match']:.4f} | {figures['token_accuracy']:.4f}"
        lines.append(f"| {name_of(decoder)} | {figures['rows']:,} | {accuracy} | {tau} | {figures['forward_passes']} |")
    return "\n".join([*lines, "", f"SHA-256 of the weights as trained: `{result['weights_sha256']}`"])


def main(config: ExportConfig) -> None:
    export(config.out, config.folder)
    print(f"exported to {config.folder}; `python {join_uri(config.folder, CODE)} PROMPT` answers")


if __name__ == "__main__":
    plain_command(ExportConfig, main, ABOUT)
