"""
The `StreamingQuery` that `start` returns, with causes in errors and figures in progress.

A query without a checkpointLocation gets a temporary one, if its sink is for one-time queries.
Source: Spark's DataStreamWriter and StreamExecution: the folder `temporary-...`, its deletion at
the end of a query that did not fail.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from statelog.errors import StatelogError
from statelog.spark.driver.failures import BatchFailed
from statelog.spark.jvm.files import temporary_folder
from statelog.spark.jvm.queries import jvm_query, wait_for_end
from statelog.spark.rows.spark_versions import described_in
from statelog.spark.stream.query_progress import ProgressFigures
from statelog.spark.worker.failures import with_message

_log = logging.getLogger("statelog.spark")

_FORCE: Final = "spark.sql.streaming.forceDeleteTempCheckpointLocation"
_FILE: Final = "file://"


class Failures:
    """The failures of one run of a query, and the query's `foreachBatch` function."""

    def __init__(self, process: Callable[[DataFrame, int], None]) -> None:
        self._process = process
        self.last: StatelogError | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process a micro-batch; raise statelog's error so that Spark's text begins with it."""
        try:
            self._process(frame, batch_id)
        except StatelogError as error:
            _log.debug("batch %d failed", batch_id, exc_info=error)
            # Spark's text is a traceback, which begins with the cause.  A copy that was never
            # raised does not have frames before its message.
            self.last = with_message(error, error.message)
            raise BatchFailed(f"batch {batch_id} failed") from self.last


@contextlib.contextmanager
def message_first(begin: Callable[[StreamingQueryException], None]) -> Iterator[None]:
    """Raise the error that ended a query, with its cause at the beginning of the message."""
    try:
        yield
    except StreamingQueryException as error:
        begin(error)
        raise


class StatefulQuery(StreamingQuery):
    """
    Spark's `StreamingQuery`, with statelog's errors and figures.

    *at_end* is called when `stop` or `awaitTermination` sees the end of the query; several times.
    """

    def __init__(
        self,
        query: StreamingQuery,
        failures: Failures,
        figures: ProgressFigures,
        at_end: Callable[[], None],
    ) -> None:
        super().__init__(jvm_query(query))
        self._failures = failures
        self._figures = figures
        self._at_end = at_end

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """See Spark's `StreamingQuery.recentProgress`; includes statelog's figures."""
        return [self._figures.added_to(progress) for progress in super().recentProgress]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """See Spark's `StreamingQuery.lastProgress`; includes statelog's figures."""
        progress = super().lastProgress
        return None if progress is None else self._figures.added_to(progress)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """See Spark's `StreamingQuery.awaitTermination`."""
        with message_first(self._begin_with_message):
            has_ended = super().awaitTermination(timeout)
        if timeout is None or has_ended:
            self._end()
        return has_ended

    def stop(self) -> None:
        """See Spark's `StreamingQuery.stop`."""
        super().stop()
        self._end()

    def _end(self) -> None:
        if self._failures.last is None:  # else the store may be the reason
            self._at_end()

    def processAllAvailable(self) -> None:
        """See Spark's `StreamingQuery.processAllAvailable`."""
        with message_first(self._begin_with_message):
            super().processAllAvailable()

    def exception(self) -> StreamingQueryException | None:
        """See Spark's `StreamingQuery.exception`."""
        error = super().exception()
        if error is not None:
            self._begin_with_message(error)
        return error

    def _begin_with_message(self, error: Any) -> None:
        last = self._failures.last
        name = described_in(error)
        if last is not None and name is not None:
            text = f"{type(last).__name__}: {last.message}\n\n{getattr(error, name)}"
            setattr(error, name, text)


def temporary_checkpoint(session: SparkSession) -> str:
    """Create a folder on the driver's disk, which the JVM deletes when it exits."""
    checkpoint = f"{_FILE}{temporary_folder(session)}"
    _log.warning(
        "the query does not have a checkpointLocation: its offsets and state are in the temporary folder "
        "%s, which is deleted when the query ends without an error",
        checkpoint,
    )
    return checkpoint


def delete_at_end(query: StreamingQuery, checkpoint: str, session: SparkSession) -> None:
    """Delete a temporary checkpointLocation when *query* ends, as Spark itself does."""
    forced = str(session.conf.get(_FORCE, "false")).lower() == "true"
    wait_for = wait_for_end(query)

    def wait() -> None:
        try:
            wait_for()
        except Exception as error:
            if not forced:  # kept, as by Spark, to find out why the query failed
                _log.debug("the temporary folder %s is kept: %s", checkpoint, error)
                return
        shutil.rmtree(checkpoint.removeprefix(_FILE), ignore_errors=True)

    threading.Thread(target=wait, name="statelog-temporary", daemon=True).start()
