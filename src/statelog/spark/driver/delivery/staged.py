"""
Staged delivery: commit rows with the state, then call the sink.

Tasks send their rows to the driver, or write them to files if they are large.  The driver commits
them in the same object as the state, and then calls the sink with the committed rows.  A batch that
is repeated delivers the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import BatchRecord
from statelog.format.checkpoint_metadata import decode_streams, encode_streams
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.delivery.protocol import CommittedRows
from statelog.spark.driver.staged_rows import frame_of_rows, inline_rows, row_files
from statelog.spark.driver.task_runner import TaskRunner
from statelog.spark.query.delivery import Sink
from statelog.spark.query.query import Query
from statelog.spark.worker.protocol import TaskAck, TaskSpec

OUTPUT_SECTION = b"OUTP"
"""Trailer section of `_metadata` that holds staged rows: a msgpack list of Arrow IPC streams."""

SectionOf = Callable[[int, bytes], bytes | None]
"""Reads a trailer section of a checkpoint."""


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
        output = frame_of_rows(frame.sparkSession, query, query.output, inline, files)
        self._sink(output, record.batch_id)
        fail_point("after-sink")
