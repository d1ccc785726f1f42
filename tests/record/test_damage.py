"""Damage to any one file of a run's folder is repaired, to the same weights and a complete record, or refused in one
line. Nothing is lost silently, and nothing ends in a traceback."""

import json
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recor_dist.core.compose import compose
from recor_dist.core.sealed import open_file, seal_file
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.record.evaluations import add_evaluation, read_evaluations
from recor_dist.record.run_folder import RunFolder
from recor_dist.run import make_artifacts
from tests.conftest import decided, edit
from tests.engine.test_loop import run_until_killed

# Six steps with a checkpoint and a validation after every second one.
SETTINGS = ["scale=smoke", "task.train_rows=96", "batch_size=16", "checkpoint.every=2", "eval.every=2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders `finished`, and `killed` in the middle of its last step; they share their shards."""
    folder = tmp_path_factory.mktemp("runs")
    train(compose([*SETTINGS, "engine=local", f"data.dir={folder}/shards", f"out={folder}/finished"]))
    run_until_killed("step:5", [*SETTINGS, f"data.dir={folder}/shards", f"out={folder}/killed"])
    assert not (folder / "killed/result.json").exists()
    return folder


@pytest.fixture
def again(runs: Path, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Runs the same command again, on the copy of a run in `out`."""
    config = [*SETTINGS, "engine=local", f"data.dir={runs}/shards", f"out={tmp_path}/out"]
    return lambda: train(compose(config))


def journal(out: Path) -> list[dict[str, Any]]:
    return [decided(json.loads(line)) for line in (out / "metrics.jsonl").read_text().splitlines()]


def assert_repaired_or_refused(runs: Path, out: Path, file: str, again: Callable[[], dict[str, Any]]) -> str:
    """Runs the command again on a damaged folder; returns what became of it."""
    expected = open_file((runs / "finished/result.json").read_bytes())
    kind, before = "repaired", None
    try:
        result = again()
    except Mistake as mistake:
        kind, before = "refused", str(mistake)
        assert "\n" not in before
        assert str(out) in before, f"does not name the folder: {before}"
        shutil.copy(runs / out.with_name("kind").read_text() / file, out / file)  # the remedy: restore the file
        result = again()
    for part in ("weights_sha256", "val", "test", "steps", "reproducible"):
        assert result[part] == expected[part], (file, part)
    assert journal(out) == journal(runs / "finished"), (file, kind, before)
    for name in ("run.json", "result.json", "orders.json"):
        assert "checksum" in json.loads((out / name).read_text())
        open_file((out / name).read_bytes())
    assert again() == result, "and is finished"
    return kind


def flip(content: bytes, place: int, chance: random.Random) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, place: int, chance: random.Random) -> bytes:
    return content[:place]


def replace(content: bytes, place: int, chance: random.Random) -> bytes:
    """Other bytes in the middle of a file, or instead of all of it."""
    wrong = chance.choice([b"", b"{}", b"[1]\n", b"null", b"\0" * 40, b'{"step": 3}\n', chance.randbytes(20)])
    return wrong if chance.random() < 0.5 else content[:place] + wrong + content[place + len(wrong) :]


def files_of(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and path.stat().st_size)


def damage_every_file(runs: Path, out: Path, again: Callable[[], dict[str, Any]], kind: str, tries: int) -> None:
    """Damages each file in this many ways."""
    chance = random.Random(f"{kind} {tries}")
    out.with_name("kind").write_text(kind)
    for file in files_of(runs / kind):
        content = (runs / kind / file).read_bytes()
        for _ in range(tries):
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(runs / kind, out)
            damage = chance.choice([flip, cut, replace])
            (out / file).write_bytes(damage(content, chance.randrange(len(content)), chance))
            assert_repaired_or_refused(runs, out, file, again)


@pytest.mark.parametrize("kind", ["finished", "killed"])
def test_any_damaged_file_is_repaired_or_refused(
    kind: str, runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]]
) -> None:
    damage_every_file(runs, tmp_path / "out", again, kind, 1)


def test_a_damaged_line_before_every_checkpoint_is_named_and_refused(
    runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]]
) -> None:
    shutil.copytree(runs / "killed", tmp_path / "out")
    file = tmp_path / "out/metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0].replace(b"loss/lm", b"loss/ln"), *lines[1:]]))
    with pytest.raises(
        Mistake, match=r"metrics\.jsonl: is damaged or incomplete before step 2, which no checkpoint precedes"
    ):
        again()
    shutil.rmtree(tmp_path / "out/checkpoints")  # one of the two remedies it gives
    assert again()["weights_sha256"] == open_file((runs / "finished/result.json").read_bytes())["weights_sha256"]
    assert journal(tmp_path / "out") == journal(runs / "finished")


def test_a_damaged_line_after_a_checkpoint_is_computed_again(
    runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(runs / "killed", tmp_path / "out")
    file = tmp_path / "out/metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], b"\0" + lines[3][1:], *lines[4:]]))  # of step 3
    with caplog.at_level(logging.INFO):
        again()
    assert "metrics.jsonl lacks lines from before step 4: loading the previous checkpoint" in caplog.text
    assert "metrics.jsonl: line 4 is damaged; resuming before it" in caplog.text
    assert "resuming at step 2 of 6" in caplog.text
    assert journal(tmp_path / "out") == journal(runs / "finished")


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("change", [{"weights_sha256": "0" * 64}, {"test": {}}, {"steps": 5}, {"val": None}])
def test_an_edited_result_is_not_believed(
    change: dict[str, Any], sealed: bool, runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]]
) -> None:
    """Neither with the checksum of the edited content, nor without any, as earlier versions wrote it."""
    shutil.copytree(runs / "finished", tmp_path / "out")
    file = tmp_path / "out/result.json"
    right = open_file(file.read_bytes())
    wrong = {**right, **change}
    if change == {"test": {}}:
        wrong["test"] = {**right["test"], "exact_match": 1.0}
    file.write_text(json.dumps(seal_file(wrong) if sealed else wrong))
    result = again()
    assert {**result, "seconds_of_last_start": 0} == {**right, "seconds_of_last_start": 0}


@pytest.mark.parametrize("content", ["[]", '{"files": {}}', '{"files": null}', '{"step": 4, "files": {"x": "y"}}'])
def test_a_commit_of_another_shape_is_passed_over(
    content: str, runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(runs / "killed", tmp_path / "out")
    (tmp_path / "out/checkpoints/step-00000004/checkpoint.json").write_text(content)
    with caplog.at_level(logging.INFO):
        result = again()
    assert "checkpoint of step 4 is damaged" in caplog.text
    assert "resuming at step 2 of 6" in caplog.text
    assert result["weights_sha256"] == open_file((runs / "finished/result.json").read_bytes())["weights_sha256"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary": ["1", "0", "2", "3", "4"]}, r"run\.json has other tokens or lengths than the task"),
        ({"shape": {"N": 4, "M": 5, "V": 5}}, r"run\.json has other tokens or lengths than the task"),
        ({"identity": None}, r"run\.json has no identity"),
        ({"settings": {}}, r"run\.json: is damaged"),
    ],
)
def test_an_edited_description_is_refused(
    change: dict[str, Any], message: str, runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]]
) -> None:
    shutil.copytree(runs / "killed", tmp_path / "out")
    file = tmp_path / "out/run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(Mistake, match=r"run\.json: is damaged; .* \(its content does not match its checksum\)"):
        again()
    shutil.copy(runs / "killed/run.json", file)
    edit(file, **change)  # as in a run of an earlier version, without checksum
    with pytest.raises(Mistake, match=message):
        again()


def test_damaged_artifacts_are_reported_and_made_again(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, chance = tmp_path / "out", random.Random(0)
    shutil.copytree(runs / "finished", out)
    folder = RunFolder.open(str(out))
    folder.write_profile(b"a trace")
    assert folder.unsound_artifacts() == {"pictures", "replay.html", "model"}, "as there are none yet"
    make_artifacts(str(out))
    assert folder.unsound_artifacts() == set()
    weights, page = out / "model/data/solver/model.safetensors", out / "replay.html"
    before = {path: path.read_bytes() for path in (weights, page)}
    for file in files_of(out):
        if file.startswith(("model/", "pictures/")) or file in ("replay.html", "profile.json.gz"):
            content = (out / file).read_bytes()
            (out / file).write_bytes(flip(content, chance.randrange(len(content)), chance))
            assert folder.unsound_artifacts() == {file.split("/")[0]}
            assert f"{file} is damaged or missing" in caplog.text
            (out / file).write_bytes(content)
    for path in (weights, page):
        path.write_bytes(cut(before[path], 100, chance))
    (out / "model/MLmodel").unlink()
    (out / "pictures/curves.png").unlink()
    make_artifacts(str(out))
    assert {path: path.read_bytes() for path in before} == before
    assert (out / "model/MLmodel").exists() and (out / "pictures/curves.png").exists()
    (out / "profile.json.gz").write_bytes(b"another")
    made_at = page.stat().st_mtime_ns
    make_artifacts(str(out))
    assert "profile.json.gz cannot be made again" in caplog.text and page.stat().st_mtime_ns == made_at
    for content in (b"{}", b'{"step": 3}', b"[", b'{"model": {}}'):
        (out / "artifacts.json").write_bytes(content)
        assert {"pictures", "replay.html"} <= folder.unsound_artifacts()


def test_damage_to_what_was_delivered_or_measured_later_is_reported(
    runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    shutil.copytree(runs / "finished", out)
    folder = RunFolder.open(str(out))
    folder.write_delivered({"key": "a key", "stores": {}})
    line = {"decoder": "recor", "rows_sha256": "0", "weights_sha256": "1", "name": "test", "exact_match": 0.25}
    for decoder in ("recor", "another"):
        add_evaluation(folder, {**line, "decoder": decoder})
    for file, old, new in (("track.json", b"a key", b"b key"), ("evaluations.jsonl", b"0.25", b"0.75")):
        (out / file).write_bytes((out / file).read_bytes().replace(old, new, 1))
    assert folder.read_delivered() is None
    assert [one["decoder"] for one in read_evaluations(folder)] == ["another"]
    assert "track.json is damaged" in caplog.text
    assert "evaluations.jsonl: line 1 is damaged and skipped" in caplog.text
    add_evaluation(folder, line)  # measured again
    assert [one["decoder"] for one in read_evaluations(folder)] == ["another", "recor"]
    assert again() == open_file((out / "result.json").read_bytes()), "the result is not touched"


@pytest.mark.slow  # some 500 runs
@pytest.mark.parametrize("kind", ["finished", "killed"])
def test_every_file_withstands_damage_in_many_places(
    kind: str, runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]]
) -> None:
    damage_every_file(runs, tmp_path / "out", again, kind, 30)
