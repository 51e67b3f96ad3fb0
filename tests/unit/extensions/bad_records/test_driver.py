"""The log of failed keys is bounded, and names the first failure and the command."""

import logging

import pytest

pytest.importorskip("pyspark")

from statelog.checkpoint.attachments import Addition
from statelog.extensions.bad_records.dead_letters import BAD_RECORDS, FailedPart
from statelog.extensions.bad_records.driver import FailureLog
from statelog.model import KeyGroupRange
from statelog.spark.worker.protocol import TaskAck, TaskPlace

RANGE = KeyGroupRange(0, 127)


def ack(
    failed: int, letters: int = 0, first: str = "handleInputRows for key (1,): ValueError: x"
) -> TaskAck:
    part = FailedPart(failed, first, Addition(count=letters))
    return TaskAck(TaskPlace(0, RANGE), extras={BAD_RECORDS: part})


def test_failures_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = FailureLog("s3://bucket/job", lambda: now)
    caplog.set_level(logging.WARNING)
    log.committed(0, [ack(0, first="")])
    assert "" == caplog.text
    for batch_id in range(1, 200):
        log.committed(batch_id, [ack(0, first=""), ack(2, 2)])
        now += 1
    messages = [record.getMessage() for record in caplog.records]
    assert 4 == len(messages)
    assert messages[0] == (
        "processing failed for 2 keys up to batch 1; the first of this batch: handleInputRows for key "
        "(1,): ValueError: x; `statelog dead-letters s3://bucket/job` lists them"
    )
    assert "failed for 120 keys in 60 micro-batches up to batch 61" in messages[1]


def test_skipped_keys_have_no_command(caplog: pytest.LogCaptureFixture) -> None:
    FailureLog("s3://bucket/job").committed(3, [ack(1)])
    assert caplog.text.rstrip().endswith("ValueError: x; they are skipped")
