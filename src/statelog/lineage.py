"""
Emit OpenLineage events of a streaming query: START, RUNNING, and COMPLETE or FAIL.

The events name the job's inputs, its outputs and the location of its state.  The run facet `statelog` has
the newest checkpoint and the rows so far.  The client is openlineage-python (extra `lineage`), which is
configured as everywhere: `OPENLINEAGE_URL`, `openlineage.yml`.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Final, Protocol
from urllib.parse import urlsplit

from statelog import extras
from statelog.redaction import redacted
from statelog.runtime.clock import Clock, SystemClock, wall_clock_seconds
from statelog.runtime.ids import RandomIds
from statelog.runtime.lock import ThreadLock

_log = logging.getLogger("statelog.lineage")

PRODUCER: Final = "urn:statelog"
FACET: Final = "statelog"
_ENGINE: Final = "SPARK"


class Progress(Protocol):
    """The figures of a micro-batch that events have; see `BatchProgress`."""

    @property
    def batch_id(self) -> int:
        """Spark's id of the micro-batch."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it made."""

    @property
    def rows(self) -> int:
        """Input rows."""

    @property
    def output_rows(self) -> int:
        """Rows delivered."""

    @property
    def late_rows(self) -> int:
        """Rows dropped because they were late."""

    @property
    def state_entries(self) -> int:
        """Entries of all state variables before the batch."""


class EventClient(Protocol):
    """What is needed of `openlineage.client.OpenLineageClient`."""

    def emit(self, event: object) -> None:
        """Send an event."""


class LineageRun:
    """
    One run of a streaming query, as OpenLineage sees it.

    Example:
        with LineageRun("totals", "shop", inputs=["s3://shop/events"], outputs=["s3://shop/totals"]) as run:
            totals = transform_with_state(..., onProgress=run.progress)
            query = totals.writeStream.option("checkpointLocation", "s3://shop/q").start("s3://shop/totals")
            query.awaitTermination()

    The beginning of the `with` block emits START, micro-batches emit RUNNING, its end emits COMPLETE; with an
    exception it emits FAIL with the error's text.  An event that cannot be sent is logged, and the query
    goes on.

    Args:
        job: Name of the job, the same in each run.
        namespace: OpenLineage's namespace of the job.
        inputs, outputs: URLs or paths of the data that the query reads and writes.
        state_location: Where the state is stored: one more output.  None to leave it out.
        interval_s: Least seconds between two events RUNNING; the first micro-batch emits one at once.
        client: Sends the events; None: a client by OpenLineage's own configuration.

    Raises:
        RequirementError: openlineage-python is not installed.

    Thread: `progress` is called by the thread of the query.
    Blocks: `progress` and the ends of the block, while the client sends an event.
    """

    def __init__(
        self,
        job: str,
        namespace: str = "default",
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        state_location: str | None = None,
        interval_s: float = 30.0,
        client: EventClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._events = _load("openlineage.client.event_v2")
        self._client = client or _load("openlineage.client").OpenLineageClient()
        events = self._events
        self._job = events.Job(namespace, job, facets=_job_facets())
        self._inputs = [events.InputDataset(*dataset_of(url)) for url in inputs]
        stored = [] if state_location is None else [state_location]
        self._outputs = [events.OutputDataset(*dataset_of(url)) for url in (*outputs, *stored)]
        self.run_id = RandomIds().new_id()
        self._interval_ns = int(interval_s * 1e9)
        self._clock = clock or SystemClock()
        self._lock = ThreadLock()
        self._next_ns = 0
        self._totals: dict[str, int] = {}

    def __enter__(self) -> LineageRun:
        """Emit START."""
        self._next_ns = self._clock.now_ns()
        self._emit("START", {})
        return self

    def progress(self, batch: Progress) -> None:
        """Note a micro-batch, and emit RUNNING if the last one is long enough ago."""
        with self._lock:
            totals = self._totals
            totals["batchId"], totals["checkpointId"] = batch.batch_id, batch.checkpoint_id
            totals["stateEntries"] = batch.state_entries
            for name, value in (
                ("batches", 1),
                ("rows", batch.rows),
                ("outputRows", batch.output_rows),
                ("lateRows", batch.late_rows),
            ):
                totals[name] = totals.get(name, 0) + value
            now_ns = self._clock.now_ns()
            if now_ns < self._next_ns:
                return
            self._next_ns = now_ns + self._interval_ns
        self._emit("RUNNING", self._facets())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Emit COMPLETE, or FAIL with the error; KeyboardInterrupt emits ABORT."""
        facets = self._facets()
        if error is None:
            self._emit("COMPLETE", facets)
        elif isinstance(error, KeyboardInterrupt):
            self._emit("ABORT", facets)
        else:
            message = _load("openlineage.client.facet_v2").error_message_run
            text = redacted(f"{type(error).__name__}: {error}")
            facets["errorMessage"] = message.ErrorMessageRunFacet(text, "python")
            self._emit("FAIL", facets)

    def _facets(self) -> dict[str, object]:
        with self._lock:
            totals = dict(self._totals)
        if not totals:
            return {}
        facet = _load("openlineage.client.facet_v2").RunFacet(producer=PRODUCER)
        return {FACET: facet.with_additional_properties(**totals)}

    def _emit(self, state: str, facets: Mapping[str, object]) -> None:
        events = self._events
        event = events.RunEvent(
            eventTime=dt.datetime.fromtimestamp(wall_clock_seconds(), dt.UTC).isoformat(),
            producer=PRODUCER,
            eventType=events.RunState[state],
            run=events.Run(self.run_id, facets=dict(facets)),
            job=self._job,
            inputs=self._inputs,
            outputs=self._outputs,
        )
        try:
            self._client.emit(event)
        except Exception as error:  # of any transport: the query is worth more than its event
            _log.warning(
                "the event %s of the job %s was not sent: %s",
                state,
                self._job.name,
                redacted(f"{type(error).__name__}: {error}"),
            )


def dataset_of(url: str) -> tuple[str, str]:
    """Return namespace and name of a dataset, by OpenLineage's rules, without secrets of the URL."""
    parts = urlsplit(redacted(url))
    if not parts.scheme:
        return "file", os.path.abspath(url)
    path = parts.path.strip("/")
    if parts.scheme == "file":
        return "file", f"/{path}"
    return f"{parts.scheme}://{parts.netloc}", path or "/"


def _load(module: str) -> ModuleType:
    return extras.load("statelog.lineage", "lineage", module)


def _job_facets() -> dict[str, object]:
    kinds = _load("openlineage.client.facet_v2").job_type_job
    return {"jobType": kinds.JobTypeJobFacet("STREAMING", _ENGINE, jobType="QUERY")}
