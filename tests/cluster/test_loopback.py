"""Ray that a run starts by itself is there for this run alone."""

from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.cluster.conftest import Run


def test_ray_of_a_run_cannot_be_reached_from_outside(run: Callable[..., Run]) -> None:
    started = run("actors.count=1", "epochs=100")
    started.wait_for("joined; 1 at work")
    driver = psutil.Process(started.process.pid)
    listening: dict[str, set[str]] = {}
    for process in [driver, *driver.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # Ray ends idle ones
            sockets = [socket for socket in process.net_connections() if socket.status == psutil.CONN_LISTEN]
            name = process.name().split(".")[0]  # of an actor also the method at work
            listening.setdefault(name, set()).update(socket.laddr.ip for socket in sockets)
    for name in ("raylet", "gcs_server", "ray::RolloutActor", "ray::LearnerActor"):
        assert listening[name], f"{name} listens nowhere, so nothing was seen"
    assert set.union(*listening.values()) <= {"127.0.0.1", "::ffff:127.0.0.1"}, listening
