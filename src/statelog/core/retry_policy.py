"""
When to retry an upload or request, and how long an attempt may take.

A request that failed for the moment is repeated a number of times and for a bounded time.  A
request that the store refused, because credentials have expired and are being renewed, is repeated
for a shorter time, and after a few attempts it is reported if the credentials have never worked.
Source: Flink, RetryPolicy.  Deviation: a retry can back off exponentially, with jitter.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from statelog import arguments
from statelog.arguments import Seconds
from statelog.errors import InvalidOptionsError

NS_PER_S = 1_000_000_000

_FIRST_DELAY_S: Final = 0.1
_DELAY_MAX_S: Final = 10.0
_REFUSALS_AT_FIRST: Final = 5


class RetryKind(enum.Enum):
    """How the delay before the next attempt changes."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """
    When to retry; created by `none`, `fixed` or `exponential`.

    These take durations in seconds or as a `timedelta`; the fields are nanoseconds.

    Args:
        kind: How the delay grows.
        max_attempts: Attempts including the first, >= 1.
        timeout_ns: Time after which a hedged attempt starts; None for never.
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
                f"a retry policy requires a time-out above zero (or None) and a delay of at least 0; "
                f"got a time-out of {self.timeout_ns} ns and a delay of {self.delay_ns} ns"
            )

    @classmethod
    def none(cls) -> RetryPolicy:
        """Return a policy with a single attempt and no time-out."""
        return cls(kind=RetryKind.NONE)

    @classmethod
    def fixed(
        cls,
        max_attempts: int = 3,
        timeout_s: Seconds | None = 1.0,
        delay_after_failure_s: Seconds = 0.5,
    ) -> RetryPolicy:
        """Return Flink's policy: a fixed delay after an error, no delay after a time-out."""
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
        timeout_s: Seconds | None = 1.0,
        first_delay_s: Seconds = 0.1,
        delay_max_s: Seconds = 5.0,
    ) -> RetryPolicy:
        """Return a policy whose delay doubles up to a limit, with jitter."""
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
        # Half of the delay is certain, half is jitter: clients that failed together come back
        # apart.
        full = min(self.delay_ns << (attempt - 1), self.delay_max_ns)
        return full // 2 + int(full / 2 * jitter)


def _ns(timeout: Seconds | None) -> int | None:
    if timeout is None:
        return None
    timeout_s = arguments.seconds(timeout, "the time-out", error=InvalidOptionsError)
    return round(timeout_s * NS_PER_S) if timeout_s > 0 else None


def _delay_ns(delay: Seconds) -> int:
    return round(arguments.seconds(delay, "the delay", error=InvalidOptionsError) * NS_PER_S)


class Failure(enum.Enum):
    """How to handle a failed request."""

    TRANSIENT = "transient"
    """No response, or a server error: the request may or may not have taken effect."""
    CONFLICT = "conflict"
    """S3's 409: a different request for the name is in progress.  This one had no effect."""
    REFUSED = "refused"
    """The credentials are missing, invalid or expired, or lack a permission."""
    FINAL = "final"
    """A retry would get the same response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """
    Limits on the attempts of one request.

    Args:
        max_retries: Attempts after the first one.
        retry_timeout_s: Time after the first attempt began, in which another one may begin.
        refused_timeout_s: The same for refused requests, whose attempts are not counted.
    """

    max_retries: int = 10
    retry_timeout_s: float = 180.0
    refused_timeout_s: float = 60.0

    def delay_s(
        self, failure: Failure, attempts: int, elapsed_s: float, *, worked: bool, jitter: float
    ) -> float | None:
        """Return how long to wait before the next attempt, or None to report the error."""
        # The exponent is bounded because a float overflows long before a query gives up.
        full_s = min(_FIRST_DELAY_S * 2.0 ** min(attempts - 1, 30), _DELAY_MAX_S)
        delay_s = full_s / 2 * (1 + jitter)
        retries = self.max_retries
        timeout_s = self.retry_timeout_s
        if failure is Failure.FINAL:
            return None
        if failure is Failure.REFUSED:
            timeout_s = min(timeout_s, self.refused_timeout_s)
            # Credentials that have never worked are wrong, not expired: report them soon.
            if not worked:
                retries = min(retries, _REFUSALS_AT_FIRST)
            elif retries:
                retries = attempts  # the time alone decides
        if attempts > retries or elapsed_s + delay_s > timeout_s:
            return None
        return delay_s
