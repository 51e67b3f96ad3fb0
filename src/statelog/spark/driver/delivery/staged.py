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
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.model.handles import FileStateHandle, stream_handle_from_json
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.arrow_frame import frame_of_arrow
from statelog.spark.driver.delivery.protocol import CommittedRows
from statelog.spark.driver.task_runner import collect_acks
from statelog.spark.query.delivery import Sink
from statelog.spark.query.query import Query
from statelog.spark.query.session import is_connect
from statelog.spark.rows.ipc import from_ipc
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.store import open_store

OUTPUT_SECTION = b"OUTP"
"""Trailer section of `_metadata` that holds staged rows: a msgpack list of Arrow IPC streams."""

SectionOf = Callable[[int, bytes], bytes | None]
"""Reads a trailer section of a checkpoint."""

_FEW_ROWS = 10_000
"""Staged rows up to this number are in one partition of the sink's frame."""
_LOCAL_ROWS = "spark.sql.execution.arrow.localRelationThreshold"
"""Spark converts Arrow data below this size to rows in the driver."""


class StagedDelivery:
    """
    Calls the sink with the committed rows.

    Args:
        query: The query.
        sink: Called with the output frame and the batch id.
        section_of: Reads the rows of a batch that is repeated.
    """

    is_staged = True

    def __init__(self, query: Query, sink: Sink, section_of: SectionOf) -> None:
        self._query = query
        self._sink = sink
        self._section_of = section_of

    def run(self, partitioned: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Run all tasks and return their answers, which contain the rows."""
        return collect_acks(partitioned, spec)

    def committed_rows(self, acks: Sequence[TaskAck]) -> CommittedRows:
        """Return the inline rows as a section, and the files."""
        inline = _inline_rows(acks)
        files = [handle for ack in acks if isinstance(ack.output, tuple) for handle in ack.output]
        return CommittedRows(msgspec.msgpack.encode(inline) if inline else None, tuple(files))

    def deliver(self, frame: DataFrame, record: BatchRecord, acks: Sequence[TaskAck]) -> None:
        """
        Call the sink with the committed rows.

        Those in the answers are not read again.
        """
        self._deliver(frame, record, _inline_rows(acks))

    def deliver_again(
        self, frame: DataFrame, record: BatchRecord, base: CompletedCheckpoint
    ) -> None:
        """Call the sink with the committed rows, read from the checkpoint."""
        section = self._section_of(base.checkpoint_id, OUTPUT_SECTION)
        inline = [] if section is None else msgspec.msgpack.decode(section, type=list[bytes])
        self._deliver(frame, record, inline)

    def _deliver(self, frame: DataFrame, record: BatchRecord, inline: Sequence[bytes]) -> None:
        session = frame.sparkSession
        tables = [from_ipc(stream) for stream in inline]
        output = self._output_frame(session, tables, record.staged_files())
        self._sink(output, record.batch_id)
        fail_point("after-sink")

    def _output_frame(
        self, session: SparkSession, tables: Sequence[pa.Table], files: Sequence[FileStateHandle]
    ) -> DataFrame:
        """Return the staged rows of one micro-batch as a frame."""
        query, schema = self._query, self._query.definition.output
        arrow = query.definition.arrow_output
        inline = pa.concat_tables(tables) if tables else arrow.empty_table()
        if inline.num_rows <= _FEW_ROWS:
            frame = frame_of_arrow(session, inline, schema)
            frame = frame.coalesce(1)  # one task and, in a sink of files, one file
        else:
            frame = _frame_of_tasks(session, inline, schema)
        if not files:
            return frame
        names = [(msgspec.json.encode(handle.to_json()).decode("utf-8"),) for handle in files]
        read = partial(_read_output, query.location, query.settings.store_options, arrow)
        spilled = (
            session.createDataFrame(names, "handle string")
            .repartition(len(names))
            .mapInArrow(read, schema)
        )
        return frame.unionAll(spilled) if inline.num_rows else spilled


def _inline_rows(acks: Sequence[TaskAck]) -> list[bytes]:
    """Return the rows in the answers, as Arrow IPC streams."""
    return [ack.output for ack in acks if isinstance(ack.output, bytes)]


def _read_output(
    location: str,
    options: Mapping[str, object],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(location):
        store = open_store(location, options=dict(options))
        for batch in batches:
            for text in batch.column(0).to_pylist():
                handle = stream_handle_from_json(msgspec.json.decode(text))
                data = read_stream(store, handle, what="staged rows")
                yield from from_ipc(data).cast(schema).to_batches()


def _frame_of_tasks(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """
    Return a frame whose tasks convert their rows from Arrow.

    Spark converts less than 48 MB in the driver, to optimize the plan with the values.  Here that
    has no use, and takes about half of a delivery's time.
    """
    if is_connect(session):  # before 4.3 its configuration is that of the user's own session
        return frame_of_arrow(session, table, schema)
    before = session.conf.get(_LOCAL_ROWS)
    session.conf.set(_LOCAL_ROWS, "0")
    try:
        return frame_of_arrow(session, table, schema)
    finally:
        session.conf.set(_LOCAL_ROWS, str(before))
