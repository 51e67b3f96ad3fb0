"""
The append side of a writer: two columns and a counter, without a lock.

A signal handler may raise between any two calls (Ctrl-C does).  An `append` interrupted there may
leave a key group without its value at the end of the column; the next call removes it.

This is a base class of the writer because a part of the writer would cost a further call for each
append.
Source: Flink, FsStateChangelogWriter.append.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array

import numpy.typing as npt
import pyarrow as pa

from statelog.changelog.columns import as_bytes, batch_of_rows, check_length, checked_batch
from statelog.errors import KeyGroupOutOfRangeError
from statelog.model import METADATA_KEY_GROUP, ChangeBatch, KeyGroupRange
from statelog.model.state_change import INT32_MAX, value_bytes
from statelog.runtime.interrupts import uninterrupted

_CLOSED_START = 2**62
"""Lower bound of a range without key groups: every append then takes the slow path, which checks."""
_TORN_START = 2**61
"""The same after an interrupted append: the next call first repairs the columns."""


class AppendSide(ABC):
    """
    Changes appended since the last cut, and how many more bytes fit before a flush.

    Args:
        log_id: Number of the writer, for messages.
        operator_id: Its operator, for messages.
        key_group_range: The key groups it accepts.
        preemptive_threshold_bytes: Bytes held at which `_flush` is called.

    Thread: The owner of the writer, but for the methods that say otherwise.
    """

    def __init__(
        self,
        log_id: int,
        operator_id: str,
        key_group_range: KeyGroupRange,
        preemptive_threshold_bytes: int,
    ) -> None:
        self._log_id = log_id
        self._operator_id = operator_id
        self._key_group_range = key_group_range
        self._start = key_group_range.start
        self._end = key_group_range.end
        # Never above the longest value, so that a longer one always takes the slow path.
        self._threshold_bytes = min(preemptive_threshold_bytes, INT32_MAX)
        self._batches: list[ChangeBatch] = []
        self._free_bytes = self._start_free_bytes = self._threshold_bytes
        self._start_rows()

    @abstractmethod
    def _check_open(self) -> None:
        """Raise `WriterClosedError` if the writer is closed, `StoreError` in a forked child."""

    @abstractmethod
    def _is_closed(self) -> bool:
        """Return whether the writer is closed."""

    @abstractmethod
    def _flush(self) -> None:
        """Upload everything held, before a checkpoint requests it."""

    def append(self, key_group: int, value: bytes) -> None:
        """
        Append one change.

        At the pre-emptive threshold this starts an upload of all changes held.  If that raises,
        the change is in the log and must not be appended again.  After an exception of a signal
        handler the change is in the log or not; the caller cannot know which.

        Args:
            key_group: Inside the writer's range.
            value: The bytes of the change.

        Raises:
            KeyGroupOutOfRangeError: The key group belongs to another task.
            UsageError: *value* is not bytes, or longer than 2**31-1; nothing was appended.
            WriterClosedError: The writer is closed.
            BackpressureTimeoutError: At the threshold, if no upload capacity is free in time.
            StoreError: This process inherited the storage over a fork.

        Blocks: At the threshold, while bytes in flight are at their limit.   Thread: the owner.
        Source: Flink, FsStateChangelogWriter.append; deviates: the range is checked, a closed
        writer raises, an earlier failed upload does not.
        """
        if not self._start <= key_group <= self._end:
            self._refuse(key_group)
        if value.__class__ is not bytes:
            value = as_bytes(value)
        free_bytes = self._free_bytes - len(value)
        if free_bytes <= 0:
            self._append_checked(key_group, value)
            return
        self._free_bytes = free_bytes
        try:
            self._add_key_group(key_group)
            self._add_value(value)
        except BaseException:
            # First, and without a call: the repair may be interrupted too.
            self._start = _TORN_START
            self._repair_rows()
            raise

    def append_meta(self, value: bytes) -> None:
        """
        Append a metadata change, which every reader receives whatever its key groups.

        Raises:
            UsageError: As for `append`.
            WriterClosedError: The writer is closed.
            BackpressureTimeoutError: As for `append`.

        Blocks: As `append`.   Thread: the owner.
        """
        self._check_open()
        if value.__class__ is not bytes:
            value = as_bytes(value)
        self._repair_rows()
        self._append_checked(METADATA_KEY_GROUP, value)

    def append_batch(self, key_groups: npt.ArrayLike, values: pa.Array | pa.ChunkedArray) -> None:
        """
        Append many changes, in columns and in order.

        Args:
            key_groups: Integers inside the writer's range; copied.
            values: Arrow `binary` or `large_binary` array of the same length, without nulls; kept
                without a copy until it is uploaded.  Several chunks of a `ChunkedArray` are copied
                into one.

        Raises:
            KeyGroupOutOfRangeError: A key group belongs to another task; nothing was appended.
            UsageError: Lengths differ, types do not fit, or a value is longer than 2**31-1 bytes;
                nothing was appended.
            WriterClosedError: The writer is closed.
            BackpressureTimeoutError: As for `append`.

        Blocks: As `append`.   Thread: the owner.
        """
        self._check_open()
        batch = checked_batch(key_groups, values)
        if not len(batch):
            return
        lowest, highest = int(batch.key_groups.min()), int(batch.key_groups.max())
        owned = self._key_group_range
        if lowest < owned.start or highest > owned.end:
            self._refuse(lowest if lowest < owned.start else highest)
        if self._key_groups:
            self._end_rows()
        self._free_bytes = free_bytes = self._free_bytes - value_bytes(batch.values)
        self._batches.append(batch)
        if free_bytes <= 0:
            self._flush()

    def _append_checked(self, key_group: int, value: bytes) -> None:
        """Append a change after a check of its length; upload at the threshold."""
        check_length(len(value))
        self._free_bytes = free_bytes = self._free_bytes - len(value)
        try:
            self._add_key_group(key_group)
            self._add_value(value)
        except BaseException:
            self._start = _TORN_START
            self._repair_rows()
            raise
        if free_bytes <= 0:
            self._flush()

    def _start_rows(self) -> None:
        self._key_groups: array[int] = array("i")
        self._values: list[bytes] = []
        self._add_key_group = self._key_groups.append
        self._add_value = self._values.append

    def _repair_rows(self) -> None:
        """Remove a key group without a value, and allow appends again."""
        if self._start == _TORN_START:
            del self._key_groups[len(self._values) :]
            # Counted again: the bytes of that value were subtracted before it was appended.
            appended_bytes = sum(batch.size_bytes for batch in self._batches)
            self._free_bytes = self._start_free_bytes - appended_bytes - sum(map(len, self._values))
            self._start = self._key_group_range.start
            if self._is_closed():  # by another thread, meanwhile
                self._start = _CLOSED_START

    @uninterrupted
    def _end_rows(self) -> None:
        """Turn the changes appended one by one into a batch."""
        self._repair_rows()
        if not self._values:
            return
        appended_bytes = self._start_free_bytes - self._free_bytes
        self._batches.append(batch_of_rows(self._key_groups, self._values, appended_bytes))
        self._start_rows()

    def _take_batches(self) -> tuple[tuple[ChangeBatch, ...], int]:
        """Return what was appended since the last cut, and its size in bytes."""
        self._end_rows()
        batches, self._batches = tuple(self._batches), []
        return batches, self._start_free_bytes - self._free_bytes

    def _measure_free_bytes(self, pending_bytes: int) -> None:
        """Set how many bytes may be appended before a flush, with *pending_bytes* cut already."""
        appended_bytes = self._start_free_bytes - self._free_bytes
        if not self._values and not self._batches:
            appended_bytes = 0
        self._start_free_bytes = self._threshold_bytes - pending_bytes
        self._free_bytes = self._start_free_bytes - appended_bytes

    def _end_appends(self) -> None:
        """Send every later append to the slow path, which refuses it.  Thread: any."""
        self._start, self._end = _CLOSED_START, _CLOSED_START - 1

    def _forget_appended(self) -> None:
        """Drop what was appended since the last cut.  Thread: any."""
        self._batches = []
        self._start_rows()

    def _refuse(self, key_group: int) -> None:
        self._check_open()
        self._repair_rows()
        if key_group in self._key_group_range:
            return  # an interrupted append had closed the range
        raise KeyGroupOutOfRangeError(
            f"key group {key_group} is outside {self._key_group_range}, the range of writer "
            f"{self._log_id} ({self._operator_id}); send the change to the task that owns it",
            key_group=key_group,
        )
