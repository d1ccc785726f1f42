"""Published results."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.record.published import publish, read_published
from recor_dist.record.runs import deduplicate, read_run


def test_a_published_run_reads_back_like_its_folder_and_names_no_path(
    config_in: Callable[..., Config], tmp_path: Path
) -> None:
    config = config_in("eval.every=2")
    train(config)
    assert config.out
    file = tmp_path / "results" / "arg.jsonl"
    publish(config.out, file, "task=arg scale=smoke")
    [published], original = read_published(file), read_run(config.out)
    assert published.identity == original.identity
    assert published.place == "task=arg scale=smoke"
    assert len(original.validation) > 1
    for name in ("data", "decoders", "validation", "steps", "weights", "orders", "machine", "seconds"):
        assert getattr(published, name) == getattr(original, name), name
    assert deduplicate([original, published]) == [original]
    assert str(tmp_path) not in file.read_text()

    again = publish(config.out, file, "task=arg scale=smoke")
    publish(config.out, file, "another command")
    assert [run.place for run in read_published(file)] == ["another command", again.place] or [
        run.place for run in read_published(file)
    ] == [again.place, "another command"]


def test_a_damaged_file_of_results_is_named(tmp_path: Path) -> None:
    file = tmp_path / "arg.jsonl"
    with pytest.raises(Mistake, match=r"arg\.jsonl: cannot be read"):
        list(read_published(file))
    for line in ("{", "[]", '{"validation": []}', '{"validation": 3}'):
        file.write_text(line + "\n")
        with pytest.raises(Mistake, match=r"arg\.jsonl: line 1 is not a published run"):
            list(read_published(file))
