"""Whether the result of a finished run is what its other files say: its last checkpoint and its journal.

If they disagree, one of them was damaged, and the run counts as unfinished. It then resumes as after a kill, which
repairs the record from what is sound, or is refused.
"""

import logging
from typing import Any

from recor_dist.model.transformer import Model
from recor_dist.record.checkpoint import load_newest, weights_sha256
from recor_dist.record.journal import Journal, evaluation_metrics
from recor_dist.record.run_folder import ORDERS, RESULT, RunFolder

log = logging.getLogger(__name__)


def read_confirmed(folder: RunFolder, model: Model) -> dict[str, Any] | None:
    """The result of a finished run; None if there is none, or if something in the folder contradicts it."""
    result = folder.read_result()
    if result is None:
        return None
    try:
        doubt = _doubt(folder, model, result)
    except (KeyError, TypeError, AttributeError):  # of earlier versions, which have no checksum
        doubt = f"{RESULT} is incomplete"
    if doubt:
        log.warning("%s: %s; finishing the run again", folder.path, doubt)
        return None
    return result


def _doubt(folder: RunFolder, model: Model, result: dict[str, Any]) -> str | None:
    """What contradicts a result; None if nothing does. Checkpoints may have been removed to make room."""
    journal, steps = Journal(folder), result["steps"]
    if folder.checkpoints():
        state = load_newest(folder, model, journal.holds)
        if state is None or state.step != steps:
            return f"no sound checkpoint of its last step, {steps}"
        if weights_sha256(model, state.versions[steps]) != result["weights_sha256"]:
            return f"{RESULT} does not have the hash of the last checkpoint"
        if journal.damaged:
            return "its journal is damaged"
    if not isinstance(result["reproducible"], bool):
        return f"{RESULT} is incomplete"
    for split in ("val", "test"):
        metrics = evaluation_metrics(split, result[split])
        recorded = {k: v for r in journal.records if r["step"] == steps for k, v in r.items() if k in metrics}
        same = all(str(metrics[key]) == str(recorded[key]) for key in recorded)  # not ==, because NaN is not NaN
        if not same or f"eval/{split}/exact_match" not in recorded:
            return f"{RESULT} does not have the metrics of the journal"
    if folder.has_orders() and (folder.read_orders() or {}).keys() != result["test"]["decoders"].keys():
        return f"{ORDERS} is damaged"
    return None
