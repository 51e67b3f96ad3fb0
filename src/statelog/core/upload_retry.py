"""
One upload, its attempts, its winner and its losers.

An attempt that takes too long is not cancelled (nothing can cancel a put); another one is started
beside it, under another name.  The first success wins, whoever it is; files of the others are
discarded.  The upload fails when no attempt is allowed any more and none of those that were
started can still be expected: each has failed or timed out.

Source: Flink, RetryingExecutor and RetryPolicy.  Deviations:
- the uploader only raises; failing the tasks is decided here and nowhere else, so a retry after an
  error helps (H2);
- every kind of error ends in `UploadGivenUp`, also one that is not an `OSError` (H5);
- the last attempt gets its whole time-out and the failure names every attempt.  As in Flink the
  upload fails when that time-out is over although attempts may still be running: a caller waits a
  bounded time, the changes are still in the writer, and a late file is discarded;
- a retry can back off exponentially, with jitter.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import assert_never

from statelog import arguments
from statelog.errors import InvalidOptionsError, check

NS_PER_S = 1_000_000_000


class RetryKind(enum.Enum):
    """How the delay before the next attempt grows."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """
    When to try again; make one with `none`, `fixed` or `exponential`.

    Args:
        kind: How the delay grows.
        max_attempts: Attempts including the first, >= 1.
        timeout_ns: Time after which an attempt gets a rival; None for never.
        delay_ns: Delay after an error (not after a time-out).
        delay_max_ns: Bound for exponential delays.
    """

    kind: RetryKind
    max_attempts: int = 1
    timeout_ns: int | None = None
    delay_ns: int = 0
    delay_max_ns: int = 0

    def __post_init__(self) -> None:
        arguments.whole_number(self.max_attempts, "max_attempts", error=InvalidOptionsError)
        if self.max_attempts < 1:
            raise InvalidOptionsError(f"max_attempts is {self.max_attempts}; it must be at least 1")
        if (self.timeout_ns is not None and self.timeout_ns <= 0) or self.delay_ns < 0:
            raise InvalidOptionsError(
                "a retry policy needs a time-out above zero (or None) and no negative delay"
            )

    @classmethod
    def none(cls) -> RetryPolicy:
        """Return the policy of one attempt without a time-out."""
        return cls(kind=RetryKind.NONE)

    @classmethod
    def fixed(
        cls,
        max_attempts: int = 3,
        timeout_s: float | None = 1.0,
        delay_after_failure_s: float = 0.5,
    ) -> RetryPolicy:
        """Return Flink's policy: the same delay after each error, none after a time-out."""
        return cls(
            kind=RetryKind.FIXED,
            max_attempts=max_attempts,
            timeout_ns=_ns(timeout_s),
            delay_ns=_delay_ns(delay_after_failure_s),
        )

    @classmethod
    def exponential(
        cls,
        max_attempts: int = 5,
        timeout_s: float | None = 1.0,
        first_delay_s: float = 0.1,
        delay_max_s: float = 5.0,
    ) -> RetryPolicy:
        """Return a policy whose delay doubles up to a bound, spread by jitter over its half."""
        return cls(
            kind=RetryKind.EXPONENTIAL,
            max_attempts=max_attempts,
            timeout_ns=_ns(timeout_s),
            delay_ns=_delay_ns(first_delay_s),
            delay_max_ns=_delay_ns(delay_max_s),
        )

    def delay_after_error_ns(self, attempt: int, jitter: float) -> int:
        """
        Return how long to wait after *attempt* (>= 1) failed.

        Args:
            attempt: Number of the attempt that failed.
            jitter: A fraction in [0, 1), used by the exponential policy.
        """
        if self.kind is not RetryKind.EXPONENTIAL:
            return self.delay_ns
        full = min(self.delay_ns << (attempt - 1), self.delay_max_ns)
        return full // 2 + int(full / 2 * jitter)


def _ns(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    found = arguments.number(seconds, "the time-out in seconds", error=InvalidOptionsError)
    return round(found * NS_PER_S) if found > 0 else None


def _delay_ns(seconds: float) -> int:
    found = arguments.number(seconds, "the delay in seconds", error=InvalidOptionsError)
    return round(found * NS_PER_S)


@dataclass(frozen=True, slots=True)
class UploadRequested:
    """The upload shall begin."""


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The attempt has a thread; its time-out runs from here."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptSucceeded:
    """The attempt's file is durable."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """
    The attempt raised.

    Args:
        attempt: Its number.
        error: What it raised.
        retryable: Whether another attempt could fare better.
        jitter: A fraction in [0, 1) to spread the delay.
    """

    attempt: int
    error: BaseException
    retryable: bool = True
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A moment asked for by `SetTimer` has come."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The scheduler is closing; no attempt counts any more."""


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Run an attempt on a pool thread."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send `TimerFired` at this moment."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class ThreadStuck:
    """The attempt holds its thread for longer than it should; work on with another one."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ThreadBack:
    """An attempt reported as stuck has come back."""

    attempt: int


@dataclass(frozen=True, slots=True)
class UploadWon:
    """The upload has succeeded through *attempt*; *total_attempts* were made."""

    attempt: int
    total_attempts: int


@dataclass(frozen=True, slots=True)
class UploadGivenUp:
    """The upload has failed; *story* tells each attempt, *error* is the last one's (or None)."""

    error: BaseException | None
    story: str


@dataclass(frozen=True, slots=True)
class DiscardAttempt:
    """The attempt succeeded too late; its file goes."""

    attempt: int


Event = UploadRequested | AttemptStarted | AttemptSucceeded | AttemptFailed | TimerFired | Cancelled
Action = (
    StartAttempt | SetTimer | ThreadStuck | ThreadBack | UploadWon | UploadGivenUp | DiscardAttempt
)


class _State(enum.Enum):
    SUBMITTED = "submitted"
    RUNNING = "running"
    TIMED_OUT = "timed out"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


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
      4. every success other than the winner's is discarded.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._attempts: dict[int, _Attempt] = {}
        self._retry_at_ns: int | None = None
        self._done = False

    @property
    def done(self) -> bool:
        """Whether the upload has ended; attempts may still be on their way back."""
        return self._done

    @property
    def attempts_out(self) -> int:
        """Attempts that have a thread and have not come back."""
        return sum(
            attempt.state in (_State.RUNNING, _State.TIMED_OUT)
            for attempt in self._attempts.values()
        )

    @property
    def total_attempts(self) -> int:
        """Attempts started so far."""
        return len(self._attempts)

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Note what happened and return what to do about it."""
        match event:
            case UploadRequested():
                return self._start()
            case AttemptStarted(attempt):
                return self._started(attempt, now_ns)
            case AttemptSucceeded(attempt):
                return self._succeeded(attempt)
            case AttemptFailed():
                return self._failed(event, now_ns)
            case TimerFired():
                return self._on_timer(now_ns)
            case Cancelled():
                return self._give_up(None)
            case _:
                assert_never(event)

    def _start(self) -> list[Action]:
        number = len(self._attempts) + 1
        self._attempts[number] = _Attempt()
        return [StartAttempt(number)]

    def _started(self, number: int, now_ns: int) -> list[Action]:
        attempt = self._attempts[number]
        attempt.state = _State.RUNNING
        if self._policy.timeout_ns is None:
            return []
        attempt.deadline_ns = now_ns + self._policy.timeout_ns
        return [SetTimer(attempt.deadline_ns)]

    def _come_back(self, number: int, state: _State) -> list[Action]:
        attempt = self._attempts[number]
        attempt.state, attempt.deadline_ns = state, None
        return [ThreadBack(number)] if attempt.timed_out else []

    def _succeeded(self, number: int) -> list[Action]:
        actions = self._come_back(number, _State.SUCCEEDED)
        if self._done:
            return [*actions, DiscardAttempt(number)]
        self._done = True
        self._retry_at_ns = None
        return [*actions, UploadWon(number, len(self._attempts))]

    def _failed(self, event: AttemptFailed, now_ns: int) -> list[Action]:
        attempt = self._attempts[event.attempt]
        attempt.error = event.error
        timed_out = attempt.timed_out
        actions = self._come_back(event.attempt, _State.FAILED)
        if self._done:
            return actions
        if not timed_out and event.retryable and self._may_retry():
            delay_ns = self._policy.delay_after_error_ns(event.attempt, event.jitter)
            if isinstance(event.error, TimeoutError):  # the store has waited already, as in Flink
                delay_ns = 0
            if delay_ns == 0:
                return [*actions, *self._start()]
            self._retry_at_ns = now_ns + delay_ns
            return [*actions, SetTimer(self._retry_at_ns)]
        # An attempt that timed out has its rival already; its error starts no other.
        return actions + ([] if self._hope() else self._give_up(event.error))

    def _may_retry(self) -> bool:
        return len(self._attempts) < self._policy.max_attempts and self._retry_at_ns is None

    def _hope(self) -> bool:
        """Return whether an attempt is due, on its way, or running within its time."""
        return self._retry_at_ns is not None or any(
            attempt.state in (_State.SUBMITTED, _State.RUNNING)
            for attempt in self._attempts.values()
        )

    def _on_timer(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        if self._retry_at_ns is not None and now_ns >= self._retry_at_ns:
            self._retry_at_ns = None
            actions += self._start()
        for number, attempt in list(self._attempts.items()):
            if attempt.deadline_ns is not None and now_ns >= attempt.deadline_ns:
                attempt.state, attempt.deadline_ns = _State.TIMED_OUT, None
                attempt.timed_out = True
                actions.append(ThreadStuck(number))
                if self._done:  # only the thread still matters
                    continue
                if self._may_retry():
                    actions += self._start()
                elif not self._hope():
                    actions += self._give_up(None)
        return actions

    def _give_up(self, error: BaseException | None) -> list[Action]:
        if self._done:
            return []
        self._done = True
        self._retry_at_ns = None
        return [UploadGivenUp(error, self._story())]

    def _story(self) -> str:
        parts = []
        for number, attempt in self._attempts.items():
            text = attempt.state.value
            if attempt.error is not None:
                text = f"{type(attempt.error).__name__}: {attempt.error}"
            parts.append(f"attempt {number}: {text}")
        return "; ".join(parts)

    def check_invariants(self) -> None:
        """
        Look at all attempts; for tests.

        Raises:
            InvariantError: One of the class's invariants is broken.
        """
        check(len(self._attempts) <= self._policy.max_attempts, "too many attempts")
        if self._attempts and not self._done:
            check(self._hope(), "the upload waits for nothing")
        if self._done:
            check(self._retry_at_ns is None, "a retry is due after the end")
