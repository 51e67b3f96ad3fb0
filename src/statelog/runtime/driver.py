"""
The clock, ids, lock, timers and pools of one storage, in one value.

A simulation passes a virtual clock, seeded ids and pools without threads; the packages above do not
change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from statelog.runtime.clock import Clock, SystemClock
from statelog.runtime.closing import close_all
from statelog.runtime.ids import IdSource, RandomIds
from statelog.runtime.lock import Lock, ThreadLock
from statelog.runtime.pool import Pool, ThreadPool
from statelog.runtime.timers import ThreadTimers, Timers

CALLBACK_THREADS: Final = 4
"""Threads of a storage for callbacks of users; each starts when there is a callback for it."""


def _callback_pool() -> Pool:
    return ThreadPool(CALLBACK_THREADS, "statelog-callback")


@dataclass(frozen=True, slots=True)
class Runtime:
    """
    Clock, ids, lock, timers and pools of one storage.

    Args:
        clock: The clock.
        ids: Makes file names and jitter.
        lock: The storage's one lock.
        timers: Run callbacks at given times.
        upload_pool: Runs uploads.
        discard_pool: Runs deletions.
        callback_pool: Runs callbacks of users, which may block; nothing else.
    """

    clock: Clock
    ids: IdSource
    lock: Lock
    timers: Timers
    upload_pool: Pool
    discard_pool: Pool
    callback_pool: Pool = field(default_factory=_callback_pool)

    def close(self, timeout_s: float) -> None:
        """
        Stop timers and pools; running work has *timeout_s* to end.

        Blocks: At most *timeout_s* for each pool.
        """
        close_all(
            self.timers.close,
            lambda: self.upload_pool.close(timeout_s),
            lambda: self.discard_pool.close(timeout_s),
            lambda: self.callback_pool.close(timeout_s),
        )


def system_runtime(*, upload_threads: int = 5, discard_threads: int = 1) -> Runtime:
    """Return a runtime of real clocks and threads, which start on demand."""
    clock = SystemClock()
    return Runtime(
        clock=clock,
        ids=RandomIds(),
        lock=ThreadLock(),
        timers=ThreadTimers(clock),
        upload_pool=ThreadPool(upload_threads, "statelog-upload"),
        discard_pool=ThreadPool(discard_threads, "statelog-discard"),
    )
