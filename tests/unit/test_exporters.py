"""Metrics as Prometheus and OpenTelemetry see them, through their own libraries."""

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.support.forgeries.recordings import NAMES

import statelog as sl
from statelog import changelog as cl
from statelog.exporters import PrometheusCollector, register_opentelemetry
from statelog.metrics import METRICS, MetricKind, MetricSpec
from statelog.plain_text import one_line


def some_metrics() -> sl.Metrics:
    metrics = sl.Metrics()
    metrics.count("number_of_upload_requests", 3)
    metrics.count("changelog_busy_time", 2_500_000_000)
    for number in range(1100):
        metrics.record("upload_latencies", number * 1_000_000)
    metrics.record("upload_sizes", 512)
    metrics.gauge("upload_queue_size", lambda: 7)
    metrics.gauge("in_flight_bytes", lambda: 9)
    metrics.gauge("last_duration_of_materialization", lambda: -1)
    return metrics


def test_prometheus_gets_every_metric_in_base_units() -> None:
    registry = prometheus_client.CollectorRegistry()
    registry.register(PrometheusCollector(some_metrics(), {"job": "totals"}))
    job = {"job": "totals"}
    expected = {
        "statelog_number_of_upload_requests_total": 3,
        "statelog_changelog_busy_time_seconds_total": 2.5,
        "statelog_upload_queue_size": 7,
        "statelog_in_flight_bytes": 9,
        "statelog_upload_latencies_seconds_count": 1100,
        "statelog_upload_sizes_bytes_sum": 512,
        "statelog_last_duration_of_materialization_seconds": -1,
    }
    assert expected == {name: registry.get_sample_value(name, job) for name in expected}
    quantile = {**job, "quantile": "0.5"}
    latency = registry.get_sample_value("statelog_upload_latencies_seconds", quantile)
    assert 0.6 == pytest.approx(latency)
    empty = "statelog_persist_durations_seconds"
    assert registry.get_sample_value(empty, quantile) is None
    text = prometheus_client.generate_latest(registry).decode()
    assert "# TYPE statelog_upload_latencies_seconds summary" in text
    assert METRICS["upload_queue_size"].description in text


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_label_makes_no_line_of_a_page(name: str) -> None:
    registry = prometheus_client.CollectorRegistry()
    for operator in (name, "another"):  # two storages share a registry by their labels
        registry.register(PrometheusCollector(some_metrics(), {"operator": operator}))
        escaped = {"operator": one_line(operator)}
        assert 7 == registry.get_sample_value("statelog_upload_queue_size", escaped)
    page = prometheus_client.generate_latest(registry).decode()
    assert all(line.isprintable() for line in page.split("\n"))


def test_a_scrape_reads_what_a_storage_counts() -> None:
    registry = prometheus_client.CollectorRegistry()
    with cl.FsStateChangelogStorage("memory://scraped") as storage:
        registry.register(PrometheusCollector(storage.metrics))
        writer = storage.create_writer("operator", sl.KeyGroupRange(0, 1))
        writer.append(0, b"x")
        writer.persist(writer.initial_sequence_number(), 1).result(timeout=20)
    text = prometheus_client.generate_latest(registry).decode()
    assert "statelog_number_of_upload_requests_total 1.0" in text
    assert "statelog_persist_durations_seconds_count 1.0" in text


def observed(
    metrics: sl.Metrics, later: MetricSpec | None = None
) -> dict[str, list[tuple[float, dict[str, object]]]]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    register_opentelemetry(metrics, provider.get_meter("test"), {"job": "totals"})
    if later is not None:
        for _ in range(2):
            metrics.declare([later])
            metrics.count(later.name, 2)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    return {
        metric.name: [(point.value, dict(point.attributes)) for point in metric.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_gets_every_metric_in_base_units() -> None:
    found = observed(some_metrics())
    job = {"job": "totals"}
    assert [(3, job)] == found["statelog.number_of_upload_requests"]
    assert [(2.5, job)] == found["statelog.changelog_busy_time"]
    assert [(7, job)] == found["statelog.upload_queue_size"]
    assert [(1100, job)] == found["statelog.upload_latencies.count"]
    assert [(512, job)] == found["statelog.upload_sizes.sum"]
    latencies = found["statelog.upload_latencies"]
    quantiles = {str(labels["quantile"]): value for value, labels in latencies}
    assert {"0.5", "0.9", "0.99", "1.0"} == set(quantiles)
    assert 1.099 == pytest.approx(quantiles["1.0"])
    assert not found.get("statelog.upload_queue_age")  # nobody tells this gauge


def test_metrics_that_are_declared_later_are_exported_too() -> None:
    late = MetricSpec("late_calls", "", MetricKind.COUNTER, "calls", "Calls that were late.")
    metrics, registry = some_metrics(), prometheus_client.CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    assert [(4, {"job": "totals"})] == observed(metrics, late)["statelog.late_calls"]
    assert 4 == registry.get_sample_value("statelog_late_calls_total")
