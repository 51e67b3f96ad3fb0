"""
`idempotent`: a function for `foreachBatch` that skips micro-batches it has written.

A micro-batch is written exactly once only where its rows and the record of its number are written
together.  Where the target has transactions, the record is a row in the same transaction, and
`written` asks the target for it.  Else the record is a separate object, written before or after the rows; a crash between the two repeats the rows, or loses them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Final, Literal

from pyspark.sql import DataFrame

from statelog.arguments import given
from statelog.errors import ObjectExistsError, UsageError
from statelog.runtime.fail_points import fail_point
from statelog.spark.query.delivery import Sink, writer_id
from statelog.spark.stream.sinks.exactly_once_sink import gone_back
from statelog.store import open_store
from statelog.store.conditional_put import create

_log = logging.getLogger("statelog.spark")

_KEPT: Final = 2
"""Newest records that are kept for each query: only the last micro-batch is delivered again."""


def idempotent(
    sink: Sink,
    location: str | None = None,
    *,
    written: Callable[[str, int], bool] | None = None,
    record: Literal["after", "before"] = "after",
    options: Mapping[str, object] | None = None,
) -> Sink:
    """
    Return a function for `foreachBatch` that skips micro-batches it has written.

    Give either *written* or *location*.

    With *written*, every row is written exactly once, if *sink* writes the rows and the record of
    the micro-batch (`writer_id(frame)` and the batch id) in one transaction of the target.

    With *location*, records are objects next to the target, one for each micro-batch, and the last
    two are kept.  Rows and record are not written together.  With `record="after"` a crash between
    the two repeats the rows: at least once, but only in that moment.  With `record="before"` it loses
    them: at most once.

    Example:
        writer = totals.writeStream.foreachBatch(idempotent(write, "s3://bucket/batches"))

    Args:
        sink: Called with the frame and the batch id.
        location: Folder or URL of the records, by any store that state can be stored in.
        written: Called with `writer_id(frame)` and the batch id, before *sink*; returns whether the
            target has the rows.
        record: When the record at *location* is written: "after" the rows or "before" them.
        options: Client options of the store of *location*.

    Raises:
        UsageError: Not exactly one of *location* and *written* is given, or *record* is neither of
            its values.

    Blocks: The function that is returned, for the store.   Thread: the query's.
    """
    if not callable(sink):
        raise UsageError(f"idempotent takes a function of frame and batch id, not {given(sink)}")
    if (location is None) == (written is None):
        raise UsageError(
            "idempotent takes either a location for its records, or written=, a function that asks "
            "the target whether it has a micro-batch"
        )
    if record not in ("after", "before"):
        raise UsageError(f"record is 'after' or 'before'; got {record!r}")
    if written is not None:
        return _Asking(sink, written)
    records = _Records(str(location), options)
    return _Recording(sink, records, first=record == "before")


class _Asking:
    """Asks the target whether it has a micro-batch."""

    def __init__(self, sink: Sink, written: Callable[[str, int], bool]) -> None:
        self._sink = sink
        self._written = written

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        writer = writer_id(frame)
        if self._written(writer, batch_id):
            _log.info("batch %d of %s is written already and is skipped", batch_id, writer)
            return
        self._sink(frame, batch_id)


class _Recording:
    """Records each micro-batch in a store."""

    def __init__(self, sink: Sink, records: _Records, *, first: bool) -> None:
        self._sink = sink
        self._records = records
        self._first = first

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        writer = writer_id(frame)
        if self._records.has(writer, batch_id):
            _log.info("batch %d of %s is written already and is skipped", batch_id, writer)
            return
        if self._first:
            self._records.add(writer, batch_id)
            fail_point("before-write")
            self._sink(frame, batch_id)
        else:
            self._sink(frame, batch_id)
            fail_point("before-record")
            self._records.add(writer, batch_id)


class _Records:
    """
    The records of micro-batches: objects `<writer>/<batch id>`.

    It can be pickled: on Spark Connect the function runs in another process.
    """

    def __init__(self, location: str, options: Mapping[str, object] | None) -> None:
        self._location = location
        self._options = options
        self._store = open_store(location, options=options)
        self._known: dict[str, set[int]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return _Records, (self._location, self._options)

    def has(self, writer: str, batch_id: int) -> bool:
        """Return whether a micro-batch is recorded; a later one raises `CheckpointError`."""
        recorded = self._known.get(writer)
        if recorded is None:
            names = (info.path.rpartition("/")[2] for info in self._store.list(writer))
            recorded = {int(name) for name in names if name.isdigit()}
            self._known[writer] = recorded
        if batch_id not in recorded and max(recorded, default=-1) > batch_id:
            raise gone_back(f"{self._store.url}/{writer}", max(recorded), batch_id)
        return batch_id in recorded

    def add(self, writer: str, batch_id: int) -> None:
        """Record a micro-batch, and delete the records that are no longer needed."""
        data = json.dumps({"writer": writer, "batch_id": batch_id}).encode()
        try:
            create(self._store, f"{writer}/{batch_id}", data)
        except ObjectExistsError:  # by a run that was replaced: the same micro-batch
            _log.info("batch %d of %s was recorded by another run", batch_id, writer)
        recorded = self._known.setdefault(writer, set())
        recorded.add(batch_id)
        old = sorted(recorded)[:-_KEPT]
        self._store.delete(f"{writer}/{batch}" for batch in old)
        recorded.difference_update(old)
