"""
The events and actions of `core/upload_retry.py`.

An event is what happened to an attempt or a timer, an action is what the shell does next.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UploadRequested:
    """Begin the upload."""


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The attempt has a thread; its time-out begins."""

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
    The time of a `SetTimer` is reached.

    Args:
        threads_hang: Whether every thread that could run an attempt hangs.
    """

    threads_hang: bool = False


@dataclass(frozen=True, slots=True)
class TimerLost:
    """The timer of a `SetTimer` for *at_ns* could not be started."""

    at_ns: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class ThreadsHang:
    """Every thread that could run an attempt hangs."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The scheduler is closing; later results of attempts are ignored."""


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
    """The attempt holds its thread beyond its time-out; add a spare thread."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ThreadBack:
    """An attempt reported as stuck has returned."""

    attempt: int


@dataclass(frozen=True, slots=True)
class UploadWon:
    """
    The upload has succeeded through *attempt*; *total_attempts* were made.

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
    The upload has failed.

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
    """The last attempt of an ended upload has returned: no thread holds its bytes."""


@dataclass(frozen=True, slots=True)
class DiscardAttempt:
    """The attempt succeeded too late; delete its file."""

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
