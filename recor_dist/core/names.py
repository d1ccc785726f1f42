"""The names of methods and decoders in figures, tables and pages, and the order in which they are listed."""

import re

NAMES = {
    "recor": "ReCOR",
    "ar_gt": "AR-GT",
    "clm": "CLM",
    "ao_arm": "AO-ARM",
    "mdm": "MDM",
    "adamdm_prob": "AdaMDM, top probability",
    "adamdm_margin": "AdaMDM, top margin",
    "sufmdm": "SufMDM",
    "adasufmdm_prob": "AdaSufMDM, top probability",
    "adasufmdm_margin": "AdaSufMDM, top margin",
}
PARAMETER = r"(?!v\d)[A-Za-z]+"  # the key of a decoder's parameter; `v` is a version: recor_v2


def split_parameter(decoder: str) -> tuple[str, str, str]:
    """The decoder without its parameter, the parameter and its value: mdm_threshold_tau0.9 -> mdm_threshold, tau, 0.9.
    The last two are empty if the name has none."""
    found = re.fullmatch(rf"(.+)_({PARAMETER})(\d+(?:\.\d+)?)", decoder)
    return (found[1], found[2], found[3]) if found else (decoder, "", "")


def split_steps(decoder: str) -> tuple[str, str]:
    """The decoder without its number of steps T, and T if the name has it: adamdm_prob_T2 -> adamdm_prob, "2"."""
    base, parameter, value = split_parameter(decoder)
    return (base, value) if parameter == "T" else (decoder, "")


def name_of(decoder: str) -> str:
    """The display name: adamdm_prob_T2 -> AdaMDM, top probability, T=2; recor_confidence -> ReCOR, confidence."""
    base, parameter, value = split_parameter(decoder)
    method, rule = split_rule(base)
    name = ", ".join(part for part in (NAMES.get(method, method), rule.replace("_", " ")) if part)
    return name + (f", {parameter}={value}" if parameter else "")


def place_of(decoder: str) -> tuple[str, int, str]:
    """Sort key: full decoders before those with a parameter, known ones in the order of NAMES, others last."""
    base, parameter, value = split_parameter(decoder)
    place = list(NAMES).index(base) if base in NAMES else len(NAMES)
    return (value if parameter == "T" else ""), place, base


def split_rule(base: str) -> tuple[str, str]:
    """The known name with which that of a decoder begins, and what follows: mdm_threshold -> mdm, threshold. The second
    is empty for known and for unknown names."""
    known = [name for name in NAMES if base == name or base.startswith(f"{name}_")]
    method = max(known, key=len, default=base)
    return method, base.removeprefix(method).strip("_")
