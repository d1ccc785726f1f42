"""The names of decoders."""

import pytest

from recor_dist.core.names import name_of


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        ("recor", "ReCOR"),
        ("ar_gt", "AR-GT"),
        ("mdm", "MDM"),
        ("sufmdm_T2", "SufMDM, T=2"),
        ("adasufmdm_margin", "AdaSufMDM, top margin"),
        ("adamdm_prob_T2", "AdaMDM, top probability, T=2"),
    ],
)
def test_decoders_have_the_names_of_the_paper(decoder: str, name: str) -> None:
    assert name_of(decoder) == name
