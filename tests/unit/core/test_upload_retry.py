"""Attempts, rivals, winners and losers."""

import pytest

from statelog.core.retry_policy import RetryPolicy
from statelog.core.upload_retry import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    Cancelled,
    DiscardAttempt,
    Event,
    SetTimer,
    StartAttempt,
    ThreadBack,
    ThreadsHang,
    ThreadStuck,
    TimerFired,
    TimerLost,
    UploadGivenUp,
    UploadReleased,
    UploadRequested,
    UploadRetry,
    UploadWon,
)
from statelog.errors import InvalidOptionsError

HEDGED = RetryPolicy.fixed(max_attempts=3, timeout_s=1e-7, delay_after_failure_s=5e-8)
ERROR = OSError("no")


def begun(policy: RetryPolicy = HEDGED) -> UploadRetry:
    core = UploadRetry(policy)
    assert [StartAttempt(1)] == core.handle(UploadRequested(), 0)
    core.handle(AttemptStarted(1), 0)
    return core


def given_up(core: UploadRetry, event: Event, now_ns: int) -> UploadGivenUp:
    actions = core.handle(event, now_ns)
    core.check_invariants()
    assert isinstance(actions[-1], UploadGivenUp)
    return actions[-1]


def test_the_time_out_runs_from_the_start_of_the_attempt():
    core = UploadRetry(HEDGED)
    core.handle(UploadRequested(), 0)
    assert [SetTimer(1100)] == core.handle(AttemptStarted(1), 1000)


def test_an_error_is_followed_by_a_delayed_attempt():
    core = begun()
    assert [SetTimer(60)] == core.handle(AttemptFailed(1, ERROR), 10)
    assert [] == core.handle(TimerFired(), 59)
    assert [StartAttempt(2)] == core.handle(TimerFired(), 60)
    core.handle(AttemptStarted(2), 61)
    assert [UploadWon(2, 2)] == core.handle(AttemptSucceeded(2), 70)


def test_a_time_out_starts_a_second_attempt_and_the_first_may_win():
    core = begun()
    assert [ThreadStuck(1), StartAttempt(2)] == core.handle(TimerFired(), 100)
    core.handle(AttemptStarted(2), 101)
    assert [ThreadBack(1), UploadWon(1, 2, 1)] == core.handle(AttemptSucceeded(1), 110)
    assert [UploadReleased(), DiscardAttempt(2)] == core.handle(AttemptSucceeded(2), 120)


def test_an_attempt_that_timed_out_starts_no_other_by_failing():
    core = begun()
    core.handle(TimerFired(), 100)
    assert [ThreadBack(1)] == core.handle(AttemptFailed(1, ERROR), 105)
    assert 2 == core.total_attempts


def test_the_last_attempt_has_its_whole_time():
    core = begun(RetryPolicy.fixed(2, 1e-7, 0))
    core.handle(TimerFired(), 100)
    core.handle(AttemptStarted(2), 100)
    assert [] == core.handle(TimerFired(), 199)
    story = given_up(core, TimerFired(), 200).attempts
    assert "attempt 1: timed out; attempt 2: timed out" == story
    assert [ThreadBack(1), DiscardAttempt(1)] == core.handle(AttemptSucceeded(1), 300)
    assert [ThreadBack(2), UploadReleased()] == core.handle(AttemptFailed(2, ERROR), 310)


def test_an_upload_is_given_up_when_its_second_attempt_fails_too():
    core = begun(RetryPolicy.fixed(2, 1e-7, 0))
    core.handle(TimerFired(), 100)
    core.handle(AttemptStarted(2), 100)
    assert [ThreadBack(1)] == core.handle(AttemptFailed(1, ERROR), 110)
    assert given_up(core, AttemptFailed(2, ERROR), 120).error is ERROR


def test_errors_that_do_not_pass_end_it_at_once():
    failure = given_up(begun(), AttemptFailed(1, ValueError("odd"), retryable=False), 5)
    assert "ValueError: odd" in failure.attempts


def test_without_retries_the_first_error_counts():
    core = begun(RetryPolicy.none())
    assert given_up(core, AttemptFailed(1, ERROR), 5).error is ERROR


def test_an_upload_ends_once():
    core = begun()
    assert 1 == given_up(core, Cancelled(), 5).attempts_out
    assert [] == core.handle(Cancelled(), 6)
    assert [UploadReleased()] == core.handle(AttemptFailed(1, ERROR), 7)
    assert [] == core.handle(TimerFired(), 10_000)


def test_a_thread_that_hangs_after_the_end_is_reported():
    core = begun()
    core.handle(TimerFired(), 100)
    core.handle(AttemptStarted(2), 100)
    core.handle(AttemptSucceeded(1), 110)
    assert [ThreadStuck(2)] == core.handle(TimerFired(), 200)
    assert [ThreadBack(2), UploadReleased()] == core.handle(AttemptFailed(2, ERROR), 300)


@pytest.mark.parametrize(
    ("attempt", "jitter", "expected"), [(1, 0.0, 50), (1, 0.999, 99), (3, 0.0, 200), (9, 0.0, 500)]
)
def test_delays_double_within_bounds(attempt, jitter, expected):
    policy = RetryPolicy.exponential(9, None, 1e-7, 1e-6)
    assert expected == policy.delay_after_error_ns(attempt, jitter)


def test_a_policy_without_attempts_is_refused():
    with pytest.raises(InvalidOptionsError):
        RetryPolicy.fixed(max_attempts=0)


def test_an_upload_is_released_once_when_the_last_of_its_attempts_returns():
    core = begun()
    for now_ns, number in ((100, 2), (200, 3)):
        assert StartAttempt(number) in core.handle(TimerFired(), now_ns)
        core.handle(AttemptStarted(number), now_ns)
    assert 3 == given_up(core, TimerFired(), 300).attempts_out
    assert [ThreadBack(2)] == core.handle(AttemptFailed(2, ERROR), 400)
    assert [ThreadBack(1), DiscardAttempt(1)] == core.handle(AttemptSucceeded(1), 500)
    core.check_invariants()
    assert [ThreadBack(3), UploadReleased()] == core.handle(AttemptFailed(3, ERROR), 600)
    core.check_invariants()


def test_a_wait_for_a_thread_ends_where_all_threads_hang():
    core = UploadRetry(HEDGED)
    core.handle(UploadRequested(), 0)
    assert [SetTimer(310)] == core.handle(ThreadsHang(), 10)
    assert [] == core.handle(ThreadsHang(), 20), "one timer is enough"
    assert [] == core.handle(TimerFired(threads_hang=True), 309)
    failure = given_up(core, TimerFired(threads_hang=True), 310)
    assert ("attempt 1: no thread was free", 0) == (failure.attempts, failure.attempts_out)


def test_a_wait_for_a_thread_goes_on_where_threads_work_again():
    core = UploadRetry(HEDGED)
    core.handle(UploadRequested(), 0)
    core.handle(ThreadsHang(), 10)
    assert [] == core.handle(TimerFired(threads_hang=False), 310)
    assert [SetTimer(620)] == core.handle(ThreadsHang(), 320)
    core.handle(AttemptStarted(1), 400)
    assert [] == core.handle(TimerFired(threads_hang=True), 450)
    assert [] == core.handle(ThreadsHang(), 460), "an attempt runs within its time"


def test_an_upload_fails_if_the_timer_of_its_retry_cannot_be_set():
    core = begun()
    assert [SetTimer(60)] == core.handle(AttemptFailed(1, ERROR), 10)
    lost = OSError("no thread")
    assert given_up(core, TimerLost(60, lost), 10).error is lost


def test_a_time_out_that_cannot_be_waited_for_ends_nothing():
    core = begun()
    assert [] == core.handle(TimerLost(100, ERROR), 0)
    assert [UploadWon(1, 1)] == core.handle(AttemptSucceeded(1), 500)
