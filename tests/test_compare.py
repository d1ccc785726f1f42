"""A run next to published results."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recor_dist.compare import CompareConfig, main
from recor_dist.core.config import Config
from recor_dist.core.setting import Mistake
from recor_dist.engine.loop import train
from recor_dist.record.published import publish


def train_in(folder: Path, config_in: Callable[..., Config], *overrides: str) -> str:
    config = config_in(*overrides, f"out={folder}")
    train(config)
    assert config.out
    return config.out


def test_a_run_is_shown_next_to_the_published_runs_of_its_task(
    config_in: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = train_in(tmp_path / "mine", config_in, "method=recor")
    file = tmp_path / "arg.jsonl"
    for seed in (0, 1):
        publish(train_in(tmp_path / f"clm{seed}", config_in, "method=clm", f"seed={seed}"), file, f"clm {seed}")
    publish(train_in(tmp_path / "long", config_in, "method=clm", "epochs=3"), file, "longer")
    main(CompareConfig(mine, str(file)))
    lines = capsys.readouterr().out.splitlines()
    assert sum("ReCOR, this run" in line for line in lines) == 1
    assert sum("CLM, 2 seeds" in line and "±" in line for line in lines) == 1
    assert not any("CLM, 1 seed" in line for line in lines), "other settings are another comparison"
    assert (tmp_path / "mine" / "pictures" / "order_map_beside.png").stat().st_size > 1000


def test_results_of_another_task_are_refused(config_in: Callable[..., Config], tmp_path: Path) -> None:
    mine = train_in(tmp_path / "mine", config_in)
    file = tmp_path / "arg.jsonl"
    publish(train_in(tmp_path / "longer", config_in, "epochs=3"), file, "longer")
    with pytest.raises(Mistake, match=r"with=.*holds no run of task=arg with the settings of"):
        main(CompareConfig(mine, str(file)))
    with pytest.raises(Mistake, match=r"nowhere\.jsonl: cannot be read"):
        main(CompareConfig(mine, str(tmp_path / "nowhere.jsonl")))
