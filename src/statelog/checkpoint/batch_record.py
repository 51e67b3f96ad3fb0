"""
The record of a micro-batch, which its checkpoint contains next to the state.

Format: docs/reference/formats/checkpoint_metadata.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from statelog.checkpoint.attachments import Attachment
from statelog.core.delivered_batch import DeliveredBatch
from statelog.core.source_position import SourceLog
from statelog.errors import CheckpointError, IncompatibleFormatError, UsageError
from statelog.metrics.table import BatchFigures
from statelog.model.checkpoint import OBJECTS_PROPERTY, CompletedCheckpoint
from statelog.model.handles import (
    FileStateHandle,
    Json,
    JsonObject,
    checked_path,
    stream_handle_from_json,
)

_VERSION: Final = 6


class OperatorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The record of one operator after a micro-batch.

    Args:
        operator_id: Name of the operator.
        schema: JSON of its state schema.
        next_due_ms: Time of its next timer, in the time of the time mode; 2^63 - 1 without timers,
            None if unknown.
        state_entries: Entries of all its state variables before the micro-batch.
    """

    operator_id: str
    schema: JsonObject
    state_entries: int
    next_due_ms: int | None = None


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The properties of a checkpoint that a micro-batch created.

    Args:
        operators: The operators, in the order of the data.  They share the key groups of the
            checkpoint evenly: operator i of n has those from i x `max_parallelism` / n on.
        query_id, batch_id: Spark's names of the query and of the micro-batch.
        location, timeline: Where the micro-batch was computed.  After a rewind, a checkpoint of a
            later timeline has the same record.
        delivery, time_mode: How the query ran.
        now_ms: Processing time of the micro-batch; -1 without.
        watermark_ms: Its watermark; -1 without.  A query that continues from here never has a
            lower one.
        position, position_before: How far the sources were read with the micro-batch and before it;
            None if unknown.
        source_logs: Entries of the logs of file sources that the micro-batch covers; None if
            unknown.
        source_folders: Names of the sources' logs below `sources/`, in their order; None if
            unknown.
        output_files: Handles of staged rows in separate files.
        went_back_to: The checkpoint of the last rewind of the query, if any.
        checkpoint_location: The query's checkpointLocation, as Spark resolved it; None if unknown.
        figures: The figures up to the commit by name, whole numbers, absent if 0.  `objects`,
            `object_bytes` and `repeated_requests` count the tasks, not the commit.  `extras` has
            the figures of extensions, `milliseconds` the phases `plan` and `run`.
        previous_ms: The phases `commit`, `deliver` and `clean_up` of the parent's micro-batch,
            which its own record cannot contain; None if the parent is of an earlier run.
        retries: `tasks`: failed attempts of tasks; `puts`: repeated puts of claims and of the
            previous commit; None if unknown.
        attachments: Objects that the checkpoint names besides its state: of this micro-batch, and
            retained ones of earlier micro-batches.
    """

    operators: tuple[OperatorRecord, ...]
    query_id: str
    batch_id: int
    location: str
    timeline: int
    delivery: str
    time_mode: str
    now_ms: int
    output_files: list[JsonObject]
    went_back_to: int | None = None
    watermark_ms: int = -1
    position: str | None = None
    position_before: str | None = None
    source_logs: list[SourceLog] | None = None
    source_folders: list[str] | None = None
    checkpoint_location: str | None = None
    figures: BatchFigures = BatchFigures()
    previous_ms: dict[str, int] | None = None
    retries: dict[str, int] | None = None
    attachments: tuple[Attachment, ...] = ()

    @property
    def delivered(self) -> DeliveredBatch:
        """The micro-batch in the form in which sinks record it."""
        return DeliveredBatch(self.location, self.timeline, self.batch_id, self.position or "")

    def to_properties(self) -> JsonObject:
        """Return the properties of the checkpoint; staged files are deleted together with it."""
        properties: JsonObject = msgspec.to_builtins(self)
        properties |= {"figures": self.figures.stored(), "version": _VERSION}
        files = [handle.path for handle in self.staged_files()]
        files += [attachment.path for attachment in self.attachments]
        properties[OBJECTS_PROPERTY] = files
        return properties

    @classmethod
    def of(cls, checkpoint: CompletedCheckpoint) -> BatchRecord:
        """Return the record in a checkpoint; raises like `of_properties`."""
        return cls.of_properties(checkpoint.properties, checkpoint.checkpoint_id)

    @classmethod
    def of_properties(cls, stored: Mapping[str, Json], checkpoint_id: int) -> BatchRecord:
        """Return the record in the properties of a checkpoint."""
        properties: JsonObject = dict(stored)
        # Before the conversion, which would report a newer record as an invalid one.
        version = properties.get("version")
        if isinstance(version, int) and version != _VERSION:
            raise IncompatibleFormatError(
                f"checkpoint {checkpoint_id} contains a micro-batch record of version {version}; "
                f"this version of statelog reads version {_VERSION} only: use the version of statelog "
                "that wrote it, or start with a new state location"
            )
        try:
            record = msgspec.convert(properties, cls)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} was not created by a streaming query: {error}",
                reason="incompatible",
            ) from error
        # Paths in a record are read and deleted, so a forged record must not name others.
        check_source_folders(record.source_folders, record.source_logs)
        for attachment in record.attachments:
            checked_path(attachment.path)
        return record

    def staged_files(self) -> list[FileStateHandle]:
        """Return the handles of staged rows that are in separate files."""
        handles = [stream_handle_from_json(value) for value in self.output_files]
        return [handle for handle in handles if isinstance(handle, FileStateHandle)]


def check_source_folders(folders: Sequence[str] | None, logs: Sequence[SourceLog] | None) -> None:
    """
    Check the names of the source logs in a record.

    Files there are read, and a rewind deletes some.
    """
    for name in filter(None, [*(folders or ()), *(log.folder for log in logs or ())]):
        checked_path(name)


def operator_index(operator: str | None, record: BatchRecord, url: str) -> int:
    """Return the position of an operator in its query; None stands for the only operator."""
    names = [recorded.operator_id for recorded in record.operators]
    if operator is None and len(names) == 1:
        return 0
    if operator not in names:
        missing = "has several operators"
        if operator is not None:
            missing = f"does not have an operator {operator!r}"
        raise UsageError(f"the query of {url} {missing}; name one of {', '.join(names)}")
    return names.index(operator)
