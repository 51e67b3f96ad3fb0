"""
Commit and deliver the rows of side outputs.

Attached to the checkpoint of their micro-batch, and delivered after its commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from statelog.checkpoint.attachments import Attachment, AttachmentPolicy, of_kinds
from statelog.checkpoint.batch_record import BatchRecord
from statelog.extensions.side_outputs.declaration import SideSchemas, operator_of
from statelog.extensions.side_outputs.stored import (
    SIDE_BATCH,
    SIDE_CHECKPOINT,
    SIDE_OUTPUT,
    read_side_rows,
)
from statelog.format.arrow_data import write_stream
from statelog.format.arrow_limits import batches_of
from statelog.metrics.table import Figure
from statelog.model.handles import FileStateHandle
from statelog.runtime.fail_points import fail_point
from statelog.spark.driver.delivery import frame_of_rows
from statelog.spark.driver.extension import Answers, AttachingExtension, DriverContext
from statelog.spark.query.delivery import Sink, in_sink
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.query.settings import QuerySettings
from statelog.spark.rows.types import from_ipc
from statelog.spark.worker.protocol import part_of
from statelog.store import PATHS, open_location

SIDE_OUTPUTS: Final = "side_outputs"
SIDE_FILES_MAX: Final = 1_000
"""Maximum number of side output objects that a checkpoint references."""
TAIL_BYTES: Final = 256 * 1024
"""Objects up to this size are rewritten with the rows of the next micro-batch."""
_TAIL_MEMORY: Final = 4 << 20
"""The driver keeps up to this many bytes of an object's rows in memory."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a side output, oldest first, which are the contents of an attachment."""

    table: pa.Table

    def joined(self, skip: int, later: _Rows) -> _Rows | None:
        """Return these rows and later ones, or None if columns differ or there are too many."""
        if self.table.schema != later.table.schema:
            return None
        both = pa.concat_tables([self.table.slice(skip), later.table])
        return _Rows(both.combine_chunks()) if both.nbytes <= _TAIL_MEMORY else None

    def encode(self) -> bytes:
        """Encode the rows as an Arrow IPC stream."""
        return write_stream(batches_of(self.table), self.table.schema)


def _declared(operator: OperatorDefinition) -> SideSchemas:
    """Return the side outputs that an operator's processor declares."""
    return part_of(operator.declared, SIDE_OUTPUTS, dict) or {}


class SideOutputs(AttachingExtension):
    """
    The side outputs of a query, as seen by the driver.

    A sink is called only for micro-batches in which its side output has rows.
    """

    name = SIDE_OUTPUTS
    figures: ClassVar[Mapping[str, Figure]] = {
        "side_output_rows": Figure(
            "rows",
            "Rows that the processors of a stateful query emitted to side outputs.",
            counter="num_side_output_rows",
        )
    }

    def __init__(self, context: DriverContext) -> None:
        self._query, self._sinks = context.query, dict(context.sinks)
        settings = context.query.settings
        super().__init__(settings, context.put)
        schemas = [_declared(operator) for operator in context.query.operators]
        self._operators = {name: operator_of(name, schemas) for name in context.sinks}

    @staticmethod
    def policy(settings: QuerySettings) -> AttachmentPolicy:
        """Return how rows of side outputs are joined and retained."""
        return AttachmentPolicy(
            kind=SIDE_OUTPUT,
            what="rows of side outputs",
            path_of=PATHS.output,
            contents=lambda streams: _Rows(pa.concat_tables(map(from_ipc, streams))),
            age_ms=settings.retention.total_seconds() * 1000,
            tail_bytes=TAIL_BYTES,
            objects_max=SIDE_FILES_MAX,
        )

    def task_part(self, operator: int, tasks: int) -> SideSchemas | None:
        """Return the side outputs that an operator's processor declares."""
        return _declared(self._query.operators[operator]) or None

    def deliver(self, frame: DataFrame, batch_id: int, answers: Answers) -> None:
        """Call the sinks with the rows in the tasks' results, without reading them again."""
        for name, sink in self._sinks.items():
            operator = self._query.operators[self._operators[name]]
            acks = answers[operator.schema.operator_id]
            emitted = [rows for ack in acks for rows in self.additions(ack) if rows.name == name]
            inline = [data for rows in emitted for data in rows.data]
            files = [rows.file for rows in emitted if rows.file is not None]
            if emitted:
                self._call(name, sink, frame, batch_id, inline, files)

    def deliver_again(self, frame: DataFrame, record: BatchRecord) -> None:
        """Call the sinks with the rows of a micro-batch that was already committed."""
        for name, sink in self._sinks.items():
            attachments = of_kinds(record.attachments, SIDE_OUTPUT)
            fresh = [rows for rows in attachments if rows.name == name and rows.is_fresh]
            small = [rows for rows in fresh if rows.size <= TAIL_BYTES]
            large = [rows.handle for rows in fresh if rows.size > TAIL_BYTES]
            if fresh:
                inline = [self._of_its_checkpoint(rows) for rows in small]
                self._call(name, sink, frame, record.batch_id, inline, large)

    def _of_its_checkpoint(self, attachment: Attachment) -> bytes:
        """Return the rows that an object's newest checkpoint added to it."""
        query = self._query
        store = open_location(query.location, options=dict(query.settings.storage_options))
        table = read_side_rows(store, attachment)
        rows = table.filter(pc.equal(table.column(SIDE_CHECKPOINT), attachment.newest))
        return write_stream(rows.to_batches(), rows.schema)

    def _call(
        self,
        name: str,
        sink: Sink,
        frame: DataFrame,
        batch_id: int,
        inline: Sequence[bytes],
        files: Sequence[FileStateHandle],
    ) -> None:
        schema = _declared(self._query.operators[self._operators[name]])[name]
        what = f"side output {name!r} of micro-batch {batch_id}"
        rows = frame_of_rows(
            frame.sparkSession,
            self._query,
            schema.stored_columns,
            schema.stored,
            inline,
            files,
            what=what,
        )
        with in_sink(frame, name):
            sink(rows.drop(SIDE_CHECKPOINT, SIDE_BATCH), batch_id)
        fail_point("after-side-sink")
