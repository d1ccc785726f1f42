"""Every point in the files that TensorBoard and Weights & Biases read, read with their own code."""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Points = dict[str, list[tuple[int, float, int]]]  # by metric: (step, value, milliseconds), sorted


def points_in_event_files(out: Path) -> Points:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    points: Points = defaultdict(list)
    for path in (out / "tensorboard").iterdir():
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                (number,) = value.tensor.float_val
                points[value.tag].append((event.step, number, round(1000 * event.wall_time)))
    return {key: sorted(values) for key, values in points.items()}


def as_float32(points: Points) -> Points:
    """As TensorBoard keeps values."""
    return {key: [(n, struct.unpack("f", struct.pack("f", x))[0], t) for n, x, t in p] for key, p in points.items()}


def points_in_offline_runs(out: Path) -> Points:
    points: Points = defaultdict(list)
    for record in records_of_offline_runs(out):
        if record.WhichOneof("record_type") == "history":
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            time = round(1000 * row["_timestamp"])
            for key, value in row.items():
                if key != "step" and not key.startswith("_"):
                    points[key].append((row["step"], float(value), time))
    return {key: sorted(values) for key, values in points.items()}


def records_of_offline_runs(out: Path) -> Iterator:
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue] made at run time
    from wandb.sdk.internal.datastore import DataStore

    for path in (out / "wandb").glob("offline-run-*/*.wandb"):
        store = DataStore()
        store.open_for_scan(str(path))
        while content := store.scan_data():
            record = Record()
            record.ParseFromString(content)
            yield record
