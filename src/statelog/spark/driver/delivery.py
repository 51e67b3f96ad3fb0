"""
Run the tasks of a micro-batch, and deliver their output rows to the sink.

*staged*: the tasks send their rows to the driver, or write them to files if they are large.  The
driver commits them in the same object as the state, and then calls the sink with the committed
rows.  A batch that is repeated delivers the same rows.

*direct*: the sink evaluates the tasks in one Spark job, and the driver commits after it.  The sink
gets the rows before the commit, so a batch that is repeated delivers rows again: at least once.

A new delivery is a class here, a name in `query/delivery`, and a line in `deliveries`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.state_stream import read_stream
from statelog.errors import UsageError
from statelog.format.checkpoint_metadata import decode_streams, encode_streams
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.model.handles import FileStateHandle, stream_handle_from_json
from statelog.runtime.fail_points import fail_point
from statelog.spark.jvm.frames import ArrowBatches, frame_of_arrow, frame_of_few_rows
from statelog.spark.jvm.gateway import is_connect, with_setting
from statelog.spark.jvm.python_job import PythonJobs
from statelog.spark.query.delivery import Delivery, Sink
from statelog.spark.query.query import Query
from statelog.spark.rows.types import from_ipc
from statelog.spark.worker.failures import reported_to_driver
from statelog.spark.worker.protocol import TaskAck, TaskSpec
from statelog.spark.worker.task import direct_task, staged_task
from statelog.spark.worker.task_input import changed_partitions
from statelog.store import open_location


class TaskRunner:
    """
    Runs the tasks of a query in which the results contain the output rows.

    Thread: Spark's thread of the query.
    """

    def __init__(self) -> None:
        self._python = PythonJobs("ack binary")
        self._batches = ArrowBatches()

    def collect_acks(self, rows: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Run all tasks of a staged micro-batch and return their results."""
        columns = columns_of(spec)
        # One Spark job: the rows of the partitions in, one answer for each task out.
        frame = self._python.frame(
            rows, partial(staged_task, spec), columns, tasks=len(spec.ranges)
        )
        with self._batches.not_measured(rows, columns):
            return one_per_task(pickle.loads(data) for data in _collected(frame))


def columns_of(spec: TaskSpec) -> Hashable:
    """Return an id that tells inputs with different columns in the same query apart."""
    return spec.state.operator, spec.rows.is_read, spec.rows.initial is None


def _collected(frame: DataFrame) -> Iterator[bytes]:
    """Yield the values in the only column of a frame."""
    if is_connect(frame):
        yield from frame.toArrow().column(0).to_pylist()
        return
    # What `toArrow` does, without asking for a schema and settings that are known.
    for batch in frame._collect_as_arrow():  # type: ignore[operator]
        yield from batch.column(0).to_pylist()


def one_per_task(acks: Iterable[TaskAck]) -> list[TaskAck]:
    """
    Return only the last result of each task.

    A frame that is evaluated twice, or a stage that runs again, gives several answers of a task.
    Each of them is complete, and any one may be committed.

    A partition without rows does not name its task: it takes the number that Spark shows.  So a
    task of Spark that answers twice has run two partitions under one number.
    """
    by_partition: dict[int, TaskAck] = {}
    spark_tasks: set[int] = set()
    for ack in acks:
        place = ack.place
        # A sink that merges partitions would let one task answer for the key groups of another.
        is_merged = place.spark_task in spark_tasks
        before = by_partition.setdefault(place.partition, ack)
        if is_merged or before.count("rows") != ack.count("rows"):
            raise changed_partitions()
        by_partition[place.partition] = ack
        if place.spark_task >= 0:
            spark_tasks.add(place.spark_task)
    return [by_partition[partition] for partition in sorted(by_partition)]


class CommittedRows(NamedTuple):
    """The output rows to commit: a section of `_metadata`, and separate files."""

    section: bytes | None = None
    files: tuple[FileStateHandle, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the rows in bytes."""
        return len(self.section or b"") + sum(file.size_bytes for file in self.files)


class OutputDelivery(Protocol):
    """Delivers the output rows of micro-batches to the sink of one query."""

    is_staged: bool
    """Whether tasks return their rows, so that they are committed with the state."""

    def run(self, partitioned: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Run all tasks and return their results, one per task."""

    def committed_rows(self, acks: Sequence[TaskAck]) -> CommittedRows:
        """Return the rows to commit together with the state."""

    def deliver(self, frame: DataFrame, record: BatchRecord, acks: Sequence[TaskAck]) -> None:
        """Call the sink with the rows of a committed micro-batch."""

    def deliver_again(
        self, frame: DataFrame, record: BatchRecord, base: CompletedCheckpoint
    ) -> None:
        """Call the sink again with the rows of a micro-batch that was already committed."""


# Staged: rows that are committed with the state.

OUTPUT_SECTION = b"OUTP"
"""Trailer section of `_metadata` that contains staged rows: a msgpack list of Arrow IPC streams."""

SectionOf = Callable[[int, bytes], bytes | None]
"""Reads a trailer section of a checkpoint."""


class StagedDelivery:
    """Calls the sink with rows that are already committed."""

    is_staged = True

    def __init__(self, query: Query, sink: Sink, section_of: SectionOf) -> None:
        self._query = query
        self._sink = sink
        self._section_of = section_of
        self._runner = TaskRunner()

    def run(self, partitioned: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Run all tasks and return their results, which contain the rows."""
        return self._runner.collect_acks(partitioned, spec)

    def committed_rows(self, acks: Sequence[TaskAck]) -> CommittedRows:
        """Return the inline rows as a section, and the files that contain the other rows."""
        inline = inline_rows(acks)
        section = encode_streams(inline) if inline else None
        return CommittedRows(section, tuple(chain(*(ack.output.files for ack in acks))))

    def deliver(self, frame: DataFrame, record: BatchRecord, acks: Sequence[TaskAck]) -> None:
        """
        Call the sink with the committed rows.

        Those in the answers are not read again.
        """
        self._deliver(frame, record, inline_rows(acks))

    def deliver_again(
        self, frame: DataFrame, record: BatchRecord, base: CompletedCheckpoint
    ) -> None:
        """Call the sink again with the committed rows, which are read from the checkpoint."""
        section = self._section_of(base.checkpoint_id, OUTPUT_SECTION)
        where = f"checkpoint {base.checkpoint_id}"
        inline = decode_streams(section, where=where)
        self._deliver(frame, record, inline)

    def _deliver(self, frame: DataFrame, record: BatchRecord, inline: Sequence[bytes]) -> None:
        query = self._query
        files = record.staged_files()
        session = frame.sparkSession
        operator = query.output
        what = f"the output of micro-batch {record.batch_id}"
        output = frame_of_rows(
            session, query, operator.output, operator.arrow_output, inline, files, what=what
        )
        self._sink(output, record.batch_id)
        fail_point("after-sink")


# Make a frame of the rows that tasks staged.

_FEW_ROWS = 10_000
"""Staged rows up to this number are in one partition of the frame."""
_LOCAL_ROWS = "spark.sql.execution.arrow.localRelationThreshold"
"""Spark converts Arrow data below this size to rows in the driver."""


def inline_rows(acks: Sequence[TaskAck]) -> list[bytes]:
    """Return the rows contained in the results, as Arrow IPC streams."""
    return [ack.output.staged for ack in acks if isinstance(ack.output.staged, bytes)]


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
    """Return a frame of the staged rows of one micro-batch."""
    # Rows in the answers were committed with the checkpoint, and are in memory already.
    tables = [committed_rows(stream, arrow, what) for stream in inline]
    table = pa.concat_tables(tables) if tables else arrow.empty_table()
    if table.num_rows <= _FEW_ROWS:
        frame = frame_of_few_rows(session, table, schema)
        frame = frame.coalesce(1)  # one task and, in a sink of files, one file
    else:
        frame = _frame_of_tasks(session, table, schema)
    if not files:
        return frame
    # Large ones are read by tasks: the driver may not have the memory.
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
    Convert committed rows to the query's current columns, matching columns by name.

    The rows were committed with the columns that the query had then.  A column that was added since
    is null, and one that was removed is left out.
    """
    table = from_ipc(data)
    if table.schema.types == columns.types and table.schema.names == columns.names:
        return table
    committed = table.schema
    before = set(committed.names)
    now = set(columns.names)
    # Columns can be matched by name only where no name repeats.
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
    return all(_same_names(left.field(number).type, right.field(number).type) for number in fields)


def _other_columns(committed: pa.Schema, now: pa.Schema, what: str) -> UsageError:
    return UsageError(
        f"{what} was committed and must still be delivered: its rows have the columns "
        f"({_columns(committed)}), but the query now has ({_columns(now)}). Start the query once with the "
        "old columns, which delivers the rows, and change the columns afterwards"
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _frame_of_tasks(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """
    Return a frame whose tasks convert the rows from Arrow.

    Spark converts less than 48 MB in the driver, to optimize the plan with the values.  Here that
    has no use, and takes about half of a delivery's time.
    """
    if is_connect(session):  # before 4.3 it has the configuration of the user's own session
        return frame_of_arrow(session, table, schema)
    with with_setting(session, _LOCAL_ROWS, "0"):
        return frame_of_arrow(session, table, schema)


# Direct: rows that the sink gets from the tasks.


class _AckParam(AccumulatorParam[list[TaskAck]]):
    """An accumulator that collects the results of tasks."""

    def zero(self, value: list[TaskAck]) -> list[TaskAck]:
        """Return an empty list."""
        return []

    def addInPlace(self, value1: list[TaskAck], value2: list[TaskAck]) -> list[TaskAck]:
        """Concatenate both lists."""
        value1.extend(value2)
        return value1


class DirectDelivery:
    """
    Passes the sink a frame that runs the tasks when the sink evaluates it.

    It has the rows when `run` returns.
    """

    is_staged = False

    def __init__(self, query: Query, sink: Sink) -> None:
        self._python = PythonJobs(query.output.output)
        self._batches = ArrowBatches()
        self._sink = sink

    def run(self, partitioned: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Call the sink, which runs the tasks, and return their results."""
        answers = partitioned.sparkSession.sparkContext.accumulator([], _AckParam())
        task = partial(direct_task, spec, answers)
        columns = columns_of(spec)
        try:
            output = self._python.frame(partitioned, task, columns, tasks=len(spec.ranges))
            with self._batches.not_measured(partitioned, columns):
                self._sink(output, spec.context.batch_id)
                fail_point("after-sink")
                acks = one_per_task(answers.value)
                # A sink that shows ten rows evaluates some partitions only.
                if len(acks) < len(spec.ranges):  # the sink left rows; the state needs them
                    output.write.format("noop").mode("append").save()
                    acks = one_per_task(answers.value)
        finally:
            answers.value = []  # PySpark keeps every accumulator with its value for ever
        return acks

    def committed_rows(self, acks: Sequence[TaskAck]) -> CommittedRows:
        """Return nothing: the sink already received the rows."""
        return CommittedRows()

    def deliver(self, frame: DataFrame, record: BatchRecord, acks: Sequence[TaskAck]) -> None:
        """Do nothing: the sink already received the rows."""

    def deliver_again(
        self, frame: DataFrame, record: BatchRecord, base: CompletedCheckpoint
    ) -> None:
        """Do nothing: the rows of a committed micro-batch are not delivered again."""


def deliveries(query: Query, sink: Sink, section_of: SectionOf) -> dict[Delivery, OutputDelivery]:
    """Return all kinds of delivery, because a replayed batch may need a different one."""
    return {
        Delivery.STAGED: StagedDelivery(query, sink, section_of),
        Delivery.DIRECT: DirectDelivery(query, sink),
    }
