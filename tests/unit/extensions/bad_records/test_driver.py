"""The log of failed keys is bounded, and names the first failure and the command."""

import logging

import pytest

from statelog.checkpoint.attachments import Addition
from statelog.errors import InvalidOptionsError
from statelog.extensions.bad_records.dead_letters import BAD_RECORDS, FailedPart
from statelog.extensions.bad_records.driver import FailureLog
from statelog.extensions.bad_records.policy import ErrorPolicy, MaxErrors, OnError, error_policy
from statelog.model import KeyGroupRange
from statelog.options.kinds import choice
from statelog.spark.query.record import Record
from statelog.spark.query.settings import SETTINGS, QuerySettings
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


def test_only_a_query_that_continues_has_a_policy() -> None:
    assert error_policy(QuerySettings()) is None
    assert ErrorPolicy(False, MaxErrors(5)) == error_policy(
        QuerySettings(on_error="skip", max_errors=5)
    )
    assert ErrorPolicy(True, MaxErrors(1000)) == error_policy(QuerySettings(on_error="dead-letter"))
    assert ErrorPolicy(True, MaxErrors(0, 0.5), freezes=True) == error_policy(
        QuerySettings(on_error="freeze", max_errors=0.5)
    )


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (QuerySettings(), ""),
        (QuerySettings(on_error="skip"), ""),
        (QuerySettings(on_error="dead-letter"), "onError"),
        (QuerySettings(on_error="freeze"), "onError"),
        (QuerySettings(record=Record(failed=True)), "record.*"),
    ],
)
def test_the_setting_that_keeps_rows_is_named(settings: QuerySettings, key: str) -> None:
    assert key == settings.keeps_rows


def test_the_setting_has_the_words_of_the_policy() -> None:
    assert choice(*OnError).name == SETTINGS["onError"].kind.name


BOUNDS = {7: MaxErrors(7), "7": MaxErrors(7), 0.05: MaxErrors(0, 0.05), "5e-2": MaxErrors(0, 0.05)}


@pytest.mark.parametrize("value", BOUNDS)
def test_the_bound_is_a_number_or_a_share(value: object) -> None:
    setting = SETTINGS["maxErrors"].parse(value)
    assert isinstance(setting, int | float)
    assert BOUNDS[value] == MaxErrors.of(setting)  # type: ignore[index]


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True, None, "nan", "inf", [3]])
def test_a_bound_that_is_neither_is_rejected(value: object) -> None:
    with pytest.raises(InvalidOptionsError, match="maxErrors"):
        SETTINGS["maxErrors"].parse(value)
