"""
How output rows are delivered to the user's sink, and the name under which sinks record micro-batches.

*staged*: the driver commits the rows with the state and calls the sink after the commit; a replay
delivers the same rows.  *direct*: the sink evaluates the tasks in one Spark job, and the driver
commits the state after it.

The name is Spark's id of the query, which is the same over restarts.  After `statelog rewind` the
numbers of micro-batches are used again for other rows, so the name has the rewind in it too.  On a
classic session it is in the local properties of Spark's context, of which each query has its own.
Spark Connect does not have local properties; there each query has a separate process, so the name is
stored in this module.  While the sink of a side output is called, the name has the side output in it,
because its rows are others of the same micro-batch.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Final

from pyspark.sql import DataFrame

from statelog.spark.jvm.gateway import is_connect, query_of

Sink = Callable[[DataFrame, int], object]
"""Called with the output of a micro-batch and its batch id; the result is ignored."""


class Delivery(enum.Enum):
    """The two ways of delivering output rows; see docs/explanation/guarantees.md."""

    STAGED = "staged"
    DIRECT = "direct"


class FileOutput(enum.Enum):
    """The two ways of writing files; see docs/how-to/exactly-once-sinks.md."""

    EXACTLY_ONCE = "exactly-once"
    APPEND = "append"


_QUERY_ID: Final = "query"
_REWOUND: Final = "statelog.rewound"
_SIDE: Final = "statelog.side"
_SEPARATOR: Final = "-rewound-"

_of_process: dict[str, str] = {}
"""On Spark Connect: the properties of the one query of this process."""


def set_query(query_id: str) -> None:
    """Store Spark's id of the query whose micro-batches this process runs."""
    _of_process[_QUERY_ID] = query_id


def set_rewound(frame: DataFrame, rewound: int) -> None:
    """Store that the query of a micro-batch was rewound, see `BatchRecord.rewound`."""
    _set(frame, _REWOUND, str(rewound))


@contextlib.contextmanager
def of_side_output(frame: DataFrame, name: str) -> Iterator[None]:
    """Store that the sink of a side output is called."""
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


def writer_id(frame: DataFrame) -> str:
    """
    Return the name under which a sink records the micro-batches of a query.

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
    query_id, rewound = _query_and_rewound(frame)
    query_id += _side(frame)
    return f"{query_id}{_SEPARATOR}{rewound}" if rewound else query_id


def query_of_writer(writer: str) -> str:
    """Return the name without the rewind: Spark's id of the query, and the side output."""
    return writer.partition(_SEPARATOR)[0]


def _side(frame: DataFrame) -> str:
    if is_connect(frame):
        return _of_process.get(_SIDE, "")
    return frame.sparkSession.sparkContext.getLocalProperty(_SIDE) or ""


def _query_and_rewound(frame: DataFrame) -> tuple[str, str]:
    if is_connect(frame):
        return _of_process.get(_QUERY_ID, ""), _of_process.get(_REWOUND, "")
    session = frame.sparkSession
    return query_of(session), session.sparkContext.getLocalProperty(_REWOUND) or ""
