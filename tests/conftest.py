"""What the tests share: torch set up as in a run, small models and small configurations."""

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recor_dist.core.compose import compose
from recor_dist.core.config import Config, ModelConfig
from recor_dist.core.device import set_up_torch
from recor_dist.core.messages import Rows, Shape
from recor_dist.core.ray_session import on_loopback
from recor_dist.core.sealed import OF_LINE, open_file
from recor_dist.engine.loop import train
from recor_dist.model.transformer import Model


@pytest.fixture(autouse=True, scope="session")
def _torch_as_in_a_run() -> None:
    set_up_torch(compose(["scale=smoke", "engine=local"]))


@pytest.fixture(autouse=True, scope="session")
def _ray_of_our_own() -> Iterator[None]:
    """No test finds an existing cluster; Ray has its own home and folder, and nothing leaves this machine."""
    # Paths of Unix sockets must be short, so pytest's own folder is too deep.
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
        on_loopback(),
    ):
        Path(folder, "ray_bootstrap_config.yaml").write_text("cluster_name: none\nprovider: {type: local}\n")
        settings = {"HOME": folder, "RAY_TMPDIR": folder, "RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled"}
        fast_node_death = {"initial_delay_ms": 1000, "period_ms": 500, "timeout_ms": 500, "failure_threshold": 3}
        settings |= {f"RAY_health_check_{key}": str(value) for key, value in fast_node_death.items()}
        for key, value in {
            **settings,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on_loopback() for all processes that the tests start
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }.items():
            patch.setenv(key, value)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)  # nor an existing MLflow server
        yield


@pytest.fixture
def config_in(tmp_path: Path) -> Callable[..., Config]:
    """Composes a configuration whose data and output are in the test's own folder."""

    def make(*overrides: str) -> Config:
        places = [f"data.dir={tmp_path}/shards", f"out={tmp_path}/out"]
        return compose(["scale=smoke", "engine=local", *places, *overrides])

    return make


def decided(record: dict) -> dict:
    """The part of a journal line that is a pure function of the configuration: all but times and utilization."""
    varying = ("engine/", "system/", "time", OF_LINE)
    return {key: value for key, value in record.items() if not key.startswith(varying)}


def edit(path: Path, **changes: Any) -> None:
    """Changes a JSON file of a run, as a version without checksums would have written it."""
    path.write_text(json.dumps({**open_file(path.read_bytes()), **changes}))


def small_model(order_queries: int = 0, N: int = 3, M: int = 4, V: int = 5, seed: int = 0, **settings: Any) -> Model:
    """A float64 model with weights large enough that every part of it matters."""
    coordinates = {"place": np.array([*range(N), *range(M)]), "half": np.arange(N + M) % 3 - 1}
    sizes = ModelConfig(layers=2, width=8, heads=2, **settings)
    model = Model(sizes, Shape(N, M, V), order_queries, coordinates).move("cpu", torch.float64)
    with torch.no_grad():
        random = np.random.default_rng(seed)
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(random.normal(0.0, 0.5, tuple(parameter.shape))))
    return model


def random_rows(count: int, N: int = 3, M: int = 4, V: int = 5, seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(random.integers(0, V, (count, N)).astype(np.uint8), random.integers(0, V, (count, M)).astype(np.uint8))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains a run of a few seconds, once for all tests that ask with the same overrides; returns its folder."""

    @cache
    def make(*overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        places = [f"data.dir={folder}/shards", f"out={folder}/out"]
        train(compose(["scale=smoke", "engine=local", *places, *overrides]))
        return folder / "out"

    return make
