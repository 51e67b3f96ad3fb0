"""
The name under which sinks record the micro-batches of a query, as the process knows it.

On a classic session it is in the local properties of Spark's context, of which each query has its
own.  Spark Connect has no local properties; there each query has a process of its own, so the name
is stored in this module.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from statelog.spark.jvm.gateway import is_connect, query_of

_QUERY_ID: Final = "query"
_REWOUND: Final = "statelog.rewound"

_of_process: dict[str, str] = {}
"""On Spark Connect: the properties of the one query of this process."""


def set_query(query_id: str) -> None:
    """Store Spark's id of the query whose micro-batches this process runs."""
    _of_process[_QUERY_ID] = query_id


def set_rewound(frame: DataFrame, rewound: int) -> None:
    """
    Store that the query of a micro-batch was rewound.

    Args:
        frame: The input of the micro-batch.
        rewound: See `BatchRecord.rewound`.
    """
    if is_connect(frame):
        _of_process[_REWOUND] = str(rewound)
    else:
        frame.sparkSession.sparkContext.setLocalProperty(_REWOUND, str(rewound))


def query_and_rewound(frame: DataFrame) -> tuple[str, str]:
    """
    Return Spark's id of the query of a micro-batch and its rewind, each "" if there is none.

    Thread: that of the micro-batch.
    """
    if is_connect(frame):
        return _of_process.get(_QUERY_ID, ""), _of_process.get(_REWOUND, "")
    session = frame.sparkSession
    return query_of(session), session.sparkContext.getLocalProperty(_REWOUND) or ""
