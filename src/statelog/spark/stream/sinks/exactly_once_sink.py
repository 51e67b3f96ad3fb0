"""
`exactly_once`: a function for `foreachBatch` that writes each micro-batch to a sink once.

A sink writes the rows of a micro-batch and its number together, and can be asked for the newest number.
All else is here: the question before the first micro-batch of a run, and after each error, because
a write whose answer was lost may have been done.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame

from statelog.arguments import given
from statelog.core.retry_policy import RetryPolicy
from statelog.errors import CheckpointError, FencedError, UnavailableError, UsageError
from statelog.runtime.clock import pause
from statelog.runtime.fail_points import fail_point
from statelog.spark.query.delivery import writer_id
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
        writer: The name of the query, see `writer_id`.
        batch_id: The number of the micro-batch; numbers rise, and may have gaps.
        rows: At least one row.
    """

    writer: str
    batch_id: int
    rows: pa.Table


@runtime_checkable
class ExactlyOnceSink(Protocol):
    """
    A target that stores rows and the number of their micro-batch together.

    Implement it for a target of your own, test it with `statelog.testing.sink_contract`, and pass it
    to `exactly_once`.  Open connections at the first call, not in `__init__`, so that the sink can be
    pickled (Spark Connect) and used again after `close`.

    Raise `UnavailableError` if a call may succeed later, and `FencedError` if another driver has
    replaced this one.  Every other error ends the query.

    Thread: The calls of one sink follow each other, possibly in different threads.
    """

    def last_committed(self, writer: str) -> int | None:
        """
        Return the newest micro-batch of *writer* that the target has; None without one.

        After it returned, an earlier call of `write`, also in a process that has died, must not
        succeed any longer, or `write` must notice its result.
        """

    def write(self, batch: SinkBatch) -> None:
        """
        Write the rows and the number of a micro-batch, all of it or nothing.

        If the target has this micro-batch or a later one of the writer, leave it unchanged, and
        return or raise.  It may have come since `last_committed` was called, from another driver.
        """

    def close(self) -> None:
        """Close connections; a later call of another method opens them again."""


def exactly_once(sink: ExactlyOnceSink) -> ExactlyOnce:
    """
    Return a function for `foreachBatch` that writes every row exactly once.

    The rows are collected in the driver as one Arrow table, so `spark.driver.maxResultSize` bounds a
    micro-batch.  A micro-batch without rows is not written.

    Example:
        import functools
        import sqlite3

        connect = functools.partial(sqlite3.connect, "totals.db", check_same_thread=False)
        writer = totals.writeStream.foreachBatch(exactly_once(DatabaseSink(connect, "totals")))

    Args:
        sink: An `IcebergSink`, `KafkaSink`, `DatabaseSink`, or a sink of your own.

    Raises:
        UsageError: *sink* lacks a method of `ExactlyOnceSink`.

    Blocks: The function that is returned, on the sink; after an `UnavailableError` it tries four more
        times within some seconds.   Thread: the query's.
    """
    if not isinstance(sink, ExactlyOnceSink):
        raise UsageError(
            f"exactly_once takes a sink with last_committed, write and close, not {given(sink)}; for a "
            "function of frame and batch id use idempotent"
        )
    return ExactlyOnce(sink)


class ExactlyOnce:
    """The function for `foreachBatch`; see `exactly_once`."""

    def __init__(self, sink: ExactlyOnceSink) -> None:
        self._sink = sink
        self._last: dict[str, int | None] = {}
        """The newest micro-batch by writer, for writers that this run has asked for."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """
        Write a micro-batch, unless the sink has it; then the frame is not evaluated.

        An error ends the query, so the sink is closed.
        """
        writer = writer_id(frame)
        try:
            if not self.has(writer, batch_id):
                refuse_equal_names(frame, "the frame", "A sink finds columns by their names")
                rows = arrow_of(frame, arrow_schema(frame.schema))
                self.write(SinkBatch(writer, batch_id, rows))
        except BaseException:
            with contextlib.suppress(Exception):
                self.close()
            raise

    def __reduce__(self) -> tuple[object, ...]:
        return ExactlyOnce, (self._sink,)

    def has(self, writer: str, batch_id: int) -> bool:
        """
        Return whether the sink has a micro-batch.

        Raises:
            CheckpointError: The sink has a later one (`reason` "gap").
        """
        if writer not in self._last:
            self._last[writer] = _repeated(lambda: self._sink.last_committed(writer))
        last = self._last[writer]
        if last is None or last < batch_id:
            return False
        if last > batch_id:
            raise gone_back(f"the target of {writer}", last, batch_id)
        _log.info("batch %d of %s is written already and is skipped", batch_id, writer)
        return True

    def write(self, batch: SinkBatch) -> None:
        """Write a micro-batch that the sink did not have when it was asked."""
        if not batch.rows.num_rows:
            return
        fail_point("before-write")
        _repeated(lambda: self._write_or_look(batch))
        fail_point("after-write")
        self._last[batch.writer] = batch.batch_id

    def close(self) -> None:
        """Close the sink at the end of a query; a later query asks it again."""
        self._last.clear()
        self._sink.close()

    def _write_or_look(self, batch: SinkBatch) -> None:
        """Write a micro-batch; after an error look whether it was written."""
        try:
            self._sink.write(batch)
        except FencedError:
            raise
        except Exception as error:
            last = self._sink.last_committed(batch.writer)
            if last is None or last < batch.batch_id:
                raise
            if last > batch.batch_id:
                raise FencedError(
                    f"the target has batch {last} of {batch.writer}, and this driver is at batch "
                    f"{batch.batch_id}: another driver runs the query"
                ) from error
            _log.info("batch %d of %s was written: %s", batch.batch_id, batch.writer, error)


def gone_back(target: str, last: int, batch_id: int) -> CheckpointError:
    """Return the error for a query that is at an earlier micro-batch than its target."""
    return CheckpointError(
        f"{target} has batch {last}, and the query is at batch {batch_id}: its checkpointLocation was "
        f"restored from a backup. Delete the rows of batches from {batch_id} in the target, and the "
        "target's record of them",
        reason="gap",
        batch_id=batch_id,
    )


def _repeated(call: Callable[[], _Result]) -> _Result:
    """Return the result of *call*, which is called again after an `UnavailableError`."""
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
