"""Output columns that no row names are warned of once, with the names that rows have."""

import logging

import pytest

from statelog.model import KeyGroupRange
from statelog.spark.driver.operator_run import UnnamedOutput
from statelog.spark.rows.interface import UnnamedColumns
from statelog.spark.worker.protocol import TaskAck, TaskOutput, TaskPlace

MISSPELT = UnnamedColumns(("customer", "total"), ("cust", "totl"))


def ack(rows: int, unnamed: UnnamedColumns | None = None) -> TaskAck:
    return TaskAck(
        TaskPlace(0, KeyGroupRange(0, 127)),
        output=TaskOutput(None, unnamed),
        figures={"output_rows": rows},
    )


def warnings_of(
    caplog: pytest.LogCaptureFixture, *batches: list[TaskAck], name: str = "Totals"
) -> list[str]:
    unnamed = UnnamedOutput(name)
    with caplog.at_level(logging.WARNING, logger="statelog.spark"):
        for batch_id, acks in enumerate(batches):
            unnamed.committed(batch_id, acks)
    return [record.getMessage() for record in caplog.records]


def test_misspelt_columns_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    warned = warnings_of(caplog, [ack(0)], [ack(2, MISSPELT), ack(1, MISSPELT)], [ack(2, MISSPELT)])
    assert warned == [
        "no output row of Totals in batch 1 sets the columns 'customer', 'total': they are null. "
        "The rows contain fields that are not columns: 'cust' (did you mean 'customer'?), 'totl' (did "
        "you mean 'total'?)"
    ]


def test_a_column_that_another_task_names_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    other = UnnamedColumns(("total",), ("Totals",))
    assert warnings_of(caplog, [ack(1, MISSPELT), ack(1, other)]) == [
        "no output row of Totals in batch 0 sets the columns 'total': they are null. The rows contain "
        "fields that are not columns: 'Totals' (did you mean 'total'?), 'cust', 'totl' (did you mean "
        "'total'?)"
    ]


def test_no_warning_once_a_task_has_named_all_columns_or_without_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_all_columns, without_rows = ack(1), ack(0)
    assert not warnings_of(caplog, [ack(1, MISSPELT), with_all_columns], [ack(1, MISSPELT)])
    assert not warnings_of(caplog, [without_rows, without_rows], [])


def test_a_column_that_rows_leave_out_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(caplog, [ack(3, UnnamedColumns(("note",), ()))]) == [
        "no output row of Totals in batch 0 sets the columns 'note': they are null"
    ]
