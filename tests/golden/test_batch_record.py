"""The record of a micro-batch, as files that must be read for ever."""

import json
from pathlib import Path
from typing import Any

import pytest

from statelog.checkpoint.attachments import attachments_in
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import CheckpointError, IncompatibleFormatError
from statelog.model.checkpoint import CompletedCheckpoint

VECTORS = Path(__file__).parent / "vectors"


def stored(kind: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / f"batch_record_v6{kind}.json").read_bytes())
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


@pytest.mark.parametrize(
    ("kind", "operators"), [("", ["totals"]), ("_several", ["totals", "regions"])]
)
def test_a_record_is_read_and_written_as_it_is_stored(kind: str, operators: list[str]) -> None:
    record = read(stored(kind))
    assert operators == [operator.operator_id for operator in record.operators]
    assert [12, 5, 900][: 1 + len(operators)] == [
        record.figures.rows,
        *(operator.next_due_ms for operator in record.operators),
    ]
    assert "0123456789abcdef/5/41/e4" == record.delivered.to_text()
    assert stored(kind) == json.loads(json.dumps(record.to_properties()))


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 7])
def test_another_version_is_rejected_by_name(version: int) -> None:
    with pytest.raises(
        IncompatibleFormatError,
        match=rf"checkpoint 7 contains a micro-batch record of version {version}; .* reads version 6 only",
    ):
        read(stored() | {"version": version})


@pytest.mark.parametrize("name", ["operators", "location", "timeline"])
def test_a_record_without_a_field_is_rejected(name: str) -> None:
    properties = stored()
    del properties[name]
    with pytest.raises(CheckpointError, match="was not created by a streaming query"):
        read(properties)


def test_a_record_with_costs_is_read_and_written_as_it_is_stored() -> None:
    record = read(stored("_costs"))
    figures = record.figures
    assert {"plan": 31, "run": 412} == figures.milliseconds
    assert 204 == figures.task_milliseconds["process"]
    assert {"commit": 14, "deliver": 55, "clean_up": 6} == record.previous_ms
    assert {"tasks": 1, "puts": 0} == record.retries
    assert (2, 73114) == (figures.objects, figures.object_bytes)
    assert {"dead_letters": 2, "failed_keys": 3} == figures.extras
    assert stored("_costs") == json.loads(json.dumps(record.to_properties()))


def test_a_record_with_attachments_is_read_and_written_as_it_is_stored() -> None:
    record = read(stored("_attachments"))
    assert [
        ("recording", "", 7, 7, 3, True),
        ("dead_letters", "", 4, 6, 5, False),
        ("side_output", "late", 5, 6, 912, False),
        ("side_output", "late", 7, 7, 3, True),
        ("broadcast", "limits", 3, 3, 2, False),
        ("broadcast", "limits", 7, 7, 3, False),
    ] == [
        (
            attachment.kind,
            attachment.name,
            attachment.oldest,
            attachment.newest,
            attachment.count,
            attachment.is_fresh,
        )
        for attachment in record.attachments
    ]
    assert record.attachments == attachments_in(record.to_properties())
    assert stored("_attachments") == json.loads(json.dumps(record.to_properties()))
    assert () == read(stored()).attachments == attachments_in(stored())


def test_unknown_fields_are_left_out() -> None:
    record = read(stored())
    assert (None, None) == (record.previous_ms, record.retries)
    figures = record.figures
    assert {} == figures.milliseconds == figures.task_milliseconds == figures.extras
    assert 0 == figures.objects


@pytest.mark.parametrize(
    "figures", [{"rows": {"a": 1}}, {"milliseconds": 3}, {"rows": "3"}, {"extras": [1]}, [], 1]
)
def test_figures_of_another_form_are_rejected(figures: object) -> None:
    with pytest.raises(CheckpointError, match="was not created by a streaming query"):
        read(stored() | {"figures": figures})


def test_a_figure_that_is_not_declared_is_left_out() -> None:
    figures = {**stored()["figures"], "other": 1}
    assert read(stored()).figures == read(stored() | {"figures": figures}).figures
