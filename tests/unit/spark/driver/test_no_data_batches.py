"""When a micro-batch without data is due; without Spark running."""

from statelog.spark.driver.no_data_batches import NoDataDecision
from statelog.spark.jvm.no_data_source import _count
from statelog.spark.worker.protocol import NEVER_MS


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
    for offset in (
        '{"offset":3,"timestamp":1700000000000}',
        "12",
        "",
        "{",
        '{"a":{"0":1}}',
        "null",
    ):
        assert 0 == _count(offset)
