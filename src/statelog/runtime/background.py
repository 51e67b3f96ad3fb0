"""Run work in threads of its own: once, or again and again with a pause in between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

# Run blocking calls at once, on threads that end with the last call.

T = TypeVar("T")
CALLS_MAX: Final = 256
"""Calls that run at once; further ones wait."""
_START_S: Final = 5.0

_T = TypeVar("_T")
_log = logging.getLogger("statelog")


def together(calls: Sequence[Callable[[], T]], *, at_one_moment: bool = False) -> list[T]:
    """
    Return the results of *calls* in their order.

    Args:
        calls: At most `CALLS_MAX` run at once.
        at_one_moment: Begin the calls when all their threads have started; for at most `CALLS_MAX`.

    Raises:
        Exception: The error of the first call, in their order, that failed.  Calls that have not
            begun by then are dropped.

    Blocks: Until every call that has begun has ended.
    """
    threads = min(len(calls), CALLS_MAX)
    start = threading.Barrier(threads) if at_one_moment else None
    pool = ThreadPoolExecutor(threads, thread_name_prefix="statelog-request")
    try:
        pending = [pool.submit(_run, call, start) for call in calls]
        return [each.result() for each in pending]
    finally:
        pool.shutdown(cancel_futures=True)


def _run(call: Callable[[], T], start: threading.Barrier | None) -> T:
    try:
        if start is not None:
            start.wait(_START_S)
    except threading.BrokenBarrierError:
        pass  # the system is slow to start threads: the others begin without the last ones
    return call()


def in_background(work: Callable[[], _T], name: str) -> Future[_T]:
    """
    Run *work* in a thread that does not keep the process alive.

    Args:
        work: What to run; its result or its error completes the future.
        name: Name of the thread.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Poller:
    """
    Calls *poll* on a daemon thread of its own, from the construction until `close`.

    Args:
        poll: Called without arguments; its errors are logged, and it is called again.
        interval_s: Seconds between the end of one call and the begin of the next; > 0.
        name: Name of the thread.

    Thread: `close` from any, also from *poll*.
    """

    def __init__(self, poll: Callable[[], object], interval_s: float, name: str) -> None:
        self._poll = poll
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._poll()
            except Exception:
                if not self._stopped.is_set():
                    _log.exception("%s: a call failed; the next one follows", self._thread.name)

    def close(self, timeout_s: float) -> bool:
        """
        Stop calling, and wait for a call under way; further calls do nothing.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether the thread has ended.

        Blocks: Up to *timeout_s*.
        """
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()
