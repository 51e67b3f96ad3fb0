"""
Find the cause of a failed micro-batch in the error that Spark raised.

The Python worker, the JVM and the Python driver each wrap a processor's error in text of their own.
So a task marks the end of its message, the driver extracts the message, and the query shows it
before all that Spark adds.
"""

from __future__ import annotations

import re
from typing import Final

from statelog import errors
from statelog.errors import Fact, ProcessorError, StatelogError, UnavailableError
from statelog.spark.query.face import AnyProcessor
from statelog.spark.worker.failures import END_OF_REPORT

_REPORT: Final = re.compile(
    rf"statelog\.errors\.(\w+): (.*?)\n{re.escape(END_OF_REPORT)}", re.DOTALL
)
_CANCELLED: Final = re.compile(r"\[SPARK_JOB_CANCELLED\] ([^\n]*?)\.?(?: SQLSTATE|\n|$)")
_CRASHED: Final = "Python worker exited unexpectedly"


_STOP_MARKERS: Final = (
    "java.lang.InterruptedException",
    "java.nio.channels.ClosedByInterruptException",
    "java.io.InterruptedIOException",
    "SPARK_JOB_CANCELLED",
)


class QueryStopped(Exception):  # noqa: N818
    """`StreamingQuery.stop` was called during a micro-batch."""


def query_stopped() -> QueryStopped:
    """
    Return an error whose text Spark recognizes as an interruption.

    It searches the text of an error for it, by an expression that overflows the stack on the long
    text of a job that was really stopped.
    """
    return QueryStopped(
        "py4j.protocol.Py4JJavaError: An error occurred while calling a query that was stopped: "
        "java.lang.InterruptedException"
    )


def is_interruption(error: Exception) -> bool:
    """Return whether an error may have been caused by stopping the query."""
    text = str(error)
    return any(marker in text for marker in _STOP_MARKERS)


def cause_of(error: Exception, processor: AnyProcessor, batch_id: int) -> StatelogError | None:
    """Return the task's error from a failed Spark job, or None."""
    text = str(error)
    # In the order of certainty: what a task reported, a cancelled job, a worker that is gone.
    task_error = reported_in(text, batch_id=batch_id)
    if task_error is not None:
        return task_error
    cancelled = _CANCELLED.search(text)
    if cancelled is not None:
        return UnavailableError(
            f"batch {batch_id} was not finished, because one of its Spark jobs was cancelled, but not by "
            f"the query's stop(): {cancelled.group(1)}. Nothing is lost: start the query again; it "
            "repeats this batch",
            batch_id=batch_id,
        )
    if _CRASHED not in text:
        return None
    return ProcessorError(
        f"a Python worker ended while {type(processor).__name__} processed batch {batch_id}, so its "
        "key is unknown: native code crashed, or the system killed the worker, usually for lack "
        "of memory. Nothing of this batch was committed; the state is unchanged. Read the logs "
        "of the worker and the host; spark.python.worker.faulthandler.enabled=true shows "
        "where native code crashes",
        batch_id=batch_id,
    )


def reported_in(text: str, **facts: Fact) -> StatelogError | None:
    """Return the error of a different process that Spark's error text contains, or None."""
    report = _REPORT.search(text)
    if report is None:
        return None
    kind = getattr(errors, report.group(1), StatelogError)
    reported: StatelogError = kind(report.group(2), **facts)
    return reported


class BatchFailed(Exception):  # noqa: N818
    """A micro-batch failed; `__cause__` is the original error."""
