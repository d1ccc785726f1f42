"""`python -m recor_dist.replay out=DIR`: one HTML file that replays test answers step by step."""

from dataclasses import dataclass

from omegaconf import MISSING

from recor_dist.answers.replay_page import write_replay
from recor_dist.core.command import plain_command
from recor_dist.core.progress import set_up_logging
from recor_dist.core.setting import setting

ABOUT = [
    "Writes one HTML file that replays test answers step by step.",
    "",
    "  python -m recor_dist.replay out=runs/demo",
    "  python -m recor_dist.replay out=runs/one beside=runs/another rows=40 file=both.html",
    "  python -m recor_dist.replay out=runs/arg-mdm-... decoders=mdm,adamdm_margin",
]


@dataclass
class ReplayConfig:
    """What the page shows."""

    out: str = setting(MISSING, "folder of a run")
    beside: str | None = setting(None, "folder of another run on the same task, shown next to it")
    decoders: str | None = setting(
        None, "decoders to show, separated by commas; by default the headline decoder of each run"
    )
    rows: int = setting(12, "test answers on the page: the first ones", at_least=1)
    file: str | None = setting(None, "path of the page; by default replay.html in `out`")


def main(config: ReplayConfig) -> None:
    set_up_logging()
    outs = [config.out] + ([config.beside] if config.beside else [])
    decoders = [name.strip() for name in config.decoders.split(",")] if config.decoders else None
    print(f"saved in {write_replay(outs, decoders=decoders, rows=config.rows, file=config.file)}")


if __name__ == "__main__":
    plain_command(ReplayConfig, main, ABOUT)
