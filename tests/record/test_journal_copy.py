"""TensorBoard's and Weights & Biases' files have exactly the points of the journal, whatever was killed."""

import json
import math
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from recor_dist import track
from recor_dist.core.compose import compose
from recor_dist.core.config import TrackConfig, check_package, flatten
from recor_dist.core.files import write_atomically
from recor_dist.core.setting import Mistake
from recor_dist.record.journal_copy import JournalCopy
from recor_dist.record.sending import sync_command
from tests.mlflow_store import points_in_journal
from tests.tracker_files import (
    as_float32,
    points_in_event_files,
    points_in_offline_runs,
    records_of_offline_runs,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of both libraries
READ = {"tensorboard": points_in_event_files, "wandb": points_in_offline_runs}
KINDS = pytest.mark.parametrize("kind", list(READ))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    settings = flatten(compose(["scale=smoke", "engine=local"]))
    (out / "run.json").write_text(json.dumps({"settings": settings, "reproducible": True, "status": "running"}))
    return out


def append(out: Path, *records: dict[str, Any]) -> None:
    with (out / "metrics.jsonl").open("a") as journal:
        journal.writelines(json.dumps({**record, "time": 1.7e9 + record["step"]}) + "\n" for record in records)


def expected(kind: str, out: Path) -> Any:
    points = points_in_journal(out)
    return as_float32(points) if kind == "tensorboard" else points


# A sender that dies in the middle of its work.
KILLED = """
import os, sys
from recor_dist import track
copy = track.open_copy(sys.argv[1], sys.argv[2])
copy.send()
os._exit(9)
"""


@KINDS
def test_the_files_of_a_killed_sender_are_replaced_by_those_of_the_next(kind: str, run: Path) -> None:
    append(run, *({"step": n, "loss/lm": 1 / n} for n in range(1, 20)))
    assert subprocess.run([sys.executable, "-c", KILLED, kind, str(run)], timeout=100).returncode == 9
    assert list(run.glob(track.FORMATS[kind].files)), "it left files"
    append(run, {"step": 20, "loss/lm": 0.1}, {"step": 10, "eval/val/exact_match": 0.3})  # an evaluation comes late
    copy = track.open_copy(kind, str(run))
    copy.send()
    append(run, {"step": 21, "loss/lm": 0.05})
    copy.send()
    copy.finish()
    points = READ[kind](run)
    assert points == expected(kind, run)
    assert [step for step, *_ in points["loss/lm"]] == list(range(1, 22))
    assert len(points["eval/val/exact_match"]) == 1


@KINDS
def test_a_journal_that_was_rewritten_leaves_none_of_its_earlier_points(kind: str, run: Path) -> None:
    append(run, {"step": 1, "loss/lm": 2.0}, {"step": 2, "loss/lm": math.nan})
    track.sync(str(run), [kind])
    (run / "metrics.jsonl").unlink()
    append(run, {"step": 1, "loss/lm": 3.0}, {"step": 2, "loss/lm": 1.0})
    track.sync(str(run), [kind])
    track.sync(str(run), [kind])
    assert READ[kind](run) == expected(kind, run)


@KINDS
def test_files_of_others_stay(kind: str, run: Path) -> None:
    other = run / {"tensorboard": "tensorboard/events.out.tfevents.1.mine", "wandb": "wandb/offline-run-1-abc/x"}[kind]
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    append(run, {"step": 1, "loss/lm": 2.0})
    for _ in range(2):
        track.sync(str(run), [kind])
    assert other.read_text() == "mine"
    assert len(list(other.parent.parent.rglob("events.out*" if kind == "tensorboard" else "*.wandb"))) <= 2


def test_an_object_store_gets_the_files_at_the_end() -> None:
    copy = JournalCopy(track.FORMATS["tensorboard"], "mock:///bucket", journal_path=None, experiment="some")
    settings = flatten(compose(["scale=smoke", "engine=local"]))
    copy.folder.files.base_fs.create_dir(copy.folder.path)
    copy.folder.write_run({"settings": settings, "reproducible": True, "status": "running"})
    copy.folder.write_journal(b'{"step": 1, "loss/lm": 2.0, "time": 1.0}\n')
    files = copy.folder.files
    files.create_dir("tensorboard")
    write_atomically(files, "tensorboard/events.out.tfevents.1.mine", b"mine")
    for _ in range(2):
        copy.send()
        copy.finish()
    made, other = sorted(files.get_file_info(fs.FileSelector("tensorboard")), key=lambda info: info.size, reverse=True)
    assert made.size > 4 and made.base_name.endswith(".recor_dist")
    assert other.base_name == "events.out.tfevents.1.mine", "files of others stay"


def test_the_command_that_sends_the_rest_names_the_trackers_of_the_run() -> None:
    track = TrackConfig(enabled=False, tensorboard=True)
    assert sync_command("runs/x", track) == "`python -m recor_dist.track sync out=runs/x to=tensorboard`"


def test_weights_and_biases_gets_settings_and_sends_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(run, {"step": 1, "loss/lm": 2.0})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for key in ("WANDB_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(key, address)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        track.sync(str(run), ["wandb"])
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    (about,) = [r.run for r in records_of_offline_runs(run) if r.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert (about.project, about.display_name) == ("recor_dist", "out")
    assert (config["learner.lr"], config["method"]) == (compose(["scale=smoke"]).learner.lr, "recor")


def test_a_package_that_is_missing_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config_in: Callable
) -> None:
    assert config_in("track.tensorboard=true", "track.wandb=true").track.wandb
    (tmp_path / "no_package").mkdir()  # a folder of this name is not the package
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("no_package", "nowhere"):
        with pytest.raises(Mistake, match=f"^track.x=true: the package {name} is not installed; pip install {name} -c"):
            check_package("track.x=true", name)


def test_an_unknown_destination_is_refused(run: Path) -> None:
    with pytest.raises(Mistake, match=r"^to=mlflow,tensorbord: allowed: mlflow, tensorboard, wandb; did you mean tens"):
        track._read_destinations("mlflow,tensorbord")
