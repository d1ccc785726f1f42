"""The names of methods and decoders in figures, tables and pages, and the order in which they are listed."""

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


def split_steps(decoder: str) -> tuple[str, str]:
    """The decoder without its number of steps T, and T if the name has it: adamdm_prob_T2 -> adamdm_prob, "2"."""
    base, separator, steps = decoder.rpartition("_T")
    return (base, steps) if separator and steps.isdecimal() else (decoder, "")


def name_of(decoder: str) -> str:
    """The display name: adamdm_prob_T2 -> AdaMDM, top probability, T=2."""
    base, steps = split_steps(decoder)
    return NAMES.get(base, base) + (f", T={steps}" if steps else "")


def place_of(decoder: str) -> tuple[str, int, str]:
    """Sort key: full decoders before those of few steps, known ones in the order of NAMES, others last."""
    base, steps = split_steps(decoder)
    return steps, list(NAMES).index(base) if base in NAMES else len(NAMES), base
