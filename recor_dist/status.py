"""`python -m recor_dist.status out=RUN`: what a running run does at the moment, or how one ended, from any machine."""

from dataclasses import dataclass

from omegaconf import MISSING

from recor_dist.core.command import plain_command
from recor_dist.core.setting import setting
from recor_dist.record.run_folder import RunFolder
from recor_dist.record.snapshot import describe, describe_end, read_snapshot

ABOUT = [
    "Prints what a running run does: its step and rate, who works on what and since when, and the last faults.",
    "`kill -USR1` of the run's process makes it print the same to stderr.",
]


@dataclass
class Settings:
    out: str = setting(MISSING, "folder or URI of the run")


def main(settings: Settings) -> None:
    folder = RunFolder.open(settings.out)
    run = folder.require_run()
    error = f" ({run['error'].splitlines()[0]})" if "error" in run else ""
    status = run.get("status", "starting")
    print(f"{settings.out}: {status}{error}")
    if snapshot := read_snapshot(folder):
        print(describe(snapshot) if status in ("starting", "running") else describe_end(snapshot))


if __name__ == "__main__":
    plain_command(Settings, main, ABOUT, positional=("out",))
