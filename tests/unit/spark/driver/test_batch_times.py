"""When a micro-batch may be left out, when one without data is due, and what its times refuse."""

import datetime as dt
import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType
from tests.support.locations.batch_records import one_operator
from tests.support.stores.query_files import Files

from statelog.core.source_position import NOTHING_READ
from statelog.errors import ProcessorError, UsageError
from statelog.spark.driver.batch_times import BatchTimes, QueryTimes
from statelog.spark.driver.no_data_batches import NoDataDecision, can_skip_batch
from statelog.spark.jvm.no_data_source import _count
from statelog.spark.query.input_plan import InputPlan, check_output_column, event_time_column
from statelog.spark.rows.layout import LateCount, LateRows
from statelog.spark.rows.unfit_output import check_event_times
from statelog.spark.worker.protocol import NEVER_MS

DELAY = {"spark.watermarkDelayMs": 1000}


def due(
    position: str | None, *, time_mode: str = "processingtime", next_due_ms: int | None = 100,
    is_stateless: bool = True, has_record: bool = True,
) -> bool:  # fmt: skip
    """Return whether the batch at time 99, watermark 50, after position "b" can be left out."""
    definition: Any = SimpleNamespace(
        time_mode=time_mode,
        plan=InputPlan(has_watermark=True, is_stateless=is_stateless, sources=1),
    )
    record = one_operator(next_due_ms=next_due_ms) if has_record else None
    before = NOTHING_READ if position == NOTHING_READ else "b"
    times = BatchTimes(now_ms=99, watermark_ms=50, position=position, position_before=before)
    return can_skip_batch([definition], record, times)


def test_a_batch_is_left_out_only_without_input_and_with_can_skip_batch() -> None:
    assert due("b")
    assert not due("c")  # new input
    assert not due(None)  # unknown
    assert not due("b", next_due_ms=99)
    assert not due("b", next_due_ms=None)  # an older record does not say
    assert not due("b", is_stateless=False)  # an operator before may give rows by itself
    assert due("b", time_mode="eventtime", next_due_ms=51)
    assert not due("b", time_mode="eventtime", next_due_ms=50)
    assert due("b", time_mode="none", next_due_ms=None)
    assert due(NOTHING_READ, has_record=False)
    assert not due("b", has_record=False)  # the state is missing


def test_watermarks_do_not_go_back() -> None:
    times = BatchTimes(now_ms=1, watermark_ms=7, late_ms=3)
    assert (7, 5) == (times.not_before(5).watermark_ms, times.not_before(5).late_ms)
    assert (9, 9) == (times.not_before(9).watermark_ms, times.not_before(9).late_ms)


def test_the_event_time_column_is_the_one_with_a_watermark() -> None:
    at = StructField("at", TimestampType(), metadata=DELAY)
    key = StructField("key", LongType())
    assert event_time_column(StructType([key, at])) == "at"
    assert event_time_column(StructType([key])) is None
    with pytest.raises(UsageError, match="but at, later have watermarks, in"):
        event_time_column(StructType([at, StructField("later", TimestampType(), metadata=DELAY)]))
    with pytest.raises(UsageError, match="exactly one event time column"):
        event_time_column(StructType([at, StructField("at", LongType())]))


def test_an_output_column_of_event_time_is_a_timestamp_and_not_older_than_the_watermark() -> None:
    output = StructType([StructField("at", TimestampType()), StructField("n", LongType())])
    check_output_column("at", output, has_watermark=True)
    with pytest.raises(UsageError, match="'n' is not a timestamp column of the output"):
        check_output_column("n", output, has_watermark=True)
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    watermark_ms = int(moment.timestamp() * 1000)
    kind = pa.timestamp("us", tz="UTC")
    rows = pa.record_batch([pa.array([None, moment], kind)], names=["at"])
    check_event_times(rows, "at", watermark_ms, 4)
    check_event_times(rows.slice(0, 0), "at", watermark_ms, 4)
    with pytest.raises(ProcessorError, match=r"batch 4: at = 2026-01-01.* is older than the water"):
        check_event_times(rows, "at", watermark_ms + 1, 4)


@pytest.mark.parametrize("window", [False, True])
def test_late_rows_are_left_out_of_a_tasks_input_and_counted(window: bool) -> None:
    limit_ms = 1_000
    at = pa.array([999_999, 1_000_000, 1_000_001, None, -5], pa.timestamp("us", tz="Asia/Tokyo"))
    if window:
        at = pa.StructArray.from_arrays([pa.nulls(5, pa.int8()), at], names=["start", "end"])
    batch = pa.RecordBatch.from_arrays([pa.array(range(5)), at], names=["n", "at"])
    in_time = batch.slice(2, 2)
    seen = LateCount()
    batches = [batch, batch.slice(0, 0), in_time]
    first, empty, same = LateRows(1, limit_ms).without_late(batches, seen)
    assert [2, 3] == first.column(0).to_pylist()
    assert 0 == empty.num_rows
    assert same is in_time
    assert 3 == seen.rows


# --- the newest finished micro-batch of earlier runs, from the files of a checkpointLocation --------

TIMES = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})


def offsets(end: str) -> bytes:
    return f"v1\n{TIMES}\n{end}".encode()


def last_finished(files: dict[str, bytes]) -> tuple[int, str | None] | None:
    return QueryTimes(Files(**files), has_no_data_source=False).last_finished()


@pytest.mark.parametrize(
    ("files", "finished"),
    [
        ({}, None),
        ({"offsets/0": offsets("7")}, None),
        ({"offsets/0": offsets("-"), "commits/0": b"v1"}, (0, NOTHING_READ)),
        ({"commits/3": b"v1"}, None),
    ],
    ids=["no file", "planned and not finished", "finished without input", "offsets removed"],
)
def test_only_finished_batches_count(
    files: dict[str, bytes], finished: tuple[int, str] | None
) -> None:
    assert finished == last_finished(files)


def test_the_newest_finished_micro_batch_has_a_position() -> None:
    files = {f"offsets/{batch}": offsets(str(batch)) for batch in range(3)}
    finished = last_finished({**files, "commits/0": b"v1", "commits/1": b"v1"})
    assert finished is not None
    assert finished[0] == 1
    assert finished[1] not in (None, NOTHING_READ)


def decide(
    decision: NoDataDecision, *, now_ms: int = -1, watermark_ms: int = -1,
    next_due_ms: int | None = NEVER_MS,
) -> bool:  # fmt: skip
    return decision.handle(now_ms=now_ms, watermark_ms=watermark_ms, next_due_ms=next_due_ms)


def test_with_event_time_a_batch_is_due_once_for_each_move_of_the_watermark() -> None:
    decision = NoDataDecision("eventtime", 10)
    assert not decide(decision, watermark_ms=10, next_due_ms=5)
    assert decide(decision, watermark_ms=11)
    assert not decide(decision, watermark_ms=11, next_due_ms=11)
    assert not decide(decision, watermark_ms=3)  # it does not go back
    assert not decide(decision, watermark_ms=11)
    assert decide(decision, watermark_ms=12, next_due_ms=None)


def test_with_processing_time_a_batch_is_due_when_a_timer_is_or_may_be() -> None:
    decision = NoDataDecision("processingtime", -1)
    assert not decide(decision, now_ms=99)
    assert not decide(decision, now_ms=99, next_due_ms=100)
    assert decide(decision, now_ms=100, next_due_ms=100)
    assert decide(decision, now_ms=101, next_due_ms=100)
    assert decide(decision, now_ms=0, next_due_ms=None)


def test_a_run_that_ends_has_a_batch_without_data_at_its_beginning_only() -> None:
    for run_ends in (False, True):
        decision = NoDataDecision("processingtime", -1, run_ends=run_ends)
        for is_first in (True, False):
            due = decision.handle(now_ms=100, watermark_ms=-1, next_due_ms=100, is_first=is_first)
            assert (is_first or not run_ends) == due


def test_without_time_no_batch_is_due() -> None:
    assert not decide(NoDataDecision("none", -1), now_ms=1, watermark_ms=1, next_due_ms=None)


def test_offsets_of_another_source_count_nothing() -> None:
    assert 7 == _count('{"noDataBatches":7}')
    offsets_of_others = ('{"offset":3,"timestamp":17}', "12", "", "{", '{"a":{"0":1}}', "null")
    for offset in offsets_of_others:
        assert 0 == _count(offset)
