"""MLflow's own pages show our runs: the table of runs, their curves, and a comparison of two."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from recor_dist.packaged import save_model
from tests.browser.conftest import Page
from tests.mlflow_store import Server, client_of, run_of, sync

# The warnings are MLflow's. Slow: a server and a browser have to start.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
TEXT = "document.body.innerText"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def test_the_table_lists_our_runs_and_two_are_compared(
    page: Page, server: Server, trained: Callable[..., Path], tmp_path: Path
) -> None:
    found = []
    for method in ("recor", "mdm"):
        out = trained(f"method={method}")
        done = sync(out, server.uri, tmp_path)
        assert done.returncode == 0, done.stderr
        found.append(run_of(server.uri, out).info)
    ids, experiment = [run.run_id for run in found], found[0].experiment_id
    page.resize(1800, 1000)
    page.open(f"{server.uri}/#/experiments/{experiment}/runs?compareRunsMode=TABLE")
    for run_id in ids:
        page.wait_for(f"document.querySelector('a[href*={json.dumps(run_id)}]') !== null")
    assert "2 matching runs" in page.js(TEXT)

    page.open(f"{server.uri}/#/experiments/{experiment}/runs?compareRunsMode=CHART")
    page.wait_for(f"{TEXT}.includes('eval/test/exact_match')")

    both, where = quote(json.dumps(ids)), quote(json.dumps([experiment]))
    page.open(f"{server.uri}/#/compare-runs?runs={both}&experiments={where}")
    page.wait_for(f"{TEXT}.includes('Comparing 2 Runs from 1 Experiment')")
    rows = [line.split("\t") for line in page.js(TEXT).splitlines()]
    assert ["method.name", "recor", "mdm"] in rows
    # MLflow renders only the visible part of long lists.
    assert {"weights_sha256", "eval/test/adamdm_prob/exact_match"} <= {row[0] for row in rows}


def test_the_models_page_has_our_model_with_its_run_rows_and_test_metrics(
    page: Page, server: Server, trained: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "named"
    shutil.copytree(trained("method=recor"), out)
    save_model(str(out), f"{out}/model")
    assert sync(out, server.uri, tmp_path).returncode == 0
    run = run_of(server.uri, out)
    (model,) = client_of(server.uri).search_logged_models([run.info.experiment_id])
    page.resize(1800, 1200)
    page.open(f"{server.uri}/#/experiments/{run.info.experiment_id}/models")
    page.wait_for(f"document.querySelector('a[href*={json.dumps(model.model_id)}]') !== null")
    assert "Ready" in page.js(TEXT)
    page.open(f"{server.uri}/#/experiments/{run.info.experiment_id}/models/{model.model_id}")
    page.wait_for(f"{TEXT}.includes('eval/test/recor/exact_match') || {TEXT}.includes('eval/test/exact_match')")
    shown = page.js(TEXT)
    assert run.info.run_id in shown
    assert f"arg (#{run.data.tags['data'][:32]})" in shown
