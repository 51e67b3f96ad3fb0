"""Resolve which checkpoint, variable and columns a read refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from statelog.checkpoint.listing import given_checkpoint_id
from statelog.errors import InvalidOptionsError, UsageError
from statelog.extensions.read.changes import ChangeFeed
from statelog.extensions.spark_source.changes import ChangeRows, ChangesRead, ChangeStream
from statelog.extensions.spark_source.options import CHANGES_VIEW, CHECKPOINTS_VIEW, SourceOptions
from statelog.extensions.spark_source.readers import (
    CHECKPOINT_COLUMNS,
    CheckpointRows,
    FilteredStateRows,
    Location,
    StateRead,
    StateRows,
    checkpoint_of_batch,
    only_variable,
    ranges_of,
    selected_columns,
    spark_schema,
)
from statelog.spark.rows.types import arrow_schema
from statelog.store.location import is_known, normalize_url


@dataclass(frozen=True, slots=True)
class _View:
    """
    The parameters of a read after they are resolved.

    Args:
        columns: Its flat columns.
        reader: Makes the reader of a batch, given the columns in the types that Spark takes.
        stream: Likewise of a stream; None where there is none.
    """

    columns: pa.Schema
    reader: Callable[[pa.Schema], DataSourceReader]
    stream: Callable[[pa.Schema], DataSourceStreamReader] | None = None


class StateSource:
    """
    A single read of a state location.

    The newest checkpoint and the time by which values have expired are taken here, once, so that
    all tasks read the same.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        read = SourceOptions.parse(options)
        # A relative path has its meaning here, in the folder of the driver.
        path = normalize_url(read.path) if is_known(read.path) else read.path
        location = Location(path, read.store)
        views = {CHANGES_VIEW: _changes, CHECKPOINTS_VIEW: _checkpoints}
        self._view = views.get(read.view, _state)(read, location)

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        return spark_schema(self._view.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for the rows."""
        return self._view.reader(self._checked(schema))

    def stream(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader for a stream of rows; arguments and errors as for `reader`."""
        if self._view.stream is None:
            raise UsageError(
                'streaming reads with the format statelog return changes only: add .option("view", "changes")'
            )
        return self._view.stream(self._checked(schema))

    def _checked(self, schema: StructType) -> pa.Schema:
        columns = self.schema()
        if schema.simpleString() != columns.simpleString():
            raise UsageError(
                f"the rows have the columns {columns.simpleString()}, not {schema.simpleString()}: "
                "omit the schema"
            )
        return arrow_schema(schema)


def _state(options: SourceOptions, location: Location) -> _View:
    """Return the parameters of a read of state."""
    with location.open(options.operator) as state:
        chosen: int | str | None = options.checkpoint
        if options.batchId is not None:
            chosen = checkpoint_of_batch(state, options.batchId)
        reader = state.reader(chosen)
        variable = options.variable or only_variable(reader)
        flatten = options.flattenCollectionTypes
        columns = selected_columns(reader.arrow_schema(variable, flatten=flatten), options.columns)
        read = StateRead(
            location=location,
            checkpoint_id=reader.checkpoint_id,
            operator=reader.schema.operator_id,
            variable=variable,
            columns=tuple(columns.names),
            flatten=flatten,
            key=reader.schema.key_schema,
            operator_key_groups=reader.key_groups,
            ranges=ranges_of(reader, options.keyGroups, options.partitions),
        )
    kind = FilteredStateRows if options.filterPushdown else StateRows
    return _View(columns, partial(kind, read))


def _changes(options: SourceOptions, location: Location) -> _View:
    """Return the parameters of a read of changes."""
    with location.open(options.operator) as state:
        reader = state.reader(options.checkpoint)
        after = given_checkpoint_id(state.store, options.since)
        if options.variable is not None:
            reader.arrow_schema(options.variable)  # raises: it names the variables
        names = None if options.variable is None else [options.variable]
        columns = ChangeFeed(reader, [], names).schema
        last = reader.checkpoint_id
        read = ChangesRead(
            location=location,
            operator=reader.schema.operator_id,
            variable=options.variable,
            ranges=ranges_of(reader, options.keyGroups, options.partitions),
            columns=columns,
        )

    def rows(target: pa.Schema) -> DataSourceReader:
        if streamed := _given(options, "maxCheckpointsPerTrigger", "reader"):
            raise InvalidOptionsError(f"the option {streamed} requires spark.readStream")
        return ChangeRows(read, target, after, last)

    def stream(target: pa.Schema) -> DataSourceStreamReader:
        if _given(options, "checkpoint"):
            raise InvalidOptionsError(
                "the option checkpoint requires spark.read; for a stream, set since to choose where it starts"
            )
        reader = None if options.reader is None else (options.reader, options.readerMaxCheckpoints)
        return ChangeStream(
            read, target, start=after, limit=options.maxCheckpointsPerTrigger, reader=reader
        )

    return _View(columns, rows, stream)


def _checkpoints(options: SourceOptions, location: Location) -> _View:
    """Return the parameters of a read of checkpoints."""
    location.open()  # raises: there must be such a directory
    return _View(CHECKPOINT_COLUMNS, partial(CheckpointRows, location))


def _given(options: SourceOptions, *names: str) -> str:
    """Format the names of the options that were set."""
    return ", ".join(name for name in names if getattr(options, name) is not None)
