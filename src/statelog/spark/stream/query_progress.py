"""
Add the figures of statelog to the progress that a query object returns.

Spark fills `stateOperators` from its own physical plan, and `observedMetrics` from the plan of the
stream.  The engine runs outside of both, so the query object adds them: for each micro-batch one
entry of `stateOperators`, with the figures of all operators of the query, and the metrics of `observe`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryProgress

from statelog.spark.driver.progress import source_metrics
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.query import OperatorDefinition
from statelog.spark.stream.observations import Observations, ObservedBatch
from statelog.state.kinds import StateKind

_KINDS: Final = {StateKind.VALUE: "Value", StateKind.LIST: "List", StateKind.MAP: "Map"}


class ProgressFigures:
    """
    The figures of the newest micro-batches of one run of a query, as many as Spark keeps.

    Thread: `note` that of the query, `added_to` any.
    """

    def __init__(
        self, operators: Sequence[OperatorDefinition], observations: Observations, kept: int
    ) -> None:
        self._operators = tuple(operators)
        self._observations = observations
        self._kept = kept
        self._batches: dict[int, tuple[BatchProgress, ObservedBatch]] = {}

    def noting(
        self, report: Callable[[BatchProgress], None] | None
    ) -> Callable[[BatchProgress], None]:
        """Return a function that keeps the figures of a micro-batch and then calls *report*."""

        def note(progress: BatchProgress) -> None:
            self._batches[progress.batch_id] = progress, self._observations.take()
            if len(self._batches) > self._kept:
                self._batches.pop(next(iter(self._batches)))
            if report is not None:
                report(progress)

        return note

    def added_to(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        """Return Spark's progress of a trigger with our figures."""
        kept = dict(self._batches)
        batches = {batch_id: batch for batch_id, (batch, _) in kept.items()}
        return with_batch(
            progress, self._operators, batches, lambda batch_id: kept[batch_id][1].values()
        )


def with_batch(
    progress: StreamingQueryProgress,
    operators: Sequence[OperatorDefinition],
    batches: Mapping[int, BatchProgress],
    observed: Callable[[int], Mapping[str, Mapping[str, Any]]],
) -> StreamingQueryProgress:
    """
    Return Spark's progress of a trigger with the figures and observed metrics of its micro-batch.

    A trigger without a micro-batch, or whose micro-batch had no effect, has the size of the state.
    """
    batch_id = progress.batchId
    if batch_id in batches:
        operator = state_operator(operators, batches[batch_id])
        return with_figures(progress, operator, observed(batch_id))
    earlier = [other for other in batches if other < batch_id]
    if not earlier:
        return progress
    return with_figures(progress, idle_operator(operators, batches[max(earlier)]), {})


def state_operator(
    operators: Sequence[OperatorDefinition], progress: BatchProgress
) -> dict[str, Any]:
    """
    Return the figures of a micro-batch as an entry of `stateOperators`, in Spark's JSON form.

    It has all operators of the query together.  statelog does not count removed rows, and its workers
    do not measure the memory of state: these figures are 0.
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


def idle_operator(operators: Sequence[OperatorDefinition], before: BatchProgress) -> dict[str, Any]:
    """Return an entry of `stateOperators` for a trigger without effect, after the batch *before*."""
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
    """Return the numbers of state variables under the names that Spark has for them."""
    schemas = [operator.schema for operator in operators]
    states = [state for schema in schemas for state in schema.states]
    numbers = {"numDeletedStateVars": sum(len(schema.deleted) for schema in schemas)}
    for kind, title in _KINDS.items():
        of_kind = [state for state in states if state.kind is kind]
        with_ttl = sum(state.ttl_ms is not None for state in of_kind)
        numbers[f"num{title}StateVars"] = len(of_kind) - with_ttl
        numbers[f"num{title}StateWithTTLVars"] = with_ttl
    return numbers


def with_figures(
    progress: StreamingQueryProgress,
    operator: Mapping[str, Any],
    observed: Mapping[str, Mapping[str, Any]],
) -> StreamingQueryProgress:
    """Return Spark's progress with one more operator and more observed metrics."""
    fields = json.loads(progress.json)
    return StreamingQueryProgress.fromJson(
        {
            **fields,
            "stateOperators": [*fields["stateOperators"], operator],
            "observedMetrics": {**fields.get("observedMetrics", {}), **observed},
        }
    )
