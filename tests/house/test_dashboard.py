"""The dashboard for Grafana is valid, and asks for metrics that the exporter has."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.house.sources import ROOT
from tests.support.project.declared_figures import OF_EXTENSIONS

import statelog as sl
from statelog.exporters import QUANTILES, PrometheusCollector
from statelog.metrics import MetricKind, MetricSpec
from statelog.metrics.table import metrics_of

DASHBOARD = ROOT / "dashboards" / "statelog.json"
SAMPLE = re.compile(r"\b(statelog_\w+)")
UNITS = {"bytes", "ops", "percentunit", "rowsps", "s", "short"}
"""Units of Grafana that the panels use."""

GRID_COLUMNS = 24


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text(encoding="utf-8")))


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in dashboard()["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def exported() -> dict[str, set[str]]:
    """Return the samples of each metric, as Prometheus stores them, by the metric's name."""
    metrics, specs = sl.Metrics(), list[MetricSpec]()
    metrics.declare(metrics_of(OF_EXTENSIONS))
    metrics.observe_declared(specs.append)
    for spec in specs:
        if spec.kind is MetricKind.GAUGE:
            metrics.gauge(spec.name, lambda: 1.0)
        elif spec.kind is MetricKind.HISTOGRAM:
            metrics.record(spec.name, 1.0)
    families: Any = PrometheusCollector(metrics).collect()
    named = zip(metrics.snapshot(), families, strict=True)
    return {name: {sample.name for sample in family.samples} for name, family in named}


def test_every_metric_of_the_dashboard_is_exported() -> None:
    known = set().union(*exported().values())
    used = {name for expression in expressions() for name in SAMPLE.findall(expression)}
    assert len(used) > 30
    assert set() == used - known


def test_every_metric_has_a_panel() -> None:
    used = {name for expression in expressions() for name in SAMPLE.findall(expression)}
    assert [] == [name for name, samples in exported().items() if not samples & used]


def test_counters_are_rates_and_quantiles_are_those_of_the_exporter() -> None:
    for expression in expressions():
        if "_total{" in expression:
            assert re.match(r"(rate|increase)\(", expression), expression
    asked = re.findall(r'quantile="([\d.]+)"', " ".join(expressions()))
    assert asked
    assert set(asked) <= {str(quantile) for quantile in QUANTILES}


@pytest.mark.parametrize("panel", list(panels()), ids=lambda panel: panel["title"])
def test_a_panel_has_a_title_a_unit_and_a_text(panel: dict[str, Any]) -> None:
    assert panel["title"].strip()
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["legendFormat"].startswith("{{job}} ")
        assert target["expr"].count("(") == target["expr"].count(")")
        assert target["expr"].count('job=~"$job"') == len(SAMPLE.findall(target["expr"]))


def test_the_panels_fill_a_grid_without_overlaps() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= GRID_COLUMNS
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert sorted(set(ids)) == ids
