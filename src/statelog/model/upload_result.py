"""Where a change set has become durable."""

from __future__ import annotations

from dataclasses import dataclass, replace

from statelog.arguments import instance, whole_number
from statelog.model.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    HandleAndOffset,
    StreamStateHandle,
)
from statelog.model.sequence_number import SequenceNumber
from statelog.model.state_change import StateChangeSet


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """
    Where one change set has become durable.

    Args:
        log_id: The writer's number within its storage.
        sqn: The set's position in that writer's log.
        size_bytes: Summed value bytes of the set.
        entry: File (or inline bytes), offset, encoded size and checksum.
        local: The same in the host-local copy, or None without one.
    """

    log_id: int
    sqn: SequenceNumber
    size_bytes: int
    entry: HandleAndOffset
    local: HandleAndOffset | None = None

    @classmethod
    def of(
        cls,
        handle: StreamStateHandle,
        change_set: StateChangeSet,
        offset: int,
        *,
        encoded_bytes: int | None = None,
        crc32c: int | None = None,
        local_handle: StreamStateHandle | None = None,
    ) -> UploadResult:
        """
        Return the result for *change_set*, which is in *handle* at a payload offset.

        Args:
            handle: The file or inline bytes.
            change_set: The set.
            offset: Uncompressed payload bytes before it, without the flag byte.
            encoded_bytes: Its encoded length; with the checksum, readers fetch and verify it alone.
            crc32c: Checksum over its encoded bytes.
            local_handle: The host-local copy of the file, or None.

        Raises:
            UsageError: The offset is negative, or an argument is of another class.
        """
        instance(change_set, "change_set", StateChangeSet, "a StateChangeSet")
        for name, each in (("handle", handle), ("local_handle", local_handle or handle)):
            instance(each, name, (FileStateHandle, ByteStreamStateHandle), "a stream state handle")
        entry = HandleAndOffset(
            handle, whole_number(offset, "offset", low=0), encoded_bytes, crc32c
        )
        return cls(
            log_id=change_set.log_id,
            sqn=change_set.sqn,
            size_bytes=change_set.size_bytes,
            entry=entry,
            local=None if local_handle is None else replace(entry, handle=local_handle),
        )
