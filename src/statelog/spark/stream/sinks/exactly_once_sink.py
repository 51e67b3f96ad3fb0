"""
`exactly_once`: makes a `foreachBatch` function that writes each micro-batch once.

A sink stores the rows of a micro-batch and its record in one step, and returns the newest record on
request.  The record names the micro-batch and its history, see `DeliveredBatch`.  A write replaces
the record that this driver read or wrote last, and no other: a driver that was replaced, or that
slept during a rewind, meets the record of the next driver.

All else is here: the question before the first micro-batch of a run, and after each error, because
a write whose answer was lost may have been done.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame

from statelog.arguments import given
from statelog.core.delivered_batch import DeliveredBatch
from statelog.core.retry_policy import RetryPolicy
from statelog.errors import CheckpointError, FencedError, UnavailableError, UsageError
from statelog.runtime.clock import pause
from statelog.runtime.fail_points import fail_point
from statelog.spark.query.delivery import ClosableSink, delivered_batch, query_name
from statelog.spark.query.keyed_frame import refuse_equal_names
from statelog.spark.rows.spark_versions import arrow_of
from statelog.spark.rows.types import arrow_schema

_log = logging.getLogger("statelog.spark")
_Result = TypeVar("_Result")

_POLICY: Final = RetryPolicy.exponential(max_attempts=5, first_delay_s=0.2)


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """
    The rows of one micro-batch.

    Args:
        writer: The name of the query: Spark's id of it, the same over restarts and rewinds.
        batch: The micro-batch.  Numbers rise, may have gaps, and fall after a rewind.
        rows: At least one row.
        after: The newest micro-batch of *writer* in the target, as this driver left or read it;
            None if the target does not have one.
    """

    writer: str
    batch: DeliveredBatch
    rows: pa.Table
    after: DeliveredBatch | None = None

    @property
    def batch_id(self) -> int:
        """The batch id that Spark assigned."""
        return self.batch.batch_id

    @property
    def record(self) -> str:
        """The record to store with the rows, which `DeliveredBatch.from_text` parses."""
        return self.batch.to_text()

    def is_next(self, last: DeliveredBatch | None) -> bool:
        """Return whether *last* is the record that this driver last wrote or read."""
        return last is None if self.after is None else self.after.is_recorded_as(last)

    def check_next(self, last: DeliveredBatch | None, *, target: str) -> None:
        """
        Within the transaction of the write, check that the rows may be written.

        Args:
            last: What `ExactlyOnceSink.last_committed` would return now.
            target: The target, for the error.

        Raises:
            UnavailableError: Another driver has written since this one looked.
        """
        if self.is_next(last):
            return
        newest = "no micro-batch" if last is None else f"batch {last.batch_id} ({last.to_text()})"
        raise UnavailableError(
            f"a second driver is writing to {target}: it now contains {newest} from {self.writer}, but this driver last "
            f"wrote {'nothing' if self.after is None else self.after.to_text()}"
        )


@runtime_checkable
class ExactlyOnceSink(Protocol):
    """
    A target that can store rows together with a record of their micro-batch.

    Implement it for a target of your own, test it with `statelog.testing.sink_contract`, and pass
    it to `exactly_once`.  Open connections at the first call, not in `__init__`, so that the sink
    can be pickled (Spark Connect) and used again after `close`.

    Raise `UnavailableError` if a call may succeed later, and `FencedError` if another driver has
    replaced this one.  Every other error ends the query.

    Thread: The calls of one sink follow each other, possibly in different threads.
    """

    def last_committed(self, writer: str) -> DeliveredBatch | None:
        """
        Return the newest micro-batch of *writer* in the target, or None.

        After it returned, an earlier call of `write`, also in a process that has died, must not
        succeed any longer, or `write` must notice its result.
        """

    def write(self, batch: SinkBatch) -> None:
        """
        Write the rows of a micro-batch together with its record, atomically.

        The record replaces the one that is equal to `batch.after`.  If the target has another
        record of the writer, leave the target unchanged and raise, as `SinkBatch.check_next` does.
        It may have come since `last_committed` was called, from another driver.
        """

    def close(self) -> None:
        """Close connections; calling any other method opens them again."""


def exactly_once(sink: ExactlyOnceSink) -> ExactlyOnce:
    """
    Return a `foreachBatch` function that writes every row exactly once.

    The rows are collected in the driver as one Arrow table, so `spark.driver.maxResultSize` bounds
    a micro-batch.  A micro-batch without rows is not written.

    Example:
        import functools
        import sqlite3

        connect = functools.partial(sqlite3.connect, "totals.db", check_same_thread=False)
        writer = totals.writeStream.foreachBatch(exactly_once(DatabaseSink(connect, "totals")))

    Args:
        sink: An `IcebergSink`, `KafkaSink`, `DatabaseSink`, or a sink of your own.

    Raises:
        UsageError: *sink* lacks a method of `ExactlyOnceSink`.

    Blocks: The function that is returned, on the sink; after an `UnavailableError` it tries four
        more times within some seconds.   Thread: the query's.
    """
    if not isinstance(sink, ExactlyOnceSink):
        raise UsageError(
            f"exactly_once requires a sink with last_committed, write and close, not {given(sink)}; for a "
            "function of frame and batch id, use idempotent"
        )
    return ExactlyOnce(sink)


class ExactlyOnce(ClosableSink):
    """The `foreachBatch` function that `exactly_once` returns."""

    def __init__(self, sink: ExactlyOnceSink) -> None:
        self._sink = sink
        self._last: dict[str, DeliveredBatch | None] = {}
        """The newest micro-batch by writer, for writers that this run has read."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """
        Write a micro-batch; if the sink contains it, return without evaluating the frame.

        An error ends the query, so the sink is closed.
        """
        writer = query_name(frame)
        batch = delivered_batch(frame, batch_id)
        try:
            if not self.has(writer, batch):
                refuse_equal_names(frame, "the frame", "A sink finds columns by name")
                rows = arrow_of(frame, arrow_schema(frame.schema))
                self.write(SinkBatch(writer, batch, rows))
        except BaseException:
            with contextlib.suppress(Exception):
                self.close()
            raise

    def __reduce__(self) -> tuple[object, ...]:
        return ExactlyOnce, (self._sink,)

    def has(self, writer: str, batch: DeliveredBatch) -> bool:
        """Return whether the sink already contains a micro-batch."""
        if writer not in self._last:
            self._last[writer] = _repeated(lambda: self._sink.last_committed(writer))
        last = self._last[writer]
        target = f"the target of {writer}"
        if batch.is_written(last, target=target):
            _log.info("batch %d of %s is already written and is skipped", batch.batch_id, writer)
            return True
        if last is not None and last.batch_id >= batch.batch_id:
            _log.warning(
                "%s contains batches up to %d of timeline %d, which a rewind ended; the query continues with batch "
                "%d: delete the rows of the discarded batches",
                target,
                last.batch_id,
                last.timeline,
                batch.batch_id,
            )
        return False

    def write(self, batch: SinkBatch) -> None:
        """Write a micro-batch that the sink does not contain yet."""
        if not batch.rows.num_rows:
            return
        following = replace(batch, after=self._last.get(batch.writer))
        fail_point("before-write")
        self._last[batch.writer] = _repeated(lambda: self._write_or_look(following))
        fail_point("after-write")

    def close(self) -> None:
        """Close the sink at the end of a query; the next query reads its record again."""
        self._last.clear()
        self._sink.close()

    def _write_or_look(self, batch: SinkBatch) -> DeliveredBatch | None:
        """
        Write a micro-batch; after an error, check whether it was written after all.

        Returns:
            The record of the target.
        """
        try:
            self._sink.write(batch)
        except FencedError:
            raise
        except Exception as error:
            last = self._sink.last_committed(batch.writer)
            if batch.is_next(last):
                raise
            if not _is_written(batch, last):
                raise _replaced(batch, last) from error
            _log.info("batch %d of %s was written: %s", batch.batch_id, batch.writer, error)
            return last
        return batch.batch.recorded


def _is_written(batch: SinkBatch, last: DeliveredBatch | None) -> bool:
    """Return whether a target that this run has written to contains a micro-batch."""
    try:
        return batch.batch.is_written(last, target=f"the target of {batch.writer}")
    except CheckpointError:  # a later one, or other rows
        return False


def _replaced(batch: SinkBatch, last: DeliveredBatch | None) -> FencedError:
    """Return the error for a target to which a different driver wrote during this run."""
    has = "lost its record" if last is None else f"has batch {last.batch_id} ({last.to_text()})"
    return FencedError(
        f"the target {has} by {batch.writer}, but this driver is at batch {batch.batch_id} ({batch.record}): "
        "a second driver is running the query, or ran it recently. Stop one of the two. If the other driver ran "
        "before a rewind, delete its rows in the target and start this query again"
    )


def _repeated(call: Callable[[], _Result]) -> _Result:
    """Return the result of *call*, retrying it after an `UnavailableError`."""
    attempt = 1
    while True:
        try:
            return call()
        except UnavailableError as error:
            if attempt == _POLICY.max_attempts:
                raise
            delay_s = _POLICY.delay_after_error_ns(attempt, 0.5) / 1e9
            _log.warning("%s; attempt %d follows in %.1f s", error, attempt + 1, delay_s)
        attempt += 1
        pause(delay_s)
