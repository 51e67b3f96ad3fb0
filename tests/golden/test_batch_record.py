"""Both versions of the record of a micro-batch, as files that must be read for ever."""

import json
from pathlib import Path
from typing import Any

import pytest

from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import CheckpointError, IncompatibleFormatError
from statelog.model.checkpoint import CompletedCheckpoint

VECTORS = Path(__file__).parent / "vectors"


def stored(version: int | str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / f"batch_record_v{version}.json").read_bytes())
    return found


def read(properties: dict[str, Any]) -> BatchRecord:
    return BatchRecord.of(
        CompletedCheckpoint(
            checkpoint_id=7,
            parent_id=None,
            created_at_ms=0,
            epoch=1,
            owner_id="o",
            max_parallelism=256,
            properties=properties,
        )
    )


@pytest.mark.parametrize(("version", "operators"), [(1, ["totals"]), (2, ["totals", "regions"])])
def test_a_record_is_read_and_written_as_it_is_stored(version: int, operators: list[str]) -> None:
    record = read(stored(version))
    assert operators == [one.operator_id for one in record.operators]
    assert [12, 5, 900][: 1 + len(operators)] == [
        record.rows,
        *(one.next_due_ms for one in record.operators),
    ]
    assert stored(version) == json.loads(json.dumps(record.to_properties()))


def test_a_newer_record_is_no_damage() -> None:
    with pytest.raises(IncompatibleFormatError, match=r"version 3 .* upgrade statelog"):
        read(stored(2) | {"version": 3})


def test_a_version_2_without_operators_is_rejected() -> None:
    properties = stored(2)
    del properties["operators"]
    with pytest.raises(CheckpointError, match="was not made by a streaming query"):
        read(properties)


def test_a_record_with_costs_is_read_and_written_as_it_is_stored() -> None:
    record = read(stored("1_costs"))
    assert {"plan": 31, "run": 412} == record.durations_ms
    assert record.task_ms is not None and 204 == record.task_ms["process"]
    assert {"commit": 14, "deliver": 55, "clean_up": 6} == record.previous_ms
    assert {"tasks": 1, "puts": 0} == record.retries
    assert (2, 73114) == (record.objects, record.object_bytes)
    assert stored("1_costs") == json.loads(json.dumps(record.to_properties()))


def test_a_record_with_side_outputs_is_read_and_written_as_it_is_stored() -> None:
    record = read(stored("1_side_outputs"))
    assert [("late", 6, False), ("late", 7, True)] == [
        (entry.name, entry.checkpoint, entry.is_fresh) for entry in record.side_outputs
    ]
    assert stored("1_side_outputs") == json.loads(json.dumps(record.to_properties()))
    assert () == read(stored(1)).side_outputs


def test_a_record_with_broadcasts_is_read_and_written_as_it_is_stored() -> None:
    record = read(stored("1_broadcasts"))
    assert [(3, 2), (7, 3)] == [(entry.checkpoint, entry.rows) for entry in record.broadcasts]
    assert stored("1_broadcasts") == json.loads(json.dumps(record.to_properties()))
    assert () == read(stored(1)).broadcasts


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_record_has_no_costs(version: int) -> None:
    record = read(stored(version))
    assert [None] * 6 == [
        record.durations_ms,
        record.task_ms,
        record.previous_ms,
        record.retries,
        record.objects,
        record.object_bytes,
    ]
