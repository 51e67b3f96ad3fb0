"""The record of a micro-batch in its checkpoint, beside the state."""

from __future__ import annotations

import msgspec

from statelog.core.source_position import SourceLog
from statelog.errors import CheckpointError
from statelog.model.checkpoint import OBJECTS_PROPERTY, CompletedCheckpoint
from statelog.model.handles import FileStateHandle, stream_handle_from_json
from statelog.model.json_types import JsonObject


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    The properties of a checkpoint that a micro-batch made.

    Args:
        operator_id: Name of the operator.
        schema: JSON of its state schema.
        query_id, batch_id: Spark's names of the query and of the micro-batch.
        tasks: Number of tasks.
        delivery, time_mode: How the query ran.
        now_ms: Processing time of the batch; -1 without.
        watermark_ms: Its watermark; -1 without.  A query that continues from here never has a
            lower one.
        next_due_ms: When the next timer is due, in the time of the time mode; `NEVER_MS` without
            timers, None if unknown.
        position, position_before: How far the sources were read with the batch and before it, see
            `BatchTimes`; None if unknown.
        source_logs: Entries of the logs of file sources that the batch covers; None if unknown.
        source_folders: Names of the sources' logs below `sources/`, in their order; None if unknown.
        rows, keys, output_rows: Counts of input rows, keys touched, rows out.
        state_entries: Entries of all state variables before the batch.
        delta_bytes, output_bytes: Bytes of changes, and of staged rows.
        output_files: JSON handles of staged rows in separate files.
        went_back_to: The checkpoint of the last rewind of the query, if any.
        rewound: The checkpoint that the last `statelog rewind` committed, if any.  The numbers of
            micro-batches after it were used before, for other rows.
    """

    operator_id: str
    schema: JsonObject
    query_id: str
    batch_id: int
    tasks: int
    delivery: str
    time_mode: str
    now_ms: int
    rows: int
    keys: int
    output_rows: int
    state_entries: int
    delta_bytes: int
    output_bytes: int
    output_files: list[JsonObject]
    went_back_to: int | None = None
    rewound: int | None = None
    watermark_ms: int = -1
    next_due_ms: int | None = None
    position: str | None = None
    position_before: str | None = None
    source_logs: list[SourceLog] | None = None
    source_folders: list[str] | None = None

    def to_properties(self) -> JsonObject:
        """Return the checkpoint's properties; its staged files are deleted with it."""
        properties: JsonObject = msgspec.to_builtins(self)
        properties[OBJECTS_PROPERTY] = [handle.path for handle in self.staged_files()]
        return properties

    @classmethod
    def of(cls, checkpoint: CompletedCheckpoint) -> BatchRecord:
        """
        Return the record in a checkpoint.

        Raises:
            CheckpointError: The checkpoint was not made by this engine.
        """
        try:
            return msgspec.convert(dict(checkpoint.properties), cls)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"checkpoint {checkpoint.checkpoint_id} was not made by a streaming query: {error}",
                reason="incompatible",
            ) from error

    def staged_files(self) -> list[FileStateHandle]:
        """Return the handles of staged rows in separate files."""
        handles = [stream_handle_from_json(value) for value in self.output_files]
        return [handle for handle in handles if isinstance(handle, FileStateHandle)]
