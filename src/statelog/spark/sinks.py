"""Sinks for `writeStream.format(...)`: each micro-batch written as a batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from statelog.errors import UsageError
from statelog.spark.delivery import Sink


def format_sink(
    source: str,
    options: Mapping[str, Any],
    path: str | None,
    partition_by: Sequence[str],
    query_name: str | None,
) -> Sink:
    """
    Return a sink that appends each micro-batch with Spark's batch writer.

    A batch that is replayed is written again, so only `foreachBatch` with a sink that honours the
    batch id is exactly once.

    Raises:
        UsageError: `memory` without a query name.
    """
    if source == "console":
        return _Console(int(options.get("numRows", 20)), _is_true(options.get("truncate", "true")))
    if source == "memory":
        if not query_name:
            raise UsageError("the memory sink needs a queryName")
        return _Memory(query_name)

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format(source).mode("append").options(**dict(options))
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.save(path)

    return write


def table_sink(name: str, options: Mapping[str, Any], partition_by: Sequence[str]) -> Sink:
    """Return a sink that appends each micro-batch to a table."""

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.mode("append").options(**dict(options))
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.saveAsTable(name)

    return write


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


class _Console:
    """Prints each micro-batch."""

    def __init__(self, rows: int, truncate: bool) -> None:
        self._rows = rows
        self._truncate = truncate

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        line = "-" * 43
        sys.stdout.write(f"{line}\nBatch: {batch_id}\n{line}\n")
        frame.show(self._rows, self._truncate)


class _Memory:
    """Gathers all rows in the driver, as a temporary view; for tests and small results."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._batches: dict[int, list[Any]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._batches[batch_id] = frame.collect()
        rows = [row for batch in self._batches.values() for row in batch]
        view = frame.sparkSession.createDataFrame(rows, frame.schema)
        view.createOrReplaceTempView(self._name)
