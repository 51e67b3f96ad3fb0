"""
The events and actions of `core/upload_retry.py`.

An event is what happened to an attempt or a timer, an action is what the shell does next.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """
    A moment asked for by `SetTimer` has come.

    Args:
        threads_hang: Whether every thread that could run an attempt hangs.
    """

    threads_hang: bool = False


@dataclass(frozen=True, slots=True)
class TimerLost:
    """The moment *at_ns*, asked for by `SetTimer`, cannot be waited for."""

    at_ns: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class ThreadsHang:
    """Every thread that could run an attempt hangs."""


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
    The upload has failed; *story* tells each attempt, *error* is the last one's (or None).

    Args:
        error: What the last attempt raised.
        story: What became of each attempt.
        attempts_out: As for `UploadWon`.
    """

    error: BaseException | None
    story: str
    attempts_out: int = 0


@dataclass(frozen=True, slots=True)
class UploadReleased:
    """The upload had ended, and its last attempt has returned: no thread holds its bytes."""


@dataclass(frozen=True, slots=True)
class DiscardAttempt:
    """The attempt succeeded too late; its file goes."""

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
