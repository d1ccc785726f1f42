"""Folders on a disk and in an object store: names, atomic writes, full disks."""

import json
import os
from pathlib import Path

import boto3
import pytest

from recor_dist.core.files import exists, join, open_folder, read_json, split_name, write_atomically, write_json
from recor_dist.core.setting import Mistake
from tests.object_store import keys


@pytest.mark.parametrize(
    ("parent", "name", "whole"),
    [
        ("runs", "a", "runs/a"),
        (".", "a", "./a"),
        ("/", "a", "/a"),
        ("s3://bucket", "a", "s3://bucket/a"),
        ("s3://bucket/b?scheme=http&region=x", "a", "s3://bucket/b/a?scheme=http&region=x"),
        ("what?", "a", "what?/a"),
    ],
)
def test_names_are_joined_and_split(parent: str, name: str, whole: str) -> None:
    assert join(parent, name) == whole
    assert split_name(whole) == (parent, name)
    assert split_name("a") == (".", "a")


def test_options_of_a_uri_reach_the_store(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    uri = f"s3://bucket/options?scheme=http&endpoint_override={s3.removeprefix('http://')}"
    write_json(open_folder(join(uri, "inner"), create=True), "a.json", [1])
    assert read_json(open_folder(uri), "inner/a.json") == [1]


@pytest.mark.usefixtures("s3")
def test_a_missing_bucket_is_a_mistake() -> None:
    with pytest.raises(Mistake, match=r"s3://no-such-bucket/x: cannot be used as a folder"):
        open_folder("s3://no-such-bucket/x", create=True)


def test_a_full_disk_is_reported_in_one_line_and_keeps_the_old_content(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    write_json(folder, "run.json", {"status": "running"})
    (tmp_path / "run.json.partial").symlink_to("/dev/full")
    with pytest.raises(Mistake, match="the disk is full; make room"):
        write_json(folder, "run.json", {"status": "finished"})
    assert json.loads((tmp_path / "run.json").read_text()) == {"status": "running"}
    assert exists(folder, "run.json")


@pytest.mark.usefixtures("s3")
def test_a_large_file_in_an_object_store_has_exactly_its_content(tmp_path: Path) -> None:
    content = os.urandom(12_000_000)
    write_atomically(open_folder(f"s3://bucket/{tmp_path.name}", create=True), "large", content)
    (key,) = keys(tmp_path.name)
    assert boto3.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read() == content
