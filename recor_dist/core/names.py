"""What tasks, methods and decoders are called where people read of them, and in which order they are listed."""

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
TASKS = {"arg": "ARG", "mul": "MUL", "sudoku": "Sudoku", "zebra": "Zebra", "custom": "custom"}


def split_steps(decoder: str) -> tuple[str, str]:
    """The decoder, and T where its name tells it: adamdm_prob_T2 -> adamdm_prob, "2"."""
    base, mark, steps = decoder.rpartition("_T")
    return (base, steps) if mark and steps.isdecimal() else (decoder, "")


def name_of(decoder: str) -> str:
    """As people call it: adamdm_prob_T2 -> AdaMDM, top probability, T=2."""
    base, steps = split_steps(decoder)
    return NAMES.get(base, base) + (f", T={steps}" if steps else "")


def place_of(decoder: str) -> tuple[str, int, str]:
    """Where it stands among others: full decoders before those of few steps, known ones in their order."""
    base, steps = split_steps(decoder)
    return steps, list(NAMES).index(base) if base in NAMES else len(NAMES), base
