"""
Delivery of output rows to the user's sink, and how sinks identify recorded micro-batches.

*staged*: the driver commits the rows with the state and calls the sink after the commit; a replay
delivers the same rows.  *direct*: the sink evaluates the tasks in one Spark job, and the driver
commits the state after it.

A sink of statelog records the newest `DeliveredBatch` for each query.  The query's name is Spark's
id of it, which is the same over restarts.  While a sink of an extension is called, the name has the
sink in it, because its rows are others of the same micro-batch.

On a classic session both are in the local properties of Spark's context, and each query has
separate ones.  Spark Connect does not have local properties; there each query has a separate
process, so they are stored in this module.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame

from statelog.core.delivered_batch import DeliveredBatch
from statelog.spark.jvm.gateway import is_connect, query_of

Sink = Callable[[DataFrame, int], object]
"""Called with the output of a micro-batch and its batch id; the result is ignored."""


class ClosableSink:
    """A sink that is closed when its query ends."""

    def close(self) -> None:
        """Free the sink's resources; a later call of the sink opens it again."""


class Delivery(enum.Enum):
    """The two ways to deliver output rows; see docs/explanation/guarantees.md."""

    STAGED = "staged"
    DIRECT = "direct"


class FileOutput(enum.Enum):
    """The two ways to write files; see docs/how-to/exactly-once-sinks.md."""

    EXACTLY_ONCE = "exactly-once"
    APPEND = "append"


_QUERY_ID: Final = "query"
_BATCH: Final = "statelog.batch"
_SIDE: Final = "statelog.side"
_SEPARATOR: Final = "-timeline-"

_of_process: dict[str, str] = {}
"""On Spark Connect: the properties of the one query of this process."""


def set_query(query_id: str) -> None:
    """Store Spark's id of the query whose micro-batches this process runs."""
    _of_process[_QUERY_ID] = query_id


def set_batch(frame: DataFrame, batch: DeliveredBatch) -> None:
    """Store which micro-batch is being delivered, for `delivered_batch`."""
    _set(frame, _BATCH, f"{batch.timeline} {batch.to_text()}")


@contextlib.contextmanager
def in_sink(frame: DataFrame, name: str) -> Iterator[None]:
    """Record that the sink of an extension is being called."""
    _set(frame, _SIDE, f"-output-{name}")
    try:
        yield
    finally:
        _set(frame, _SIDE, "")


def _set(frame: DataFrame, key: str, value: str) -> None:
    if is_connect(frame):
        _of_process[key] = value
    else:
        frame.sparkSession.sparkContext.setLocalProperty(key, value)


def delivered_batch(frame: DataFrame, batch_id: int) -> DeliveredBatch:
    """
    Return the micro-batch for which the sink is being called, with its history.

    Thread: the call's, which has the local properties of the query.
    """
    timeline, _, text = _get(frame, _BATCH).partition(" ")
    if not text:  # a query of Spark's own, which has no state location
        return DeliveredBatch("", 0, batch_id)
    batch = DeliveredBatch.from_text(text, where="the query's properties")
    return replace(batch, timeline=int(timeline), batch_id=batch_id, run_timeline=batch.timeline)


def query_name(frame: DataFrame) -> str:
    """Return the query's id in Spark; within the sink of an extension, also the sink's name."""
    return _query_id(frame) + _get(frame, _SIDE)


def writer_id(frame: DataFrame) -> str:
    """
    Return the name under which a `foreachBatch` function can record micro-batch ids.

    It is Spark's id of the query.  `statelog rewind`, after which the numbers of micro-batches are
    used again, changes it.  In the sink of a side output it has the name of the side output too.

    Example:
        def to_delta(frame, batch_id):
            writer = frame.write.format("delta").mode("append")
            writer = writer.option("txnAppId", writer_id(frame)).option("txnVersion", batch_id)
            writer.save("s3://bucket/tables/totals")

    Args:
        frame: The frame that `foreachBatch` was called with.

    Thread: the call's, which has the local properties of the query.
    """
    timeline = _get(frame, _BATCH).partition(" ")[0]
    name = query_name(frame)
    return f"{name}{_SEPARATOR}{timeline}" if timeline not in ("", "0") else name


def _query_id(frame: DataFrame) -> str:
    if is_connect(frame):
        return _of_process.get(_QUERY_ID, "")
    return query_of(frame.sparkSession)


def _get(frame: DataFrame, key: str) -> str:
    if is_connect(frame):
        return _of_process.get(key, "")
    return frame.sparkSession.sparkContext.getLocalProperty(key) or ""
