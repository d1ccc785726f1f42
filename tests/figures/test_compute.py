"""The cost of an answer, by decoder and settings."""

from dataclasses import replace

from recor_dist.figures.compute import costs
from recor_dist.figures.groups import group_runs
from tests.figures.made_up import made_up


def test_other_settings_are_separate_points() -> None:
    settings = [["seed=0"], ["seed=1"], ["method.eta=0.5"], ["method.order_queries=2"]]
    runs = [made_up(*line, accuracy=i / 10) for i, line in enumerate(settings)]
    found = {point.name: (point.flops, point.accuracy) for point in costs(group_runs(runs))}
    assert found == {
        "ReCOR": (2000.0, [0.0, 0.1]),
        "ReCOR, method.eta=0.5": (2000.0, [0.2]),
        "ReCOR, method.order_queries=2": (4000.0, [0.3]),
    }
    unknown = replace(runs[0], decoders={"recor": {"exact_match": 1.0}})
    assert costs(group_runs([unknown])) == []
