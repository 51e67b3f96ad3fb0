"""Metrics: how they are declared, and a registry that stores their values."""

from statelog.metrics.registry import (
    HISTOGRAM_SIZE,
    HistogramSnapshot,
    Metrics,
    MetricsJournal,
    MetricValue,
    add_entries,
)
from statelog.metrics.table import METRICS, MetricKind, MetricSpec

__all__ = [
    "HISTOGRAM_SIZE",
    "METRICS",
    "HistogramSnapshot",
    "MetricKind",
    "MetricSpec",
    "MetricValue",
    "Metrics",
    "MetricsJournal",
    "add_entries",
]
