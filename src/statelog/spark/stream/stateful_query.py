"""The `StreamingQuery` that `start` returns: its errors begin with what went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from statelog.errors import StatelogError
from statelog.spark.driver.failures import _BatchFailed, _log
from statelog.spark.worker.failures import _copy


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
