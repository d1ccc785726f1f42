"""`python -m recor_dist.cluster head=HOST [workers=HOST,HOST] [user=NAME] [key=FILE]`: cluster.yaml for your own hosts.

Prints what `ray up` needs: cluster.yaml with AWS taken out and your hosts put in; everything else is as it is there.
Without workers it is a cluster of one machine.
"""

import getpass
import sys
from pathlib import Path
from typing import Any

import yaml

from recor_dist.config import Mistake, nearest

FILE = Path(__file__).parent.parent / "cluster.yaml"
OF_AWS = ("available_node_types", "head_node_type", "max_workers", "upscaling_speed")


def for_hosts(cluster: dict[str, Any], head: str, workers: list[str], user: str, key: str | None) -> dict[str, Any]:
    """The content of cluster.yaml, for a list of hosts."""
    kept = {name: value for name, value in cluster.items() if name not in OF_AWS}
    provider = {"type": "local", "head_ip": head, "worker_ips": workers}
    auth = {"ssh_user": user, **({"ssh_private_key": key} if key else {})}
    # Ray's second autoscaler never starts the workers of such a list.
    *before, start = cluster["head_start_ray_commands"]
    started = start.replace("ray start --head", "RAY_enable_autoscaler_v2=0 ray start --head")
    return {**kept, "provider": provider, "auth": auth, "head_start_ray_commands": [*before, started]}


def main(words: list[str]) -> None:
    settings = {"head": "", "workers": "", "user": getpass.getuser(), "key": ""}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in settings or not equals or not value:
            raise Mistake(f"{word}: write head=HOST, workers=HOST,HOST, user=NAME or key=FILE{nearest(name, settings)}")
        settings[name] = value
    if not settings["head"]:
        raise Mistake("head: which host is to be the head? Write head=HOST")
    workers = [host for host in settings["workers"].split(",") if host]
    if len({settings["head"], *workers}) <= len(workers):
        raise Mistake(f"workers={settings['workers']}: name each host once, and the head only as head")
    hosts = for_hosts(
        yaml.safe_load(FILE.read_text()), settings["head"], workers, settings["user"], settings["key"] or None
    )
    yaml.safe_dump(hosts, sys.stdout, sort_keys=False, width=1000)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(2)
