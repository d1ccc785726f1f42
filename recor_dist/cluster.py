"""`python -m recor_dist.cluster head=HOST [workers=HOST,HOST] [user=NAME] [key=FILE]`: cluster.yaml for your own hosts.

Prints a file for `ray up`: cluster.yaml with your hosts instead of AWS, and everything else unchanged. Without workers,
the cluster is one machine.
"""

import getpass
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING

from recor_dist.core.command import plain_command
from recor_dist.core.setting import Mistake, setting

FILE = Path(__file__).parent.parent / "cluster.yaml"
OF_AWS = ("available_node_types", "head_node_type", "max_workers", "upscaling_speed")
ABOUT = [
    "Prints cluster.yaml for your own hosts, for `ray up`.",
    "",
    "  python -m recor_dist.cluster head=10.0.0.1 workers=10.0.0.2,10.0.0.3 user=ada > hosts.yaml",
]


@dataclass
class ClusterConfig:
    """The hosts, and how to log in to them."""

    head: str = setting(MISSING, "host of the head node")
    workers: str | None = setting(None, "hosts of the worker nodes, separated by commas; by default none")
    user: str | None = setting(None, "user name for ssh; by default yours")
    key: str | None = setting(None, "private key file for ssh; by default ssh's own")


def for_hosts(cluster: dict[str, Any], head: str, workers: list[str], user: str, key: str | None) -> dict[str, Any]:
    """The content of cluster.yaml for a list of hosts."""
    kept = {name: value for name, value in cluster.items() if name not in OF_AWS}
    provider = {"type": "local", "head_ip": head, "worker_ips": workers}
    auth = {"ssh_user": user, **({"ssh_private_key": key} if key else {})}
    # Version 2 of Ray's autoscaler never starts the workers of such a list.
    start = "ray start --head"
    commands = cluster["head_start_ray_commands"]
    if sum(command.count(start) for command in commands) != 1:
        raise Mistake(f"cluster.yaml: `{start}` must occur once in head_start_ray_commands")
    started = [command.replace(start, f"RAY_enable_autoscaler_v2=0 {start}") for command in commands]
    return {**kept, "provider": provider, "auth": auth, "head_start_ray_commands": started}


def main(config: ClusterConfig) -> None:
    workers = [host for host in (config.workers or "").split(",") if host]
    if len({config.head, *workers}) <= len(workers):
        raise Mistake(f"workers={config.workers}: name each host once, and the head only as head")
    cluster = yaml.safe_load(FILE.read_text())
    hosts = for_hosts(cluster, config.head, workers, config.user or getpass.getuser(), config.key)
    yaml.safe_dump(hosts, sys.stdout, sort_keys=False, width=1000)


if __name__ == "__main__":
    plain_command(ClusterConfig, main, ABOUT)
