"""The `StreamingQuery` of a Connect query: its errors begin with their cause, and it has figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql.connect.streaming.query import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from statelog.errors import UnavailableError
from statelog.spark.connect.worker import ObservedFigures, figures_key, observed_key
from statelog.spark.driver.failures import reported_in
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.stream.query_progress import with_batch
from statelog.spark.stream.stateful_query import message_first

_CRASHED: Final = "Python worker exited unexpectedly"


class ConnectQuery(StreamingQuery):
    """Spark's `StreamingQuery` on Connect, with the errors and figures of statelog."""

    def __init__(self, query: StreamingQuery, operators: Sequence[OperatorDefinition]) -> None:
        super().__init__(query._session, query.id, query.runId, query.name)
        self._operators = tuple(operators)

    @property
    def lastBatch(self) -> BatchProgress | None:
        """The figures of the newest micro-batch that was committed; None before the first."""
        return max(self.recentBatches, key=lambda batch: batch.batch_id, default=None)

    @property
    def recentBatches(self) -> list[BatchProgress]:
        """
        The figures of the newest micro-batches, of this run or those before in the same session.

        They are in the session on the server, under keys that begin with `statelog.batches`.
        """
        return sorted(self._batches(self._settings()), key=lambda batch: batch.batch_id)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """See Spark's `StreamingQuery.recentProgress`; with the figures of statelog."""
        return self._with_figures(super().recentProgress)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """See Spark's `StreamingQuery.lastProgress`; with the figures of statelog."""
        progress = super().lastProgress
        return None if progress is None else self._with_figures([progress])[0]

    def _with_figures(
        self, recent: Sequence[StreamingQueryProgress]
    ) -> list[StreamingQueryProgress]:
        settings = self._settings()
        batches = {batch.batch_id: batch for batch in self._batches(settings)}
        observed = partial(self._observed, settings)
        return [with_batch(progress, self._operators, batches, observed) for progress in recent]

    def _settings(self) -> Mapping[str, str]:
        settings: Mapping[str, str] = self._session.conf.getAll
        return settings

    def _batches(self, settings: Mapping[str, str]) -> list[BatchProgress]:
        prefix = figures_key(self.id)
        return [
            BatchProgress(**msgspec.json.decode(text))
            for key, text in settings.items()
            if key.startswith(prefix)
        ]

    def _observed(self, settings: Mapping[str, str], batch_id: int) -> dict[str, dict[str, Any]]:
        text = settings.get(observed_key(self.id, batch_id))
        if text is None:
            return {}
        figures = msgspec.json.decode(text, type=ObservedFigures)
        return figures.values if figures.batch_id == batch_id else {}

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
