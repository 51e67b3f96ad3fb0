"""The settings as keyword arguments of `transform_with_state`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from statelog.metrics import Metrics
from statelog.options import SnapshotPolicy
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.settings import SETTINGS


class OperatorSettings(TypedDict, total=False):
    """
    Its docstring is built from SETTINGS.

    A test compares the names here with that table.
    """

    stateLocation: str | None
    delivery: str | None
    fileSink: str | None
    noDataBatches: bool | None
    tasks: int | None
    minTasks: int | None
    maxTasks: int | None
    maxParallelism: int | None
    operatorId: str | None
    restoreFrom: int | str | None
    adopt: bool | None
    retainedCheckpoints: int | None
    inlineBytes: int | str | None
    memoryBudget: int | str | None
    stateBackend: str | None
    localDirectory: str | None
    storeOptions: Mapping[str, object] | None
    fsync: bool | None
    snapshotPolicy: SnapshotPolicy | None
    record: Sequence[object] | float | str | None
    recordBytes: int | str | None
    recordCheckpoints: int | None
    recordAge: dt.timedelta | str | None
    onProgress: Callable[[BatchProgress], None] | None
    metrics: Metrics | None


def _documentation() -> str:
    lines = [
        "Settings of an operator beyond Spark's arguments.",
        "",
        "A setting that is left out, or None, is read from the session's configuration",
        "(`spark.statelog.<name>`), then has its default.",
        "",
        "Args:",
    ]
    lines += [f"    {one.name}: ({one.values}) {one.text}" for one in SETTINGS.values()]
    return "\n".join(lines)


OperatorSettings.__doc__ = _documentation()
