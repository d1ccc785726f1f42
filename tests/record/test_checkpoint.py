"""A kill at any byte of a save leaves a loadable checkpoint, the old one or the new."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from pyarrow import fs

from learner.learner import LearnerState
from recor_dist.core.config import ModelConfig
from recor_dist.core.messages import Shape
from recor_dist.model.transformer import Model
from recor_dist.record import checkpoint
from recor_dist.record.run_folder import RunFolder


class Killed(BaseException):
    """The process ended here."""


class DyingFolder:
    """A folder whose process is killed after `life` units: a byte written, a rename, a removal, a new folder."""

    def __init__(self, folder: fs.SubTreeFileSystem, life: float) -> None:
        self.folder, self.life = folder, life
        self.base_fs, self.base_path = folder.base_fs, folder.base_path

    def live(self) -> None:
        self.life -= 1
        if self.life < 0:
            raise Killed

    def open_output_stream(self, name: str) -> "DyingStream":
        self.live()
        return DyingStream(self, name)

    def open_input_file(self, name: str) -> object:
        return self.folder.open_input_file(name)

    def get_file_info(self, what: object) -> object:
        return self.folder.get_file_info(what)

    def move(self, source: str, target: str) -> None:
        self.live()
        self.folder.move(source, target)

    def create_dir(self, name: str, recursive: bool) -> None:
        self.live()
        self.folder.create_dir(name, recursive=recursive)

    def delete_file(self, name: str) -> None:
        self.live()
        self.folder.delete_file(name)

    def delete_dir(self, name: str) -> None:
        """Removes file by file, because the process may end between two of them."""
        for info in self.folder.get_file_info(fs.FileSelector(name)):
            self.live()
            self.folder.delete_file(info.path)
        self.live()
        self.folder.delete_dir(name)


class DyingStream:
    def __init__(self, owner: DyingFolder, name: str) -> None:
        self.owner, self.stream = owner, owner.folder.open_output_stream(name)

    def __enter__(self) -> "DyingStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def write(self, content: bytes) -> None:
        written = content[: int(min(len(content), max(0, self.owner.life)))]
        self.stream.write(written)
        self.owner.life -= len(content)
        if self.owner.life < 0:
            raise Killed


@pytest.fixture
def model() -> Model:
    return Model(ModelConfig(layers=1, width=4, heads=1), Shape(2, 2, 3))


def state_at(model: Model, step: int, lag: int = 1) -> LearnerState:
    random = np.random.default_rng(step)
    size = model.flat.numel()
    versions = {v: np.zeros(size, np.float32) for v in range(max(0, step - lag), step + 1)}
    for v, flat in versions.items():
        flat[:] = model.flat_weights(model.named_weights(np.random.default_rng(v).normal(size=size).astype(np.float32)))
    return LearnerState(step, versions, *random.normal(size=(2, size)).astype(np.float32))


def assert_same(a: LearnerState, b: LearnerState) -> None:
    assert a.step == b.step
    assert sorted(a.versions) == sorted(b.versions)
    for v in a.versions:
        assert np.array_equal(a.versions[v], b.versions[v])
    assert np.array_equal(a.exp_avg, b.exp_avg)
    assert np.array_equal(a.exp_avg_sq, b.exp_avg_sq)


def test_loading_returns_what_was_saved(model: Model, tmp_path: Path) -> None:
    out = RunFolder.open(str(tmp_path))
    assert checkpoint.load_newest(out, model) is None
    for step in (0, 3, 5):
        checkpoint.save(out, model, state_at(model, step), {"note": "kept"}, keep=2)
        assert_same(checkpoint.load_newest(out, model), state_at(model, step))
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000003", "step-00000005"]
    newest = tmp_path / "checkpoints/step-00000005"
    assert json.loads((newest / "checkpoint.json").read_text())["note"] == "kept"
    named = safetensors.numpy.load_file(newest / "model.safetensors")
    assert set(named) == {name for name, _ in model.named_parameters()}, "any program can load it by name"


def test_a_kill_at_any_moment_of_a_save_leaves_the_old_one_or_the_new_one(model: Model, tmp_path: Path) -> None:
    """Including saves that first remove what an earlier killed save left, and saves that remove old checkpoints."""

    def prepared(name: str, life: float) -> tuple[RunFolder, bool]:
        """Saves two checkpoints and half of a third, then saves the third until it is killed; True if it completed."""
        out = RunFolder.open(str(tmp_path / name), create=True)
        for step in (1, 2):
            checkpoint.save(out, model, state_at(model, step), {}, keep=2)
        with pytest.raises(Killed):
            checkpoint.save(RunFolder(out.uri, DyingFolder(out.files, 1500)), model, state_at(model, 3), {}, keep=2)
        dying = DyingFolder(out.files, life)
        try:
            checkpoint.save(RunFolder(out.uri, dying), model, state_at(model, 3), {}, keep=2)
        except Killed:
            return out, False
        total.append(life - dying.life)
        return out, True

    total: list[float] = []
    prepared("whole", 10**9)
    units = int(total[0])
    assert units > 3000
    seen = set()
    # Each of the last 60 units (the commit's rename and the removals), the first ones, and samples in between.
    for life in sorted({*range(12), *range(0, units, 97), *range(units - 60, units + 1)}):
        out, complete = prepared(f"life{life}", life)
        loaded = checkpoint.load_newest(out, model)
        assert loaded is not None
        assert_same(loaded, state_at(model, loaded.step))
        assert loaded.step in ((3,) if complete else (2, 3))
        seen.add(loaded.step)
        checkpoint.save(out, model, state_at(model, 4), {}, keep=2)  # and the run can continue
        assert_same(checkpoint.load_newest(out, model), state_at(model, 4))
    assert seen == {2, 3}


@pytest.mark.parametrize("file", ["model.safetensors", "state.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_if_a_checkpoint_is_damaged_the_previous_one_is_loaded(
    file: str, damage: str, model: Model, tmp_path: Path
) -> None:
    out = RunFolder.open(str(tmp_path))
    for step in (1, 2):
        checkpoint.save(out, model, state_at(model, step), {}, keep=2)
    path = tmp_path / "checkpoints/step-00000002" / file
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 0x04
        path.write_bytes(content)
    else:
        path.unlink()
    loaded = checkpoint.load_newest(out, model)
    if file == "checkpoint.json" and damage == "flip" and loaded.step == 2:
        assert_same(loaded, state_at(model, 2))  # the flipped bit is in a field that is not used
    else:
        assert_same(loaded, state_at(model, 1))


def test_damaged_later_checkpoints_do_not_crowd_out_good_ones(model: Model, tmp_path: Path) -> None:
    out = RunFolder.open(str(tmp_path))
    for step in (5, 10):
        checkpoint.save(out, model, state_at(model, step), {}, keep=2)
    (tmp_path / "checkpoints/step-00000010/model.safetensors").write_bytes(b"")
    assert checkpoint.load_newest(out, model).step == 5
    checkpoint.save(out, model, state_at(model, 7), {}, keep=1)
    assert_same(checkpoint.load_newest(out, model), state_at(model, 7))
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000007"]


def test_other_folders_next_to_the_checkpoints_are_ignored(model: Model, tmp_path: Path) -> None:
    out = RunFolder.open(str(tmp_path))
    checkpoint.save(out, model, state_at(model, 1), {}, keep=2)
    shutil.copytree(tmp_path / "checkpoints/step-00000001", tmp_path / "checkpoints/step-00000001.bak")
    assert checkpoint.load_newest(out, model).step == 1


def test_the_weights_hash_depends_on_every_parameter_and_on_nothing_else(model: Model) -> None:
    weights = state_at(model, 1).versions[1]
    digest = checkpoint.weights_sha256(model, weights)
    assert digest == checkpoint.weights_sha256(model, weights.copy())
    places = model.named_weights(np.arange(len(weights)))
    for place in (int(p.reshape(-1)[-1]) for p in places.values()):
        changed = weights.copy()
        changed[place] += 1
        assert checkpoint.weights_sha256(model, changed) != digest
    gaps = sorted(set(range(len(weights))) - {int(i) for p in places.values() for i in p.reshape(-1)})
    assert gaps, "the test needs padding between parameters"
    changed = weights.copy()
    changed[gaps] += 1
    assert checkpoint.weights_sha256(model, changed) == digest
