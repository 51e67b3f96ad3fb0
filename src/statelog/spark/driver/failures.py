"""
What fails in a task, and how the driver reports it: the sentence first.

Between a processor's error and the user are the Python worker, the JVM and the Python driver, and
each wraps the error in its own text.  So a task marks the end of its own text, the driver cuts the
text out again, and the query shows it before everything that Spark adds.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statelog import errors
from statelog.errors import ProcessorError, StatelogError, UnavailableError
from statelog.spark.worker.failures import _END

_log = logging.getLogger("statelog.spark")
_TOLD: Final = re.compile(rf"statelog\.errors\.(\w+): (.*?)\n{re.escape(_END)}", re.DOTALL)
_CANCELLED: Final = re.compile(r"\[SPARK_JOB_CANCELLED\] ([^\n]*?)\.?(?: SQLSTATE|\n|$)")
_CRASHED: Final = "Python worker exited unexpectedly"


def cause_of(error: Exception, processor: StatefulProcessor, batch_id: int) -> StatelogError | None:
    """
    Return what a failed Spark job says of statelog's tasks, or None.

    Args:
        error: What the job was failed with; its text has that of the tasks.
        processor: The processor that the tasks ran.
        batch_id: The micro-batch.
    """
    text = str(error)
    found = _TOLD.search(text)
    if found is not None:
        kind = getattr(errors, found.group(1), StatelogError)
        told: StatelogError = kind(found.group(2), batch_id=batch_id)
        return told
    cancelled = _CANCELLED.search(text)
    if cancelled is not None:
        return UnavailableError(
            f"batch {batch_id} was not finished, because a Spark job of it was cancelled, and not by "
            f"the query's stop(): {cancelled.group(1)}. Nothing is lost: start the query again, and it "
            "does this batch again",
            batch_id=batch_id,
        )
    if _CRASHED not in text:
        return None
    return ProcessorError(
        f"a Python worker ended while {type(processor).__name__} processed batch {batch_id}, so its "
        "key is unknown: native code crashed, or the system killed the worker, most often for lack "
        "of memory. Nothing of this batch was committed; the last checkpoint is valid. Look into the "
        "log of the worker and of the host; spark.python.worker.faulthandler.enabled=true shows "
        "where native code crashes",
        batch_id=batch_id,
    )


def is_active(frame: DataFrame) -> bool:
    """Return whether the query that runs a micro-batch was not stopped; False if it is unknown."""
    session = frame.sparkSession
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        return False
    try:
        jvm: Any = session._jvm
        running = session._jsparkSession.sharedState().activeStreamingQueries()
        query = running.get(jvm.java.util.UUID.fromString(query_id))
        return query is not None and bool(query.isActive())
    except Exception as error:  # the connection ends with the query
        _log.debug("whether query %s is active is unknown: %s", query_id, error)
        return False


class _BatchFailed(Exception):  # noqa: N818
    """A micro-batch failed; its cause says why."""
