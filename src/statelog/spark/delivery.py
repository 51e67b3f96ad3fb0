"""
How output rows reach the user's sink.

*staged*: tasks hand their rows to the driver (or, if large, to files); the driver commits them in
the same object as the state, and only then calls the sink, over the committed rows.  A replay of
the batch delivers the very same rows.

*direct*: the sink evaluates the tasks itself, in one Spark job; the state is committed after it.
"""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statelog.errors import CorruptionError
from statelog.format.change_set import checksum
from statelog.model.handles import FileStateHandle, stream_handle_from_json
from statelog.spark.failures import reported_to_driver
from statelog.spark.outputs import from_ipc
from statelog.spark.spec import TaskAck, TaskSpec
from statelog.spark.task import run_task
from statelog.spark.task_input import changed_partitions
from statelog.store import open_store

OUTPUT_SECTION = b"OUTP"
"""Trailer section of `_metadata` that holds staged rows: a msgpack list of Arrow IPC streams."""

_FEW_ROWS = 10_000
"""Staged rows up to this number are handed to the sink in one partition."""

_LOCAL_ROWS = "spark.sql.execution.arrow.localRelationThreshold"
"""Arrow data below this size becomes rows in the driver."""

_MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NO_LIMIT = 2**31 - 1

Sink = Callable[[DataFrame, int], Any]


class Delivery(enum.Enum):
    """The two ways of delivering output rows; see docs/guarantees.md."""

    STAGED = "staged"
    DIRECT = "direct"


class AckParam(AccumulatorParam[list[TaskAck]]):
    """An accumulator that gathers the answers of tasks."""

    def zero(self, value: list[TaskAck]) -> list[TaskAck]:
        """Return the start: no answers."""
        return []

    def addInPlace(self, value1: list[TaskAck], value2: list[TaskAck]) -> list[TaskAck]:
        """Return both lists as one."""
        return value1 + value2


def staged_task(spec: TaskSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task whose only result is its answer."""
    acks: list[TaskAck] = []
    with reported_to_driver(spec.location):
        for _ in run_task(spec, batches, acks.append):
            pass
    yield pa.RecordBatch.from_pydict({"ack": [pickle.dumps(ack) for ack in acks]})


def direct_task(
    spec: TaskSpec, acks: Any, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a task whose result is its output rows; the answer goes into an accumulator."""
    with reported_to_driver(spec.location):
        yield from run_task(spec, batches, lambda ack: acks.add([ack]))


def collect_acks(frame: DataFrame, spec: TaskSpec) -> list[TaskAck]:
    """Run all tasks of a staged micro-batch and return their answers, one per task."""
    table = frame.mapInArrow(partial(staged_task, spec), "ack binary").toArrow()
    return one_per_task(pickle.loads(data) for data in table.column("ack").to_pylist())


def one_per_task(acks: Iterable[TaskAck]) -> list[TaskAck]:
    """
    Return one answer per task, the last.

    A frame that was evaluated twice, or a stage that ran again, gives several; each of them is
    whole, and any one may be committed.

    Raises:
        UsageError: They saw different rows: the sink has changed the partitions.
    """
    by_partition: dict[int, TaskAck] = {}
    for ack in acks:
        if by_partition.setdefault(ack.partition, ack).rows != ack.rows:
            raise changed_partitions()
        by_partition[ack.partition] = ack
    return [by_partition[partition] for partition in sorted(by_partition)]


def inline_outputs(acks: Sequence[TaskAck]) -> list[bytes]:
    """Return the rows that travelled in the answers, as Arrow IPC streams."""
    return [ack.output for ack in acks if isinstance(ack.output, bytes)]


def pack_outputs(acks: Sequence[TaskAck]) -> tuple[bytes | None, list[FileStateHandle]]:
    """Return the rows that travelled inline as a trailer section, and the files of the others."""
    inline = inline_outputs(acks)
    files = [handle for ack in acks if isinstance(ack.output, tuple) for handle in ack.output]
    return (msgspec.msgpack.encode(inline) if inline else None), files


def unpack_outputs(section: bytes | None) -> list[bytes]:
    """Return the Arrow IPC streams in a trailer section of staged rows."""
    if section is None:
        return []
    return msgspec.msgpack.decode(section, type=list[bytes])


def _read_output(
    location: str,
    options: dict[str, Any],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with reported_to_driver(location):
        store = open_store(location, options=options)
        for batch in batches:
            for text in batch.column(0).to_pylist():
                handle = stream_handle_from_json(msgspec.json.decode(text))
                if not isinstance(handle, FileStateHandle):
                    raise CorruptionError("staged rows in a file need a file handle")
                data = store.get(handle.path)
                if handle.crc32c is not None and checksum([data]) != handle.crc32c:
                    raise CorruptionError(
                        f"staged rows in {handle.path} are damaged: the checksum does not match",
                        path=handle.path,
                    )
                yield from from_ipc(data).cast(schema).to_batches()


def frame_of_arrow(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Return an Arrow table as a frame, whatever the session says of the size of batches."""
    limit = session.conf.get(_MAX_RECORDS) or "0"
    if int(limit) > 0:
        return session.createDataFrame(table, schema=schema)
    # No limit, says the session; PySpark would hand the number on to Arrow, which refuses it.
    session.conf.set(_MAX_RECORDS, str(_NO_LIMIT))
    try:
        return session.createDataFrame(table, schema=schema)
    finally:
        session.conf.set(_MAX_RECORDS, limit)


def _frame_of_tasks(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """
    Return a frame whose tasks make their rows out of Arrow themselves.

    Spark makes rows of less than 48 MB in the driver first, to optimize with their values; here
    that only costs: about half of a delivery.
    """
    before = session.conf.get(_LOCAL_ROWS)
    session.conf.set(_LOCAL_ROWS, "0")
    try:
        return frame_of_arrow(session, table, schema)
    finally:
        session.conf.set(_LOCAL_ROWS, str(before))


def output_frame(
    session: SparkSession,
    schema: StructType,
    arrow: pa.Schema,
    tables: Sequence[pa.Table],
    files: Sequence[FileStateHandle],
    location: str,
    store_options: dict[str, Any],
) -> DataFrame:
    """Return the staged rows of one micro-batch as a frame."""
    inline = pa.concat_tables(tables) if tables else arrow.empty_table()
    if inline.num_rows <= _FEW_ROWS:
        frame = frame_of_arrow(session, inline, schema)
        frame = frame.coalesce(1)  # one task and, in a sink of files, one file
    else:
        frame = _frame_of_tasks(session, inline, schema)
    if not files:
        return frame
    names = [(msgspec.json.encode(handle.to_json()).decode("utf-8"),) for handle in files]
    spilled = (
        session.createDataFrame(names, "handle string")
        .repartition(len(names))
        .mapInArrow(partial(_read_output, location, store_options, arrow), schema)
    )
    return frame.unionAll(spilled) if inline.num_rows else spilled
