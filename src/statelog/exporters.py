"""
Export metrics to Prometheus and OpenTelemetry.

Both read a snapshot when they collect; nothing runs in between.  The client libraries belong to the
extras `metrics` and `otel` and are imported on first use.

Durations are exported in seconds.  A histogram keeps its last 1000 values: quantiles cover those,
count and sum cover all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

from statelog import extras
from statelog.metrics import (
    HistogramSnapshot,
    MetricKind,
    Metrics,
    MetricSpec,
    MetricValue,
)
from statelog.plain_text import one_line

QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
_SECONDS: Final = {"nanoseconds": 1e-9, "milliseconds": 1e-3}


class PrometheusCollector:
    """
    A collector to register with prometheus-client.

    Example:
        prometheus_client.REGISTRY.register(PrometheusCollector(storage.metrics))

    Args:
        metrics: What to export.
        labels: Added to every sample; needed if one registry has several collectors.

    Raises:
        RequirementError: prometheus-client is not installed.
    """

    def __init__(self, metrics: Metrics, labels: Mapping[str, str] | None = None) -> None:
        self._core = _load("prometheus_client.core", "metrics")
        self._metrics = metrics
        self._labels = _plain_labels(labels)

    def describe(self) -> Iterable[object]:
        """Return nothing, because the metric families are only known when they are collected."""
        return ()

    def collect(self) -> Iterator[object]:
        """Yield one metric family for each metric that has a value."""
        for name, value in self._metrics.snapshot().items():
            yield self._family(self._metrics.spec(name), value)

    def _family(self, spec: MetricSpec, value: MetricValue) -> object:
        name = _prometheus_name(spec)
        text = spec.description
        names = list(self._labels)
        labels = list(self._labels.values())
        if isinstance(value, HistogramSnapshot):
            summary = self._core.SummaryMetricFamily(name, text, labels=names)
            summary.add_metric(labels, value.total_count, _scaled(spec, value.total_sum))
            for quantile, quantile_value in _quantiles(spec, value):
                summary.add_sample(
                    name, {**self._labels, "quantile": str(quantile)}, quantile_value
                )
            return summary
        counter = spec.kind is MetricKind.COUNTER
        kind = self._core.CounterMetricFamily if counter else self._core.GaugeMetricFamily
        family = kind(name, text, labels=names)
        family.add_metric(labels, _scaled(spec, value))
        return family


def register_opentelemetry(
    metrics: Metrics, meter: Any = None, attributes: Mapping[str, str] | None = None
) -> None:
    """
    Create observable instruments for all metrics.

    Args:
        metrics: What to export.
        meter: Of a `MeterProvider`; None for the global one's meter `statelog`.
        attributes: Added to every observation; needed if one meter has several storages.

    Raises:
        RequirementError: opentelemetry-sdk is not installed.
    """
    api = _load("opentelemetry.metrics", "otel")
    meter = meter if meter is not None else api.get_meter("statelog")
    common = _plain_labels(attributes)

    def add(spec: MetricSpec) -> None:
        name = f"statelog.{spec.name}"
        unit = _opentelemetry_unit(spec)
        text = spec.description
        observe = functools.partial(_observations, api.Observation, metrics, spec, common)
        if spec.kind is MetricKind.COUNTER:
            meter.create_observable_counter(name, [observe(_plain)], unit, text)
        elif spec.kind is MetricKind.GAUGE:
            meter.create_observable_gauge(name, [observe(_plain)], unit, text)
        else:
            meter.create_observable_gauge(name, [observe(_by_quantile)], unit, text)
            meter.create_observable_counter(f"{name}.count", [observe(_count)], "1", text)
            meter.create_observable_counter(f"{name}.sum", [observe(_sum)], unit, text)

    metrics.observe_declared(add)


def _plain_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Return labels with escaped values, which can be names of operators or locations."""
    return {name: one_line(str(value)) for name, value in (labels or {}).items()}


_Sample = tuple[float, dict[str, object]]
_Read = Callable[[MetricSpec, Any], Iterable[_Sample]]


def _observations(
    observation: Callable[..., object],
    metrics: Metrics,
    spec: MetricSpec,
    common: dict[str, str],
    read: _Read,
) -> Callable[[object], Iterator[object]]:
    def observe(options: object) -> Iterator[object]:
        del options  # a time-out of the exporter, which a snapshot does not need
        value = metrics.value(spec.name)
        if value is not None:
            for number, attributes in read(spec, value):
                yield observation(number, {**common, **attributes})

    return observe


def _plain(spec: MetricSpec, value: float) -> Iterator[_Sample]:
    yield _scaled(spec, value), {}


def _by_quantile(spec: MetricSpec, value: HistogramSnapshot) -> Iterator[_Sample]:
    for quantile, quantile_value in _quantiles(spec, value):
        yield quantile_value, {"quantile": quantile}


def _count(spec: MetricSpec, value: HistogramSnapshot) -> Iterator[_Sample]:
    yield value.total_count, {}


def _sum(spec: MetricSpec, value: HistogramSnapshot) -> Iterator[_Sample]:
    yield _scaled(spec, value.total_sum), {}


def _quantiles(spec: MetricSpec, value: HistogramSnapshot) -> list[tuple[float, float]]:
    if not value.values:
        return []  # a zero would look like a measured value
    return [(quantile, _scaled(spec, value.quantile(quantile))) for quantile in QUANTILES]


def _scaled(spec: MetricSpec, value: float) -> float:
    if spec.unit not in _SECONDS or value < 0:  # -1 means that there is no value yet
        return value
    return value * _SECONDS[spec.unit]


def _prometheus_name(spec: MetricSpec) -> str:
    unit = "seconds" if spec.unit in _SECONDS else spec.unit
    named = unit not in ("seconds", "bytes") or spec.name.endswith(unit)
    return f"statelog_{spec.name}" + ("" if named else f"_{unit}")


def _opentelemetry_unit(spec: MetricSpec) -> str:
    if spec.unit in _SECONDS:
        return "s"
    return "By" if spec.unit == "bytes" else f"{{{spec.unit.removesuffix('s')}}}"


def _load(module: str, extra: str) -> ModuleType:
    return extras.load("this exporter", extra, module)
