"""
The name under which sinks record micro-batches.

It is Spark's id of the query, which is the same over restarts.  After `statelog rewind` the numbers
of micro-batches are used again for other rows, so the name has the rewind in it too.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from statelog.spark.query.writer_name import query_and_rewound

_SEPARATOR: Final = "-rewound-"


def writer_id(frame: DataFrame) -> str:
    """
    Return the name under which a sink records the micro-batches of a query.

    It is Spark's id of the query; after `statelog rewind`, which uses the numbers of micro-batches
    again, it is another one.

    Args:
        frame: The frame that `foreachBatch` was called with.

    Thread: that of the call, which has the local properties of the query.
    """
    query_id, rewound = query_and_rewound(frame)
    return f"{query_id}{_SEPARATOR}{rewound}" if rewound else query_id


def query_of(writer: str) -> str:
    """Return Spark's id of the query with this name."""
    return writer.partition(_SEPARATOR)[0]
