"""
Staged delivery: commit rows with the state, then call the sink.

Tasks send their rows to the driver, or write them to files if they are large.  The driver commits
them in the same object as the state, and then calls the sink with the committed rows.  A batch that
is repeated delivers the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.state_stream import read_stream
from statelog.errors import UsageError
from statelog.format.checkpoint_metadata import decode_streams, encode_streams
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.model.handles import FileStateHandle, stream_handle_from_json
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.delivery.protocol import CommittedRows
from statelog.spark.driver.task_runner import TaskRunner
from statelog.spark.jvm.arrow_data import frame_of_arrow, frame_of_few_rows
from statelog.spark.jvm.gateway import is_connect, with_setting
from statelog.spark.query.delivery import Sink
from statelog.spark.query.query import Query
from statelog.spark.rows.types import from_ipc
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.store import open_location

# Make a frame of the rows that tasks staged.

_FEW_ROWS = 10_000
"""Staged rows up to this number are in one partition of the frame."""
_LOCAL_ROWS = "spark.sql.execution.arrow.localRelationThreshold"
"""Spark converts Arrow data below this size to rows in the driver."""


def inline_rows(acks: Sequence[TaskAck]) -> list[bytes]:
    """Return the rows in the answers, as Arrow IPC streams."""
    return [ack.output.staged for ack in acks if isinstance(ack.output.staged, bytes)]


def row_files(acks: Sequence[TaskAck]) -> list[FileStateHandle]:
    """Return the files with rows that the answers name."""
    return [
        handle
        for ack in acks
        if isinstance(ack.output.staged, tuple)
        for handle in ack.output.staged
    ]


def frame_of_rows(
    session: SparkSession,
    query: Query,
    schema: StructType,
    arrow: pa.Schema,
    inline: Sequence[bytes],
    files: Sequence[FileStateHandle],
    *,
    what: str,
) -> DataFrame:
    """Return staged rows of one micro-batch as a frame."""
    tables = [committed_rows(stream, arrow, what) for stream in inline]
    table = pa.concat_tables(tables) if tables else arrow.empty_table()
    if table.num_rows <= _FEW_ROWS:
        frame = frame_of_few_rows(session, table, schema)
        frame = frame.coalesce(1)  # one task and, in a sink of files, one file
    else:
        frame = _frame_of_tasks(session, table, schema)
    if not files:
        return frame
    names = [(msgspec.json.encode(handle.to_json()).decode("utf-8"),) for handle in files]
    read = partial(_read_rows, query.location, query.settings.storage_options, arrow, what)
    spilled = (
        session.createDataFrame(names, "handle string")
        .repartition(len(names))
        .mapInArrow(read, schema)
    )
    return frame.unionAll(spilled) if table.num_rows else spilled


def _read_rows(
    location: str,
    options: Mapping[str, object],
    schema: pa.Schema,
    what: str,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(location):
        store = open_location(location, options=dict(options))
        for batch in batches:
            for text in batch.column(0).to_pylist():
                handle = stream_handle_from_json(msgspec.json.decode(text))
                data = read_stream(store, handle, what="staged rows")
                yield from committed_rows(data, schema, what).cast(schema).to_batches()


def committed_rows(data: bytes | memoryview, columns: pa.Schema, what: str) -> pa.Table:
    """
    Return committed rows in the columns that the query has now, which are found by name.

    The rows were committed with the columns that the query had then.  A column that was added since is
    null, and one that was removed is left out.
    """
    table = from_ipc(data)
    if table.schema.types == columns.types and table.schema.names == columns.names:
        return table
    committed = table.schema
    before, now = set(committed.names), set(columns.names)
    is_unique = len(before) == len(committed) and len(now) == len(columns)
    added = [field for field in columns if field.name not in before]
    if not is_unique or (added and before - now) or not all(field.nullable for field in added):
        raise _other_columns(committed, columns, what)
    for field in added:
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    rows = table.select(columns.names)
    if rows.schema.types == columns.types:
        return rows
    pairs = zip(rows.schema.types, columns.types, strict=True)
    try:
        if all(_same_names(*pair) for pair in pairs):
            return rows.cast(columns)
    except pa.ArrowException as error:
        raise _other_columns(committed, columns, what) from error
    raise _other_columns(committed, columns, what)


def _same_names(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether the structs in two types have the same fields, in any order."""
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        names = [field.name for field in left]
        if len(set(names)) < len(names) or sorted(names) != sorted(field.name for field in right):
            return False
        return all(_same_names(left.field(name).type, right.field(name).type) for name in names)
    if left.num_fields != right.num_fields:
        return False
    fields = range(left.num_fields)
    return all(_same_names(left.field(at).type, right.field(at).type) for at in fields)


def _other_columns(committed: pa.Schema, now: pa.Schema, what: str) -> UsageError:
    return UsageError(
        f"{what} was committed and must still be delivered: its rows have the columns "
        f"({_columns(committed)}), and the query now has ({_columns(now)}). Start the query once with the "
        "columns before, which delivers the rows, and change the columns after that"
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _frame_of_tasks(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """
    Return a frame whose tasks convert their rows from Arrow.

    Spark converts less than 48 MB in the driver, to optimize the plan with the values.  Here that
    has no use, and takes about half of a delivery's time.
    """
    if is_connect(session):  # before 4.3 it has the configuration of the user's own session
        return frame_of_arrow(session, table, schema)
    with with_setting(session, _LOCAL_ROWS, "0"):
        return frame_of_arrow(session, table, schema)


OUTPUT_SECTION = b"OUTP"
"""Trailer section of `_metadata` that holds staged rows: a msgpack list of Arrow IPC streams."""

SectionOf = Callable[[int, bytes], bytes | None]
"""Reads a trailer section of a checkpoint."""


class StagedDelivery:
    """Calls the sink with the committed rows."""

    is_staged = True

    def __init__(self, query: Query, sink: Sink, section_of: SectionOf) -> None:
        self._query = query
        self._sink = sink
        self._section_of = section_of
        self._runner = TaskRunner()

    def run(self, partitioned: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Run all tasks and return their answers, which contain the rows."""
        return self._runner.collect_acks(partitioned, spec)

    def committed_rows(self, acks: Sequence[TaskAck]) -> CommittedRows:
        """Return the inline rows as a section, and the files."""
        inline = inline_rows(acks)
        section = encode_streams(inline) if inline else None
        return CommittedRows(section, tuple(row_files(acks)))

    def deliver(self, frame: DataFrame, record: BatchRecord, acks: Sequence[TaskAck]) -> None:
        """
        Call the sink with the committed rows.

        Those in the answers are not read again.
        """
        self._deliver(frame, record, inline_rows(acks))

    def deliver_again(
        self, frame: DataFrame, record: BatchRecord, base: CompletedCheckpoint
    ) -> None:
        """Call the sink with the committed rows, read from the checkpoint."""
        section = self._section_of(base.checkpoint_id, OUTPUT_SECTION)
        where = f"checkpoint {base.checkpoint_id}"
        inline = decode_streams(section, where=where)
        self._deliver(frame, record, inline)

    def _deliver(self, frame: DataFrame, record: BatchRecord, inline: Sequence[bytes]) -> None:
        query = self._query
        files = record.staged_files()
        session, operator = frame.sparkSession, query.output
        what = f"the output of micro-batch {record.batch_id}"
        output = frame_of_rows(
            session, query, operator.output, operator.arrow_output, inline, files, what=what
        )
        self._sink(output, record.batch_id)
        fail_point("after-sink")
