"""
When a request to a store is sent again, and when its error is reported.

A request that failed for the moment is repeated a number of times and for a bounded time.  A request
that the store refused, because credentials have expired and are being renewed, is repeated for a
shorter time, and after a few attempts it is reported if the credentials have never worked.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

_FIRST_DELAY_S: Final = 0.1
_DELAY_MAX_S: Final = 10.0
_REFUSALS_AT_FIRST: Final = 5


class Failure(enum.Enum):
    """The meaning of a failed request for the next attempt."""

    TRANSIENT = "transient"
    """No answer, or an error of the server: it may have acted or not."""
    CONFLICT = "conflict"
    """S3's 409: another request for the name is in progress.  This one had no effect."""
    REFUSED = "refused"
    """The credentials are missing, invalid or expired, or lack a permission."""
    FINAL = "final"
    """Another attempt would get the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """
    Bounds of the attempts of one request.

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
        """
        Return how long to wait before the next attempt; None to report the error.

        Args:
            failure: How the last attempt failed.
            attempts: Number of attempts so far, >= 1.
            elapsed_s: Time since the first one began.
            worked: Whether the store has accepted the credentials before.
            jitter: A fraction in [0, 1).
        """
        full_s = min(_FIRST_DELAY_S * 2.0 ** min(attempts - 1, 30), _DELAY_MAX_S)
        delay_s = full_s / 2 * (1 + jitter)
        retries, timeout_s = self.max_retries, self.retry_timeout_s
        if failure is Failure.FINAL:
            return None
        if failure is Failure.REFUSED:
            timeout_s = min(timeout_s, self.refused_timeout_s)
            if not worked:
                retries = min(retries, _REFUSALS_AT_FIRST)
            elif retries:
                retries = attempts  # the time alone decides
        if attempts > retries or elapsed_s + delay_s > timeout_s:
            return None
        return delay_s
