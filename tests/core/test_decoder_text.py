"""Decoders as people write them."""

import pytest

from recor_dist.core.decoder_text import Parameter, read_decoders
from recor_dist.core.names import name_of, split_parameter
from recor_dist.core.setting import Mistake

TABLE = {
    "mdm": Parameter("T", 20, at_least=1, usual=(2, 20), whole=True, plain_at=20),
    "adamdm_margin": Parameter("T", 20, at_least=1, usual=(2, 20), whole=True, plain_at=20),
    "mdm_confidence": None,
    "mdm_threshold": Parameter("tau", 0.9, at_least=0, at_most=1, usual=(0.5, 0.9)),
    "mdm_entropy_bounded": Parameter("gamma", 0.1, at_least=0),
}


def names(text: str) -> list[str]:
    return [name for name, _, _ in read_decoders("decoders", text, TABLE)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("threshold", ["mdm_threshold_tau0.9"]),
        ("mdm_threshold:0.5", ["mdm_threshold_tau0.5"]),
        ("threshold:tau=1", ["mdm_threshold_tau1"]),
        ("threshold:0.50/0.9", ["mdm_threshold_tau0.5", "mdm_threshold_tau0.9"]),
        ("mdm_threshold_tau0.5", ["mdm_threshold_tau0.5"]),
        ("entropy_bounded:1e-5", ["mdm_entropy_bounded_gamma0.00001"]),
        ("entropy_bounded:sweep", ["mdm_entropy_bounded_gamma0.1"]),
        ("mdm, adamdm_margin:T=5", ["mdm", "adamdm_margin_T5"]),
        ("margin:20,mdm_T2,mdm:2", ["adamdm_margin", "mdm_T2"]),
        ("confidence", ["mdm_confidence"]),
        (
            "sweep",
            [
                *("mdm_T2", "mdm", "adamdm_margin_T2", "adamdm_margin", "mdm_confidence"),
                *("mdm_threshold_tau0.5", "mdm_threshold_tau0.9", "mdm_entropy_bounded_gamma0.1"),
            ],
        ),
    ],
)
def test_a_decoder_is_a_name_and_perhaps_a_value(text: str, named: list[str]) -> None:
    assert names(text) == named
    assert names(",".join(named)) == named, "the names of results are understood, too"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("treshold:0.9", "decoders=treshold:0.9: this model has mdm, .*; did you mean threshold?"),
        ("recor", "decoders=recor: this model has mdm, adamdm_margin, mdm_confidence, .*"),
        ("threshold:1.5", "decoders=threshold:1.5: tau must be a number, at least 0 and at most 1"),
        ("threshold:nan", "decoders=threshold:nan: tau must be a number, at least 0 and at most 1"),
        ("entropy_bounded:inf", "decoders=entropy_bounded:inf: gamma must be a number, at least 0"),
        ("mdm:2.5", "decoders=mdm:2.5: T must be a whole number, at least 1"),
        ("mdm_T0", "decoders=mdm_T0: T must be a whole number, at least 1"),
        ("threshold:gamma=1", "decoders=threshold:gamma=1: mdm_threshold has no gamma; write mdm_threshold:tau=0.9"),
        ("confidence:3", "decoders=confidence:3: mdm_confidence takes no value; write decoders=mdm_confidence"),
        ("threshold:", "decoders=threshold:: has no value behind the colon; omit the colon, or give one"),
        ("mdm,", "decoders=: this model has .*"),
    ],
)
def test_a_wrong_name_or_value_is_one_line_with_the_remedy(text: str, said: str) -> None:
    with pytest.raises(Mistake, match=f"^{said}$".replace("?$", r"\?$")):
        names(text)


def test_results_of_a_parameter_can_be_told_from_those_of_another_decoder() -> None:
    assert split_parameter("mdm_threshold_tau0.9") == ("mdm_threshold", "tau", "0.9")
    assert split_parameter("adamdm_margin_T5") == ("adamdm_margin", "T", "5")
    assert split_parameter("mdm_mine_beta0.5") == ("mdm_mine", "beta", "0.5"), "a rule that a user has added"
    assert split_parameter("recor_v2") == ("recor_v2", "", ""), "a method that a user has added"
    assert name_of("sufmdm_entropy_bounded_gamma0.1") == "SufMDM, entropy bounded, gamma=0.1"
    assert name_of("ao_arm_confidence") == "AO-ARM, confidence"
    for key in ("v", "k2", "a_b", ""):
        with pytest.raises(AssertionError, match="letters only, and is not v"):
            Parameter(key, 1, at_least=0)
