"""
The part of a writer that appends: one list and a counter, without a lock.

The list holds a key group, then its value, for each change.  One call adds both, so a change is in
the list whole or not at all, whatever another thread does.  The counter decides only when to flush:
two threads at once may leave it wrong until the next cut, which counts the changes.

This is a base class of the writer because a part of the writer would cost a further call for each
append.
Source: Flink, FsStateChangelogWriter.append; deviates: any thread may append.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statelog.arguments import given, refused
from statelog.errors import KeyGroupOutOfRangeError, UsageError
from statelog.model import METADATA_KEY_GROUP, ChangeBatch, KeyGroupRange
from statelog.model.state_change import INT32_MAX, ChangeRows, Int32Array, value_bytes

# Convert appended changes to the columns of a change set.

Appended = list[Any]
"""For each change its key group, then its value; for each batch None, then batch and size."""

FEW_ROWS = 64
"""
Up to this many changes are encoded faster row by row than in columns.

As columns, one change takes more than a kilobyte.
"""
_FEW_BYTES = 1 << 20


def batches_of(
    key_groups: list[Any], values: list[Any], has_batches: bool
) -> tuple[tuple[ChangeBatch, ...], int]:
    """Return the appended changes as batches, in order, and their total size in bytes."""
    if not has_batches:
        rows = _batch_of_rows(key_groups, values)
        return (rows,), rows.size_bytes
    # Rows and batches alternate.  None marks a batch, so the next None ends a run of rows.
    batches: list[ChangeBatch] = []
    size_bytes = start = 0
    while start < len(values):
        try:
            end = key_groups.index(None, start)
        except ValueError:
            end = len(values)
        if end > start:
            rows = _batch_of_rows(key_groups[start:end], values[start:end])
            batches.append(rows)
            size_bytes += rows.size_bytes
        for batch, batch_bytes in values[end : end + 1]:
            batches.append(batch)
            size_bytes += batch_bytes
        start = end + 1
    return tuple(batches), size_bytes


def _batch_of_rows(key_groups: list[int], values: list[bytes]) -> ChangeBatch:
    """Return individually appended changes as a batch, or as rows if there are only a few."""
    if len(values) <= FEW_ROWS and sum(map(len, values)) <= _FEW_BYTES:
        return ChangeRows(tuple(key_groups), tuple(values))
    column = pa.array(values, pa.binary())
    if isinstance(column, pa.ChunkedArray):  # 32-bit offsets are too small
        column = pa.array(values, pa.large_binary())
    return ChangeBatch(_key_group_column(key_groups), column)


def _key_group_column(key_groups: list[int]) -> Int32Array:
    try:
        return np.frombuffer(bytes(key_groups), np.uint8).astype(np.int32)  # a third of the time
    except ValueError:  # metadata, or a key group above 255
        return np.frombuffer(array("i", key_groups), dtype=np.int32)


def as_bytes(value: object) -> bytes:
    """Return a change's bytes as an immutable object."""
    if isinstance(value, bytes | bytearray | memoryview):
        check_length(memoryview(value).nbytes)
        return bytes(value)  # a copy: the caller may change its buffer later
    raise UsageError(f"a change must be bytes, not {given(value)}")


def check_length(length: int) -> None:
    """Reject a value that is too long for a change set."""
    if length > INT32_MAX:
        raise UsageError(
            f"a change of {length:,} bytes is too long: the limit is {INT32_MAX:,} bytes; split "
            "the value"
        )


def checked_batch(key_groups: npt.ArrayLike, values: pa.Array | pa.ChunkedArray) -> ChangeBatch:
    """
    Return the columns that the caller passed as a batch.

    The key groups are copied, the values are not.
    """
    if isinstance(values, pa.ChunkedArray):
        values = _one_chunk(values)
    column = np.asarray(key_groups)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and len(column)):
        raise UsageError(
            f"key groups must be a one-dimensional array of integers, not {column!r:.80}"
        )
    if not isinstance(values, pa.Array) or not (
        pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    ):
        kind = getattr(values, "type", None)
        described = given(values) if kind is None else f"an array of {kind}"
        raise UsageError(
            f"values must be an Arrow array of binary or large_binary, not {described}"
        )
    # One key group for each value, or a reader would pair them wrongly.
    if len(column) != len(values):
        raise UsageError(
            f"{len(column)} key groups and {len(values)} values; give one key group for each value"
        )
    if values.null_count:
        raise UsageError(f'{values.null_count} values are null; use b"" for an empty change')
    if (
        # Checked before the cast below, which would wrap a large number into the range.
        column.dtype.itemsize > 4
        and len(column)
        and not ~INT32_MAX <= column.min() <= column.max() <= INT32_MAX
    ):
        raise KeyGroupOutOfRangeError(
            "a key group does not fit in 32 bits; use key groups in the writer's range",
            key_group=int(column.max()),
        )
    if pa.types.is_large_binary(values.type) and value_bytes(values) > INT32_MAX:
        check_length(pc.max(pc.binary_length(values)).as_py())
    return ChangeBatch(column.astype(np.int32), values)


def _one_chunk(values: pa.ChunkedArray) -> pa.Array:
    """Return the chunks as a single array, without a copy if there is only one chunk."""
    if values.num_chunks == 1:
        return values.chunk(0)
    if pa.types.is_binary(values.type) and values.nbytes > INT32_MAX:
        values = values.cast(pa.large_binary())  # 32-bit offsets are too small
    return pa.concat_arrays(values.chunks) if values.chunks else pa.array([], values.type)


P = ParamSpec("P")
T = TypeVar("T")
Side = TypeVar("Side", bound="AppendSide")


def noting_interrupts(
    call: Callable[Concatenate[Side, P], T],
) -> Callable[Concatenate[Side, P], T]:
    """
    Report that Ctrl-C, or an exception in a signal handler, interrupted a call of a writer.

    Such an exception may be raised between any two steps of the main thread, so what the call had
    begun may be half done.
    """

    @functools.wraps(call)
    def noting(side: Side, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(side, *args, **kwargs)
        except BaseException as error:
            if not isinstance(error, Exception):
                side._interrupted(error)
            raise

    return noting


_CLOSED_START = 2**62
"""
Lower bound of a range without key groups.

Every append then takes the slow path, which checks.
"""


class AppendSide(ABC):
    """
    The changes appended since the last cut, and how many more bytes fit before a flush.

    Args:
        log_id: Number of the writer, for messages.
        operator_id: Its operator, for messages.
        key_group_range: The key groups it accepts.
        preemptive_threshold_bytes: Bytes held at which `_flush` is called.

    Thread: any.
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
        self._free_bytes = self._start_free_bytes = self._threshold_bytes
        self._appended: Appended = []
        self._add = self._appended.extend
        self._has_batches = False

    @abstractmethod
    def _check_open(self) -> None:
        """Raise `WriterClosedError` if the writer is closed, or `StoreError` in a forked child."""

    @abstractmethod
    def _flush(self) -> None:
        """Upload all pending changes before a checkpoint asks for them."""

    @abstractmethod
    def _interrupted(self, error: BaseException) -> None:
        """Reject all later calls, because a call was interrupted."""

    def append(self, key_group: int, value: bytes) -> None:
        """
        Append one change.

        At the pre-emptive threshold this starts an upload of all changes held.  If that raises,
        the change is in the log and must not be appended again.  Changes of several threads are in
        the log in the order of their calls.

        Args:
            key_group: Inside the writer's range.
            value: The bytes of the change.

        Raises:
            KeyGroupOutOfRangeError: The key group belongs to another task.
            UsageError: *key_group* is not a whole number, or *value* is not bytes, or longer than
                2**31-1; nothing was appended.
            WriterClosedError: The writer is closed, or an earlier call was interrupted.
            BackpressureTimeoutError: At the threshold, if no upload capacity is free in time.
            StoreError: This process inherited the storage over a fork.

        Blocks: At the threshold, while bytes in flight are at their limit.   Thread: any.
        Source: Flink, FsStateChangelogWriter.append; deviates: the range is checked, a closed
        writer raises, an earlier failed upload does not.
        """
        try:  # as `noting_interrupts`, without a further call
            # The fast path: an int inside the range and bytes.  All other arguments are checked.
            if key_group.__class__ is not int or not self._start <= key_group <= self._end:
                key_group = self._checked_key_group(key_group)
            if value.__class__ is not bytes:
                value = as_bytes(value)
            free_bytes = self._free_bytes - len(value)
            # Before the change is added, so that a value that is too long is refused and not
            # appended.
            if free_bytes <= 0:
                self._append_checked(key_group, value)
                return
            # Not atomic with the next line; the module's docstring says why that is enough.
            self._free_bytes = free_bytes
            self._add((key_group, value))
        except BaseException as error:
            if not isinstance(error, Exception):
                self._interrupted(error)
            raise

    @noting_interrupts
    def append_meta(self, value: bytes) -> None:
        """
        Append a metadata change, which all readers receive regardless of their key groups.

        Raises:
            UsageError: As for `append`.
            WriterClosedError: The writer is closed.
            BackpressureTimeoutError: As for `append`.

        Blocks: As `append`.   Thread: any.
        """
        self._check_open()
        if value.__class__ is not bytes:
            value = as_bytes(value)
        self._append_checked(METADATA_KEY_GROUP, value)

    @noting_interrupts
    def append_batch(self, key_groups: npt.ArrayLike, values: pa.Array | pa.ChunkedArray) -> None:
        """
        Append many changes at once, as columns and in order.

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

        Blocks: As `append`.   Thread: any.
        """
        self._check_open()
        batch = checked_batch(key_groups, values)
        if not len(batch):
            return
        lowest = int(batch.key_groups.min())
        highest = int(batch.key_groups.max())
        owned = self._key_group_range
        if lowest < owned.start or highest > owned.end:
            self._refuse(lowest if lowest < owned.start else highest)
        size_bytes = value_bytes(batch.values)
        self._free_bytes = free_bytes = self._free_bytes - size_bytes
        self._has_batches = True  # first: a cut on another thread may come between
        self._add((None, (batch, size_bytes)))
        if free_bytes <= 0:
            self._flush()

    def _append_checked(self, key_group: int, value: bytes) -> None:
        """Check the length of a change and append it; start an upload at the threshold."""
        check_length(len(value))
        self._free_bytes = free_bytes = self._free_bytes - len(value)
        self._add((key_group, value))
        if free_bytes <= 0:
            self._flush()

    def _take_batches(self) -> tuple[tuple[ChangeBatch, ...], int]:
        """
        Return the changes appended since the last cut, and their size in bytes.

        Called under the lock.  Other threads may append meanwhile; these changes are in the next
        set.
        """
        # The list may grow while this runs, so everything below stops at this length.
        end = len(self._appended)
        if not end:
            return (), 0
        key_groups = self._appended[0:end:2]
        values = self._appended[1:end:2]
        taken = batches_of(key_groups, values, self._has_batches)
        del self._appended[:end]  # last: if memory runs out above, the changes are kept
        later = self._appended[1::2]  # of other threads, since `end`
        self._free_bytes = self._start_free_bytes - sum(
            len(value) if isinstance(value, bytes) else value[1] for value in later
        )
        return taken

    def _measure_free_bytes(self, pending_bytes: int) -> None:
        """Set how many bytes can be appended before a flush, after *pending_bytes* were cut."""
        appended_bytes = self._start_free_bytes - self._free_bytes if self._appended else 0
        self._start_free_bytes = self._threshold_bytes - pending_bytes
        self._free_bytes = self._start_free_bytes - appended_bytes

    def _end_appends(self) -> None:
        """Send every later append to the slow path, which rejects it."""
        # Closed without a lock: an append compares its key group with this range anyway.
        self._start = _CLOSED_START
        self._end = _CLOSED_START - 1

    def _forget_appended(self) -> None:
        """Discard the changes appended since the last cut."""
        self._appended.clear()

    def _checked_key_group(self, key_group: object) -> int:
        """Return the key group of an append as an `int`, or raise."""
        self._check_open()
        try:
            number = operator.index(key_group)  # type: ignore[arg-type]
        except TypeError:
            expected = f"a whole number in {self._key_group_range}, the writer's range"
            raise refused("key_group", expected, key_group) from None
        if number not in self._key_group_range:
            self._refuse(number)
        return number

    def _refuse(self, key_group: int) -> None:
        raise KeyGroupOutOfRangeError(
            f"key group {key_group} is outside {self._key_group_range}, the range of writer "
            f"{self._log_id} ({self._operator_id}); send the change to the task that owns it",
            key_group=key_group,
        )
