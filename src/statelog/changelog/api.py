"""
The protocol of a writer, and the availability of upload capacity.

Source: Flink, StateChangelogWriter and AvailabilityProvider.  Deviation: `wait` has a time-out and
returns how it ended.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import ClassVar, Final, Protocol, runtime_checkable

import numpy.typing as npt
import pyarrow as pa

from statelog.arguments import Seconds, refused, seconds
from statelog.model import ChangelogStateHandle, SequenceNumber, SnapshotResult
from statelog.runtime.lock import Lock, ThreadLock
from statelog.runtime.pool import Pool, PoolFuture

_LONGEST_WAIT_S: Final = 1e9
"""Longer waits would overflow the system's limit."""


def _completed() -> Future[None]:
    future: Future[None] = PoolFuture()
    future.set_result(None)
    return future


class AvailabilityProvider:
    """
    Reports whether a scheduler has upload capacity, and when capacity becomes available.

    `AvailabilityProvider.AVAILABLE` always has capacity.

    Args:
        has_room: Returns whether there is capacity; called under the lock.  None for a scheduler
            that always has capacity.
        lock: The lock that *has_room* needs; None for a new one.
        callbacks: Runs the callbacks of the future; None for the thread that frees capacity.

    Raises:
        UsageError: *has_room* is not callable.
    """

    AVAILABLE: ClassVar[AvailabilityProvider]
    """Always has capacity: the default of a scheduler."""

    def __init__(
        self,
        has_room: Callable[[], bool] | None = None,
        *,
        lock: Lock | None = None,
        callbacks: Pool | None = None,
    ) -> None:
        if has_room is not None and not callable(has_room):
            raise refused("has_room", "a function without arguments", has_room)
        self._lock: Lock = ThreadLock() if lock is None else lock
        self._callbacks = callbacks
        self._has_room = has_room
        self._future: Future[None] = _completed()

    @property
    def is_available(self) -> bool:
        """Whether an upload of any size would be accepted without waiting."""
        return self._has_room is None or self._future.done()

    @property
    def future(self) -> Future[None]:
        """
        A future that completes once there is capacity, or on close.

        Its callbacks may upload; an upload of another thread may take the capacity first.
        """
        # A new one where nothing changes: AVAILABLE is of the process, which may fork.
        return _completed() if self._has_room is None else self._future

    def wait(self, timeout_s: Seconds | None = None) -> bool:
        """
        Wait for capacity or for the close; return False after a time-out.

        Args:
            timeout_s: Longest wait, in seconds or as a `timedelta`; None for no bound.

        Blocks: At most *timeout_s*.

        Raises:
            UsageError: *timeout_s* is not a finite duration of at least 0.
        """
        if timeout_s is not None:
            timeout_s = min(seconds(timeout_s, "timeout_s", low=0), _LONGEST_WAIT_S)
        try:
            self.future.result(timeout_s)
        except FutureTimeoutError:
            return False
        return True

    def refresh(self) -> None:
        """
        Check the capacity, and complete the future if it has become available.

        Capacity is read again under the lock, so the order of concurrent calls does not matter.
        Callbacks of the future run on the callback pool, or here if there is none.
        """
        if self._has_room is None:
            return
        freed: Future[None] | None = None
        with self._lock:
            # Asked here and not before: of two threads, the later one must not report the older
            # answer.
            available = self._has_room()
            was_available = self._future.done()
            if available and not was_available:
                freed = self._future
                self._future = _completed()
            elif not available and was_available:
                self._future = PoolFuture(self._callbacks)
                self._future.set_running_or_notify_cancel()
        # Outside of the lock, because a callback may upload, which takes the lock.
        if freed is not None:
            freed.set_result(None)


AvailabilityProvider.AVAILABLE = AvailabilityProvider()


PersistFuture = Future[SnapshotResult[ChangelogStateHandle]]


@runtime_checkable
class StateChangelogWriter(Protocol):
    """
    Writes the log of the keyed state of one task.

    Thread: any.
    """

    def append(self, key_group: int, value: bytes) -> None:
        """Append one change."""
        ...

    def append_batch(self, key_groups: npt.ArrayLike, values: pa.Array | pa.ChunkedArray) -> None:
        """Append many changes, in columns."""
        ...

    def append_meta(self, value: bytes) -> None:
        """Append a metadata change, which all readers receive."""
        ...

    def initial_sequence_number(self) -> SequenceNumber:
        """Return the sequence number of the writer's first change set."""
        ...

    def next_sequence_number(self) -> SequenceNumber:
        """Return a sequence number above the numbers of all changes appended so far."""
        ...

    def persist(self, from_sqn: SequenceNumber | int, checkpoint_id: int = 0) -> PersistFuture:
        """Make every change at or after *from_sqn* durable."""
        ...

    def confirm(
        self, from_sqn: SequenceNumber | int, to_sqn: SequenceNumber | int, checkpoint_id: int
    ) -> None:
        """Transfer ownership of the files of [from_sqn, to_sqn) to a completed checkpoint."""
        ...

    def reset(
        self, from_sqn: SequenceNumber | int, to_sqn: SequenceNumber | int, checkpoint_id: int
    ) -> None:
        """Record that a checkpoint was aborted."""
        ...

    def truncate(self, to_sqn: SequenceNumber | int) -> None:
        """Truncate all changes below *to_sqn*."""
        ...

    def truncate_and_close(self, from_sqn: SequenceNumber | int) -> None:
        """Discard all changes at or after *from_sqn*, and close."""
        ...

    def close(self) -> None:
        """Close the writer."""
        ...
