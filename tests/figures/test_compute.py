"""The cost of an answer, by decoder and settings."""

from dataclasses import replace

from recor_dist.core.compose import compose
from recor_dist.figures.compute import CostPoint, costs, draw_costs
from recor_dist.figures.groups import group_runs
from recor_dist.figures.tables import compute_table
from recor_dist.methods import parameters_of
from tests.figures.made_up import made_up, rows_of


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


def test_decoders_with_a_parameter_are_curves_whose_costs_are_means_over_seeds() -> None:
    """Two seeds of ReCOR: its own decoder, and two others that were measured later."""
    runs = [
        replace(
            made_up(f"seed={seed}", accuracy=0.9),
            further={
                "recor_confidence": {"exact_match": 0.7, "flops": 800.0, "forward_passes": 4.0},
                **{
                    f"recor_threshold_tau{tau}": {
                        "exact_match": tau,
                        "flops": 1000.0 * min(tau, 0.9) + seed,
                        "forward_passes": 4 * tau,
                        "most_forward_passes": 3 + seed,
                    }
                    for tau in (0.95, 0.9, 0.5)
                },
            },
        )
        for seed in (0, 1)
    ]
    (group,) = group_runs(runs)
    points = {point.decoder: point for point in costs([group])}
    threshold = points["recor_threshold_tau0.5"]
    assert (threshold.flops, threshold.passes, threshold.most_passes) == (500.5, 2.0, 4)
    assert threshold.accuracy == [0.5, 0.5]
    (axes,) = draw_costs("some", list(points.values())).axes
    curves = {drawn.get_label(): drawn for drawn in axes.containers}
    assert list(curves) == ["ReCOR", "ReCOR, confidence", "ReCOR, threshold, tau=0.5, 0.9, 0.95"], "cheapest first"
    line = curves["ReCOR, threshold, tau=0.5, 0.9, 0.95"][0]
    assert list(line.get_xdata()) == [500.5 / 1e6, 900.5 / 1e6, 900.5 / 1e6]
    assert list(line.get_ydata()) == [0.5, 0.9, 0.95]
    assert curves["ReCOR"][0].get_color() == line.get_color(), "one colour per method"
    assert curves["ReCOR"][0].get_marker() != line.get_marker()
    table = rows_of(compute_table([group], group.condition))
    assert table["ReCOR, threshold, tau=0.5"][0] == "2.0 (4)"


def test_every_decoder_that_we_have_looks_different() -> None:
    methods = ("recor", "clm", "ar_gt", "mdm", "ao_arm")
    configs = [compose(["scale=smoke", f"method={name}"]) for name in methods]
    configs.append(compose(["scale=smoke", "method=mdm", "method.suffix=true"]))
    points = [CostPoint(name, (), 1.0, 1, None, [0.5]) for config in configs for name in parameters_of(config)]
    (axes,) = draw_costs("all", points).axes
    looks = {(c[0].get_color(), c[0].get_marker()) for c in axes.containers}
    assert len(looks) == len(points) == 26
    assert len({colour for colour, _ in looks}) == 10, "decoders of a model have its colour, but the paper's their own"
