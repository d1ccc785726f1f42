"""Damage to any one file of a run's folder is repaired, to the same weights and a complete record, or refused in one
line. Nothing is lost silently, and nothing ends in a traceback."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recor_dist.core.compose import compose
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.record.sealed import open_file
from tests.conftest import decided
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


@pytest.mark.slow  # some 500 runs
@pytest.mark.parametrize("kind", ["finished", "killed"])
def test_every_file_withstands_damage_in_many_places(
    kind: str, runs: Path, tmp_path: Path, again: Callable[[], dict[str, Any]]
) -> None:
    damage_every_file(runs, tmp_path / "out", again, kind, 30)
