"""cluster.yaml and what is derived from it: Ray accepts it, AWS has its instances, and it exposes no port or secret."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
import pytest
import yaml
from moto import mock_aws
from ray.autoscaler._private.util import prepare_config, validate_config

from recor_dist.cluster import FILE, for_hosts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty moto account with AWS's managed policies; keys are written to a temporary home."""
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nothing")
    with mock_aws(config={"iam": {"load_aws_managed_policies": True}}), patch("time.sleep"):
        yield


def derived(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "recor_dist.cluster", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_ray_accepts_the_file_and_a_misspelt_key_is_refused(cluster: dict[str, Any]) -> None:
    prepared = prepare_config(cluster)
    validate_config(prepared)
    for setup in ("head_setup_commands", "worker_setup_commands"):
        assert prepared[setup] == cluster["setup_commands"], "Ray adds none of its defaults"
    with pytest.raises(Exception, match="max_worker"):
        validate_config({**prepare_config(cluster), "max_worker": 1})


@pytest.mark.slow  # moto takes its time over all of AWS's instance types
@pytest.mark.usefixtures("aws")
@pytest.mark.filterwarnings("ignore:.*datetime:DeprecationWarning")
def test_aws_has_the_instances_and_ray_sees_their_gpus(cluster: dict[str, Any]) -> None:
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    filled = AWSNodeProvider.fillout_available_node_types_resources(prepare_config(cluster))
    kinds = {name: kind["resources"] for name, kind in filled["available_node_types"].items()}
    assert (kinds["head"]["GPU"], kinds["worker"]["GPU"]) == (1, 1)
    assert kinds["head"]["CPU"] >= 8, "the head also generates puzzles"
    accelerators = [{key for key in kind if key.startswith("accelerator_type")} for kind in kinds.values()]
    assert accelerators[0] == accelerators[1], "actors on a different GPU than the learner would be turned away"

    ready = bootstrap_aws(filled)
    head, worker = (ready["available_node_types"][name]["node_config"] for name in ("head", "worker"))
    assert "InstanceMarketOptions" not in head
    assert worker["InstanceMarketOptions"] == {"MarketType": "spot"}
    for node in (head, worker):
        assert node["SubnetIds"] and node["SecurityGroupIds"] and node["KeyName"]
    (key,) = Path(os.environ["HOME"], ".ssh").iterdir()
    assert key.stat().st_mode & 0o077 == 0

    # From outside, only ssh is open; everything else is open only to the cluster's own machines.
    groups = boto3.client("ec2", region_name=ready["provider"]["region"]).describe_security_groups(
        GroupIds=head["SecurityGroupIds"]
    )["SecurityGroups"]
    from_outside = [rule for group in groups for rule in group["IpPermissions"] if rule["IpRanges"]]
    assert [(rule["FromPort"], rule["ToPort"]) for rule in from_outside] == [(22, 22)]

    # README and docs/cluster.md: the head may look up the image for its workers.
    attach = r"^aws iam attach-role-policy --role-name (\S+) --policy-arn (\S+)"
    policy, in_docs = (re.search(attach, (ROOT / file).read_text(), re.M) for file in ("README.md", "docs/cluster.md"))
    assert policy[0] == in_docs[0]
    iam = boto3.client("iam")
    iam.attach_role_policy(RoleName=policy[1], PolicyArn=policy[2])
    allowed = iam.get_policy_version(
        PolicyArn=policy[2], VersionId=iam.get_policy(PolicyArn=policy[2])["Policy"]["DefaultVersionId"]
    )
    assert "ssm:Get*" in json.dumps(allowed["PolicyVersion"]["Document"])
    assert policy[1] in ready["head_node"]["IamInstanceProfile"]["Arn"]


@pytest.mark.slow  # moto takes its time over all of AWS's instance types
@pytest.mark.usefixtures("aws")
@pytest.mark.filterwarnings("ignore:.*datetime:DeprecationWarning")
def test_an_unknown_instance_type_is_refused(cluster: dict[str, Any]) -> None:
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    cluster["available_node_types"]["worker"]["node_config"]["InstanceType"] = "g6.tiny"
    with pytest.raises(ValueError, match=r"g6\.tiny is not available"):
        AWSNodeProvider.fillout_available_node_types_resources(prepare_config(cluster))


def test_workers_scale_between_a_minimum_and_a_maximum(cluster: dict[str, Any]) -> None:
    worker = prepare_config(cluster)["available_node_types"]["worker"]
    assert worker["min_workers"] < worker["max_workers"] == cluster["max_workers"]


@pytest.mark.parametrize("workers", [["10.0.0.2", "10.0.0.3"], []])
def test_your_own_hosts_get_the_same_file(workers: list[str], cluster: dict[str, Any]) -> None:
    words = ["head=10.0.0.1", "user=ada", "key=~/.ssh/id", *([f"workers={','.join(workers)}"] if workers else [])]
    hosts = yaml.safe_load(derived(*words).stdout)
    assert hosts == for_hosts(cluster, "10.0.0.1", workers, "ada", "~/.ssh/id")
    validate_config(prepare_config(hosts))
    assert hosts["provider"] == {"type": "local", "head_ip": "10.0.0.1", "worker_ips": workers}
    assert hosts["auth"] == {"ssh_user": "ada", "ssh_private_key": "~/.ssh/id"}
    same = set(cluster) - {"provider", "auth", "head_start_ray_commands", "available_node_types", "head_node_type"}
    for name in same - {"max_workers", "upscaling_speed"}:
        assert hosts[name] == cluster[name]
    assert cluster["head_start_ray_commands"] == [
        command.replace("RAY_enable_autoscaler_v2=0 ", "") for command in hosts["head_start_ray_commands"]
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "head: missing; write head=..."),
        (["haed=a"], "did you mean head?"),
        (["head="], "head=: has no value; write head=VALUE"),
        (["head=a", "workers=b,b"], "name each host once"),
        (["head=a", "workers=a"], "name each host once"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str) -> None:
    refused = derived(*words)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1 and said in refused.stderr
    assert not refused.stdout


def test_the_file_opens_nothing_and_holds_no_secret(cluster: dict[str, Any]) -> None:
    text = FILE.read_text()
    assert "0.0.0.0" not in text
    assert "--dashboard-host=127.0.0.1" in text and "--host 127.0.0.1 --port 5000" in text
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        (start,) = [command for command in cluster[commands] if "ray start" in command]
        assert "RAY_AUTH_MODE=token" in start
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert "chmod 600 ~/.ray/auth_token" in cluster["setup_commands"][0]
    assert not re.search(r"AKIA|aws_secret|RAY_AUTH_TOKEN=|[0-9a-f]{64}", text)


def test_all_of_the_source_is_mounted(cluster: dict[str, Any]) -> None:
    """Everything that pip needs to install this project on a node."""
    mounted = {local for local in cluster["file_mounts"].values() if not local.startswith("~")}
    assert mounted == {
        "recor_dist",
        "actors",
        "learner",
        "data",
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "LICENSE",
    }
    for local in mounted:
        assert (ROOT / local).exists()
        assert cluster["file_mounts"][f"~/.recor_dist/source/{local}"] == local


def on_a_node(command: str, home: Path, path: str = os.environ["PATH"]) -> str:
    """Runs a command of cluster.yaml as a node does; returns what it printed."""
    environment = {"HOME": str(home), "PATH": path}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow  # ensurepip takes some seconds
def test_the_environment_is_created_once_around_the_source(cluster: dict[str, Any], tmp_path: Path) -> None:
    """Ray copies the source before the environment exists, and a second `ray up` leaves both alone."""
    source = tmp_path / ".recor_dist/source/pyproject.toml"
    source.parent.mkdir(parents=True)
    source.touch()
    (command,) = [command for command in cluster["setup_commands"] if "-m venv" in command]
    on_a_node(command, tmp_path)
    python, pip = tmp_path / ".recor_dist/bin/python", tmp_path / ".recor_dist/bin/pip"
    assert python.exists() and pip.exists() and source.exists()
    pip.unlink()
    on_a_node(command, tmp_path)
    assert not pip.exists(), "it was not created again"


def test_the_path_is_set_once_even_if_other_lines_name_the_project(cluster: dict[str, Any], tmp_path: Path) -> None:
    profile = tmp_path / ".bashrc"
    profile.write_text("alias work='cd ~/recor_dist'\n")
    (command,) = [command for command in cluster["setup_commands"] if ".bashrc" in command]
    for _ in range(2):
        on_a_node(command, tmp_path)
    assert profile.read_text().count("export PATH=$HOME/.recor_dist/bin:$PATH") == 1


def test_apt_is_used_only_where_python_cannot_create_environments(cluster: dict[str, Any], tmp_path: Path) -> None:
    """With a python3 that can or cannot import venv, as the test decides, and a sudo that prints its arguments."""
    (command,) = cluster["initialization_commands"]
    for name, script in (("sudo", 'echo "$@"'), ("cloud-init", "exit 2"), ("python3", "exit $(cat ~/can)")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    for can, asked in ((0, []), (1, ["update", "install -y python3-venv"])):
        (tmp_path / "can").write_text(str(can))
        said = on_a_node(command, tmp_path, f"{tmp_path}:{os.environ['PATH']}").splitlines()
        assert said == [f"apt-get -qq -o DPkg::Lock::Timeout=300 {words}" for words in asked]
