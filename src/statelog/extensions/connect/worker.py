"""
Run the engine in the Python process that the server starts for foreachBatch.

The client pickles a `QueryStart` into the function for `foreachBatch`.  The server starts a process
for the query, which unpickles it once and calls it with each micro-batch.  A restart of the query
is a new process with a new copy, so the engine begins from the state location, as after any
restart.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from statelog import __version__
from statelog.checkpoint.query_files import QueryFiles
from statelog.errors import InvariantError, StatelogError, UsageError
from statelog.extensions.connect.recorded_steps import (
    RecordedSteps,
    begin_plan_ids_at,
    next_plan_id,
    of_session,
)
from statelog.extensions.connect.sinks import MemoryInWorker
from statelog.spark.driver.batch_times import QueryTimes
from statelog.spark.driver.engine import MicroBatchEngine
from statelog.spark.jvm.files import LOCAL, LocalFiles
from statelog.spark.query.delivery import Sink, set_query
from statelog.spark.query.progress import BatchProgress, Observers
from statelog.spark.query.query import OperatorDefinition, Query
from statelog.spark.stream.query_progress import Observations, observed_operators
from statelog.spark.worker.failures import END_OF_REPORT, with_message

_NOT_FOUND: Final = "PATH_NOT_FOUND"
_METADATA: Final = "metadata"
_GLOB: Final = re.compile(r"([*?\[\]{}\\])")


class SparkFiles:
    """
    A checkpointLocation on any of the server's file systems, named as in Spark.

    Hidden files, such as those with Hadoop's checksums, are not found.
    """

    def __init__(self, session: SparkSession, location: str) -> None:
        self._session = session
        self._url = location.rstrip("/")

    @property
    def url(self) -> str:
        """The location."""
        return self._url

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        """Read a file or its last *tail* bytes; return None if it does not exist."""
        contents = self._column("content", _GLOB.sub(r"\\\1", f"{self._url}/{name}"))
        if not contents:
            return None
        data: bytes = contents[0]
        return data if tail is None else data[-tail:]

    def names(self, folder: str) -> Sequence[str]:
        """List the files and folders in a folder by name."""
        paths = self._column("path", _GLOB.sub(r"\\\1", f"{self._url}/{folder}") + "/*")
        below = (str(path).rpartition(f"/{folder}/")[2] for path in paths)
        return sorted({name.partition("/")[0] for name in below})

    def qualified(self) -> str | None:
        """Return the location as Spark resolves it, or None if no query has run there."""
        paths = self._column("path", _GLOB.sub(r"\\\1", f"{self._url}/{_METADATA}"))
        return str(paths[0]).rpartition("/")[0] if paths else None

    def _column(self, column: str, path: str) -> list[Any]:
        try:
            frame: DataFrame = self._session.read.format("binaryFile").load(path)
            values: list[Any] = frame.select(column).toArrow().column(0).to_pylist()
        except AnalysisException as error:
            if _NOT_FOUND in str(error):
                return []
            raise
        return values


def files_in_worker(session: SparkSession, location: str) -> QueryFiles:
    """Return a running query's files, within the process that runs its micro-batches."""
    files = SparkFiles(session, location)
    url = files.qualified()
    if url is not None and url.startswith(LOCAL):
        local = LocalFiles(url)
        if local.read(_METADATA) is not None:
            return local
    return files if url is None else SparkFiles(session, url)


_log = logging.getLogger("statelog.spark")

KEPT_BATCHES: Final = 32
"""Number of newest micro-batches with figures in the server's session."""


def figures_key(query_id: str, batch_id: int | None = None) -> str:
    """Return the session key of a micro-batch's figures, or, without a batch, their prefix."""
    prefix = f"statelog.batches.{query_id}."
    return prefix if batch_id is None else f"{prefix}{batch_id % KEPT_BATCHES}"


def observed_key(query_id: str, batch_id: int) -> str:
    """Return the session key of a micro-batch's observed metrics."""
    return f"statelog.observed.{query_id}.{batch_id % KEPT_BATCHES}"


class ObservedFigures(msgspec.Struct, frozen=True):
    """A micro-batch's observed metrics by name and column, in the form the session stores."""

    batch_id: int
    values: dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStart:
    """What the worker needs in order to run a query."""

    query: Query
    checkpoint: str
    has_no_data_source: bool
    steps: RecordedSteps
    sink: Sink
    side_sinks: Mapping[str, Sink] = field(default_factory=dict)
    repeated: int | None = None


class ConnectEngine:
    """The `foreachBatch` function, on the client and, once unpickled, in the worker."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._start: QueryStart | None = None
        self._root: Any = None
        self._engine: MicroBatchEngine | None = None

    @classmethod
    def of(cls, start: QueryStart) -> ConnectEngine:
        """Create a query's `foreachBatch` function, if the sink and the steps can be pickled."""
        sent = _to_send(start)
        try:
            return cls(cloudpickle.dumps(sent))
        except Exception as error:
            raise UsageError(
                "the sink, or a function in a step after the operator, cannot be pickled, so Spark "
                f"cannot send it to the server: {error}. Create such objects inside the function"
            ) from error

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (__version__, next_plan_id(), self._payload)

    def begin(self) -> None:
        """Unpickle the query while the user's session is active in this thread of the worker."""
        self._root = ConnectSession.getActiveSession()
        self._start = start = cloudpickle.loads(self._payload)
        if isinstance(start.sink, MemoryInWorker):
            start.sink.begin(self._root)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process a micro-batch; raise errors in a form that the client finds in Spark's text."""
        try:
            if self._engine is None:
                self._engine = self._opened(frame)
            self._engine(frame, batch_id)
        except StatelogError as error:
            _log.debug("batch %d failed", batch_id, exc_info=error)
            # A copy that was never raised does not have frames before its message.
            raise with_message(error, f"{error.message}\n{END_OF_REPORT}") from None

    def _opened(self, frame: DataFrame) -> MicroBatchEngine:
        start = self._start
        if start is None:
            raise InvariantError("the query was not unpickled in the worker")
        files = files_in_worker(frame.sparkSession, start.checkpoint)
        times = QueryTimes(files, has_no_data_source=start.has_no_data_source)
        query_id = times.query_id()
        set_query(query_id)

        observations = Observations()

        def note(progress: BatchProgress) -> None:
            self._note(query_id, progress, observations.take().values())

        def deliver(rows: DataFrame, batch_id: int) -> None:
            start.sink(start.steps.apply(rows, observations), batch_id)

        query = _with_frames(start.query, frame.sparkSession, note)
        query = replace(query, operators=observed_operators(query.operators, observations))
        engine = MicroBatchEngine(query, deliver, times, start.side_sinks, lambda: start.repeated)
        engine.open(query_id)
        return engine

    def _note(
        self, query_id: str, progress: BatchProgress, observed: dict[str, dict[str, object]]
    ) -> None:
        """Store the figures of a micro-batch where the client can find them."""
        batch_id = progress.batch_id
        texts = {figures_key(query_id, batch_id): msgspec.json.encode(progress.to_json())}
        if observed:
            figures = ObservedFigures(batch_id, observed)
            texts[observed_key(query_id, batch_id)] = msgspec.json.encode(figures)
        try:
            for key, text in texts.items():
                self._root.conf.set(key, text.decode())
        except Exception as error:  # the client's session may have ended; the query continues
            _log.debug("could not store the figures of batch %d: %s", batch_id, error)


def _to_send(start: QueryStart) -> QueryStart:
    """Return *start* without its input, whose plan may be large."""
    query = start.query
    empty = query.source.frame.sparkSession.range(0)
    return replace(
        start,
        query=replace(
            query,
            operators=tuple(replace(operator, frame=empty) for operator in query.operators),
        ),
    )


def _with_frames(query: Query, session: Any, note: Callable[[BatchProgress], None]) -> Query:
    """Move the frames of *query* to the session that runs the micro-batches."""
    return replace(
        query,
        operators=tuple(_with_frame(operator, session) for operator in query.operators),
        observers=Observers(note),
    )


def _with_frame(operator: OperatorDefinition, session: Any) -> OperatorDefinition:
    initial = operator.initial
    if initial is None:
        return operator
    frame = of_session(initial.keyed.frame, session)
    return replace(operator, initial=replace(initial, keyed=replace(initial.keyed, frame=frame)))


def _restored(version: str, plan_ids: int, payload: bytes) -> ConnectEngine:
    """Return the function in the worker, if client and server have the same versions."""
    if version != __version__:
        raise UsageError(
            f"the client runs statelog {version}, but the server runs {__version__}: install the same "
            f"version on both\n{END_OF_REPORT}"
        )
    begin_plan_ids_at(plan_ids)  # ids of the client's plans are in the columns of the steps
    engine = ConnectEngine(payload)
    engine.begin()
    return engine
