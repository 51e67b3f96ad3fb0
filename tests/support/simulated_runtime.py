"""
A runtime without threads: virtual time and one queue of events, from one seed.

Work of a pool thread is two events: the work, and its answer after the latency of the fault.  A
wait at the lock runs the other events until its condition holds, as other threads would.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Protocol

from statelog.errors import ClosedError, check
from statelog.runtime.pool import Done
from statelog.runtime.runtime import Runtime
from statelog.testing.faulty_store import Fault, FaultKind, FaultPlan, FaultyStore

SPARE_THREADS: Final = 2
"""Fewer than in the real pool, so that histories with few threads use all of them."""
_RETURN_RATE: Final = 0.5
_HANG_NS: Final = 2_000_000_000
"""Longest time that work hangs, if it returns without `release`."""


class EventQueue:
    """Virtual time and its events.  Also the `Clock` of the simulated runtime."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._order = 0
        self._heap: list[tuple[int, int, list[Callable[[], None] | None]]] = []

    def now_ns(self) -> int:
        return self._now_ns

    def at(self, at_ns: int, callback: Callable[[], None]) -> list[Callable[[], None] | None]:
        """Schedule *callback* at a time; emptying the returned cell cancels it."""
        cell: list[Callable[[], None] | None] = [callback]
        heapq.heappush(self._heap, (max(at_ns, self._now_ns), self._order, cell))
        self._order += 1
        return cell

    def after(self, delay_ns: int, callback: Callable[[], None]) -> None:
        self.at(self._now_ns + delay_ns, callback)

    def step(self, until_ns: int | None = None) -> bool:
        """Run the next event up to *until_ns*; return whether there was one."""
        while self._heap:
            at_ns, _, cell = self._heap[0]
            if cell[0] is None:
                heapq.heappop(self._heap)
                continue
            if until_ns is not None and at_ns > until_ns:
                return False
            heapq.heappop(self._heap)
            self._now_ns = at_ns
            cell[0]()
            return True
        return False

    def sleep_until(self, at_ns: int) -> None:
        self._now_ns = max(self._now_ns, at_ns)


class SimulatedLock:
    """A lock in a world of one thread; it detects callbacks under the lock."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self.held = False
        self.waits = 0
        self.depth = 0
        """The number of waits under way; each runs inside the event of the one before."""

    def __enter__(self) -> object:
        check(not self.held, "the lock was acquired twice: a callback runs under it")
        self.held = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.held = False

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None) -> bool:
        """Run events until *predicate* holds, the time is over, or none is left."""
        check(self.held, "a wait without the lock")
        until_ns = None if timeout_s is None else self._queue.now_ns() + round(timeout_s * 1e9)
        self.depth += 1
        try:
            while not predicate():
                self.waits += 1
                self.held = False
                happened = self._queue.step(until_ns)
                self.held = True
                if not happened:
                    check(until_ns is not None, "a wait that nothing can end")
                    self._queue.sleep_until(until_ns or 0)
                    return predicate()
            return True
        finally:
            self.depth -= 1

    def notify_all(self) -> None:
        """Do nothing: the only waiter checks its predicate after each event."""
        check(self.held, "a notification without the lock")


class _Timer:
    def __init__(self, cell: list[Callable[[], None] | None]) -> None:
        self._cell = cell

    def cancel(self) -> None:
        self._cell[0] = None


class SimulatedTimers:
    """`Timers` on the event queue; a timer may be a little late, as real ones are."""

    def __init__(self, queue: EventQueue, rng: random.Random) -> None:
        self._queue = queue
        self._rng = rng
        self._closed = False

    def schedule(self, at_ns: int, callback: Callable[[], None]) -> _Timer:
        """Schedule *callback* at or soon after *at_ns*."""
        late_ns = self._rng.randrange(1000)
        return _Timer(self._queue.at(at_ns + late_ns, lambda: self._fire(callback)))

    def close(self) -> None:
        self._closed = True

    def _fire(self, callback: Callable[[], None]) -> None:
        if not self._closed:
            callback()


class TakesFaults(Protocol):
    """A store or a disk whose next operation is subject to a given fault."""

    next_fault: Fault | None


class SimulatedPool:
    """
    A `Pool` whose threads are events; the plan draws a fault for each piece of work.

    Hanging work returns after a long time, or when `release` is called.
    """

    def __init__(
        self,
        queue: EventQueue,
        store: TakesFaults,
        rng: random.Random,
        plan: Callable[[], FaultPlan],
        num_threads: int,
    ) -> None:
        self._queue = queue
        self._store = store
        self._rng = rng
        self._plan = plan
        self._num_threads = self._free = num_threads
        self._stuck = 0
        self._hanging: list[Callable[[], None]] = []
        self._jobs: deque[tuple[Callable[[], object], Done]] = deque()
        self._closed = False
        self.faults: list[Fault] = []

    def submit(self, work: Callable[[], object], done: Done) -> None:
        """Run *work* when a thread is free, then *done* after the latency of its fault."""
        if self._closed:
            done(None, ClosedError("the simulated pool is closed"))
            return
        self._jobs.append((work, done))
        self._assign()

    def add_spare_thread(self) -> None:
        """Count a hung thread, and use a spare one, if there is one."""
        self._stuck += 1
        if self._stuck <= SPARE_THREADS:
            self._free += 1
            self._assign()

    def remove_spare_thread(self) -> None:
        """Undo one `add_spare_thread`."""
        if self._stuck <= SPARE_THREADS:
            self._free -= 1
        self._stuck -= 1

    def starved(self) -> bool:
        """Return whether work waits and every thread, spare ones included, hangs."""
        threads = self._num_threads + min(self._stuck, SPARE_THREADS)
        return bool(self._jobs) and self._free <= 0 and self._stuck >= threads

    def release(self) -> None:
        hanging, self._hanging = self._hanging, []
        for answer in hanging:
            answer()

    def close(self, timeout_s: float) -> None:
        del timeout_s
        self._closed = True
        waiting, self._jobs = list(self._jobs), deque()
        for _, done in waiting:
            done(None, ClosedError("the simulated pool is closed"))

    def _assign(self) -> None:
        while self._free > 0 and self._jobs:
            self._free -= 1
            work, done = self._jobs.popleft()
            self._queue.after(self._rng.randrange(1000), partial(self._run, work, done))

    def _run(self, work: Callable[[], object], done: Done) -> None:
        fault = self._plan().draw(self._rng)
        self.faults.append(fault)
        result: object = None
        error: BaseException | None = None
        self._store.next_fault = fault
        try:
            result = work()
        except Exception as caught:
            error = caught
        if self._store.next_fault is not None:  # the work did not use the store
            self._store.next_fault, fault = None, Fault()
        answer = partial(self._answer, [done], result, error)
        if fault.kind not in (FaultKind.HANG, FaultKind.SILENT):
            self._queue.after(fault.latency_ns, answer)
            return
        self._hanging.append(answer)
        if self._rng.random() < _RETURN_RATE:
            self._queue.after(self._rng.randrange(_HANG_NS), answer)

    def _answer(self, dones: list[Done], result: object, error: BaseException | None) -> None:
        if not dones:  # it has returned already
            return
        dones.pop()(result, error)
        self._free += 1
        self._assign()


class ImmediatePool:
    """A `Pool` that runs work at once, as a thread that is faster than all others."""

    def submit(self, work: Callable[[], object], done: Done) -> None:
        done(work(), None)

    def add_spare_thread(self) -> None:
        """Do nothing: no thread hangs."""

    def remove_spare_thread(self) -> None:
        """Do nothing."""

    def starved(self) -> bool:
        """Return False: work never waits."""
        return False

    def close(self, timeout_s: float) -> None:
        """Do nothing: no thread runs."""


class SimulatedIds:
    """Ids from a counter, and fractions from the seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0

    def new_id(self) -> str:
        self._count += 1
        return f"{self._count:08d}"

    def fraction(self) -> float:
        return self._rng.random()


def simulated_runtime(
    queue: EventQueue,
    store: FaultyStore,
    rng: random.Random,
    plan: Callable[[], FaultPlan],
    *,
    upload_threads: int,
) -> Runtime:
    """Return a runtime whose clock, timers and pools use *queue*."""
    return Runtime(
        clock=queue,
        ids=SimulatedIds(rng),
        lock=SimulatedLock(queue),
        timers=SimulatedTimers(queue, rng),
        upload_pool=SimulatedPool(queue, store, rng, plan, upload_threads),
        discard_pool=SimulatedPool(queue, store, rng, plan, 1),
        callback_pool=ImmediatePool(),
    )
