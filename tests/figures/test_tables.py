"""The report's tables: their entries, the paper's numbers next to them, and what was never run."""

import statistics

from recor_dist.figures.groups import conditions, group_runs
from recor_dist.figures.tables import PAPER, cell, compute_table, paper_figure
from tests.figures.made_up import made_up, rows_of


def test_a_cell_has_the_mean_the_deviation_and_the_number_of_seeds() -> None:
    values = [0.25, 0.5, 0.9]
    assert cell(values) == f"{sum(values) / 3:.3f} ± {statistics.stdev(values):.3f} (3)"
    assert cell([0.25]) == "0.250 (1)"
    assert cell([]) == "not run"


def test_the_papers_numbers_are_those_of_its_tables() -> None:
    printed = {
        "arg": "0.994 0.987 0.017 0.035 0.174 0.174 0.040 0.536 0.536",
        "mul": "0.999 0.964 0.594 0.943 0.951 0.951",
        "sudoku": "0.8718 0.9017 0.0973 0.0688 - 0.8949",
        "zebra": "0.9117 0.9905 0.8031 0.769 0.985 -",
    }
    decoders = [
        "ar_gt",
        "recor",
        "clm",
        "mdm",
        "adamdm_prob",
        "adamdm_margin",
        "sufmdm",
        "adasufmdm_prob",
        "adasufmdm_margin",
    ]
    for task, figures in printed.items():
        for decoder, figure in zip(decoders, figures.split(), strict=False):
            assert paper_figure(task, decoder).split(" ")[0] == figure.replace("-", ""), (task, decoder)
    assert paper_figure("arg", "adasufmdm_prob_T2") == "0.028 ± 0.009"
    assert paper_figure("mul", "adamdm_margin_T2") == "0.875 ± 0.043"
    assert (
        paper_figure("arg", "adamdm_prob_T2") == paper_figure("custom", "recor") == paper_figure("arg", "ao_arm") == ""
    )
    assert set(PAPER) == set(printed)


def test_compute_is_relative_to_recor() -> None:
    groups = group_runs([made_up(accuracy=0.9), made_up("method=mdm", accuracy=0.3), made_up("method=clm")])
    ((_, _, _), *none) = conditions(groups)
    assert not none
    rows = rows_of(compute_table(groups, conditions(groups)[0]))
    assert rows["ReCOR"] == ["2", "0.00", "1.00", "0.900 (1)", "*0.987 ± 0.007*"]
    assert rows["CLM"][2] == "0.50"
    assert rows["MDM, T=2"][:3] == ["2", "0.00", "1.00"]
    assert rows["AdaMDM, top margin"][0::2] == ["20", "10.00", "*0.174 ± 0.036*"]
    without = compute_table(group_runs([made_up("method=clm")]), conditions(groups)[0])
    assert rows_of(without)["CLM"][2] == "–"
    assert "ReCOR's cost per answer is not recorded here." in without
