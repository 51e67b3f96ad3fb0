"""
The parts of the outside world that one storage uses, in one value.

A simulation hands over a virtual clock, seeded ids and a pool without threads; everything above
this room stays the same.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from statelog.runtime.clock import Clock, SystemClock
from statelog.runtime.ids import IdSource, RandomIds
from statelog.runtime.lock import Lock, ThreadLock
from statelog.runtime.pool import Pool, ThreadPool
from statelog.runtime.timers import ThreadTimers, Timers


@dataclass(frozen=True, slots=True)
class Runtime:
    """
    Clock, ids, lock, timers and pools of one storage.

    Args:
        clock: Tells the time.
        ids: Makes file names and jitter.
        lock: The storage's one lock.
        timers: Call back later.
        upload_pool: Runs uploads.
        discard_pool: Runs deletions.
    """

    clock: Clock
    ids: IdSource
    lock: Lock
    timers: Timers
    upload_pool: Pool
    discard_pool: Pool

    def close(self, timeout_s: float) -> None:
        """
        Stop timers and pools; running work gets *timeout_s* to end.

        Blocks: At most *timeout_s* for each pool.
        """
        with ExitStack() as parts:  # last in, first out; each is closed whatever the others raise
            parts.callback(self.discard_pool.close, timeout_s)
            parts.callback(self.upload_pool.close, timeout_s)
            parts.callback(self.timers.close)


def system_runtime(*, upload_threads: int = 5, discard_threads: int = 1) -> Runtime:
    """Return the real thing; threads start when there is work for them, not before."""
    clock = SystemClock()
    return Runtime(
        clock=clock,
        ids=RandomIds(),
        lock=ThreadLock(),
        timers=ThreadTimers(clock),
        upload_pool=ThreadPool(upload_threads, "statelog-upload"),
        discard_pool=ThreadPool(discard_threads, "statelog-discard"),
    )
