"""
Run blocking work on a pool of threads, or on threads that end with their calls.

The threads of a pool start on demand.  If one of them hangs, `add_spare_thread` lets the pool use
one of a fixed number of spare threads.  If all of them hang too, `starved` is true, and work waits.
An exception of work or of a callback, of any kind, ends no thread of a pool.  If the system refuses
a thread, the pool asks again with the next work; only a pool without any thread fails its work.
Source: Flink's ChangelogBlockingExecutor.  Deviation: in Flink a hung call occupies its thread
without end, and an attempt that never starts never times out.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from statelog.errors import ClosedError, StatelogError, UnavailableError
from statelog.runtime.lock import ReentrantThreadLock, ThreadLock

if TYPE_CHECKING:
    from statelog.runtime.mailbox import MailboxExecutor

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]
_Job = tuple[Callable[[], object], Done]
_log = logging.getLogger("statelog")

SPARE_THREADS: Final = 8
"""Spare threads that work while the configured threads hang."""


class Pool(Protocol):
    """Runs blocking work while its caller continues."""

    def submit(
        self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]
    ) -> None:
        """
        Run *work*, then call *done* with its result or with an error of any kind.

        *done* is called exactly once, on the same thread, unless *work* never returns.  On a
        closed pool it is called at once with `ClosedError`, and with `UnavailableError` if the
        pool has no thread and the system refuses one.
        """
        ...

    def add_spare_thread(self) -> None:
        """Count a hung thread, and start using a spare thread if one is available."""
        ...

    def starved(self) -> bool:
        """Return whether work is waiting while every thread, including spare ones, hangs."""
        ...

    def remove_spare_thread(self) -> None:
        """Undo one call of `add_spare_thread`, because the hung thread has returned."""
        ...

    def close(self, timeout_s: float) -> None:
        """Reject new work, fail waiting work, and wait *timeout_s* for running work."""
        ...


class PoolFuture(Future[T]):
    """A future whose callbacks run on a pool or in a mailbox."""

    def __init__(
        self,
        callbacks: Pool | None = None,
        mailbox: MailboxExecutor | None = None,
    ) -> None:
        super().__init__()
        # The standard library's condition stays locked if a signal handler raises.
        self._condition: Any = ReentrantThreadLock()
        self._callbacks = callbacks
        self._mailbox = mailbox

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call *fn* with this future when it completes, or at once if it already has."""
        callbacks = self._callbacks
        if callbacks is None or self.done():
            super().add_done_callback(fn)
        elif self._mailbox is not None:
            super().add_done_callback(partial(self._mail, self._mailbox, callbacks, fn))
        else:
            super().add_done_callback(lambda _: call_later(callbacks, fn, self))

    def _mail(
        self,
        mailbox: MailboxExecutor,
        callbacks: Pool,
        fn: Callable[[Future[T]], object],
        _: Future[T],
    ) -> None:
        try:
            mailbox.execute(partial(fn, self), "a callback of a persist")
        except Exception as error:  # each callback is called exactly once
            _log.warning(
                "a mailbox rejected a callback, which runs on a callback thread instead: %s", error
            )
            call_later(callbacks, fn, self)

    def fail(self, error: BaseException) -> None:
        """Fail the future with *error*; if it has already ended, only wake its waiters again."""
        try:
            self.set_exception(error)
        except InvalidStateError:
            with self._condition:
                self._condition.notify_all()


class ThreadPool:
    """A `Pool` of daemon threads."""

    def __init__(self, num_threads: int, name: str, spare_threads: int = SPARE_THREADS) -> None:
        self._num_threads = num_threads
        self._spare_threads = spare_threads
        self._name = name
        self._changed = ThreadLock()
        self._jobs: deque[_Job] = deque()
        self._threads = 0
        self._hung = 0
        self._idle = 0
        self._started = 0
        self._closed = False

    @property
    def _limit(self) -> int:
        return self._num_threads + min(self._hung, self._spare_threads)

    def submit(
        self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]
    ) -> None:
        """Run *work*, then call *done* with its result or its error."""
        refused: list[_Job] = []
        with self._changed:
            closed = self._closed
            if not closed:
                self._jobs.append((work, done))
                refused = self._assign()
        if closed:
            self._refuse([(work, done)], self._closed_error())
        elif refused:
            self._refuse(refused, self._no_thread_error())

    def add_spare_thread(self) -> None:
        """Count a hung thread, and start using a spare thread if one is available."""
        with self._changed:
            self._hung += 1
            refused = self._assign()
        self._refuse(refused, self._no_thread_error())

    def remove_spare_thread(self) -> None:
        """Undo one call of `add_spare_thread`."""
        with self._changed:
            self._hung -= 1

    def starved(self) -> bool:
        """Return whether work is waiting while every thread, including spare ones, hangs."""
        with self._changed:
            if not self._jobs or self._idle or self._threads > self._hung:
                return False
            refused = self._assign()  # the system may have a thread again
            starved = bool(self._jobs) and 0 < self._threads <= self._hung
        self._refuse(refused, self._no_thread_error())
        return starved

    def close(self, timeout_s: float) -> None:
        """Reject new work, fail waiting work, and wait *timeout_s* for running work."""
        with self._changed:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        self._refuse(waiting, self._closed_error())
        with self._changed:
            self._changed.wait_for(lambda: self._threads == 0, timeout_s)

    def _assign(self) -> list[_Job]:
        """Assign the newest job to a thread; return jobs that cannot get one. Under the lock."""
        if self._idle >= len(self._jobs):
            self._changed.notify()
        elif self._threads < self._limit and self._jobs:
            name = f"{self._name}-{self._started + 1}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads += 1
            try:
                thread.start()
            except (RuntimeError, MemoryError):  # "can't start new thread"
                self._threads -= 1
                return self._without_thread()
            self._started += 1
        return []

    def _without_thread(self) -> list[_Job]:
        """Leave the jobs to running threads, or return the jobs. Under the lock."""
        if self._threads:
            return []
        refused = list(self._jobs)
        self._jobs.clear()
        return refused

    def _refuse(self, jobs: list[_Job], error: StatelogError) -> None:
        for _, done in jobs:
            try:
                done(None, error)
            except BaseException:
                _log.exception("%s: a callback failed; the other callbacks still run", self._name)

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self._name} was closed before it began this work; open a new storage")

    def _no_thread_error(self) -> UnavailableError:
        return UnavailableError(
            f"{self._name}: the system refused to start a thread, and none is running; check "
            "this process's limits on threads and memory"
        )

    def _run(self) -> None:
        while (job := self._take()) is not None:
            try:
                _perform(*job)
            except BaseException:  # the pool counts this thread, so it must not end
                _log.exception("%s: a callback failed; its thread continues", self._name)
            del job  # an idle thread must not keep objects alive

    def _take(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            try:
                self._changed.wait_for(
                    lambda: bool(self._jobs) or self._closed or self._threads > self._limit
                )
                if self._jobs and self._threads <= self._limit:
                    return self._jobs.popleft()
            finally:
                self._idle -= 1
            self._threads -= 1
            self._changed.notify_all()
            return None


def _perform(work: Callable[[], object], done: Done) -> None:
    """Run *work* and call *done* with its outcome."""
    result: object = None
    error: BaseException | None = None
    try:
        result = work()
    except BaseException as caught:  # MemoryError and the like must reach `done` too
        error = caught
    try:
        done(result, error)
    finally:
        del work, done, result, error  # the error's traceback holds this frame


def call_later(pool: Pool, function: Callable[[T], object], argument: T) -> None:
    """
    Call *function* exactly once, on a thread of *pool*.

    On a closed pool, and on one without a thread, it is called at once, here.  Its exceptions are
    logged.
    """

    def call(_: None, __: BaseException | None) -> None:
        try:
            function(argument)
        except BaseException:
            _log.exception("a callback failed; the other callbacks still run")

    pool.submit(_nothing, call)


def _nothing() -> None:
    return None


# --- threads outside of a pool --------------------------------------------------------------------

CALLS_MAX: Final = 256
"""Calls that run at once; further ones wait."""
_START_S: Final = 5.0


def together(calls: Sequence[Callable[[], T]], *, at_one_moment: bool = False) -> list[T]:
    """Run *calls* at the same time, and return their results in order."""
    threads = min(len(calls), CALLS_MAX)
    start = threading.Barrier(threads) if at_one_moment else None
    pool = ThreadPoolExecutor(threads, thread_name_prefix="statelog-request")
    try:
        pending = [pool.submit(_run, call, start) for call in calls]
        return [future.result() for future in pending]
    finally:
        pool.shutdown(cancel_futures=True)


def _run(call: Callable[[], T], start: threading.Barrier | None) -> T:
    try:
        if start is not None:
            start.wait(_START_S)
    except threading.BrokenBarrierError:
        pass  # the system is slow to start threads: the others begin without the last ones
    return call()


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Run *work* in a thread that does not keep the process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Poller:
    """
    Calls *poll* on a dedicated daemon thread until it is closed.

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
        Stop calling *poll*, and wait for a call in progress; further closes do nothing.

        Returns:
            Whether the thread has ended.
        """
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()
