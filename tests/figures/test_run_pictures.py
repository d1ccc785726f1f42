"""The pictures of real runs and of a sweep."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recor_dist.core.config import Config
from recor_dist.engine.loop import train
from recor_dist.figures.answered import answer_test
from recor_dist.figures.run_pictures import draw_pictures, draw_sweep
from recor_dist.model.evaluation import mean_steps
from recor_dist.record.run_folder import RunFolder

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("overrides", "more"),
    [
        (["task=sudoku"], {"order_board", "difficulty"}),
        (["task=zebra", "method=mdm"], {"order_board", "difficulty"}),
        (["task=arg", "method.algorithm=ppo", "method.reward=dense"], set()),
        (["task=arg", "method=clm"], set()),
    ],
)
def test_a_run_has_its_pictures(overrides: list[str], more: set[str], config_in: Callable[..., Config]) -> None:
    config = config_in(*overrides)
    result = train(config)
    out = Path(config.out)
    orders = RunFolder.open(config.out).read_orders()
    assert orders is not None and set(orders) == set(result["test"]["decoders"])
    for decoder, figures in result["test"]["decoders"].items():
        fills, rows = np.array(orders[decoder]["fills"]), orders[decoder]["rows"]
        assert rows == figures["rows"]
        assert (fills.sum(axis=1) == rows).all(), "every answer fills every slot once"
        assert mean_steps(fills, rows) == pytest.approx(np.array(figures["mean_step"]))
    tested, first = answer_test(config.out, 10**6), answer_test(config.out, 7)
    assert len(tested.rows) > config.eval.size, "several tickets, the last one padded"
    assert tested.right.mean() == result["test"]["exact_match"], "the answers that the test counted"
    assert tested.steps.mean(axis=0) == pytest.approx(np.array(result["test"]["mean_step"]))
    for part in ("responses", "steps", "confidences"):
        assert (getattr(tested.first(7).generation, part) == getattr(first.generation, part)).all()
    assert first.notes.keys() == tested.notes.keys() and all(len(note) == 7 for note in first.notes.values())
    drawn = draw_pictures(config.out)
    assert {Path(path).stem for path in drawn} == {"order_map", "calibration", "steps", "curves"} | more
    assert {path.stem for path in (out / "pictures").iterdir()} == {Path(path).stem for path in drawn}
    for path in drawn:
        content = Path(path).read_bytes()
        assert content.startswith(PNG)


def test_pictures_without_data_are_omitted_with_a_reason(
    config_in: Callable[..., Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_in("method=clm", f"data.dir={tmp_path}/elsewhere")
    train(config)
    (tmp_path / "elsewhere").rename(tmp_path / "gone")
    (Path(config.out) / "orders.json").unlink()
    caplog.set_level("INFO")
    assert [Path(path).stem for path in draw_pictures(config.out)] == ["curves"]
    assert "no pictures of calibration and steps: data.dir=" in caplog.text
    assert "no order map: the run has no orders.json" in caplog.text
    assert not (tmp_path / "elsewhere").exists(), "no data is prepared for a picture"


def test_a_sweep_has_a_picture_per_task(config_in: Callable[..., Config], tmp_path: Path) -> None:
    outs = []
    for index, overrides in enumerate((["method=clm"], ["method=mdm", "method.steps=3"], ["task=mul", "method=clm"])):
        config = config_in(*overrides, f"out={tmp_path}/{index}")
        train(config)
        outs.append(config.out)
    unfinished = tmp_path / "1/result.json"
    assert [Path(path).name for path in draw_sweep(outs[:2], f"{tmp_path}/one")] == ["flops_accuracy.png"]
    drawn = draw_sweep(outs, f"{tmp_path}/two")
    assert [Path(path).name for path in drawn] == ["flops_accuracy.png", "flops_accuracy_2.png"]
    assert all(Path(path).read_bytes().startswith(PNG) for path in drawn)
    unfinished.unlink()
    assert len(draw_sweep(outs[:2], f"{tmp_path}/three")) == 1
