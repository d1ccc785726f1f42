"""Ablations are found among the runs."""

from recor_dist.figures.ablations import ABLATIONS, find_series
from recor_dist.figures.groups import group_runs
from tests.figures.made_up import made_up


def test_ablations_are_found_among_the_runs() -> None:
    settings = [f"method.token_queries={K} method.order_queries=2" for K in (4, 1)]
    settings += [f"method.exploration=entropy method.alpha={alpha}" for alpha in (1, 0.01)] + [
        "method.exploration=topk"
    ]
    settings += [
        "method.reward=dense",
        "method.reward=dense method.algorithm=ppo",
        "method=clm",
        "task=mul",
        "epochs=2",
    ]
    groups = group_runs([made_up(*line.split()) for line in [*settings, ""]])
    found = {name: find_series(groups, ablation) for name, ablation in ABLATIONS.items()}
    by_queries = {series.fixed: list(series.groups) for series in found["token_queries"]}
    assert by_queries == {("method.order_queries=2",): ["K=1", "K=4"]}
    assert [list(series.groups) for series in found["order_queries"]] == [["main stream", "C=2"]]
    assert [list(s.groups) for s in found["exploration"]] == [["uniform", "top-K", "alpha=0.01", "alpha=1"]]
    assert [list(s.groups) for s in found["objective"]] == [
        ["sparse, soft Q (BCE)", "dense, soft Q (BCE)", "dense, PPO-like"]
    ]
