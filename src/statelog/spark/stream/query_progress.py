"""
Add statelog's figures, and the metrics from `observe`, to a query's progress.

Spark fills `stateOperators` from its own physical plan, and `observedMetrics` from the plan of the
stream.  The engine runs outside of both, so the query object adds them: for each micro-batch one
entry of `stateOperators`, with the figures of all operators of the query, and the metrics of
`observe`.

Each micro-batch is observed by a separate `Observation`, as a batch frame is.  Spark keeps the
values of the first action on a frame.  Rows between two operators are read by the engine's own
jobs, which Spark reports to no observation, so their metrics are computed by a job of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql.observation import Observation
from pyspark.sql.streaming.listener import StreamingQueryProgress

from statelog.spark.jvm.gateway import is_connect
from statelog.spark.jvm.queries import is_observed
from statelog.spark.query.progress import BatchProgress, source_metrics
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.rows.spark_versions import progress_fields, progress_of
from statelog.state.kinds import StateKind

_WAIT_SECONDS: Final = 2.0
"""Spark reports values some milliseconds after the action, on another thread."""
_POLL_SECONDS: Final = 0.01


class Observing(Protocol):
    """Observes the rows of a micro-batch."""

    def on(self, frame: DataFrame, name: str, columns: Sequence[Column]) -> DataFrame:
        """Return the rows, observed under the name *name*."""


class Observations:
    """
    The observed metrics of one query in the current micro-batch.

    Thread: the query's.
    """

    def __init__(self) -> None:
        self._current: dict[str, _Observed] = {}

    def on(self, frame: DataFrame, name: str, columns: Sequence[Column]) -> DataFrame:
        """Return a micro-batch's rows; the first action on them observes them as *name*."""
        self._current[name] = observation = _observation(frame, name)
        return frame.observe(observation, *columns)

    def add(self, name: str, values: Mapping[str, object]) -> None:
        """Store metrics whose values are already known."""
        self._current[name] = _Known(values)

    def take(self) -> ObservedBatch:
        """Return the metrics of the micro-batch that has just finished."""
        batch = self._current
        self._current = {}
        return ObservedBatch(batch)


class _BetweenOperators:
    """Observes the rows between two operators, which the second operator reads."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations

    def on(self, frame: DataFrame, name: str, columns: Sequence[Column]) -> DataFrame:
        """Compute the metrics in a separate Spark job, and return the rows."""
        row = frame.agg(*columns).first()
        self._observations.add(name, {} if row is None else row.asDict())
        return frame.select("*")


@dataclass(frozen=True, slots=True)
class _Known:
    """Known values, in the form of a PySpark observation."""

    get: Mapping[str, object]


class _Observed(Protocol):
    """A PySpark observation from either kind of session, or values that are already known."""

    @property
    def get(self) -> Mapping[str, object]: ...


class ObservedBatch:
    """The metrics of one micro-batch, as PySpark observations by name."""

    def __init__(self, observations: Mapping[str, _Observed]) -> None:
        self._observations = observations
        self._deadline: float | None = None

    def values(self) -> dict[str, dict[str, object]]:
        """Return the values by name and column, omitting names whose rows no action has read."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _WAIT_SECONDS
        return {
            name: json.loads(json.dumps(dict(observation.get), default=str))
            for name, observation in self._observations.items()
            if self._is_reported(observation)
        }

    def _is_reported(self, observation: _Observed) -> bool:
        # On Spark Connect the values come with the action.
        if not isinstance(observation, Observation):
            return bool(observation.get)
        while not is_observed(observation):
            if time.monotonic() >= (self._deadline or 0.0):
                return False
            time.sleep(_POLL_SECONDS)
        return True


def observed(
    frame: DataFrame, arguments: Sequence[Any], observations: Observing | None
) -> DataFrame:
    """Apply a recorded `observe` to a micro-batch's rows, unless metrics are to be omitted."""
    if observations is None:
        return frame.select("*")  # another frame, as after every step
    name, *columns = arguments
    return observations.on(frame, name, columns)


def observed_operators(
    operators: Sequence[OperatorDefinition], observations: Observations
) -> tuple[OperatorDefinition, ...]:
    """Return *operators* so that *observations* collects the metrics of the steps between them."""
    between = _BetweenOperators(observations)
    return tuple(
        operator
        if operator.of_upstream is None
        else replace(operator, of_upstream=partial(operator.of_upstream, observations=between))
        for operator in operators
    )


def _observation(frame: DataFrame, name: str) -> Any:
    if not is_connect(frame):
        return Observation(name)
    # Imported here, because it needs the packages of Spark Connect.
    from pyspark.sql.connect.observation import Observation as ConnectObservation

    return ConnectObservation(name)


class ProgressFigures:
    """
    The figures of the newest micro-batches of a run, as many as Spark retains.

    Thread: `note` the query's, `added_to` any.
    """

    def __init__(
        self, operators: Sequence[OperatorDefinition], observations: Observations, retained: int
    ) -> None:
        self._operators = tuple(operators)
        self._observations = observations
        self._retained = retained
        self._batches: dict[int, tuple[BatchProgress, ObservedBatch]] = {}

    def noting(
        self, report: Callable[[BatchProgress], None] | None
    ) -> Callable[[BatchProgress], None]:
        """Return a function that stores a micro-batch's figures and then calls *report*."""

        def note(progress: BatchProgress) -> None:
            self._batches[progress.batch_id] = progress, self._observations.take()
            if len(self._batches) > self._retained:
                self._batches.pop(next(iter(self._batches)))
            if report is not None:
                report(progress)

        return note

    def added_to(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        """Add statelog's figures to Spark's progress for a trigger."""
        noted = dict(self._batches)
        batches = {batch_id: batch for batch_id, (batch, _) in noted.items()}
        return with_batch(
            progress, self._operators, batches, lambda batch_id: noted[batch_id][1].values()
        )


def with_batch(
    progress: StreamingQueryProgress,
    operators: Sequence[OperatorDefinition],
    batches: Mapping[int, BatchProgress],
    observed: Callable[[int], Mapping[str, Mapping[str, object]]],
) -> StreamingQueryProgress:
    """
    Add the figures and observed metrics of a micro-batch to the progress of its trigger.

    A trigger without a micro-batch, or whose micro-batch had no effect, has the size of the state.
    """
    batch_id = progress["batchId"]
    if batch_id in batches:
        operator = state_operator(operators, batches[batch_id])
        return with_figures(progress, operator, observed(batch_id))
    earlier = [other for other in batches if other < batch_id]
    if not earlier:
        return progress
    return with_figures(progress, idle_operator(operators, batches[max(earlier)]), {})


def state_operator(
    operators: Sequence[OperatorDefinition], progress: BatchProgress
) -> dict[str, object]:
    """
    Convert a micro-batch's figures to a `stateOperators` entry in Spark's JSON form.

    It has all operators of the query together.  statelog does not count removed rows, and its
    workers do not measure the memory of state: these figures are 0.
    """
    figures = source_metrics(progress)
    phases = progress.milliseconds
    return {
        "operatorName": ", ".join(operator.schema.operator_id for operator in operators),
        "numRowsTotal": progress.state_entries,
        "numRowsUpdated": progress.keys,
        "allUpdatesTimeMs": round(phases.get("run", 0)),
        "numRowsRemoved": 0,
        "allRemovalsTimeMs": 0,
        "commitTimeMs": round(phases.get("commit", 0)),
        "memoryUsedBytes": 0,
        "numRowsDroppedByWatermark": progress.late_rows,
        "numShufflePartitions": progress.tasks,
        "numStateStoreInstances": progress.tasks,
        "customMetrics": {
            **{name: int(value) for name, value in figures.items() if value.isdigit()},
            **_variables(operators),
        },
    }


def idle_operator(
    operators: Sequence[OperatorDefinition], before: BatchProgress
) -> dict[str, object]:
    """Return a `stateOperators` entry for a trigger without effect; *before* is the last one."""
    nothing = BatchProgress(
        batch_id=before.batch_id,
        checkpoint_id=before.checkpoint_id,
        tasks=before.tasks,
        state_entries=before.state_entries,
        log_bytes=before.log_bytes,
        log_handles=before.log_handles,
    )
    return state_operator(operators, nothing)


def _variables(operators: Sequence[OperatorDefinition]) -> dict[str, int]:
    """Return the counts of state variables, under the names that Spark uses."""
    schemas = [operator.schema for operator in operators]
    states = [state for schema in schemas for state in schema.states]
    numbers = {"numDeletedStateVars": sum(len(schema.deleted) for schema in schemas)}
    for kind in StateKind:
        if kind.rules.fires:
            continue
        title = kind.value.capitalize()
        of_kind = [state for state in states if state.kind is kind]
        with_ttl = sum(state.ttl_ms is not None for state in of_kind)
        numbers[f"num{title}StateVars"] = len(of_kind) - with_ttl
        numbers[f"num{title}StateWithTTLVars"] = with_ttl
    return numbers


def with_figures(
    progress: StreamingQueryProgress,
    operator: Mapping[str, object],
    observed: Mapping[str, Mapping[str, object]],
) -> StreamingQueryProgress:
    """Add an operator and observed metrics to Spark's progress."""
    fields = progress_fields(progress)
    return progress_of(
        {
            **fields,
            "stateOperators": [*fields["stateOperators"], operator],
            "observedMetrics": {**fields.get("observedMetrics", {}), **observed},
        }
    )
