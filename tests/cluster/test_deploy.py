"""Other ways onto a cluster than `ray up`: the image, the manifests for KubeRay, and the script for Slurm."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLUSTER, JOB, SERVICES = (ROOT / "deploy" / name for name in ("raycluster.yaml", "rayjob.yaml", "services.yaml"))
SLURM = ROOT / "deploy/slurm.sh"
KUBERNETES = "1.34.0"  # the version whose schemas are used

# The fields that we use, of those that KubeRay's API reference names, with their types.
OF_A_CLUSTER = {"rayVersion": str, "authOptions": dict, "enableInTreeAutoscaling": bool, "autoscalerOptions": dict,
                "headGroupSpec": dict, "workerGroupSpecs": list}  # fmt: skip
OF_A_HEAD = {"rayStartParams": dict, "template": dict}
OF_WORKERS = OF_A_HEAD | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}
OF_A_JOB = {"entrypoint": str, "shutdownAfterJobFinishes": bool, "backoffLimit": int, "rayClusterSpec": dict}


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def pods_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def check_fields(given: dict[str, Any], allowed: dict[str, type]) -> None:
    assert {name: type(value) for name, value in given.items()} == {name: allowed[name] for name in given}


def check_cluster(spec: dict[str, Any]) -> None:
    """KubeRay's own fields by their names and types; the rest, which are pods, against the schema of Kubernetes."""
    check_fields(spec, OF_A_CLUSTER)
    check_fields(spec["headGroupSpec"], OF_A_HEAD)
    for group in spec["workerGroupSpecs"]:
        check_fields(group, OF_WORKERS)
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(type(value) is str for value in group["rayStartParams"].values())
    check_fields(spec["autoscalerOptions"], {"idleTimeoutSeconds": int})
    assert spec["authOptions"] == {"mode": "token"}
    for pod in pods_of(spec):
        wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": pod}
        kubernetes_validate.validate(wrapped, KUBERNETES, strict=True)


def test_the_manifests_validate() -> None:
    (cluster,), (job,) = documents(CLUSTER), documents(JOB)
    for manifest, kind in ((cluster, "RayCluster"), (job, "RayJob")):
        assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", kind)
    check_cluster(cluster["spec"])
    check_fields(job["spec"], OF_A_JOB)
    for manifest in documents(SERVICES):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (["headGroupSpec", "template", "spec", "containers", 0, "resource"], {}),
        (["headGroupSpec", "template", "spec", "containers", 0, "env", 0, "value"], 5),
        (["headGroupSpec", "template", "spec", "volumes", 0, "name"], None),
        (["workerGroupSpecs", 0, "minReplica"], 1),
        (["autoscalerOption"], {}),
    ],
)
def test_a_manifest_with_a_mistake_does_not(place: list, wrong: Any) -> None:
    part = spec = documents(CLUSTER)[0]["spec"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = wrong
    with pytest.raises((kubernetes_validate.ValidationError, KeyError)):
        check_cluster(spec)


def test_a_job_and_a_cluster_that_stays_have_the_same_nodes_and_what_they_need_exists() -> None:
    (cluster,), (job,), services = documents(CLUSTER), documents(JOB), documents(SERVICES)
    spec = cluster["spec"]
    assert job["spec"]["rayClusterSpec"] == spec
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    assert spec["rayVersion"] == pinned
    named = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in services}
    (mlflow,) = [manifest["spec"]["template"] for manifest in services if manifest["kind"] == "Deployment"]
    for pod in (*pods_of(spec), mlflow):
        user = pod["spec"]["securityContext"]
        assert user["runAsNonRoot"] and f"USER {user['runAsUser']}:{user['runAsGroup']}" in dockerfile()
        (container,), volumes = pod["spec"]["containers"], pod["spec"]["volumes"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in volumes}
        claims = [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]
        assert all(("PersistentVolumeClaim", claim) in named for claim in claims) and claims
        env = {variable["name"]: variable["value"] for variable in container["env"]}
        if container["name"] != "mlflow":
            host, port = re.fullmatch(r"http://(.+):(\d+)", env["MLFLOW_TRACKING_URI"]).groups()
            assert ("Service", host) in named
            assert f"--port {port}" in mlflow["spec"]["containers"][0]["command"][2]
    words = job["spec"]["entrypoint"].split()
    assert words[:3] == ["python", "-m", "recor_dist.run"]
    assert all(word.split("=")[1].startswith("/shared/") for word in words if word.startswith(("out=", "data.dir=")))


@pytest.mark.slow  # MLflow's server takes some seconds to start
def test_mlflow_answers_under_the_name_of_its_service(tmp_path: Path) -> None:
    """MLflow refuses requests that name a host it was not told about."""
    (mlflow,) = [
        m["spec"]["template"]["spec"]["containers"][0] for m in documents(SERVICES) if m["kind"] == "Deployment"
    ]
    port = free_ports(1)[0]
    command = mlflow["command"][2].replace("0.0.0.0", "127.0.0.1").replace("--port 5000", f"--port {port}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MLFLOW_DISABLE_TELEMETRY": "true"} | {
        variable["name"]: variable["value"] for variable in mlflow["env"]
    }
    server = subprocess.Popen(["sh", "-c", command], cwd=tmp_path, env=environment, start_new_session=True)
    try:
        wait_until(lambda: status_of(port, "recor-dist-mlflow:5000") == 200, "the server answers", 120)
        assert status_of(port, "elsewhere:5000") == 403
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def status_of(port: int, host: str) -> int | None:
    """Of a request that names this host."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            path = "/api/2.0/mlflow/experiments/get?experiment_id=0"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return int(connection.recv(100).split()[1])
    except (OSError, IndexError):
        return None


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(happened: Callable[[], Any], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.2)


# --- the image -------------------------------------------------------------------------------------------------------


def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text().replace("\\\n", "")


def instructions(name: str) -> list[list[str]]:
    return [line.split()[1:] for line in dockerfile().splitlines() if line.startswith(f"{name} ")]


def test_the_image_has_all_of_the_source_and_nothing_else() -> None:
    """The same files as on the nodes of `ray up`."""
    mounts = yaml.safe_load((ROOT / "cluster.yaml").read_text())["file_mounts"].values()
    source = {local for local in mounts if not local.startswith("~")}
    assert {name for *names, _ in instructions("COPY") for name in names} == source
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == source
    assert "*" in ignored


@pytest.mark.slow  # an installation, and a run
def test_the_steps_of_the_image_train_to_the_result_of_this_clone(
    tmp_path: Path, trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new environment that finds the dependencies in this one, so that pip needs no index."""
    source, place, home = tmp_path / "source", tmp_path / "environment", tmp_path / "home"
    for *names, to in instructions("COPY"):
        for name in names:
            target = source / (name if to == "./" else to)
            target.parent.mkdir(exist_ok=True)
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, target, ignore=ignore) if (ROOT / name).is_dir() else shutil.copy(
                ROOT / name, target
            )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "lib" / version / "site-packages/nearby.pth").write_text(sysconfig.get_path("purelib"))
    home.mkdir()
    monkeypatch.setenv("PATH", f"{place}/bin:{os.environ['PATH']}")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (install,) = [step for step in instructions("RUN") if step[:2] == ["pip", "install"]]
    offline = ["--no-index", "--no-build-isolation"]
    subprocess.run(["python", "-m", *install, *offline], cwd=source, check=True, capture_output=True)
    shutil.rmtree(source)
    run = ["recor_dist.run", "scale=smoke", "engine=local", "track.enabled=false"]
    done = subprocess.run(["python", "-m", *run], cwd=home, check=True, capture_output=True, text=True)
    (expected,) = re.findall(r'"weights_sha256": "(\w+)"', (trained() / "result.json").read_text())
    assert f"weights sha256 {expected}" in done.stdout
    assert (home / "runs").is_dir() and (home / "shards").is_dir()


# --- Slurm -----------------------------------------------------------------------------------------------------------

FAKES = {
    # Runs the command on this machine; the node is the address at which Ray listens.
    "srun": 'echo "srun $*" >> "$FAKES/calls"; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "scontrol": 'echo "scontrol $*" >> "$FAKES/calls"; [ "$1" != show ] || printf "127.0.0.1\\n127.0.0.2\\n"',
}


def test_the_script_is_valid_and_asks_for_what_it_uses() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    text = SLURM.read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)", text, re.M))
    assert options["ntasks-per-node"] == "1"
    (seconds,) = re.findall(r"RAY_JOB_STOP_WAIT_TIME_S=(\d+)", text)
    assert options["signal"] == f"B:TERM@{seconds}"
    assert {"exclusive", "requeue", "no-kill"} <= options.keys()
    assert options["dependency"] == "singleton" and options["job-name"]
    assert not re.search(r"[0-9a-f]{64}", text) and "0.0.0.0" not in text


@pytest.mark.parametrize(("found", "used"), [("10.0.0.7", "10.0.0.7"), ("127.0.1.1", "10.0.0.5"), ("127.0.0.1",) * 2])
def test_the_head_is_reached_from_other_nodes_though_it_may_call_itself_by_another_address(
    tmp_path: Path, found: str, used: str
) -> None:
    for name, printed in {"getent": [f"{found} STREAM head", found], "hostname": ["10.0.0.5 172.17.0.1 "]}.items():
        (tmp_path / name).write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in printed))
        (tmp_path / name).chmod(0o755)
    (function,) = re.findall(r"^address_of\(\) \{.*?^\}", SLURM.read_text(), re.M | re.S)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"{function}\naddress_of head"], env=environment, capture_output=True, text=True
    )
    assert done.stdout == f"{used}\n"


@pytest.mark.slow  # two nodes of Ray and MLflow's server start, twice
@pytest.mark.timeout(600)
def test_the_script_trains_is_stopped_queues_itself_again_and_resumes(
    tmp_path: Path, trained: Callable[..., Path]
) -> None:
    """With a srun that starts Ray's nodes on two addresses of this machine."""
    ray_port, mlflow_port = (str(port) for port in free_ports(2))
    script = tmp_path / "slurm.sh"
    script.write_text(SLURM.read_text().replace("6379", ray_port).replace("5000", mlflow_port))
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text(f"PATH={tmp_path}:{Path(sys.executable).parent}:$PATH\n")
    environment = {
        **os.environ,
        "FAKES": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
    }
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_ADDRESS", "RAY_AUTH_MODE"):
        environment.pop(name)
    longer = ["epochs=30", "checkpoint.every=20", "eval.every=100"]
    words = ["bash", str(script), "scale=smoke", *longer, "out=runs/mine"]

    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            journal = tmp_path / "runs/mine/metrics.jsonl"

            def has_begun() -> bool:
                return job.poll() is not None or (journal.exists() and "loss/lm" in journal.read_text())

            wait_until(has_begun, "the first step", 240)
            assert job.poll() is None, (tmp_path / "log").read_text()
            job.send_signal(signal.SIGTERM)
            assert job.wait(timeout=120) == 128 + signal.SIGTERM, (tmp_path / "log").read_text()
            assert "scontrol requeue 7" in (tmp_path / "calls").read_text()
            job = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
            assert job.wait(timeout=300) == 0, (tmp_path / "log").read_text()
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
    said = (tmp_path / "log").read_text()
    (expected,) = re.findall(r'"weights_sha256": "(\w+)"', (trained(*longer) / "result.json").read_text())
    assert f"weights sha256 {expected}" in said
    assert "resum" in said, said
    calls = (tmp_path / "calls").read_text()
    assert calls.count("--nodelist=127.0.0.1") == calls.count("--nodelist=127.0.0.2") == 2
    assert (tmp_path / "mlflow/mlflow.db").exists()
    token = re.compile(rb"[0-9a-f]{64}")
    assert token.findall(said.encode()) == [expected.encode()], "the token is in no log"
