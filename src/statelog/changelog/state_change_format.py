"""
The bytes of a changelog file, for uploaders and readers with their own input and output.

Source: Flink, StateChangeFormat.  Deviation: it writes a whole file, with the flag byte before the
change sets and the index with checksums after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from statelog.arguments import refused, switch, whole_number
from statelog.errors import UsageError
from statelog.format.buffers import Buffer
from statelog.format.change_set_decoder import decode_change_set
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.format.trailer import SetEntry
from statelog.model import StateChange, StateChangeSet


class ByteSink(Protocol):
    """Takes bytes in order: an open binary file, `io.BytesIO`, a socket's file."""

    def write(self, data: Buffer, /) -> object:
        """Take *data*."""
        ...


class StateChangeFormat:
    """
    Writes change sets as one changelog file, and reads one set back.

    Args:
        compress: Snappy-frame the payload.
    """

    def __init__(self, *, compress: bool = False) -> None:
        self._compress = switch(compress, "compress")

    def write(
        self, out: ByteSink, change_sets: Iterable[StateChangeSet]
    ) -> dict[StateChangeSet, SetEntry]:
        """
        Write a whole file with *change_sets*, in this order.

        Args:
            out: Takes the file; it is neither flushed nor closed.
            change_sets: Sets of any writers; Flink's order is by log id and number.

        Returns:
            For each set its payload offset, encoded length and checksum, as
            `UploadTasksResult.of` takes them.

        Raises:
            UsageError: One of them is not a change set, or appears twice.

        Blocks: While *out* does.
        """
        segment = SegmentWriter(compress=self._compress)
        places: dict[StateChangeSet, SetEntry] = {}
        for change_set in change_sets:
            if not isinstance(change_set, StateChangeSet):
                raise refused("each of change_sets", "a StateChangeSet", change_set)
            if change_set in places:
                raise UsageError(
                    f"change set {change_set.sqn} of log {change_set.log_id} appears twice; write "
                    "each set once"
                )
            places[change_set] = segment.add(change_set)
        for piece in segment.finish():
            out.write(piece)
        return places

    def read(self, data: Buffer, offset: int = 0) -> Iterator[StateChange]:
        """
        Yield the changes of one set of a file, ours or Flink's.

        Args:
            data: The whole file; every checksum it has is verified.
            offset: Payload offset of the set, as in its handle.

        Raises:
            CorruptionError: The file is damaged, or no set begins at *offset*.
        """
        start = whole_number(offset, "offset", low=0)
        segment = parse_segment(data)
        yield from decode_change_set(segment.payload, start).batch
