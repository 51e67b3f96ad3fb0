"""
`idempotent`: makes a `foreachBatch` function that skips micro-batches it has written.

A micro-batch is written exactly once only where its rows and the record of its number are written
together.  Where the target has transactions, the record is a row in the same transaction, and
`written` asks the target for it.  Else the record is a separate object, written before or after the
rows; a crash between the two repeats the rows, or loses them.

Records are numbered, and each is created by put-if-absent of the next number: a driver that was
replaced meets the record of the next driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame

from statelog.arguments import given, switch
from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import FencedError, ObjectExistsError, UsageError
from statelog.runtime.fail_points import fail_point
from statelog.spark.query.delivery import Sink, delivered_batch, query_name, writer_id
from statelog.store import open_store
from statelog.store.verified import create

_log = logging.getLogger("statelog.spark")

_KEPT: Final = 2
"""Number of newest records to retain per query: only the last micro-batch is delivered again."""
_FIRST: Final = 0


def idempotent(
    sink: Sink,
    location: str | None = None,
    *,
    written: Callable[[str, int], bool] | None = None,
    record_first: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> Sink:
    """
    Return a `foreachBatch` function that skips the micro-batches it has already written.

    Give either *written* or *location*.

    With *written*, every row is written exactly once, if *sink* writes the rows and the record of
    the micro-batch (`writer_id(frame)` and the batch id) in one transaction of the target.  After a
    rewind `writer_id` is a different one.

    With *location*, records are objects next to the target, one for each micro-batch, and the last
    two are kept.  Rows and record are not written together.  A crash between the two repeats the
    rows: at least once, but only in that moment.  With `record_first=True` it loses them: at most
    once.

    Example:
        writer = totals.writeStream.foreachBatch(idempotent(write, "s3://bucket/batches"))

    Args:
        sink: Called with the frame and the batch id.
        location: Folder or URL of the records, by any store that state can be stored in.
        written: Called with `writer_id(frame)` and the batch id, before *sink*; returns whether the
            target has the rows.
        record_first: Write the record at *location* before the rows, not after them.
        storage_options: Client options of the store of *location*.

    Raises:
        UsageError: Not exactly one of *location* and *written* is given, or an argument has a
            wrong type.

    Blocks: The function that is returned, for the store.   Thread: the query's.
    """
    if not callable(sink):
        raise UsageError(f"idempotent requires a function of frame and batch id, not {given(sink)}")
    if (location is None) == (written is None):
        raise UsageError(
            "idempotent requires either a location for its records, or written=, a function that checks "
            "whether the target contains a micro-batch"
        )
    switch(record_first, "record_first")
    if written is not None:
        return _Asking(sink, written)
    records = _Records(str(location), storage_options)
    return _Recording(sink, records, first=record_first)


class _Asking:
    """Asks the target whether it contains a micro-batch."""

    def __init__(self, sink: Sink, written: Callable[[str, int], bool]) -> None:
        self._sink = sink
        self._written = written

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        writer = writer_id(frame)
        if self._written(writer, batch_id):
            _log.info("batch %d of %s is already written and is skipped", batch_id, writer)
            return
        self._sink(frame, batch_id)


class _Recording:
    """Records each written micro-batch in a store."""

    def __init__(self, sink: Sink, records: _Records, *, first: bool) -> None:
        self._sink = sink
        self._records = records
        self._first = first

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        writer = query_name(frame)
        batch = delivered_batch(frame, batch_id)
        number = self._records.next_number(writer, batch)
        if number is None:
            _log.info("batch %d of %s is already written and is skipped", batch_id, writer)
            return
        if self._first:
            self._records.add(writer, number, batch)
            fail_point("before-write")
            self._sink(frame, batch_id)
        else:
            self._sink(frame, batch_id)
            fail_point("before-record")
            self._records.add(writer, number, batch)


class _Records:
    """
    The records of written micro-batches, stored in objects `<writer>/<number>`.

    It can be pickled: on Spark Connect the function runs in another process.
    """

    def __init__(self, location: str, options: Mapping[str, object] | None) -> None:
        self._location = location
        self._options = options
        self._store = open_store(location, storage_options=options)

    def __reduce__(self) -> tuple[object, ...]:
        return _Records, (self._location, self._options)

    def next_number(self, writer: str, batch: DeliveredBatch) -> int | None:
        """Return the number of the next record, or None if the micro-batch is already recorded."""
        numbers = self._numbers(writer)
        if not numbers:
            return _FIRST
        last = self._read(writer, numbers[-1])
        if batch.is_written(last, target=f"{self._store.url}/{writer}"):
            return None
        return numbers[-1] + 1

    def add(self, writer: str, number: int, batch: DeliveredBatch) -> None:
        """Record a micro-batch, and delete records that are no longer needed."""
        try:
            create(self._store, f"{writer}/{number}", batch.to_text().encode())
        except ObjectExistsError as error:
            last = self._read(writer, number)
            if not batch.is_recorded_as(last):
                raise FencedError(
                    f"{self._store.url}/{writer}/{number} contains batch {last.batch_id} ({last.to_text()}), but "
                    f"this driver is at batch {batch.batch_id} ({batch.to_text()}): a second driver "
                    "is running the query. Stop one of the two"
                ) from error
            _log.info("batch %d of %s was recorded by a different run", batch.batch_id, writer)
        # One more than is due: a driver may have died before it deleted its last one.
        old = range(max(_FIRST, number - _KEPT - 1), number - _KEPT + 1)
        self._store.delete(f"{writer}/{number}" for number in old)

    def _numbers(self, writer: str) -> list[int]:
        names = (info.path.rpartition("/")[2] for info in self._store.list(writer))
        return sorted(int(name) for name in names if name.isdecimal())

    def _read(self, writer: str, number: int) -> DeliveredBatch:
        path = f"{writer}/{number}"
        data = self._store.get(path)
        text = bytes(data).decode(errors="replace")
        return DeliveredBatch.from_text(text, where=f"{self._store.url}/{path}")
