"""The protocol of a delivery of output rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import BatchRecord
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.model.handles import FileStateHandle
from statelog.spark.worker.protocol import TaskAck, TaskSpec


class CommittedRows(NamedTuple):
    """The output rows to commit: a section of `_metadata`, and files."""

    section: bytes | None = None
    files: tuple[FileStateHandle, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows."""
        return len(self.section or b"") + sum(file.size_bytes for file in self.files)


class OutputDelivery(Protocol):
    """Delivers the output rows of micro-batches to the sink of one query."""

    is_staged: bool
    """Whether tasks answer with their rows, so that they are committed with the state."""

    def run(self, partitioned: DataFrame, spec: TaskSpec) -> list[TaskAck]:
        """Run all tasks and return their answers, one for each task."""

    def committed_rows(self, acks: Sequence[TaskAck]) -> CommittedRows:
        """Return the rows to commit with the state."""

    def deliver(self, frame: DataFrame, record: BatchRecord, acks: Sequence[TaskAck]) -> None:
        """Call the sink with the rows of a committed micro-batch."""

    def deliver_again(
        self, frame: DataFrame, record: BatchRecord, base: CompletedCheckpoint
    ) -> None:
        """Call the sink again with the rows of a committed micro-batch."""
