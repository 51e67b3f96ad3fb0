"""
Send requests to a remote store, several at a time and with retries.

This is the only place where requests are repeated: the client of obstore does not repeat any.
Local disk and memory answer faster than a thread starts, and a simulated store draws its faults in
the order of the requests: there requests are sent one after another.
"""

from __future__ import annotations

import logging
import re
import threading  # noqa: TID251 - only a lock, which ends with its `with`
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import obstore.exceptions as obstore_errors

from statelog.core.retry_policy import Failure, RequestPolicy
from statelog.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from statelog.runtime.clock import Clock, IdSource, RandomIds, SystemClock, pause
from statelog.runtime.pool import together
from statelog.store.api import ObjectStore
from statelog.store.explain import is_about_identity

T = TypeVar("T")
U = TypeVar("U")
_log = logging.getLogger("statelog")

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_EXPIRED: Final = ("ExpiredToken", "TokenRefreshRequired", "AccessDenied", "RequestTimeTooSkewed")
_INCOMPLETE: Final = ("RequestTimeout", "IncompleteBody", "BadDigest")
_TAKEN: Final = "BlobAlreadyExists"
"""Azure's code for an existing name, with the status that means a conflict on S3."""
_TRANSIENT_STATUSES: Final = (408, 425, 429)
_OF_THE_CALL: Final = ("builder error", "URL scheme is not allowed", "conditional put is disabled")
_FINAL_ERRORS: Final = (
    obstore_errors.InvalidPathError,
    obstore_errors.NotSupportedError,
    obstore_errors.UnknownConfigurationKeyError,
    obstore_errors.PreconditionError,
)
_QUIET_ATTEMPTS: Final = 2

REPEATED_REQUESTS: Final = "repeated_requests"
"""The metric that counts retried requests."""

_lock = threading.Lock()
_repeated = 0


def repeated_requests() -> int:
    """
    Return how many requests to stores this process has retried.

    Thread: any.
    """
    return _repeated


def count_repeated() -> None:
    """
    Count one retried request.

    Thread: any.
    """
    global _repeated
    with _lock:
        _repeated += 1


class RepeatedSince:
    """How many requests this process has retried since the last call of `take`."""

    def __init__(self) -> None:
        self._before = _repeated

    def take(self) -> int:
        """Return the number of retries since the last call. Thread: one at a time."""
        before = self._before
        self._before = _repeated
        return self._before - before


def failure_of(error: StoreError) -> Failure:
    """Return what the error of a request means for a retry."""
    cause = error.__cause__
    text = str(cause)
    match = _STATUS.search(text)
    status = int(match[1]) if match else 0
    if error.facts.get("operation") == "open" or isinstance(error, ObjectNotFoundError):
        return Failure.FINAL
    if isinstance(error, ObjectExistsError):
        is_conflict = status == 409 and _TAKEN not in text
        return Failure.CONFLICT if is_conflict else Failure.FINAL
    refused = (obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError)
    if (
        isinstance(cause, refused)
        or status in (401, 403)
        or any(code in text for code in _EXPIRED)
        or is_about_identity(text)
    ):
        return Failure.REFUSED
    if isinstance(cause, _FINAL_ERRORS) or any(mark in text for mark in _OF_THE_CALL):
        return Failure.FINAL
    if status == 409:
        return Failure.CONFLICT
    if 300 <= status < 500 and status not in _TRANSIENT_STATUSES:
        is_incomplete = any(code in text for code in _INCOMPLETE)
        return Failure.TRANSIENT if is_incomplete else Failure.FINAL
    return Failure.TRANSIENT


class Requests:
    """Sends the requests to one store."""

    def __init__(
        self,
        policy: RequestPolicy,
        *,
        worked: bool = False,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = pause,
        ids: IdSource | None = None,
    ) -> None:
        self._policy = policy
        self.worked = worked
        self._clock = SystemClock() if clock is None else clock
        self._sleep = sleep
        self._ids = RandomIds() if ids is None else ids

    def run(self, send: Callable[[], T]) -> T:
        """Return the result of *send*, retrying after transient errors."""
        began_ns = self._clock.now_ns()
        attempts = 0
        while True:
            attempts += 1
            try:
                result = send()
            except (ObjectNotFoundError, ObjectExistsError) as error:
                self.worked = True
                if failure_of(error) is Failure.FINAL:
                    raise
                self._wait(error, attempts, began_ns)
            except StoreError as error:
                self._wait(error, attempts, began_ns)
            else:
                self.worked = True
                return result

    def _wait(self, error: StoreError, attempts: int, began_ns: int) -> None:
        """Wait before the next attempt, or raise the error if there is none."""
        failure = failure_of(error)
        elapsed_s = (self._clock.now_ns() - began_ns) / 1e9
        delay_s = self._policy.delay_s(
            failure, attempts, elapsed_s, worked=self.worked, jitter=self._ids.fraction()
        )
        if delay_s is None:
            if failure is Failure.CONFLICT:
                raise _conflict(error, attempts) from error.__cause__
            if attempts == 1:
                raise error
            tried = f"{error.message}; {attempts} attempts in {elapsed_s:.1f} s"
            raise type(error)(tried, **error.facts) from error.__cause__
        quiet = 0 if failure is Failure.REFUSED and self.worked else _QUIET_ATTEMPTS
        _log.log(
            logging.WARNING if attempts > quiet else logging.INFO,
            "%s; attempt %d follows in %.1f s",
            error.message,
            attempts + 1,
            delay_s,
        )
        count_repeated()
        self._sleep(delay_s)


def _conflict(error: StoreError, attempts: int) -> StoreError:
    return StoreError(
        f"{error.operation} {error.path} in {error.url} failed: the store "
        f"answered {attempts} times that a different request for the name is in progress (409 "
        "ConditionalRequestConflict); repeat the call, or restart the job",
        **error.facts,
    )


def endpoint_of(store: ObjectStore) -> str | None:
    """
    Return the server and the bucket of a store as text, without secrets.

    None for local disk and memory, and for a store of a caller's own class, unless it has an
    attribute `endpoint`.
    """
    endpoint: str | None = getattr(store, "endpoint", None)
    return endpoint


def ask_at_once(store: ObjectStore, requests: Iterable[Callable[[], T]]) -> list[T]:
    """
    Send several requests to *store* at once, and return the results in the same order.

    Args:
        store: The store that the requests use.
        requests: Each sends one request, or several that depend on each other.

    Raises:
        Exception: The error of the first request that failed.

    Blocks: On the store, until every request that was begun has ended.
    """
    waiting = list(requests)
    if len(waiting) < 2 or endpoint_of(store) is None:
        return [request() for request in waiting]
    return together(waiting)


def ask_both(store: ObjectStore, first: Callable[[], T], second: Callable[[], U]) -> tuple[T, U]:
    """Return the results of two requests to *store*; raises like `ask_at_once`."""
    firsts: list[T] = []
    seconds: list[U] = []
    ask_at_once(store, [lambda: firsts.append(first()), lambda: seconds.append(second())])
    return firsts[0], seconds[0]


def read_tail(store: ObjectStore, path: str, length: int) -> tuple[memoryview, int]:
    """Return the last bytes of an object, and the size of the whole object."""
    get_tail = getattr(store, "get_tail", None)
    if get_tail is not None:
        tail: tuple[memoryview, int] = get_tail(path, length)
        return tail
    size = store.head(path).size_bytes
    start = max(0, size - length)
    return store.get_range(path, start, size - start), size
