"""Shards and manifests: a damaged file is named and refused, and `prepare` rebuilds only that file."""

import fcntl
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from data import prepare as preparing
from data.prepare import open_data, prepare
from data.shards import BadShard, Dataset, Manifest
from data.splits import SPLITS
from data.tasks import task_of
from recor_dist.core.config import Config
from recor_dist.core.files import open_folder
from recor_dist.core.sealed import open_file, seal_file
from recor_dist.core.setting import Mistake

Configure = Callable[..., Config]


def opened(config: Config) -> Dataset:
    return open_data(config, task_of(config))


def everything(data: Dataset) -> list[np.ndarray]:
    return [data.read_split(split, 0, data.rows_of(split)).prompts for split in SPLITS]


def folder_of(data: Dataset) -> Path:
    return Path(data.uri)


@pytest.fixture
def config(config_in: Configure) -> Config:
    return config_in("task.train_rows=600", "data.shard_rows=250")


def test_a_data_set_matches_its_manifest(config: Config) -> None:
    data = opened(config)
    assert [entry.rows for entry in data.manifest.splits["train"]] == [250, 250, 100]
    assert (data.rows_of("val"), data.rows_of("test")) == (32, 40)
    assert data.manifest.spec["task"] == {
        "name": "arg", "seed": 0, "train_rows": 600, "val_rows": 32, "test_rows": 40, "length": 4, "modulus": 5,
    }  # fmt: skip
    rows = data.read_split("train", 240, 20)
    made = task_of(config)
    assert np.array_equal(rows.prompts[:10], made.make_shard("train", 0).prompts[240:])
    assert np.array_equal(rows.responses[10:], made.make_shard("train", 1).responses[:10])
    assert rows.orders.tolist() == [[3, 2, 1, 0]] * 20
    assert Dataset.open(data.uri, made.spec, "").manifest == data.manifest


def test_take_follows_the_row_order_across_epochs(config: Config) -> None:
    data = opened(config)
    order = data.row_order(seed=3)
    taken = data.take(order, 590, 20)
    expected = [
        data.read_split("train", shard * 250 + int(row), 1) for shard, rows in order.locate(590, 20) for row in rows
    ]
    assert np.array_equal(taken.prompts, np.concatenate([row.prompts for row in expected]))


def test_checksums_are_over_rows_and_not_over_bytes(config: Config) -> None:
    """The same rows are the same shard, whatever the writer and the compression."""
    data = opened(config)
    file = folder_of(data) / "train-00001.parquet"
    before = file.read_bytes()
    table = pq.read_table(file)
    pq.write_table(table, file, compression="snappy", row_group_size=17)
    assert file.read_bytes() != before
    assert everything(opened(config))


def damage_truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def damage_flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0xFF
    file.write_bytes(content)


def damage_rows(file: Path) -> None:
    """A well-formed file with the description of the right shard, but with one row missing."""
    table = pq.read_table(file)
    pq.write_table(table.slice(1), file)


def damage_remove(file: Path) -> None:
    file.unlink()


def damage_swap(file: Path) -> None:
    shutil.copy(file.with_name("train-00000.parquet"), file)


def damage_garbage(file: Path) -> None:
    file.write_bytes(b"")


DAMAGES = [damage_truncate, damage_flip, damage_rows, damage_remove, damage_swap, damage_garbage]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_shard_is_named_and_refused_and_only_it_is_rebuilt(
    config: Config, damage: Callable[[Path], None]
) -> None:
    data = opened(config)
    expected = everything(data)
    bad = folder_of(data) / "train-00001.parquet"
    damage(bad)
    with pytest.raises(BadShard, match=r"train-00001\.parquet .*python -m data\.prepare.* rebuilds only that shard"):
        everything(opened(config))
    times = {f.name: f.stat().st_mtime_ns for f in folder_of(data).glob("*.parquet") if f != bad}
    repaired = prepare(config, task_of(config))
    assert {f.name: f.stat().st_mtime_ns for f in folder_of(data).glob("*.parquet") if f != bad} == times
    assert repaired.manifest == data.manifest
    for a, b in zip(everything(repaired), expected, strict=True):
        assert np.array_equal(a, b)


def test_a_shard_from_another_configuration_is_refused(config: Config, config_in: Configure) -> None:
    data = opened(config)
    other = opened(config_in("task.train_rows=600", "data.shard_rows=250", "task.seed=1"))
    assert other.uri != data.uri
    shutil.copy(folder_of(other) / "test-00000.parquet", folder_of(data) / "test-00000.parquet")
    with pytest.raises(BadShard, match=r"test-00000\.parquet is from another configuration"):
        everything(opened(config))
    prepare(config, task_of(config))
    assert everything(opened(config))


def test_an_interrupted_preparation_resumes_with_the_missing_shards(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = preparing.write_shard, []

    def write_two_then_die(*arguments: object) -> object:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(arguments[2:4])
        return write(*arguments)

    monkeypatch.setattr(preparing, "write_shard", write_two_then_die)
    with pytest.raises(KeyboardInterrupt):
        opened(config)
    assert written == [("train", 0), ("train", 1)]
    monkeypatch.setattr(preparing, "write_shard", lambda *a: (written.append(a[2:4]), write(*a))[1])
    data = opened(config)
    assert written == [("train", 0), ("train", 1), ("train", 2), ("val", 0), ("test", 0)]
    assert everything(data)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"spec": {}}', '{"splits": []}', "another order"])
def test_a_lost_or_damaged_manifest_is_rebuilt(
    config: Config, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    data = opened(config)
    file = folder_of(data) / "manifest.json"
    if content == "another order":
        content = file.read_text().replace('"reversed"', '"recorded"')
    file.unlink() if content is None else file.write_text(content)
    assert opened(config).manifest == data.manifest
    assert ("manifest.json is damaged: making it again" in caplog.text) == (content is not None)


def test_a_manifest_of_another_data_set_is_refused(config: Config) -> None:
    data = opened(config)
    file = folder_of(data) / "manifest.json"
    content = open_file(file.read_bytes())
    content["spec"]["task"]["seed"] = 9
    file.write_text(json.dumps(seal_file(content)))
    with pytest.raises(Mistake, match="holds a different data set than its name says"):
        opened(config)


def test_a_rebuilt_shard_that_differs_from_the_manifest_is_refused(config: Config) -> None:
    data = opened(config)
    file = folder_of(data) / "manifest.json"
    content = open_file(file.read_bytes())
    content["splits"]["val"][0]["checksum"] = "0" * 64
    file.write_text(json.dumps(seal_file(content)))
    with pytest.raises(Mistake, match=r"val-00000\.parquet .* came out different"):
        prepare(config, task_of(config))


def test_a_manifest_survives_json_also_without_the_checksum_that_earlier_versions_did_not_write(config: Config) -> None:
    data = opened(config)
    folder = open_folder(data.uri)
    assert Manifest.read(folder) == data.manifest
    file = folder_of(data) / "manifest.json"
    file.write_text(json.dumps(open_file(file.read_bytes())))
    assert Manifest.read(folder).checksum == data.manifest.checksum


def test_a_task_too_small_for_its_splits_is_refused(config_in: Configure) -> None:
    with pytest.raises(Mistake, match="too few different prompts"):
        opened(config_in("task.length=1", "task.modulus=3"))


def test_a_flipped_bit_anywhere_is_detected_and_never_crashes(config: Config) -> None:
    data = opened(config)
    file = folder_of(data) / "val-00000.parquet"
    content, expected = file.read_bytes(), data.read_split("val", 0, 32).prompts
    found = 0
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 0x41
        file.write_bytes(damaged)
        try:
            rows = opened(config).read_split("val", 0, 32)
        except BadShard:
            found += 1
        else:  # a byte that no row depends on
            assert np.array_equal(rows.prompts, expected)
    assert found > len(content) / 3 / 2


def test_a_second_process_waits_for_the_first_to_prepare(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(preparing._uri(config, task_of(config)))
    os.makedirs(folder)
    first = (folder / ".lock").open("w")
    fcntl.flock(first, fcntl.LOCK_EX)
    threading.Timer(0.5, first.close).start()
    with caplog.at_level(logging.INFO):
        assert everything(opened(config))
    assert "waiting: another process is preparing data" in caplog.text
