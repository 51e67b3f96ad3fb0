"""Metrics: one table, values from many threads."""

import sys
import threading

import pytest

import statelog as sl
from statelog.metrics import (
    METRICS,
    HistogramSnapshot,
    MetricKind,
    Metrics,
    MetricsJournal,
    add_entries,
)


def test_the_table_explains_flinks_names():
    assert METRICS["upload_sizes"].flink_name == "ChangelogStorage.uploadSizes"
    assert all(spec.unit and spec.description.endswith(".") for spec in METRICS.values())
    names = [spec.flink_name for spec in METRICS.values() if spec.flink_name]
    assert 20 == len(names) == len(set(names))
    assert "" == METRICS["upload_queue_age"].flink_name


def test_a_reader_never_sees_a_counter_go_back():
    """Folding takes the summands off for a moment; a reader in between would see too little."""
    metrics, stop = sl.Metrics(), threading.Event()

    def count() -> None:
        while not stop.is_set():
            metrics.count("number_of_upload_requests")

    threads = [threading.Thread(target=count) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        seen = [metrics.snapshot()["number_of_upload_requests"] for _ in range(300)]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
    for thread in threads:
        thread.join()
    assert sorted(seen) == seen


def test_no_increment_is_lost_between_threads():
    metrics = sl.Metrics()

    def count() -> None:
        for _ in range(5000):
            metrics.count("number_of_upload_requests")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 20000 == metrics.snapshot()["number_of_upload_requests"]


def test_a_histogram_keeps_the_last_thousand():
    metrics = sl.Metrics()
    for value in range(1500):
        metrics.record("upload_sizes", value)
    histogram = metrics.snapshot()["upload_sizes"]
    assert isinstance(histogram, HistogramSnapshot)
    assert (1000, 500, 1000, 1499) == (
        histogram.count,
        histogram.values[0],
        histogram.quantile(0.5),
        histogram.quantile(1),
    )
    assert (1500, 1499 * 750) == (histogram.total_count, histogram.total_sum)
    assert 0 == HistogramSnapshot(()).quantile(0.5)


def test_a_gauge_is_read_with_the_snapshot():
    metrics = sl.Metrics()
    metrics.gauge("upload_queue_size", lambda: 4)
    assert 4 == metrics.snapshot()["upload_queue_size"]


def test_an_unknown_metric_is_refused():
    metrics = sl.Metrics()
    for call in (
        lambda: metrics.count("upload_sizes"),
        lambda: metrics.record("number_of_upload_requests", 1),
        lambda: metrics.gauge("upload_sizes", lambda: 0),
    ):
        with pytest.raises(sl.UsageError, match="METRICS"):
            call()
    assert MetricKind.GAUGE == METRICS["upload_queue_size"].kind


def test_a_journal_is_recorded_by_another_process_once():
    journal, metrics = MetricsJournal(), Metrics()
    journal.count("number_of_upload_requests", 3)
    journal.record("upload_sizes", 500)
    journal.record("upload_sizes", 700)
    for _ in range(2):  # the second time there is nothing to take
        add_entries(metrics, journal.take())
    for recorded in (journal, metrics):
        assert recorded.value("number_of_upload_requests") == 3
        sizes = recorded.value("upload_sizes")
        assert isinstance(sizes, HistogramSnapshot)
        assert (sizes.values, sizes.total_sum) == ((500, 700), 1200)
    add_entries(metrics, [("of_a_newer_version", 1.0)])
