"""The folder of a run: what is missing, what is damaged, and which folders hold runs."""

from pathlib import Path

import pytest

from recor_dist.core.setting import Mistake
from recor_dist.record.run_folder import RunFolder, find_runs


def test_an_empty_folder_has_nothing_to_read(tmp_path: Path) -> None:
    folder = RunFolder.open(str(tmp_path / "none"))
    assert folder.is_empty()
    assert not (folder.has_run() or folder.has_result() or folder.has_checkpoints() or folder.has_model())
    for read in (folder.read_run, folder.read_result, folder.read_orders, folder.read_sweep, folder.read_delivered):
        assert read() is None
    assert folder.read_journal() == b""
    assert list(folder.artifacts()) == []
    with pytest.raises(Mistake, match=r"none: holds no run; give the folder that a run was saved in"):
        folder.require_run()


def test_what_can_be_made_again_counts_as_missing_when_damaged_and_the_rest_is_a_mistake(tmp_path: Path) -> None:
    folder = RunFolder.open(str(tmp_path))
    for name in ("run.json", "result.json", "track.json"):
        (tmp_path / name).write_text('{"half')
    assert folder.read_result() is None
    assert folder.read_delivered() is None
    with pytest.raises(Mistake, match=rf"^{tmp_path}/run\.json: is damaged; restore the file"):
        folder.read_run()


def test_runs_are_found_in_a_folder_or_directly_below_it(tmp_path: Path) -> None:
    for name in ("b", "a", "empty", "deep/er"):
        folder = RunFolder.open(str(tmp_path / name), create=True)
        if name != "empty":
            folder.write_run({"settings": {}})
    (tmp_path / "file").write_text("")
    assert [folder.uri for folder in find_runs(str(tmp_path))] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert [folder.name for folder in find_runs(f"{tmp_path}/a")] == ["a"]
    assert find_runs(f"{tmp_path}/empty") == []


def test_only_one_process_trains_and_one_sends(tmp_path: Path) -> None:
    folder = RunFolder.open(str(tmp_path))
    assert not folder.is_training()
    with folder.training_lock(), folder.sender_lock():
        assert folder.is_training()
        with pytest.raises(Mistake, match="another process is sending the record there"), folder.sender_lock():
            pass
    assert not folder.is_training()
