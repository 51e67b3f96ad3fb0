"""
The target of a query's output, and the simplest sinks.

Spark's batch writer appends each micro-batch.  A micro-batch that is delivered again is appended
again, except to Delta tables, see `delta`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.jvm.frames import frame_of_arrow
from statelog.spark.query.delivery import Sink
from statelog.spark.rows.spark_versions import arrow_of
from statelog.spark.rows.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql._typing import SupportsProcess

_log = logging.getLogger("statelog.spark")

OptionValue = bool | float | int | str | None
"""The value of an option of Spark's writers."""

RowFunction: TypeAlias = "Callable[[Row], None] | SupportsProcess"
"""The functions and objects that `foreach` accepts."""

ONE_TIME: Final = ("console", "memory", "noop")
"""Formats whose queries get a temporary checkpointLocation, as with `foreach`."""

_READ_ONLY: Final = (
    "binaryfile",
    "rate",
    "rate-micro-batch",
    "socket",
    "state-metadata",
    "statestore",
)
_DISCARDS: Final = "noop"


@dataclass(frozen=True, slots=True)
class Target:
    """
    Where a query's output goes, and in what form.

    *source* is None for the session's default; *settings* is lower-case key -> key and value.
    """

    source: str | None = None
    table: str | None = None
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, OptionValue]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def with_option(self, key: str, value: OptionValue) -> Target:
        """Return the target with one option added; keys are not case-sensitive."""
        return replace(self, settings={**self.settings, key.lower(): (key, value)})

    @property
    def is_one_time(self) -> bool:
        """Whether Spark uses a temporary checkpointLocation for queries with this sink."""
        return self.table is None and (self.source or "").lower() in ONE_TIME

    def option(self, key: str, default: OptionValue) -> OptionValue:
        """Return the value of an option."""
        return self.settings.get(key.lower(), (key, default))[1]

    def options(self) -> dict[str, OptionValue]:
        """Return the options under the keys that the caller typed."""
        return dict(self.settings.values())


def looking_sink(
    target: Target, source: str, query_name: str | None, memory: Callable[[str], Sink]
) -> Sink | None:
    """Return the sink for `console` or `memory`, or None for any other format."""
    if target.table is None and source == "console":
        truncate = str(target.option("truncate", "true")).lower() == "true"
        return Console(int(str(target.option("numRows", 20))), truncate)
    if target.table is None and source == "memory":
        if not query_name:
            raise UsageError("the memory sink requires a queryName, which names its table")
        return memory(query_name)
    return None


def refuse_read_only(source: str) -> None:
    """Reject a format that Spark can read but not write."""
    if source in _READ_ONLY:
        raise UsageError(f"the format {source} is read-only; use a different format")


def no_path(source: str) -> UsageError:
    """Return the error for a file format without a folder."""
    return UsageError(f"the format {source} requires a path: .start(path) or .option('path', ...)")


def columns_of(names: Sequence[str], chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to partition or cluster by, spelled as in the output's *names*."""
    spelled = {name.lower(): name for name in names}
    for name in chosen:
        if name.lower() not in spelled:
            raise UsageError(
                f"cannot partition or cluster the output by {name!r}: its columns are "
                f"{', '.join(names)}"
            )
    return tuple(spelled[name.lower()] for name in chosen)


def batch_writer(target: Target, source: str) -> Sink:
    """Return a sink that appends each micro-batch with Spark's batch writer."""
    if source != _DISCARDS:
        _log.warning(
            "the output (%s) is written at least once: a micro-batch that is delivered again after "
            "a failure is appended again. For exactly once see docs/how-to/exactly-once-sinks.md",
            target.table or target.source or source,
        )
    return lambda frame, _: append(frame, target, target.options())


def append(frame: DataFrame, target: Target, options: Mapping[str, OptionValue]) -> None:
    """Append a frame to a target with Spark's batch writer."""
    writer = frame.write.mode("append").options(**options)
    if target.source is not None:
        writer = writer.format(target.source)
    if target.partition_by:
        writer = writer.partitionBy(*target.partition_by)
    if target.cluster_by:
        writer = writer.clusterBy(*target.cluster_by)
    if target.table is not None:
        writer.saveAsTable(target.table)
    else:
        writer.save()


def foreach_sink(f: RowFunction) -> Sink:
    """Return a sink that calls *f* with each row in the tasks, like Spark's `foreach`."""
    process: Any = DataStreamWriter._construct_foreach_function(f)

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.rdd.mapPartitionsWithIndex(process).count()

    return write


class Console:
    """Prints each micro-batch to the console."""

    def __init__(self, rows: int, truncate: bool) -> None:
        self._rows = rows
        self._truncate = truncate

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        line = "-" * 43
        sys.stdout.write(f"{line}\nBatch: {batch_id}\n{line}\n")
        frame.show(self._rows, self._truncate)


class Memory:
    """Collects all rows on the driver in a temporary view, for tests and small results."""

    def __init__(self, session: SparkSession, name: str, schema: StructType) -> None:
        self._session = session  # a micro-batch has a copy of it, whose views the user cannot see
        self._name = name
        self._schema = schema
        self._batches: dict[int, pa.Table] = {}
        self._show()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._batches[batch_id] = arrow_of(frame, arrow_schema(self._schema))
        self._show()

    def _show(self) -> None:
        if self._batches:
            rows = pa.concat_tables(self._batches.values())
            view = frame_of_arrow(self._session, rows, self._schema)
        else:
            view = self._session.createDataFrame([], self._schema)
        view.createOrReplaceTempView(self._name)
