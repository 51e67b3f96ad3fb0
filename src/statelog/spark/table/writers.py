"""The classes that Spark calls: `write` in the tasks, `commit` and `abort` in the driver."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.rows.types import arrow_schema
from statelog.spark.table.commit import TableBatch, commit_batch, delete_parts, table_groups
from statelog.spark.table.options import TableColumns, TableOptions
from statelog.spark.table.parts import TablePart, batches_of_rows, write_part

# Where Spark has them, rows come as record batches.
_STREAM_BASE: Final = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
_BATCH_BASE: Final = getattr(datasource, "DataSourceArrowWriter", DataSourceWriter)


class _Table:
    """What both kinds of writer do."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = TableOptions.parse(options)
        self.columns = TableColumns.of(schema, self.options)
        self.schema = schema
        self.key_groups = table_groups(self.options)

    def part(self, rows: Iterator[Any], *, are_batches: bool) -> TablePart:
        """Write the rows of a task."""
        batches = rows if are_batches else batches_of_rows(rows, arrow_schema(self.schema))
        return write_part(self.options, self.columns, self.key_groups, batches)

    def commit(
        self, messages: list[WriterCommitMessage | None], writer: str, batch: int | None
    ) -> None:
        """Commit what the tasks have written; *batch* is None for a batch frame."""
        parts = _parts(messages)
        table_batch = TableBatch(writer, batch or 0, parts, is_stream=batch is not None)
        commit_batch(self.options, self.columns, table_batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have written."""
        delete_parts(self.options, _parts(messages))


class TableStreamWriter(_STREAM_BASE):  # type: ignore[misc, valid-type]
    """Writes the micro-batches of a query to a table, each exactly once."""

    def __init__(self, table: _Table) -> None:
        self._table = table

    def write(self, iterator: Iterator[object]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return self._table.part(iterator, are_batches=_STREAM_BASE is not DataSourceStreamWriter)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch, unless it is committed."""
        self._table.commit(messages, self._table.options.writer_id(), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete what the tasks of a failed micro-batch have written."""
        del batchId
        self._table.abort(messages)


class TableWriter(_BATCH_BASE):  # type: ignore[misc, valid-type]
    """Writes a batch frame to a table, as one checkpoint."""

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._writer = f"batch-{os.urandom(8).hex()}"

    def write(self, iterator: Iterator[object]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return self._table.part(iterator, are_batches=_BATCH_BASE is not DataSourceWriter)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows."""
        self._table.commit(messages, self._writer, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have written."""
        self._table.abort(messages)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """
    Return the writer of a stream.

    Raises:
        UsageError: An option or a column is wrong, or the output mode is Complete.
        StoreError: The table's location cannot be read.
    """
    if overwrite:
        raise UsageError(
            "a keyed table takes the output modes append and update: rows are upserted by their key"
        )
    return TableStreamWriter(_Table(options, schema))


def table_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceWriter:
    """
    Return the writer of a batch frame.

    Raises:
        UsageError: An option or a column is wrong, or the mode is overwrite.
        StoreError: The table's location cannot be read.
    """
    if overwrite:
        raise UsageError(
            'a keyed table is written with mode("append"), which upserts rows by their key; to begin '
            "anew, give a new location"
        )
    return TableWriter(_Table(options, schema))


def _parts(messages: list[WriterCommitMessage | None]) -> list[TablePart]:
    return [message for message in messages if isinstance(message, TablePart)]
