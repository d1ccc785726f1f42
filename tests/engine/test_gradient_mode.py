"""Whether actors compute gradients: what is refused, what `auto` chooses, and how many gradients may wait."""

import logging
from collections.abc import Callable

import pytest
import ray

from recor_dist.core.config import Config
from recor_dist.core.messages import Shape
from recor_dist.core.setting import Mistake
from recor_dist.engine.gradient_mode import check_gradients, choose_gradients, tickets_in_store

Configure = Callable[..., Config]
ARG, SUDOKU = (Shape(20, 20, 7), 5_400_000), (Shape(81, 81, 10), 10_700_000)  # the paper's, with their weights
PPO = ["method.algorithm=ppo", "method.reward=dense"]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [(["lag=1"], "with lag=1, rollouts use older weights"), (PPO, "needs statistics over all tickets of a step")],
)
def test_true_is_refused_where_it_is_impossible_and_auto_takes_batches(
    overrides: list[str], why: str, config_in: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Mistake, match=rf"^actors\.gradients=true: .*{why}.*; omit it, or set actors\.gradients=auto$"):
        check_gradients(config_in("actors.gradients=true", *overrides))
    config = config_in("device=cpu", *overrides)
    check_gradients(config)
    with caplog.at_level(logging.INFO):
        assert not choose_gradients(config, *ARG)
    assert "actors.gradients=auto: actors roll out, and the learner learns (" in caplog.text
    assert why in caplog.text


def test_a_method_whose_tickets_need_no_weights_may_have_any_lag(config_in: Configure) -> None:
    config = config_in("method=clm", "lag=3", "actors.gradients=true")
    check_gradients(config)
    assert choose_gradients(config, *ARG)


PAPER = ["scale=paper", "precision=float32"]


@pytest.mark.parametrize(
    ("overrides", "data", "nodes", "chosen", "why"),
    [
        (
            ["device=cpu", "batch_size=64", "rollout_size=64"],
            ARG,
            [{"CPU": 8}],
            True,
            "a step is one ticket, which the",
        ),
        (["device=cpu"], ARG, [{"CPU": 2}], True, "; actors: 1)"),
        (["device=cuda"], ARG, [{"CPU": 16, "GPU": 8}], True, "; actors: 8)"),
        (["device=cuda"], ARG, [{"CPU": 8, "GPU": 1}], False, "of the time with batches; actors: 1)"),
        # Between machines, many small tickets of a small model take longer to send than to compute.
        (["device=cuda", "rollout_size=32"], ARG, [{"CPU": 8, "GPU": 1}] * 8, False, "of the time with batches"),
        (["device=cuda", "task=sudoku"], SUDOKU, [{"CPU": 8, "GPU": 1}] * 8, True, "; actors: 8)"),
    ],
)
def test_auto_estimates_which_way_is_faster_and_says_so(
    overrides: list[str],
    data: tuple[Shape, int],
    nodes: list[dict[str, float]],
    chosen: bool,
    why: str,
    config_in: Configure,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listed = [{"NodeID": str(i), "Alive": True, "Resources": each} for i, each in enumerate(nodes)]
    monkeypatch.setattr(ray, "nodes", lambda: listed)
    with caplog.at_level(logging.INFO):
        assert choose_gradients(config_in(*PAPER, *overrides), *data) is chosen
    assert why in caplog.text


def test_gradients_that_wait_take_half_of_the_smallest_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [{"Alive": True, "Resources": {"object_store_memory": size}} for size in (8e9, 2e9)]
    monkeypatch.setattr(ray, "nodes", lambda: stores)
    assert tickets_in_store(10_000_000) == 25
    assert tickets_in_store(1_000_000_000) == 2, "or no actor could work while one waits"
