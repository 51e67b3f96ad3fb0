"""What every writer of changes offers, whatever it writes to."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from statelog.model import ChangelogStateHandle, SequenceNumber, SnapshotResult

PersistFuture = Future[SnapshotResult[ChangelogStateHandle]]


class StateChangelogWriter(Protocol):
    """Writes the log of one task's keyed state.  Not thread-safe: one owner at a time."""

    def append(self, key_group: int, value: bytes) -> None:
        """Append one change."""
        ...

    def append_batch(
        self, key_groups: npt.ArrayLike, values: pa.Array[Any] | pa.ChunkedArray[Any]
    ) -> None:
        """Append many changes, in columns."""
        ...

    def append_meta(self, value: bytes) -> None:
        """Append a metadata change, which every reader gets whatever its key groups."""
        ...

    def initial_sequence_number(self) -> SequenceNumber:
        """Return the number of the writer's first change set."""
        ...

    def next_sequence_number(self) -> SequenceNumber:
        """Return a number above everything appended so far, and not above what comes."""
        ...

    def persist(self, from_sqn: SequenceNumber | int, checkpoint_id: int = 0) -> PersistFuture:
        """Make every change at or after *from_sqn* durable."""
        ...

    def confirm(
        self, from_sqn: SequenceNumber | int, to_sqn: SequenceNumber | int, checkpoint_id: int
    ) -> None:
        """Hand the files of [from_sqn, to_sqn) over to a completed checkpoint."""
        ...

    def reset(
        self, from_sqn: SequenceNumber | int, to_sqn: SequenceNumber | int, checkpoint_id: int
    ) -> None:
        """Note that a checkpoint was aborted."""
        ...

    def truncate(self, to_sqn: SequenceNumber | int) -> None:
        """Give up everything below *to_sqn*."""
        ...

    def truncate_and_close(self, from_sqn: SequenceNumber | int) -> None:
        """Give up everything at or after *from_sqn*, which no checkpoint holds, and close."""
        ...

    def close(self) -> None:
        """End the writer."""
        ...
