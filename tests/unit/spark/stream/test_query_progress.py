"""What is added to Spark's progress, without Spark."""

import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryProgress

from statelog.spark.query.progress import BatchProgress
from statelog.spark.stream.query_progress import Observations, ProgressFigures
from statelog.state.kinds import StateKind
from statelog.state.schema import OperatorStateSchema, StateDescriptor

VALUE = pa.schema([("n", pa.int64())])


def operator(name: str) -> Any:
    states = (
        StateDescriptor(name="a", kind=StateKind.VALUE, value_schema=VALUE),
        StateDescriptor(name="b", kind=StateKind.VALUE, value_schema=VALUE, ttl_ms=5),
        StateDescriptor(name="c", kind=StateKind.LIST, value_schema=VALUE),
    )
    schema = OperatorStateSchema(name, VALUE, states, deleted=frozenset({"d"}))
    return SimpleNamespace(schema=schema)


def of_spark(batch_id: int) -> StreamingQueryProgress:
    """Return progress as Spark reports it."""
    ids = dict.fromkeys(("id", "runId"), "9b5f2ad5-6a4c-4bc1-9a3e-5a4a5d9f7a10")
    facts = {
        "name": None, "timestamp": "2026-01-01T00:00:00.000Z", "batchId": batch_id,
        "batchDuration": 5, "stateOperators": [], "sources": [],
        "sink": {"description": "noop", "numOutputRows": -1},
        "observedMetrics": {"input": {"rows": 3}},
    }  # fmt: skip
    return StreamingQueryProgress.fromJson({**ids, **facts})


def batch(batch_id: int) -> BatchProgress:
    return BatchProgress(
        batch_id=batch_id, checkpoint_id=batch_id, tasks=2, rows=7, keys=3, late_rows=1,
        state_entries=10 * batch_id, milliseconds={"run": 5.4, "commit": 1.2, "total": 9.0},
    )  # fmt: skip


def test_a_batch_has_one_entry_for_all_operators_and_its_observed_metrics() -> None:
    observations = Observations()
    figures = ProgressFigures([operator("first"), operator("second")], observations, retained=10)
    reported: list[BatchProgress] = []
    note = figures.noting(reported.append)
    observations.add("seen", {"n": 4})
    note(batch(3))
    assert [batch(3)] == reported
    added = figures.added_to(of_spark(3))
    (entry,) = added.stateOperators
    assert "first, second" == entry.operatorName
    assert (30, 3, 1) == (
        entry.numRowsTotal, entry.numRowsUpdated, entry.numRowsDroppedByWatermark
    )  # fmt: skip
    times = (entry.allUpdatesTimeMs, entry.commitTimeMs)
    assert ((5, 1), 2) == (times, entry.numShufflePartitions)
    metrics = entry.customMetrics
    assert (7, 3) == (metrics["rows"], metrics["checkpointId"])
    names = ("numValueStateVars", "numValueStateWithTTLVars", "numListStateVars", "numMapStateVars")
    assert [2, 2, 2, 0] == [metrics[name] for name in names]
    assert 2 == metrics["numDeletedStateVars"]
    assert {"input", "seen"} == set(added.observedMetrics)
    assert 4 == added.observedMetrics["seen"].n
    assert json.loads(added.json)["observedMetrics"]["seen"] == {"n": 4}


def test_a_trigger_without_effect_has_the_size_of_the_state_only() -> None:
    figures = ProgressFigures([operator("only")], Observations(), retained=10)
    assert [] == figures.added_to(of_spark(0)).stateOperators
    figures.noting(None)(batch(3))
    (entry,) = figures.added_to(of_spark(4)).stateOperators
    assert (30, 0) == (entry.numRowsTotal, entry.numRowsUpdated)
    assert (0, 0) == (entry.numRowsDroppedByWatermark, entry.commitTimeMs)
    assert 1 == entry.customMetrics["numValueStateVars"]
    assert [] == figures.added_to(of_spark(2)).stateOperators


def test_the_newest_batches_are_retained() -> None:
    figures = ProgressFigures([operator("only")], Observations(), retained=2)
    note = figures.noting(None)
    for batch_id in range(4):
        note(batch(batch_id))
    assert [False, False, True, True] == [
        bool(figures.added_to(of_spark(batch_id)).stateOperators) for batch_id in range(4)
    ]
