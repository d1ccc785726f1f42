"""What a run requests from a cluster, and how many actors fit on it."""

from collections.abc import Callable

import pytest
import ray

from recor_dist.core.config import Config
from recor_dist.engine.placement import actor_resources, actors_expected, in_words, learner_resources

Configure = Callable[..., Config]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends a cluster with these nodes."""

    def pretend(*resources: dict[str, float]) -> None:
        listed = [{"NodeID": str(i), "Alive": True, "Resources": each} for i, each in enumerate(resources)]
        monkeypatch.setattr(ray, "nodes", lambda: listed)

    return pretend


@pytest.mark.parametrize(
    ("gradients", "overrides", "cluster", "actors"),
    [
        (False, [], [{"CPU": 2}], 1),
        (True, [], [{"CPU": 2}], 1),  # the learner computes tickets, too
        (True, ["learner.num_cpus=0"], [{"CPU": 2}], 2),
        (True, ["threads=2"], [{"CPU": 8}], 3),
        (False, ["device=cuda"], [{"CPU": 8, "GPU": 8}], 7),
        (True, ["device=cuda"], [{"CPU": 9, "GPU": 8}], 8),  # the learner shares a GPU with one of them
        (True, ["device=cuda"], [{"CPU": 4, "GPU": 1}] * 4, 4),
        (True, ["device=cuda", "actors.num_gpus=0.45"], [{"CPU": 8, "GPU": 2}], 4),
        (True, ["device=cuda", "learner.num_gpus=1"], [{"CPU": 8, "GPU": 2}], 1),
        (False, ["device=cuda", "actors.num_gpus=0.5"], [{"CPU": 8, "GPU": 2}], 2),
        (True, ["actors.count=5"], [{"CPU": 2}], 5),
    ],
)
def test_as_many_actors_as_fit_next_to_the_learner(
    gradients: bool,
    overrides: list[str],
    cluster: list[dict[str, float]],
    actors: int,
    config_in: Configure,
    nodes: Callable[..., None],
) -> None:
    nodes(*cluster)
    assert actors_expected(config_in("device=cpu", *overrides), gradients) == actors


def test_a_share_of_one_gpu_is_requested_for_each_process_if_actors_compute_gradients(config_in: Configure) -> None:
    config = config_in("device=cuda", "threads=3")
    assert actor_resources(config, True) == {"num_cpus": 3, "num_gpus": 0.9}
    assert learner_resources(config, True) == {"num_cpus": 3, "num_gpus": 0.1}
    assert in_words(actor_resources(config, True)) == "3 CPUs and 0.9 GPUs"
    assert actor_resources(config, False) == learner_resources(config, False) == {"num_cpus": 3, "num_gpus": 1}
