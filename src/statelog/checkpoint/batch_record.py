"""
The record of a micro-batch in its checkpoint, next to the state.

Format: docs/reference/formats/checkpoint_metadata.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from statelog.core.delivered_batch import DeliveredBatch
from statelog.core.source_position import SourceLog
from statelog.errors import CheckpointError, IncompatibleFormatError, UsageError
from statelog.model.checkpoint import OBJECTS_PROPERTY, CompletedCheckpoint
from statelog.model.handles import FileStateHandle, stream_handle_from_json
from statelog.model.json_types import Json, JsonObject
from statelog.model.object_path import checked_path

SIDE_CHECKPOINT: Final = "checkpoint_id"
SIDE_BATCH: Final = "batch_id"
"""The first columns of stored rows of a side output: the checkpoint and the micro-batch that has them."""
_VERSION: Final = 3


class OperatorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One operator of a query, after a micro-batch.

    Args:
        operator_id: Name of the operator.
        schema: JSON of its state schema.
        next_due_ms: When its next timer is due, in the time of the time mode; `NEVER_MS` without
            timers, None if unknown.
        rows, keys, output_rows: Counts of its input rows, of keys touched, of rows out.
        state_entries: Entries of all its state variables before the batch.
    """

    operator_id: str
    schema: JsonObject
    rows: int
    keys: int
    output_rows: int
    state_entries: int
    next_due_ms: int | None = None


class RecordingEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    An object with what some keys saw in one micro-batch, or with the dead letters of several.

    Args:
        checkpoint: The checkpoint with which it was committed; the newest that has dead letters in it.
        path, size: Its name, and its length when it was written.
        at_ms: When it was written, milliseconds since 1970.
        keys: Number of recorded keys.
        dropped: Number of keys that exceeded a bound and were left out.
        dead_letters: Number of dead letters; 0 for a recording that the setting `record` asked for.
        oldest: The oldest checkpoint that has dead letters in it; 0 where there is one.
    """

    checkpoint: int
    path: str
    size: int
    at_ms: int
    keys: int
    dropped: int = 0
    dead_letters: int = 0
    oldest: int = 0


class SideOutputEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    An object with rows of a side output.

    Args:
        name, operator_id: The side output, and the operator that declares it.
        checkpoint: The newest checkpoint that has rows in it.
        path, size, crc: Its name, length, and CRC-32C.
        rows: Number of rows in it.
        at_ms: When the newest of them was written, milliseconds since 1970.
        is_fresh: Whether the micro-batch of this record has rows in it, which are to be delivered.
    """

    name: str
    operator_id: str
    checkpoint: int
    path: str
    size: int
    crc: int
    rows: int
    at_ms: int
    is_fresh: bool = False

    @property
    def handle(self) -> FileStateHandle:
        """The handle of the object."""
        return FileStateHandle(self.path, self.size, self.crc)


class BroadcastEntry(msgspec.Struct, frozen=True, kw_only=True):
    """
    A version of a broadcast table.

    Args:
        name: The table.
        version: A digest of its content.
        checkpoint: The first checkpoint whose micro-batch saw it.
        path, size, crc: The name, length and CRC-32C of its object.
        rows: Number of its rows.
    """

    name: str
    version: str
    checkpoint: int
    path: str
    size: int
    crc: int
    rows: int

    @property
    def handle(self) -> FileStateHandle:
        """The handle of the object."""
        return FileStateHandle(self.path, self.size, self.crc)


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The properties of a checkpoint that a micro-batch made.

    Args:
        operators: The operators of the query, in the order of the data.  The key groups of the
            checkpoint are divided evenly among them, in this order.
        query_id, batch_id: Spark's names of the query and of the micro-batch.
        location, timeline: The location and the timeline in which the micro-batch was computed.  A
            later checkpoint of another timeline may have the same record, after a rewind for example.
        tasks: Number of tasks.
        delivery, time_mode: How the query ran.
        now_ms: Processing time of the batch; -1 without.
        watermark_ms: Its watermark; -1 without.  A query that continues from here never has a
            lower one.
        position, position_before: How far the sources were read with the batch and before it, see
            `BatchTimes`; None if unknown.
        source_logs: Entries of the logs of file sources that the batch covers; None if unknown.
        source_folders: Names of the sources' logs below `sources/`, in their order; None if unknown.
        delta_bytes, output_bytes: Bytes of changes, and of staged rows.
        output_files: JSON handles of staged rows in separate files.
        went_back_to: The checkpoint of the last rewind of the query, if any.
        checkpoint_location: The query's checkpointLocation, as Spark resolved it; None if unknown.
        durations_ms: Phases of the driver up to the commit: `plan`, `run`; None if unknown.
        task_ms: Phases of the tasks, of the slowest task in each; None if unknown.
        previous_ms: Phases of the parent's micro-batch from its commit on: `commit`, `deliver`,
            `clean_up`; None if the parent is of an earlier run.
        retries: What was repeated: `tasks` (attempts of tasks after their first) of this
            micro-batch, `puts` of claims and of the commit before; None if unknown.
        objects, object_bytes: Number and size of the objects that the tasks wrote to the store; None
            if unknown.
        uploads: Figures of the tasks' uploads: `uploads`, `attempts`, `retries`, `bytes`, `slowest_ms`
            and `wait_ms`; None if there were none, or unknown.
        recordings: The recordings of this micro-batch, and the kept ones of those before it.
        side_outputs: Rows of side outputs: of this micro-batch, and the kept ones of those before it.
        broadcasts: The versions of broadcast tables that this micro-batch and kept recordings saw.
    """

    operators: tuple[OperatorRecord, ...]
    query_id: str
    batch_id: int
    location: str
    timeline: int
    tasks: int
    delivery: str
    time_mode: str
    now_ms: int
    delta_bytes: int
    output_bytes: int
    output_files: list[JsonObject]
    went_back_to: int | None = None
    watermark_ms: int = -1
    position: str | None = None
    position_before: str | None = None
    source_logs: list[SourceLog] | None = None
    source_folders: list[str] | None = None
    checkpoint_location: str | None = None
    durations_ms: dict[str, int] | None = None
    task_ms: dict[str, int] | None = None
    previous_ms: dict[str, int] | None = None
    retries: dict[str, int] | None = None
    objects: int | None = None
    object_bytes: int | None = None
    uploads: dict[str, int] | None = None
    recordings: tuple[RecordingEntry, ...] = ()
    side_outputs: tuple[SideOutputEntry, ...] = ()
    broadcasts: tuple[BroadcastEntry, ...] = ()

    @property
    def delivered(self) -> DeliveredBatch:
        """The micro-batch, as targets record it."""
        return DeliveredBatch(self.location, self.timeline, self.batch_id, self.position or "")

    @property
    def rows(self) -> int:
        """Number of input rows of the first operator."""
        return self.operators[0].rows

    @property
    def output_rows(self) -> int:
        """Number of rows of the last operator."""
        return self.operators[-1].output_rows

    @property
    def keys(self) -> int:
        """Number of keys touched, of all operators."""
        return sum(operator.keys for operator in self.operators)

    @property
    def state_entries(self) -> int:
        """Entries of all state variables before the batch."""
        return sum(operator.state_entries for operator in self.operators)

    def to_properties(self) -> JsonObject:
        """Return the checkpoint's properties; its staged files are deleted with it."""
        properties: JsonObject = {**msgspec.to_builtins(self), "version": _VERSION}
        files = [handle.path for handle in self.staged_files()]
        files += [recording.path for recording in self.recordings]
        files += [rows.path for rows in self.side_outputs]
        files += [table.path for table in self.broadcasts]
        properties[OBJECTS_PROPERTY] = files
        return properties

    @classmethod
    def of(cls, checkpoint: CompletedCheckpoint) -> BatchRecord:
        """Return the record in a checkpoint; errors: see `of_properties`."""
        return cls.of_properties(checkpoint.properties, checkpoint.checkpoint_id)

    @classmethod
    def of_properties(cls, stored: Mapping[str, Json], checkpoint_id: int) -> BatchRecord:
        """
        Return the record in the properties of a checkpoint.

        Raises:
            CheckpointError: The checkpoint was not made by this engine.
            IncompatibleFormatError: A newer statelog made it.
            CorruptionError: It names a file outside of its folder, or an object outside of the location.
        """
        properties: JsonObject = dict(stored)
        version = properties.get("version")
        if isinstance(version, int) and version != _VERSION:
            raise IncompatibleFormatError(
                f"checkpoint {checkpoint_id} has version {version} of the record of a micro-batch; this "
                f"statelog reads version {_VERSION} only: use the statelog that wrote it, or begin with a new "
                "state location"
            )
        try:
            record = msgspec.convert(properties, cls)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} was not made by a streaming query: {error}",
                reason="incompatible",
            ) from error
        check_source_folders(record.source_folders, record.source_logs)
        for entry in record.recordings:
            checked_path(entry.path)
        for rows in record.side_outputs:
            checked_path(rows.path)
        for table in record.broadcasts:
            checked_path(table.path)
        return record

    def staged_files(self) -> list[FileStateHandle]:
        """Return the handles of staged rows in separate files."""
        handles = [stream_handle_from_json(value) for value in self.output_files]
        return [handle for handle in handles if isinstance(handle, FileStateHandle)]


def check_source_folders(folders: Sequence[str] | None, logs: Sequence[SourceLog] | None) -> None:
    """
    Check the names of the sources' logs in a record: files there are read, and a rewind deletes some.

    Raises:
        CorruptionError: One leads out of its folder.
    """
    for name in filter(None, [*(folders or ()), *(log.folder for log in logs or ())]):
        checked_path(name)


def operator_index(operator: str | None, record: BatchRecord, url: str) -> int:
    """
    Return the position of an operator in its query; None is the only one.

    Raises:
        UsageError: The query has several operators and none was named, or has no such operator.
    """
    names = [each.operator_id for each in record.operators]
    if operator is None and len(names) == 1:
        return 0
    if operator not in names:
        missing = "has several operators" if operator is None else f"has no operator {operator!r}"
        raise UsageError(f"the query of {url} {missing}; name one of {', '.join(names)}")
    return names.index(operator)
