"""Which runs belong together, and which settings are named."""

from dataclasses import replace

import pytest

from recor_dist.figures.groups import conditions, differences, find_accuracy, group_runs
from recor_dist.record.runs import deduplicate
from tests.figures.made_up import made_up


def test_runs_that_differ_only_in_their_seed_are_one_group() -> None:
    runs = [made_up(f"seed={seed}", accuracy=seed / 10) for seed in (2, 0, 1)]
    runs += [made_up("seed=0", "engine=local", "eval.every=3", accuracy=0.9, place="placement changes nothing")]
    (group,) = group_runs(deduplicate(runs))
    assert [run.config.seed for run in group.runs] == [0, 1, 2]
    assert group.accuracy("recor") == [0.0, 0.1, 0.2]
    assert (group.common, group.own) == ((), ())


@pytest.mark.parametrize(
    ("overrides", "common", "own"),
    [
        (["epochs=2"], ("epochs=2.0",), ()),
        (["method.token_queries=2"], (), ("method.token_queries=2",)),
        (["threads=2", "method.alpha=0.5"], ("threads=2",), ("method.alpha=0.5",)),
        (["method=mdm", "method.suffix=true"], (), ()),
        (["data.dir=elsewhere", "engine=local"], (), ()),
        ([f"init_sha256={'0123456789abcdef' * 4}"], ("init_sha256=01234567",), ()),
    ],
)
def test_non_default_settings_are_named(overrides: list[str], common: tuple[str, ...], own: tuple[str, ...]) -> None:
    (group,) = group_runs([made_up(*overrides)])
    assert (group.common, group.own) == (common, own)


def test_different_runs_are_in_different_groups() -> None:
    pairs = [
        (made_up("scale=smoke"), made_up("scale=laptop")),
        (made_up(), made_up("epochs=2")),
        (made_up("method=mdm"), made_up("method=mdm", "method.suffix=true")),
        (made_up(data="aaaa"), made_up(data="bbbb")),
        (made_up(), made_up("precision=bfloat16")),
        (made_up(), replace(made_up(), settings={**made_up().settings, "method.of_a_later_version": 1})),
    ]
    for a, b in pairs:
        groups = group_runs([a, b])
        assert len(groups) == 2
        names = {(g.condition, g.own, g.runs[0].config.method.name, tuple(g.runs[0].decoders)) for g in groups}
        assert len(names) == 2, "and their names differ"
        for g in groups:
            decoder = next(iter(g.runs[0].decoders))
            if not g.own:
                assert len(find_accuracy(groups, g.condition, decoder)) == 1


def test_methods_on_other_rows_or_devices_are_not_compared() -> None:
    for other in (made_up("method=clm", data="bbbb"), made_up("method=clm", "precision=bfloat16")):
        assert len(conditions(group_runs([made_up(data="aaaa"), other]))) == 2
    assert len(conditions(group_runs([made_up(), made_up("method=clm")]))) == 1


def test_custom_rows_are_named_after_their_file_and_content() -> None:
    overrides = ["task=custom", "data.source=/some/where/rows.jsonl"]
    assert differences(made_up(*overrides, data="abcdef0123")) == ["data.source=rows.jsonl (abcdef01)"]
