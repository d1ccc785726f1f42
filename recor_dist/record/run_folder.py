"""The folder of a run: the name of every file in it, and how each is read and written.

    run.json           what the run is, and its status: settings, identity, shape, vocabulary, machine, status
    metrics.jsonl      the journal: a line per step and per evaluation
    snapshot.json      what a running run does at the moment
    profile.json.gz    a trace of ten steps, with profile=true
    checkpoints/       what a resumed run needs
    result.json        written last: the run is finished
    orders.json        how often each slot was filled at each step of the test
    evaluations.jsonl  what `recor_dist.evaluate` measured later, a line per decoder and set of rows; only ever appended
    pictures/          PNGs of the finished run
    replay.html        the page that replays its test answers
    model/             the MLflow model
    artifacts.json     the SHA-256 of every file of these three, and of the profile
    tensorboard/       the journal as event files, with track.tensorboard=true
    wandb/             the journal as an offline run of Weights & Biases, with track.wandb=true
    track.json         how much of this was delivered to MLflow
    track.log          what MLflow printed meanwhile

The folder of a sweep has sweep.json instead of run.json, and a journal and pictures like a run.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from recor_dist.core.files import (
    exists,
    is_local,
    join,
    open_folder,
    read_bytes,
    write_atomically,
    write_json,
)
from recor_dist.core.locks import exclusive
from recor_dist.core.sealed import Damaged, open_file, seal_file
from recor_dist.core.setting import Mistake

RUN = "run.json"
RESULT = "result.json"
ORDERS = "orders.json"
JOURNAL = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
SNAPSHOT = "snapshot.json"
PROFILE = "profile.json.gz"
SWEEP = "sweep.json"
CHECKPOINTS = "checkpoints"
COMMIT, WEIGHTS, STATE = "checkpoint.json", "model.safetensors", "state.safetensors"  # the files of a checkpoint
PICTURES = "pictures"
REPLAY = "replay.html"
MODEL = "model"
CHECKSUMS = "artifacts.json"
PACKAGED = "data/solver"  # in an MLflow model, the folder of what we put into it
ABOUT = "about.json"  # in there, what the model is; its weights have the name that they have in a checkpoint
EXPORTED = "config.json"  # what an exported model is, next to its weights of that name
DELIVERED = "track.json"
SENDER_LOG = "track.log"
SENDER_LOCK = ".track.lock"
EVALUATION_LOCK = ".evaluations.lock"
# Without these in run.json, nothing can be done with a run.
NEEDED = ("task.name", "method.name", "scale", "seed", "lag", "device", "precision", "engine")
# MLflow gets them in this order: as files of the run, and MODEL as a LoggedModel.
ARTIFACTS = (RESULT, ORDERS, EVALUATIONS, REPLAY, PICTURES, MODEL)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run or of a sweep. `read_...` returns None for a file that does not exist, or that is
    damaged but can be made again, which it logs; writing is atomic. Every JSON file carries a checksum (sealed.py)."""

    uri: str
    files: fs.SubTreeFileSystem

    @staticmethod
    def open(uri: str, *, create: bool = False) -> "RunFolder":
        return RunFolder(uri, open_folder(uri, create=create))

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def path(self) -> str:
        """Its path in its file system, for messages."""
        return self.files.base_path.rstrip("/")

    @property
    def is_local(self) -> bool:
        return is_local(self.files)

    def place(self, *names: str) -> str:
        """The URI of something in the folder."""
        return join(self.uri, *names)

    # what the run is

    def has_run(self) -> bool:
        return exists(self.files, RUN)

    def read_run(self) -> dict[str, Any] | None:
        """The content of run.json; a damaged one is a Mistake, because it cannot be made again."""
        try:
            run = self.read_sealed(RUN)
            if run is not None and not _has_settings(run):
                raise Damaged("it lacks settings")
        except Damaged as damaged:
            raise Mistake(
                f"{self.path}/{RUN}: is damaged; restore the file, or choose another out ({damaged})"
            ) from None
        return run

    def require_run(self) -> dict[str, Any]:
        """The content of run.json; a Mistake if there is none."""
        run = self.read_run()
        if run is None:
            raise Mistake(f"{self.uri}: holds no run; give the folder that a run was saved in")
        return run

    def write_run(self, run: dict[str, Any]) -> None:
        self.write_sealed(RUN, run)

    def read_sweep(self) -> dict[str, Any] | None:
        """The content of sweep.json. The same command makes a damaged one again."""
        return self._read_if_whole(SWEEP, words=list, runs=list, status=str)

    def write_sweep(self, sweep: dict[str, Any]) -> None:
        self.write_sealed(SWEEP, sweep)

    def is_empty(self) -> bool:
        return not self.files.get_file_info(fs.FileSelector("", allow_not_found=True))

    # its checkpoints

    @staticmethod
    def checkpoint(step: int) -> str:
        """The name of a checkpoint's folder."""
        return f"{CHECKPOINTS}/step-{step:08d}"

    def checkpoints(self) -> list[int]:
        """The steps that have a committed checkpoint, newest first."""
        found = self.files.get_file_info(fs.FileSelector(CHECKPOINTS, allow_not_found=True))
        names = [info.base_name for info in found if re.fullmatch(r"step-\d{8}", info.base_name)]
        steps = [int(name.removeprefix("step-")) for name in names]
        return sorted((s for s in steps if exists(self.files, f"{self.checkpoint(s)}/{COMMIT}")), reverse=True)

    # its results

    def has_result(self) -> bool:
        return exists(self.files, RESULT)

    def read_result(self) -> dict[str, Any] | None:
        """The result of a finished run. A damaged one counts as missing: the last checkpoint gives it again."""
        return self._read_if_whole(RESULT)

    def write_result(self, result: dict[str, Any]) -> None:
        self.write_sealed(RESULT, result)

    def has_orders(self) -> bool:
        return exists(self.files, ORDERS)

    def read_orders(self) -> dict[str, Any] | None:
        """How often each slot was filled at each step. A damaged file counts as missing, as the result does."""
        return self._read_if_whole(ORDERS)

    def write_orders(self, orders: dict[str, Any]) -> None:
        self.write_sealed(ORDERS, orders)

    def has_checkpoints(self) -> bool:
        return exists(self.files, CHECKPOINTS)

    def has_model(self) -> bool:
        """True if the run was packaged as an MLflow model."""
        return exists(self.files, f"{MODEL}/MLmodel")

    def note_artifact(self, name: str, files: Iterable[str] | None = None) -> None:
        """Notes the checksums of an artifact that was just made: of these files, or of the file or folder itself."""
        sums = {file: self._checksum(file) for file in files or self._files_of(name)}
        self.write_sealed(CHECKSUMS, {**self._noted(), name: sums})

    def unsound_artifacts(self) -> set[str]:
        """Which of pictures, replay page, model and profile are damaged or missing, which is logged. Earlier versions
        noted no checksums: there, a model stands for all."""
        made = {PICTURES, REPLAY, MODEL}
        if not exists(self.files, CHECKSUMS):
            return set() if self.has_model() else made
        noted, damaged = self._noted(), set()
        for name, sums in noted.items():
            if wrong := [file for file, checksum in sums.items() if self._checksum(file) != checksum]:
                log.warning("%s/%s is damaged or missing", self.path, wrong[0])
                damaged.add(name)
        return (made - noted.keys()) | damaged

    def _noted(self) -> dict[str, dict[str, str]]:
        """Artifact -> file -> checksum."""
        content = self._read_if_whole(CHECKSUMS) or {}
        return {name: sums for name, sums in content.items() if isinstance(sums, dict)}

    def _files_of(self, name: str) -> list[str]:
        if self.files.get_file_info(name).type == fs.FileType.File:
            return [name]
        inside = self.files.get_file_info(fs.FileSelector(name, recursive=True, allow_not_found=True))
        return sorted(part.path for part in inside if part.type == fs.FileType.File)

    def _checksum(self, file: str) -> str:
        try:
            return hashlib.sha256(read_bytes(self.files, file)).hexdigest()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return ""

    def clear_model(self) -> None:
        """Removes what is left of the model, so that another one can be made."""
        if exists(self.files, MODEL):
            self.files.delete_dir(MODEL)

    def write_picture(self, name: str, content: bytes) -> str:
        """Writes a PNG; returns its URI."""
        self.files.create_dir(PICTURES)
        write_atomically(self.files, f"{PICTURES}/{name}.png", content)
        return self.place(PICTURES, f"{name}.png")

    # the journal

    def read_journal(self) -> bytes:
        """The journal; empty if there is none."""
        return read_bytes(self.files, JOURNAL) if exists(self.files, JOURNAL) else b""

    def write_journal(self, content: bytes) -> None:
        write_atomically(self.files, JOURNAL, content)

    @property
    def journal_path(self) -> str | None:
        """Where the journal can be appended to; None in an object store, where nothing can."""
        return os.path.join(self.files.base_path, JOURNAL) if self.is_local else None

    # what was measured later

    def read_evaluations(self) -> bytes:
        """Later evaluations; empty if there are none."""
        return read_bytes(self.files, EVALUATIONS) if exists(self.files, EVALUATIONS) else b""

    def write_evaluations(self, content: bytes) -> None:
        write_atomically(self.files, EVALUATIONS, content)

    def evaluation_lock(self) -> AbstractContextManager[None]:
        """Held while a line is added."""
        return exclusive(self.files, "recording an evaluation", wait=True, name=EVALUATION_LOCK)

    # what it does at the moment

    def read_snapshot(self) -> dict[str, Any] | None:
        """The last snapshot. A damaged one counts as missing: the next one replaces it."""
        return self._read_if_whole(SNAPSHOT)

    def write_snapshot(self, snapshot: dict[str, Any]) -> None:
        write_json(self.files, SNAPSHOT, seal_file(snapshot), durable=False)

    def write_profile(self, content: bytes) -> str:
        """Writes a profile; returns its URI."""
        write_atomically(self.files, PROFILE, content)
        self.note_artifact(PROFILE)
        return self.place(PROFILE)

    # delivering it

    def read_delivered(self) -> dict[str, Any] | None:
        """How much was delivered, by store. A damaged file counts as missing: the next sender makes a new run."""
        return self._read_if_whole(DELIVERED, key=str, stores=dict)

    def write_delivered(self, state: dict[str, Any]) -> None:
        self.write_sealed(DELIVERED, state)

    @property
    def sender_log_path(self) -> str:
        """Where to append what MLflow prints; nowhere in an object store."""
        return os.path.join(self.files.base_path, SENDER_LOG) if self.is_local else os.devnull

    def artifacts(self) -> Iterator[str]:
        """The names of all files that MLflow gets."""
        for name in ARTIFACTS:
            yield from self._files_of(name)

    # one process at a time

    def training_lock(self) -> AbstractContextManager[None]:
        """Held while a process trains the run."""
        return exclusive(self.files, "training")

    def is_training(self) -> bool:
        try:
            with self.training_lock():
                return False
        except Mistake:
            return True

    def sender_lock(self, *, wait: bool = False) -> AbstractContextManager[None]:
        """Held while a process delivers the record. Object stores need none: two senders would only repeat the work."""
        return exclusive(self.files, "sending the record", wait=wait, name=SENDER_LOCK, disk_only=True)

    # JSON files

    def read_sealed(self, name: str) -> dict[str, Any] | None:
        """The content of a JSON file, None if it does not exist. Raises Damaged."""
        try:
            return open_file(read_bytes(self.files, name))
        except FileNotFoundError:
            return None
        except (IsADirectoryError, NotADirectoryError):
            raise Damaged("it is not a file") from None

    def write_sealed(self, name: str, content: dict[str, Any]) -> None:
        write_json(self.files, name, seal_file(content))

    def _read_if_whole(self, name: str, **types: type) -> dict[str, Any] | None:
        """The content of a file that can be made again, if it has values of these types."""
        try:
            content = self.read_sealed(name)
            if content and not all(isinstance(content.get(key), kind) for key, kind in types.items()):
                raise Damaged("it is incomplete")
        except Damaged as damaged:
            log.warning("%s/%s is damaged (%s), and is not used", self.path, name, damaged)
            return None
        return content


def _has_settings(run: dict[str, Any]) -> bool:
    settings = run.get("settings")
    return isinstance(settings, dict) and all(key in settings for key in NEEDED)


def find_runs(uri: str) -> list[RunFolder]:
    """The run in a folder, or else the runs in the folders directly below it, by name."""
    folder = RunFolder.open(uri)
    if folder.has_run():
        return [folder]
    inside = folder.files.get_file_info(fs.FileSelector("", allow_not_found=True))
    below = sorted(info.path for info in inside if exists(folder.files, f"{info.path}/{RUN}"))
    return [RunFolder.open(folder.place(name)) for name in below]
