"""
What fails in a task, and how the driver reports it: the sentence first.

Between a processor's error and the user are the Python worker, the JVM and the Python driver, and
each wraps the error in its own text.  So a task marks the end of its own text, the driver cuts the
text out again, and the query shows it before everything that Spark adds.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statelog import errors
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    ObjectNotFoundError,
    ProcessorError,
    StatelogError,
    UnavailableError,
    UsageError,
)

_log = logging.getLogger("statelog.spark")

_END: Final = "[end of what the task reported]"
_TOLD: Final = re.compile(rf"statelog\.errors\.(\w+): (.*?)\n{re.escape(_END)}", re.DOTALL)
_CANCELLED: Final = re.compile(r"\[SPARK_JOB_CANCELLED\] ([^\n]*?)\.?(?: SQLSTATE|\n|$)")
_CRASHED: Final = "Python worker exited unexpectedly"
_OWN_FOLDER: Final = str(Path(errors.__file__).parent) + os.sep
_MOST_LINES: Final = 60

Result = TypeVar("Result")


# ------------------------------------------------------------------------------------- in a task


@contextlib.contextmanager
def reported_to_driver(location: str) -> Iterator[None]:
    """
    Raise statelog's errors of a task in the form that `cause_of` finds in Spark's text.

    Args:
        location: The state location, for what can be done about a file in it.
    """
    try:
        yield
    except StatelogError as failure:
        error = _with_remedy(failure, location)
        lines = processor_lines(error.__cause__)
        # Without the chain: a worker prints it before the error, and the driver needs it once.
        raise _copy(error, f"{error.message}{lines}\n{_END}") from None


def _copy(error: StatelogError, message: str) -> StatelogError:
    """Return an error of the same class, or of its nearest in the tree, with another message."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    copy: StatelogError = kind(message, **error.facts)
    return copy


def _with_remedy(error: StatelogError, location: str) -> StatelogError:
    """Return an error that says what to do where an object of the state cannot be read."""
    if not isinstance(error, ObjectNotFoundError | CorruptionError):
        return error
    missing = isinstance(error, ObjectNotFoundError)
    return CheckpointError(
        f"the state in {location} cannot be read: {error.message}. An object that its newest "
        f"checkpoint needs is {'missing' if missing else 'damaged'}. Run `statelog verify {location}` "
        "to see which checkpoints are whole, put the object back from a copy, or go back to a whole "
        "checkpoint by its id: restore=<checkpoint id>",
        reason="missing" if missing else "damaged",
    )


def processor_lines(error: BaseException | None) -> str:
    """Return the traceback of a processor's error without the frames of statelog itself."""
    if error is None:
        return ""
    told = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in told.stack if not frame.filename.startswith(_OWN_FOLDER)]
    if not frames:
        return ""
    told.stack = traceback.StackSummary.from_list(frames)
    lines = "".join(told.format()).rstrip("\n").split("\n")
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        left_out = f"  ... {len(lines) - _MOST_LINES} lines left out ..."
        lines = [*lines[:half], left_out, *lines[-half:]]
    return "\n" + "\n".join(lines)


class ProcessExit(SystemExit):
    """A processor asked for the end of its process."""


def ends_of_process_are_errors(run: Callable[..., Result]) -> Callable[..., Result]:
    """
    Let `os._exit` raise in the thread that calls *run*, while it runs.

    The end of a worker would leave no word of the processor, the key and the micro-batch.  Other
    threads, and processes that a processor forks, end as they ask to.
    """

    @functools.wraps(run)
    def guarded(*args: Any, **kwargs: Any) -> Result:
        process, thread, leave = os.getpid(), threading.get_ident(), os._exit

        def refuse(status: int) -> NoReturn:
            if os.getpid() == process and threading.get_ident() == thread:
                raise ProcessExit(f"os._exit({status!r})")
            leave(status)

        os._exit = refuse
        try:
            return run(*args, **kwargs)
        finally:
            os._exit = leave

    return guarded


def described(error: BaseException) -> str:
    """Return what a processor did wrong, as the middle of a sentence."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, SystemExit):
        call = str(error) if isinstance(error, ProcessExit) else f"sys.exit({error.code!r})"
        return (
            f"it called {call}, but a processor does not end its process: raise an exception to "
            "fail the micro-batch, or return to go on"
        )
    return f"{type(error).__name__}: {error}"


# --------------------------------------------------------------------------------- on the driver


def pickled(processor: StatefulProcessor) -> bytes:
    """
    Return a processor as Spark ships it to the workers.

    Raises:
        UsageError: It is a class or no processor, or it cannot be pickled.
    """
    if isinstance(processor, type):
        raise UsageError(
            f"statefulProcessor is the class {processor.__name__}; give an instance: "
            f"{processor.__name__}(...)"
        )
    if not callable(getattr(processor, "init", None)) or not callable(
        getattr(processor, "handleInputRows", None)
    ):
        raise UsageError(
            f"statefulProcessor is an instance of a StatefulProcessor, not {processor!r:.100}"
        )
    try:
        data: bytes = cloudpickle.dumps(processor)
    except Exception as error:
        raise UsageError(
            f"{type(processor).__name__} cannot be pickled, so Spark cannot ship it to its "
            f"workers: {_culprit(processor)}{error}. Open what cannot be pickled in init()"
        ) from error
    return data


def _culprit(processor: StatefulProcessor) -> str:
    for name, value in getattr(processor, "__dict__", {}).items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"attribute {name!r}: "
    return ""


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


class Failures:
    """
    The failures of one run of a query.

    Args:
        process: Processes a micro-batch: the function for `foreachBatch`.
    """

    def __init__(self, process: Callable[[DataFrame, int], None]) -> None:
        self._process = process
        self.told: StatelogError | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process a micro-batch; an error of statelog comes first in the text that Spark makes."""
        try:
            self._process(frame, batch_id)
        except StatelogError as error:
            _log.debug("batch %d failed", batch_id, exc_info=error)
            # Spark's text is that of a traceback, which begins with the cause.  A copy that was
            # never raised has no frames before its sentence.
            self.told = _copy(error, error.message)
            raise _BatchFailed(f"batch {batch_id} failed") from self.told


class StatefulQuery(StreamingQuery):
    """
    Spark's `StreamingQuery`, whose errors begin with what statelog says of them.

    Args:
        query: The query.
        failures: The failures of its run.
    """

    def __init__(self, query: StreamingQuery, failures: Failures) -> None:
        super().__init__(query._jsq)
        self._failures = failures

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """See Spark's `StreamingQuery.awaitTermination`."""
        with self._sentence_first():
            return super().awaitTermination(timeout)

    def processAllAvailable(self) -> None:
        """See Spark's `StreamingQuery.processAllAvailable`."""
        with self._sentence_first():
            super().processAllAvailable()

    def exception(self) -> StreamingQueryException | None:
        """See Spark's `StreamingQuery.exception`."""
        error = super().exception()
        if error is not None:
            self._begin_with_sentence(error)
        return error

    @contextlib.contextmanager
    def _sentence_first(self) -> Iterator[None]:
        try:
            yield
        except StreamingQueryException as error:
            self._begin_with_sentence(error)
            raise

    def _begin_with_sentence(self, error: Any) -> None:
        told = self._failures.told
        if told is not None and isinstance(getattr(error, "_desc", None), str):
            error._desc = f"{type(told).__name__}: {told.message}\n\n{error._desc}"
