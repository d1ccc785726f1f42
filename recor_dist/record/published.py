"""Published results: finished runs in a JSON Lines file that is small enough to commit.

A line is a run: the command that repeats it, its identity, its test metrics and order, its validation accuracy over
training, the hash of its weights, and the machine. Weights, paths and the rest of the journal stay in the run's folder.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from recor_dist.core.setting import Mistake
from recor_dist.record.runs import Run, read_run

ENDING = ".jsonl"


def publish(out: str, file: Path, command: str) -> Run:
    """Adds the finished run in `out` to a file, in place of the run with the same command."""
    run = read_run(out)
    assert run.finished, out
    settings = {key: value for key, value in run.identity.items() if key != "rows"}
    published = replace(run, place=command, settings=settings | {"scale": run.config.scale})
    others = [other for other in read_published(file) if other.place != command] if file.exists() else []
    lines = sorted(json.dumps(asdict(each), sort_keys=True) for each in [*others, published])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(line + "\n" for line in lines))
    return published


def read_published(file: Path) -> Iterator[Run]:
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise Mistake(f"{file}: cannot be read ({error.strerror})") from None
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            yield Run(**fields | {"validation": [(int(step), float(share)) for step, share in fields["validation"]]})
        except (ValueError, TypeError, KeyError) as error:
            raise Mistake(f"{file}: line {number} is not a published run ({error}); restore the file") from None
