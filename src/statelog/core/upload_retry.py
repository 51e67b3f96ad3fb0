"""
One upload and its attempts: retries, hedged attempts, and how it ends.

An attempt that takes too long is not cancelled, because a put cannot be cancelled; a hedged attempt
starts under another name.  The first success wins; files of the others are discarded.  The upload
fails when no further attempt is allowed and every started one has failed or timed out.

Source: Flink, RetryingExecutor and RetryPolicy.  Deviations:
- the uploader only raises; only this module decides that an upload has failed, so a retry after an
  error can succeed (H2);
- every kind of error ends in `UploadGivenUp`, also one that is not an `OSError` (H5);
- the last attempt has its whole time-out, and the failure names every attempt.  As in Flink the
  upload fails when that time-out is over although attempts may still be running: a caller waits a
  bounded time, the changes are still in the writer, and a late file is discarded;
- an attempt holds its thread and the upload's bytes until it returns, also after the upload ended,
  and `UploadReleased` follows when the last one has returned;
- where every thread hangs, an upload that waits for a thread fails after the time-outs of all its
  attempts together.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from statelog.core.retry_policy import NS_PER_S, RetryPolicy
from statelog.errors import check

# --- events and actions ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UploadRequested:
    """Start the upload."""


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A thread now runs the attempt, so its time-out starts."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptSucceeded:
    """The attempt's file is durable."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """
    The attempt raised an error.

    Args:
        attempt: Its number.
        error: What it raised.
        retryable: Whether another attempt could succeed.
        jitter: A fraction in [0, 1) to spread the delay.
    """

    attempt: int
    error: BaseException
    retryable: bool = True
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class TimerFired:
    """
    A timer that was set with `SetTimer` is due.

    Args:
        threads_hang: Whether every thread that could run an attempt hangs.
    """

    threads_hang: bool = False


@dataclass(frozen=True, slots=True)
class TimerLost:
    """The timer for a `SetTimer` at *at_ns* could not be started."""

    at_ns: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class ThreadsHang:
    """Every thread that could run an attempt hangs."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The scheduler is being closed; results that arrive later are ignored."""


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Run an attempt on a thread of the pool."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send `TimerFired` at this time."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class ThreadStuck:
    """The attempt has blocked its thread beyond its time-out; add a spare thread."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ThreadBack:
    """An attempt that was reported as stuck has returned."""

    attempt: int


@dataclass(frozen=True, slots=True)
class UploadWon:
    """
    The upload succeeded with *attempt*, after *total_attempts* attempts.

    Args:
        attempt: The winner.
        total_attempts: Attempts started, the winner included.
        attempts_out: Attempts that have a thread and have not returned; `UploadReleased` follows
            when the last of them returns.
    """

    attempt: int
    total_attempts: int
    attempts_out: int = 0


@dataclass(frozen=True, slots=True)
class UploadGivenUp:
    """
    The upload failed.

    Args:
        error: What the last attempt raised, or a `TimeoutError` for its time-out; None if the
            upload was cancelled.
        attempts: The end of each attempt, for a message.
        attempts_out: As for `UploadWon`.
    """

    error: BaseException | None
    attempts: str
    attempts_out: int = 0


@dataclass(frozen=True, slots=True)
class UploadReleased:
    """The last attempt of an ended upload has returned, so no thread holds its bytes."""


@dataclass(frozen=True, slots=True)
class DiscardAttempt:
    """The attempt succeeded too late, so its file must be deleted."""

    attempt: int


Event = (
    UploadRequested
    | AttemptStarted
    | AttemptSucceeded
    | AttemptFailed
    | TimerFired
    | TimerLost
    | ThreadsHang
    | Cancelled
)
Action = (
    StartAttempt
    | SetTimer
    | ThreadStuck
    | ThreadBack
    | UploadWon
    | UploadGivenUp
    | UploadReleased
    | DiscardAttempt
)


class _State(enum.Enum):
    SUBMITTED = "no thread was free"
    RUNNING = "running"
    TIMED_OUT = "timed out"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


ATTEMPTS: Final[Mapping[_State, Mapping[type, _State]]] = {
    _State.SUBMITTED: {
        AttemptStarted: _State.RUNNING,
        AttemptSucceeded: _State.SUCCEEDED,
        AttemptFailed: _State.FAILED,
    },
    _State.RUNNING: {
        AttemptSucceeded: _State.SUCCEEDED,
        AttemptFailed: _State.FAILED,
        TimerFired: _State.TIMED_OUT,
    },
    _State.TIMED_OUT: {
        AttemptSucceeded: _State.SUCCEEDED,
        AttemptFailed: _State.FAILED,
    },
    _State.SUCCEEDED: {},
    _State.FAILED: {},
}
"""For each state the state after an event, by the class of the event."""
_WITH_THREAD = (_State.RUNNING, _State.TIMED_OUT)


def _after(state: _State, event: Event) -> _State:
    return ATTEMPTS[state].get(type(event), state)


@dataclass(slots=True)
class _Attempt:
    state: _State = _State.SUBMITTED
    deadline_ns: int | None = None
    error: BaseException | None = None
    timed_out: bool = False


class UploadRetry:
    """
    The attempts of one upload.

    Invariants:
      1. exactly one of `UploadWon` and `UploadGivenUp` is returned, once;
      2. before it, at least one attempt is submitted or running, or a retry is due at a set time;
      3. at most `max_attempts` attempts are started, and none after the end;
      4. every success other than the winner's is discarded;
      5. after the end, `UploadReleased` is returned once if attempts were out at the end.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._attempts: dict[int, _Attempt] = {}
        self._retry_at_ns: int | None = None
        self._starved_at_ns: int | None = None
        self._awaits_release = False
        self._has_ended = False

    @property
    def done(self) -> bool:
        """Whether the upload has ended; some attempts may still be running."""
        return self._has_ended

    @property
    def attempts_out(self) -> int:
        """Attempts that are running in a thread."""
        return sum(attempt.state in _WITH_THREAD for attempt in self._attempts.values())

    @property
    def total_attempts(self) -> int:
        """The number of attempts started so far."""
        return len(self._attempts)

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Record an event, and return the actions to perform."""
        match event:
            case UploadRequested():
                return self._start()
            case AttemptStarted():
                return self._started(event, now_ns)
            case AttemptSucceeded():
                return self._attempt_succeeded(event)
            case AttemptFailed():
                return self._attempt_failed(event, now_ns)
            case TimerFired():
                return self._on_timer(event, now_ns)
            case TimerLost(at_ns, error):
                # The timer of a time-out is not needed to end the upload; that of a retry is.
                alone = at_ns == self._retry_at_ns and not self._any_active()
                return self._give_up(error) if alone else []
            case ThreadsHang():
                return self._starve(now_ns)
            case Cancelled():
                return self._give_up(None)
            case _:
                assert_never(event)

    def _start(self) -> list[Action]:
        number = len(self._attempts) + 1
        self._attempts[number] = _Attempt()
        return [StartAttempt(number)]

    def _started(self, event: AttemptStarted, now_ns: int) -> list[Action]:
        if self._has_ended:  # the shell does not run it
            return []
        self._starved_at_ns = None
        attempt = self._attempts[event.attempt]
        attempt.state = _after(attempt.state, event)
        if self._policy.timeout_ns is None:
            return []
        attempt.deadline_ns = now_ns + self._policy.timeout_ns
        return [SetTimer(attempt.deadline_ns)]

    def _return_thread(self, event: AttemptSucceeded | AttemptFailed) -> list[Action]:
        attempt = self._attempts[event.attempt]
        attempt.state = _after(attempt.state, event)
        attempt.deadline_ns = None
        return [ThreadBack(event.attempt)] if attempt.timed_out else []

    def _attempt_succeeded(self, event: AttemptSucceeded) -> list[Action]:
        number = event.attempt
        actions = self._return_thread(event)
        if self._has_ended:
            return [*actions, *self._released(), DiscardAttempt(number)]
        return [*actions, UploadWon(number, len(self._attempts), self._end())]

    def _end(self) -> int:
        """End the upload, and return how many attempts still occupy a thread."""
        self._has_ended = True
        self._retry_at_ns = self._starved_at_ns = None
        self._awaits_release = self.attempts_out > 0
        return self.attempts_out

    def _released(self) -> list[Action]:
        """Return the actions for an attempt that returns after the upload has ended."""
        if not self._awaits_release or self.attempts_out:
            return []
        self._awaits_release = False
        return [UploadReleased()]

    def _attempt_failed(self, event: AttemptFailed, now_ns: int) -> list[Action]:
        attempt = self._attempts[event.attempt]
        attempt.error = event.error
        timed_out = attempt.timed_out
        actions = self._return_thread(event)
        if self._has_ended:
            return actions + self._released()
        # An attempt that failed within its time is retried after a delay.
        if not timed_out and event.retryable and self._may_retry():
            delay_ns = self._policy.delay_after_error_ns(event.attempt, event.jitter)
            if isinstance(event.error, TimeoutError):  # as in Flink: the store has already waited
                delay_ns = 0
            if delay_ns == 0:
                return [*actions, *self._start()]
            self._retry_at_ns = now_ns + delay_ns
            return [*actions, SetTimer(self._retry_at_ns)]
        # An attempt that timed out has a hedged attempt already; its error starts no other.
        return actions + ([] if self._may_succeed() else self._give_up(event.error))

    def _may_retry(self) -> bool:
        return len(self._attempts) < self._policy.max_attempts and self._retry_at_ns is None

    def _may_succeed(self) -> bool:
        """Return whether an attempt is due, submitted, or running within its time-out."""
        return self._retry_at_ns is not None or self._any_active()

    def _any_active(self) -> bool:
        return any(
            attempt.state in (_State.SUBMITTED, _State.RUNNING)
            for attempt in self._attempts.values()
        )

    def _starve(self, now_ns: int) -> list[Action]:
        """Limit how long to wait for a thread while every thread hangs."""
        states = {attempt.state for attempt in self._attempts.values()}
        waits_for_thread = _State.SUBMITTED in states and _State.RUNNING not in states
        if self._has_ended or not waits_for_thread or self._starved_at_ns is not None:
            return []
        if self._policy.timeout_ns is None:
            return []
        self._starved_at_ns = now_ns + self._policy.timeout_ns * self._policy.max_attempts
        return [SetTimer(self._starved_at_ns)]

    def _on_timer(self, event: TimerFired, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        if self._starved_at_ns is not None and now_ns >= self._starved_at_ns:
            self._starved_at_ns = None
            # 1. No thread became free within the time of all attempts: end the upload.
            if event.threads_hang:
                return self._give_up(self._time_out("no thread was free in time"))
        # 2. The delay after an error is over.
        if self._retry_at_ns is not None and now_ns >= self._retry_at_ns:
            self._retry_at_ns = None
            actions += self._start()
        # 3. Attempts whose time-out is over: each gets a hedged attempt while there are some left.
        for number, attempt in list(self._attempts.items()):
            if attempt.deadline_ns is not None and now_ns >= attempt.deadline_ns:
                attempt.state = _after(attempt.state, event)
                attempt.deadline_ns = None
                attempt.timed_out = True
                actions.append(ThreadStuck(number))
                if self._has_ended:  # only the thread still matters
                    continue
                if self._may_retry():
                    actions += self._start()
                elif not self._may_succeed():
                    limit_s = (self._policy.timeout_ns or 0) / NS_PER_S
                    text = f"attempt {number} did not end within {limit_s:g} s"
                    actions += self._give_up(self._time_out(text))
        return actions

    def _time_out(self, text: str) -> TimeoutError:
        """Return the error for a time-out; its cause is the error of an earlier attempt, if any."""
        error = TimeoutError(text)
        raised = [attempt.error for attempt in self._attempts.values() if attempt.error is not None]
        error.__cause__ = raised[-1] if raised else None
        return error

    def _give_up(self, error: BaseException | None) -> list[Action]:
        if self._has_ended:
            return []
        return [UploadGivenUp(error, self._describe_attempts(), self._end())]

    def _describe_attempts(self) -> str:
        parts = []
        for number, attempt in self._attempts.items():
            text = attempt.state.value
            if attempt.error is not None:
                text = f"{type(attempt.error).__name__}: {attempt.error}"
            parts.append(f"attempt {number}: {text}")
        return "; ".join(parts)

    def check_invariants(self) -> None:
        """Check that all attempts are consistent; used by tests."""
        check(len(self._attempts) <= self._policy.max_attempts, "too many attempts")
        if self._attempts and not self._has_ended:
            check(self._may_succeed(), "the upload waits for nothing")
        if self._has_ended:
            check(self._retry_at_ns is None, "a retry is due after the end")
            check(
                self._awaits_release == (self.attempts_out > 0),
                "a thread is out and not waited for",
            )
