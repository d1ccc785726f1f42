"""docs/grafana.json: a dashboard of exactly the metrics that a run exports."""

import json
import re
from pathlib import Path

from recor_dist.engine.prometheus import COUNTERS, GAUGES

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs/grafana.json").read_text())
EXPORTED = {f"ray_{name}_total" for name in COUNTERS} | {f"ray_{name}" for name in GAUGES}


def test_every_panel_shows_a_metric_that_the_code_exports_and_every_metric_has_a_panel() -> None:
    shown = set()
    for panel in DASHBOARD["panels"]:
        (target,) = panel["targets"]
        (metric,) = re.findall(r"ray_\w+", target["expr"])
        assert metric in EXPORTED, panel["title"]
        assert ("rate(" in target["expr"] or "increase(" in target["expr"]) is metric.endswith("_total"), panel["title"]
        shown.add(metric)
    assert shown == EXPORTED


def test_the_dashboard_has_what_grafana_requires() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= DASHBOARD.keys()
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    (asked,) = re.findall(r"ray_\w+", variables["run"]["query"]["query"])
    assert asked in EXPORTED
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD["panels"])))
    assert used == set(variables)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24, "no panel covers another"
