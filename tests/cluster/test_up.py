"""A real `ray up` on two machines made of namespaces, each with its own processes, home and hostname.

They share a network that has only loopback: 127.0.0.1 is the head, 127.0.0.2 the worker, each with an sshd on port 22.
The file is cluster.yaml as `python -m recor_dist.cluster` derives it for hosts, unchanged. Its setup and start commands
are unchanged, too, but pip finds the packages in this environment instead of an index. Nothing here can reach another
Ray, its ports or a real home on this machine.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
INSIDE = "RECOR_DIST_INSIDE"  # set inside the test's own network
HEAD, WORKER = "127.0.0.1", "127.0.0.2"
COMMAND = ["python", "-m", "recor_dist.run", "task=zebra"]
SMALL = ["scale=smoke", "epochs=20", "checkpoint.every=20", "eval.every=50", "lag=1"]


@pytest.mark.slow  # minutes: a cluster comes up, trains, loses a node and goes down
@pytest.mark.timeout(2400)
@pytest.mark.skipif(INSIDE in os.environ, reason="this is the inner run")
def test_inside_its_own_network() -> None:
    cannot = pytest.fail if os.environ.get("CI") else pytest.skip
    sbin = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    needed = {"sshd": "openssh-server", "ssh": "openssh-client", "rsync": "rsync", "ip": "iproute2", "pgrep": "procps"}
    missing = [package for program, package in needed.items() if not shutil.which(program, path=sbin["PATH"])]
    if missing:
        cannot(f"needs {', '.join(missing)}; .ci/packages installs them")
    space = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*space, "true"], capture_output=True).returncode:
        cannot("needs root, for the namespaces that isolate this test")
    inner = [sys.executable, "-m", "pytest", "-x", "-m", "slow", "-p", "no:cacheprovider", "--timeout=2300", __file__]
    command = [*space, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *inner]
    shared = Path("/tmp/ray")  # machines mount their own over it
    before = shared.exists()
    done = subprocess.run(command, cwd=ROOT, env={**sbin, INSIDE: "1"}, capture_output=True, text=True)
    if not before:
        shared.rmdir()
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


# --- machines --------------------------------------------------------------------------------------------------------


@dataclass
class Machine:
    """A machine made of namespaces, with an sshd on its address."""

    name: str
    address: str
    home: Path
    public_key: str
    process: subprocess.Popen | None = None

    def set_up(self) -> None:
        """What a machine has before `ray up`: a home, an authorized key, and the packages."""
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        (self.home / "shm").mkdir()
        (self.home / "ray").mkdir()
        (self.home / ".ssh/authorized_keys").write_text(self.public_key)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.home / "host_key")], check=True, timeout=30
        )
        passwd = re.sub(
            r"^root:.*$", f"root:x:0:0:root:{self.home}:/bin/bash", Path("/etc/passwd").read_text(), flags=re.M
        )
        (self.home / "passwd").write_text(passwd)
        self._lay_in_packages()

    def _lay_in_packages(self) -> None:
        """An environment that sees the packages of this one, so pip needs no index."""
        place = self.home / ".recor_dist"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=60)
        packages = sysconfig.get_path("purelib")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (place / "lib" / version / "site-packages/nearby.pth").write_text(f"{packages}\n")
        for script in ("ray", "mlflow"):
            lines = (Path(sys.executable).parent / script).read_text().splitlines()
            (place / "bin" / script).write_text("\n".join([f"#!{place}/bin/python", *lines[1:]]) + "\n")
            (place / "bin" / script).chmod(0o755)
        (self.home / ".config/pip").mkdir(parents=True)
        (self.home / ".config/pip/pip.conf").write_text(
            "[global]\nno-index = true\nroot-user-action = ignore\n[install]\nno-build-isolation = false\n"
        )

    def start(self) -> None:
        home = self.home
        script = f"""
            set -e
            hostname {self.name}
            mount --bind {home}/passwd /etc/passwd
            mkdir -p /tmp/ray
            mount --bind {home}/ray /tmp/ray
            mount -t tmpfs -o size=2g tmpfs /dev/shm
            mount -t tmpfs tmpfs /run
            mkdir -p /run/sshd
            exec sshd -D -f /dev/null -h {home}/host_key -o ListenAddress={self.address} -o PidFile=none -o UsePAM=no \\
                -o PermitRootLogin=yes -o PasswordAuthentication=no -o MaxStartups=100
        """
        space = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.process = subprocess.Popen(
            [*space, "sh", "-c", script.replace("exec sshd", f"exec {shutil.which('sshd')}")], env=environment
        )

    def cut_the_power(self) -> None:
        """Kills all its processes at once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def run(self, command: str) -> str:
        """Inside the machine, without ssh."""
        (first,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        enter = ["nsenter", "--target", first, "--mount", "--uts", "--pid", "sh", "-c", command]
        return subprocess.run(enter, capture_output=True, text=True, check=True, timeout=60).stdout


class Laptop:
    """The user's machine: the checkout, a key, a token, and commands."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        self.key = home / ".ssh/key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True, timeout=30)
        kept = ("PATH", "LANG", "PYTHONPATH")
        self.environment = {key: os.environ[key] for key in kept if key in os.environ}
        self.environment |= {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        self.environment |= {
            "TMPDIR": str(home),
            "RAY_TMPDIR": str(home),
        }  # where `ray up` stores the state of its clusters
        # Ray names the sockets of its ssh connections after the user, so this one must be unique.
        self.environment["LOGNAME"] = f"laptop-{secrets.token_hex(8)}"
        self.sockets = f"/tmp/ray_ssh_{hashlib.sha256(self.environment['LOGNAME'].encode()).hexdigest()[:10]}"
        bin_folder = str(Path(sys.executable).parent)
        self.environment["PATH"] = f"{bin_folder}:{self.environment['PATH']}"

    def command(self, *words: str, timeout: float = 300, ok: bool = True, **environment: str) -> str:
        """Runs a command; returns what it printed on both streams."""
        done = subprocess.run(
            words,
            cwd=ROOT,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout,
        )
        print(f"$ {' '.join(words)}  [{done.returncode}]\n{done.stdout}", flush=True)
        assert (done.returncode == 0) is ok, done.stdout
        return done.stdout

    @contextmanager
    def background(self, *words: str, until: str = "", **environment: str) -> Iterator["Output"]:
        print(f"$ {' '.join(words)} &", flush=True)
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        output = Output(process)
        try:
            output.wait_for(until)
            yield output
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # including an ssh that it may have started
            process.wait()
            output.reader.join()
            process.stdout.close()


class Output:
    """What a background command has printed so far."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process, self.text, self.job = process, "", ""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            print(f"| {line}", end="", flush=True)
            self.text += line

    def wait_for(self, pattern: str, seconds: float = 120.0, count: int = 1) -> list[str]:
        def found() -> list[str]:
            ended = self.process.poll() is not None
            if ended:
                self.reader.join(timeout=10)  # it may still be reading the last lines
            seen = re.findall(pattern, self.text)
            assert len(seen) >= count or not ended, f"ended without {pattern!r}, {count} times:\n{self.text}"
            return seen if len(seen) >= count else []

        return wait_until(found, pattern, seconds)


def wait_until(happened: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.5)
    return found


# --- the story -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
def laptop(place: Path) -> Iterator[Laptop]:
    made = Laptop(place / "laptop")
    try:
        yield made
    finally:
        shutil.rmtree(made.sockets, ignore_errors=True)


@pytest.fixture(scope="module")
def machines(place: Path, laptop: Laptop) -> Iterator[dict[str, Machine]]:
    public_key = laptop.key.with_suffix(".pub").read_text()
    made = {
        name: Machine(name, address, place / name, public_key) for name, address in (("head", HEAD), ("worker", WORKER))
    }
    try:
        for machine in made.values():
            machine.set_up()
            machine.start()
        yield made
    finally:
        for machine in made.values():
            if machine.process and machine.process.poll() is None:
                machine.cut_the_power()


@pytest.mark.slow
@pytest.mark.skipif(INSIDE not in os.environ, reason="runs in the namespaces of the test above")
def test_the_readmes_commands_from_ray_up_to_ray_down(
    laptop: Laptop, machines: dict[str, Machine], place: Path
) -> None:
    head, worker = machines["head"], machines["worker"]
    file = place / "hosts.yaml"
    words = [f"head={HEAD}", f"workers={WORKER}", "user=root", f"key={laptop.key}"]
    file.write_text(laptop.command("python", "-m", "recor_dist.cluster", *words))

    token = makes_the_token(laptop)
    up = laptop.command("ray", "up", "-y", str(file), timeout=600)
    assert token not in up + file.read_text()
    for machine in (head, worker):
        wait_until((machine.home / ".ray/auth_token").exists, f"the token on the {machine.name}")

    def two_nodes() -> bool:
        return "2 local.cluster.node" in laptop.command("ray", "exec", str(file), "ray status")

    wait_until(two_nodes, "the worker joins", 300)
    for machine in (head, worker):
        assert mode(machine.home / ".ray/auth_token") == 0o600
        source = machine.run(f"{machine.home}/.recor_dist/bin/python -I -c 'import actors; print(actors.__file__)'")
        assert source.strip() == f"{machine.home}/.recor_dist/source/actors/__init__.py", "from the mounted source"
    cpus = float(re.search(r"/([\d.]+) CPU", laptop.command("ray", "exec", str(file), "ray status"))[1]) / 2
    listening = re.findall(r"LISTEN\s+\S+\s+\S+\s+(\S+):(\d+)\s", head.run("ss -ltn"))
    assert {(address, port) for address, port in listening if port in ("8265", "5000")} == {
        (HEAD, "8265"),
        (HEAD, "5000"),
    }

    # In this network the head itself listens on 127.0.0.1, so the ports that ssh forwards are only on ::1.
    with laptop.background("ray", "exec", str(file), "-p", "8265", "-p", "5000", "sleep infinity"):
        wait_until(lambda: answers("http://[::1]:5000/health") and answers("http://[::1]:8265"), "both UIs through ssh")
        jobs = Jobs(laptop, "http://[::1]:8265")
        refuses_strangers(laptop, jobs)
        shows_what_went_wrong(jobs)
        stops_and_resumes(jobs, head)
        restarts_mlflow(head)
        loses_a_node(jobs, head, worker, laptop, cpus)
        wait_until(two_nodes, "the worker is back", 300)
    goes_down(laptop, file, machines, token)


def makes_the_token(laptop: Laptop) -> str:
    """README's command: only the owner can read a new token, and afterwards also one that Ray wrote for all to read."""
    (command,) = re.findall(r"^\(umask .*auth_token$", (ROOT / "README.md").read_text(), flags=re.M)
    file = laptop.home / ".ray/auth_token"
    laptop.command("sh", "-c", command)
    token = file.read_text()
    assert token and mode(file) == 0o600
    file.chmod(0o644)
    laptop.command("sh", "-c", command)
    assert file.read_text() == token, "running clusters keep their token"
    assert mode(file) == 0o600
    return token


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


class Jobs:
    """`ray job ...` on the laptop."""

    def __init__(self, laptop: Laptop, address: str) -> None:
        self.laptop = laptop
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_API_SERVER_ADDRESS": address}

    def command(self, *words: str, ok: bool = True, **environment: str) -> str:
        return self.laptop.command("ray", "job", *words, ok=ok, **{**self.environment, **environment})

    @contextmanager
    def submitted(self, *words: str) -> Iterator["Output"]:
        """`ray job submit -- python -m recor_dist.run task=zebra`, and what it prints."""
        with self.laptop.background("ray", "job", "submit", "--", *COMMAND, *words, **self.environment) as output:
            output.job = output.wait_for(r"'(raysubmit_\w+)' submitted")[0]
            yield output


def refuses_strangers(laptop: Laptop, jobs: Jobs) -> None:
    stranger = {"RAY_AUTH_MODE": "disabled"}
    assert "Authentication required" in jobs.command("submit", "--", "true", ok=False, **stranger)
    wrong = {"RAY_AUTH_TOKEN": "0" * 64}
    assert "Authentication failed" in jobs.command("submit", "--", "true", ok=False, **wrong)
    assert jobs.command("list").rstrip().endswith("-- []"), "neither became a job"


def shows_what_went_wrong(jobs: Jobs) -> None:
    """A failed run shows its last error and its exit code."""
    shown = jobs.command("submit", "--", *COMMAND, "method=recro", ok=False)
    assert "error: method=recro: allowed: ao_arm, ar_gt, clm, mdm, recor; did you mean recor?" in shown
    assert re.search(r"exit code 2", shown)


def stops_and_resumes(jobs: Jobs, head: Machine) -> None:
    """The job command exactly as documented, at the scale chosen for this cluster: stopped, and submitted again."""
    steps = []
    for _ in range(2):
        with jobs.submitted() as output:
            output.wait_for(r"scale=auto chose laptop")
            (out,) = wait_until(lambda: list(head.home.glob("runs/zebra-recor-laptop-seed0-*")), "a run begins", 600)
            journal = out / "metrics.jsonl"
            done = steps[-1] if steps else 0
            wait_until(lambda: journal.exists() and last_step(journal) >= done + 20, "some steps", 600)  # noqa: B023
            jobs.command("stop", output.job)
            output.process.wait(timeout=60)
            output.wait_for(rf"Job '{output.job}' was stopped")
        about = json.loads((out / "run.json").read_text())
        assert about["status"] == "stopped"
        wait_until(lambda: statuses() == ["KILLED"], "one stopped run in MLflow", 60)
        saved = sorted(int(commit.parent.name[5:]) for commit in out.glob("checkpoints/step-*/checkpoint.json"))
        assert saved[-1] >= done + 20, "the checkpoint is of the last step, not of the last multiple of 500"
        if steps:
            assert output.wait_for(r"resuming at step (\d+) of 10000") == [str(steps[-1])]
        steps.append(saved[-1])


def answers(address: str) -> bool:
    try:
        urlopen(address, timeout=10).close()
    except HTTPError as error:
        return error.code == 401  # it answers, and asks for the token
    except OSError:
        return False
    return True


def last_step(journal: Path) -> int:
    lines = [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return max((line["step"] for line in lines), default=0)


def restarts_mlflow(head: Machine) -> None:
    """A dead server is restarted without `ray up`, which would end the jobs."""

    def listeners() -> list[str]:
        return re.findall(rf"{HEAD}:5000 .*pid=(\d+)", head.run("ss -ltnp"))

    (before,) = listeners()
    head.run(f"kill -KILL {before}")
    wait_until(lambda: before not in listeners() and answers("http://[::1]:5000/health"), "MLflow is back")


def loses_a_node(jobs: Jobs, head: Machine, worker: Machine, laptop: Laptop, cpus: float) -> None:
    """The same command at a small scale: the worker loses power and comes back; the weights are those of one process.

    The only actor needs all CPUs of a machine. The learner takes one of the head's, so the actor must be on the worker,
    and the run cannot end before the autoscaler has brought the worker back.
    """
    alone = ["actors.count=1", f"actors.num_cpus={cpus:g}", "learner.num_cpus=1"]
    joined = r"actor \d+ \(pid \d+ on worker\) joined"
    with jobs.submitted(*SMALL, *alone, "out=runs/small") as output:
        output.wait_for(joined, 180)
        journal = head.home / "runs/small/metrics.jsonl"
        wait_until(lambda: journal.exists() and last_step(journal) >= 40, "some steps", 180)
        worker.cut_the_power()
        output.wait_for(r"actor 1 \(pid \d+ on worker\) was lost", 90)
        worker.start()
        output.wait_for(joined, 600, count=2)
        assert output.process.wait(timeout=600) == 0, output.text
    (weights,) = output.wait_for(r"weights sha256 ([0-9a-f]{64})")
    places = [f"out={laptop.home}/local", f"data.dir={laptop.home}/shards"]
    local = laptop.command(*COMMAND, *SMALL, "engine=local", *places, timeout=1200)
    assert f"weights sha256 {weights}" in local
    assert answers("http://[::1]:5000/health")
    wait_until(lambda: "FINISHED" in statuses(weights), "the run in MLflow, with its weights")


def statuses(word: str = "") -> list[str]:
    """The statuses of the runs in the head's MLflow; with a word, only of those with a tag or parameter equal to it."""
    from mlflow import MlflowClient

    client = MlflowClient("http://127.0.0.1:5000")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    print([(run.info.run_name, run.info.status) for run in runs], flush=True)
    return [run.info.status for run in runs if not word or word in {**run.data.params, **run.data.tags}.values()]


def goes_down(laptop: Laptop, file: Path, machines: dict[str, Machine], token: str) -> None:
    laptop.command("ray", "down", "-y", str(file))
    for machine in machines.values():
        # A worker exits about two minutes after its head does.
        wait_until(lambda: not left_over(machine), f"no process left on the {machine.name}", 300)  # noqa: B023
        found = subprocess.run(["grep", "-rl", token, str(machine.home)], capture_output=True, text=True).stdout
        assert found.split() == [f"{machine.home}/.ray/auth_token"], "the token is in no other file, not even in a log"


def left_over(machine: Machine) -> list[str]:
    """Processes of a machine other than its sshd and this `ps`; zombies do not count."""
    listed = machine.run("ps -eo ppid=,stat=,args=").splitlines()
    running = [line.split(None, 2) for line in listed]
    left = [args for parent, state, args in running if parent != "0" and state[0] != "Z" and "sshd" not in args]
    left = [args for args in left if not args.startswith("ps -eo")]
    print(f"{machine.name}: {left}", flush=True)
    return left
