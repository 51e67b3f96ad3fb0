"""The `StreamingQuery` of a Connect query: its errors begin with their cause, and it has figures."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql.connect.streaming.query import StreamingQuery

from statelog.errors import UnavailableError
from statelog.spark.connect.worker import figures_key
from statelog.spark.driver.failures import reported_in
from statelog.spark.query.progress import BatchProgress
from statelog.spark.stream.stateful_query import message_first

_CRASHED: Final = "Python worker exited unexpectedly"


class ConnectQuery(StreamingQuery):
    """
    Spark's `StreamingQuery` on Connect, with the errors and figures of statelog.

    Args:
        query: The query.
    """

    def __init__(self, query: StreamingQuery) -> None:
        super().__init__(query._session, query.id, query.runId, query.name)

    @property
    def lastBatch(self) -> BatchProgress | None:
        """The figures of the newest micro-batch that was committed; None before the first."""
        return max(self.recentBatches, key=lambda one: one.batch_id, default=None)

    @property
    def recentBatches(self) -> list[BatchProgress]:
        """
        The figures of the newest micro-batches, of this run or those before in the same session.

        They are in the session on the server, under keys that begin with `statelog.batches`.
        """
        prefix = figures_key(self.id)
        settings: Any = self._session.conf.getAll
        found = [
            BatchProgress(**msgspec.json.decode(text))
            for key, text in settings.items()
            if key.startswith(prefix)
        ]
        return sorted(found, key=lambda one: one.batch_id)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """See Spark's `StreamingQuery.awaitTermination`."""
        with message_first(_begin_with_message):
            return super().awaitTermination(timeout)

    def processAllAvailable(self) -> None:
        """See Spark's `StreamingQuery.processAllAvailable`."""
        with message_first(_begin_with_message):
            super().processAllAvailable()

    def exception(self) -> StreamingQueryException | None:
        """See Spark's `StreamingQuery.exception`."""
        error = super().exception()
        if error is not None:
            _begin_with_message(error)
        return error


def _begin_with_message(error: Any) -> None:
    text = str(error)
    cause = reported_in(text)
    if cause is None and _CRASHED in text:
        cause = UnavailableError(
            "the server's Python process of this query ended: it was killed, most often for lack of "
            "memory on the server's host. Nothing is lost: start the query again, and it repeats "
            "the micro-batch"
        )
    if cause is not None and isinstance(getattr(error, "_message", None), str):
        error._message = f"{type(cause).__name__}: {cause.message}\n\n{error._message}"
