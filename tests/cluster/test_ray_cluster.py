"""Which Ray a run uses: its own, which no one else can reach, or that of `ray start`."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import Run

ASK = "import sys; from ray._raylet import GcsClient; print(len(GcsClient(address=sys.argv[1]).get_all_node_info()))"


@pytest.fixture
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides from runs how the tests keep Ray on loopback."""
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("as_a_user")
def test_the_ray_of_a_run_listens_on_loopback_and_only_to_its_own_processes(run: Callable[..., Run]) -> None:
    started = run("actors.count=1", "epochs=100")
    started.wait_for("joined; 1 at work")
    driver = psutil.Process(started.process.pid)
    listening: dict[str, set[str]] = {}
    address = token = ""
    for process in [driver, *driver.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # Ray ends idle ones
            sockets = [socket for socket in process.net_connections() if socket.status == psutil.CONN_LISTEN]
            name = process.name().split(".")[0]  # an actor's name includes the method that it runs
            listening.setdefault(name, set()).update(socket.laddr.ip for socket in sockets)
            if name == "raylet":
                (address,) = [word.split("=")[1] for word in process.cmdline() if word.startswith("--gcs-address=")]
                token = process.environ()["RAY_AUTH_TOKEN"]
    for name in ("raylet", "gcs_server", "ray::RolloutActor", "ray::LearnerActor"):
        assert listening[name], f"{name} does not listen: the test would prove nothing"
    assert set.union(*listening.values()) <= {"127.0.0.1", "::ffff:127.0.0.1"}, listening

    def asked(**settings: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, **settings}
        return subprocess.run([sys.executable, "-c", ASK, address], env=environment, capture_output=True, text=True)

    assert asked(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token).stdout == "1\n"
    for stranger in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        refused = asked(**stranger)
        assert refused.returncode and "Unauthenticated" in refused.stderr, refused


@pytest.mark.slow  # `ray start` in processes of its own
@pytest.mark.usefixtures("as_a_user")
def test_a_cluster_of_ray_start_is_used_even_if_it_requires_a_token(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on loopback
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as home:
        shutil.copy(Path(os.environ["HOME"], "ray_bootstrap_config.yaml"), home)
        for name in ("HOME", "RAY_TMPDIR"):
            monkeypatch.setenv(name, home)
        token = Path(home, ".ray/auth_token")
        token.parent.mkdir()
        token.touch(mode=0o600)
        token.write_text(64 * "a")
        ray = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--port=0", "--num-cpus=2"]
        head = subprocess.Popen([*ray, "--include-dashboard=false"], stdout=subprocess.PIPE, text=True)
        try:
            assert any("block forever" in line for line in head.stdout)  # it is up
            address = Path(home, "ray/ray_current_cluster").read_text()
            started = run("actors.count=1", address="")
            started.sha256()
            assert f"using the Ray cluster at {address}" in started.log
        finally:
            head.send_signal(signal.SIGTERM)  # not `ray stop`, which ends every Ray on this machine
            head.communicate(timeout=60)
