"""
Interrupt anywhere: signals whose handlers raise, into every call of a writer, beside a model.

A process of its own, because signals come to its main thread and timers belong to the process:
`python -m tests.stress.interrupts --seed 7 --seconds 600`.  Choices come from the seed of each
round; moments depend on the machine, so a round may need several runs (`--round`, `--repeat`) to
fail again.

The model: a call that returned has appended its changes; a call that an interrupt ended has
appended all of them or none.  Every snapshot must hold exactly that, in order, and what one
snapshot has shown stays so in all later ones.
"""

import argparse
import datetime as dt
import faulthandler
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from tests.stress.chaos_store import ChaosStore

import statelog as sl
from statelog.store import open_store
from statelog.store.api import ObjectStore
from statelog.testing.faulty_store import FaultPlan

KEY_GROUPS = sl.KeyGroupRange(0, 9)
HANG_S = 60.0
WAIT_S = 30.0
SIGNALS = (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1)


class Interrupt(BaseException):
    """What the handlers raise."""


class Fire:
    """Sends signals while a call runs; the handlers raise at most as often as is told."""

    def __init__(self) -> None:
        self.left = 0
        self.counts: Counter[str] = Counter()
        for each in SIGNALS:
            signal.signal(each, self._handle)
        signal.signal(signal.SIGUSR2, self._ignore)
        self._stopped = threading.Event()
        self._sniper = threading.Thread(target=self._snipe, daemon=True)
        self._sniper.start()

    def call(self, rng: random.Random, work: Callable[[], Any]) -> tuple[bool, Any]:
        """Do *work* under fire; return whether it came to its end, and its result."""
        self.counts["calls"] += 1
        first_s = 10 ** rng.uniform(-6, -2.5)
        every_s = rng.choice([0.0, 10 ** rng.uniform(-5, -3)])
        shots = rng.choice([1, 1, 2, 5])
        try:
            self.left = shots
            signal.setitimer(signal.ITIMER_REAL, first_s, every_s)
            result = work()
            self.left = 0
        except Interrupt:
            self.left = 0
            self.counts["interrupted"] += 1
            return False, None
        finally:
            self.left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
        return True, result

    def _handle(self, number: int, frame: object) -> None:
        if self.left > 0:
            self.left -= 1
            raise Interrupt

    def _ignore(self, number: int, frame: object) -> None:
        self.counts["signals without an exception"] += 1

    def _snipe(self) -> None:
        rng = random.Random(1)
        while not self._stopped.wait(rng.uniform(0, 0.002)):
            os.kill(os.getpid(), rng.choice([signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]))


@dataclass
class Entry:
    """Changes of one call, in order; `certain` is None until a snapshot shows what became of it."""

    changes: list[sl.StateChange]
    certain: bool | None


@dataclass
class Actor:
    """A writer and what it must hold."""

    writer: sl.FsStateChangelogWriter
    entries: list[Entry] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    lowest: int = 0
    first: int = 0
    futures: list[Any] = field(default_factory=list)
    number: int = 0


class Round:
    """One storage, some writers, and a few hundred calls."""

    def __init__(self, seed: str, fire: Fire, folder: str) -> None:
        self.rng = random.Random(seed)
        self.fire = fire
        self.counts: Counter[str] = Counter()
        self.store = self._store(folder)
        options = sl.ChangelogOptions(
            preemptive_persist_threshold_bytes=self.rng.choice([3_000, 10**7]),
            batch_persist_delay=dt.timedelta(milliseconds=self.rng.choice([0, 2])),
            batch_persist_size_threshold_bytes=4_000,
            upload_max_in_flight_bytes=self.rng.choice([8_000, 10**7]),
            upload_next_attempt_delay=dt.timedelta(milliseconds=5),
            compression_enabled=self.rng.random() < 0.3,
            backpressure_timeout=dt.timedelta(seconds=WAIT_S),
        )
        self.storage = sl.FsStateChangelogStorage(self.store, options=options, job_id="job")
        self.actors = [
            Actor(self.storage.create_writer("op", KEY_GROUPS))
            for _ in range(self.rng.randrange(1, 4))
        ]

    def _store(self, folder: str) -> ObjectStore:
        kind = self.rng.choice(["near", "local", "far", "faulty"])
        self.counts[kind] += 1
        if kind == "local":
            return open_store(tempfile.mkdtemp(dir=folder), fsync=False)
        inner = open_store(f"memory://interrupts-{self.rng.random()}")
        if kind == "near":
            return inner
        plan = FaultPlan(latency_ns=200_000)
        if kind == "faulty":
            plan = FaultPlan(error_rate=0.1, latency_ns=200_000)
        return Far(ChaosStore(inner, self.rng.randrange(10**6), plan, harm_deletes=False))

    def run(self) -> Counter[str]:
        for _ in range(self.rng.randrange(20, 120)):
            actor = self.rng.choice(self.actors)
            turn = self.rng.choices(
                [self._append, self._append_batch, self._persist, self._advance, self._look],
                weights=[60, 10, 15, 8, 5],
            )[0]
            turn(actor)
        for actor in self.actors:
            self._settle(actor)
            actor.writer._log.check_invariants()
        self._close()
        return self.counts

    def _changes(self, actor: Actor, count: int) -> list[sl.StateChange]:
        changes = []
        for _ in range(count):
            key_group = self.rng.randrange(10)
            actor.number += 1
            text = f"{key_group}:{actor.number}:" + "x" * self.rng.choice([0, 3, 200])
            changes.append(sl.StateChange(key_group, text.encode()))
        return changes

    def _append(self, actor: Actor) -> None:
        changes = self._changes(actor, self.rng.randrange(1, 60))
        done = 0

        def work() -> None:
            nonlocal done
            for key_group, value in changes:
                actor.writer.append(key_group, value)
                done += 1

        ended, _ = self.fire.call(self.rng, work)
        actor.entries += [Entry([each], True) for each in changes[:done]]
        if not ended and done < len(changes):
            actor.entries.append(Entry([changes[done]], None))

    def _append_batch(self, actor: Actor) -> None:
        changes = self._changes(actor, self.rng.randrange(1, 40))
        key_groups = np.array([each.key_group for each in changes], np.int32)
        values = pa.array([each.value for each in changes], pa.binary())
        ended, _ = self.fire.call(self.rng, lambda: actor.writer.append_batch(key_groups, values))
        actor.entries.append(Entry(changes, True if ended else None))

    def _persist(self, actor: Actor) -> None:
        from_sqn, first, last = actor.lowest, actor.first, len(actor.entries)

        def work() -> None:
            future = actor.writer.persist(sl.SequenceNumber(from_sqn), 1)
            actor.futures.append((future, first, last))
            if wait:
                future.result(timeout_s)

        wait, timeout_s = self.rng.random() < 0.6, self.rng.choice([None, WAIT_S])
        try:
            self.fire.call(self.rng, work)
        except sl.UploadFailedError:
            self.counts["failed uploads"] += 1

    def _advance(self, actor: Actor) -> None:
        """Confirm and truncate up to a number that lies behind everything appended so far."""
        ended, mark = self.fire.call(self.rng, actor.writer.next_sequence_number)
        if not ended:
            mark = actor.writer.next_sequence_number()
        last = len(actor.entries)
        if self.rng.random() < 0.5:
            return
        self._settle(actor)
        lowest = sl.SequenceNumber(actor.lowest)
        self.fire.call(self.rng, lambda: actor.writer.confirm(lowest, mark, 1))
        self.fire.call(self.rng, lambda: actor.writer.reset(lowest, mark, 2))
        ended, _ = self.fire.call(self.rng, lambda: actor.writer.truncate(mark))
        if not ended:
            actor.writer.truncate(mark)
        actor.lowest, actor.first = mark.value, last

    def _look(self, actor: Actor) -> None:
        """Ask what others ask: gauges, availability, a new writer."""
        self.fire.call(self.rng, self.storage.metrics.snapshot)
        scheduler = self.storage.scheduler
        self.fire.call(self.rng, lambda: scheduler.availability.wait(0.001))
        if len(self.actors) < 6:
            ended, writer = self.fire.call(
                self.rng, lambda: self.storage.create_writer("op", KEY_GROUPS)
            )
            if ended:
                self.actors.append(Actor(writer))

    def _settle(self, actor: Actor) -> None:
        """Everything appended becomes durable and is read back; every future has an end."""
        for _ in range(20):
            try:
                future = actor.writer.persist(sl.SequenceNumber(actor.lowest), 1)
                handle = future.result(WAIT_S).job_manager_owned
                break
            except sl.UploadFailedError:
                self.counts["failed uploads"] += 1
        else:
            raise AssertionError("twenty persists failed, and the store works")
        for each, first, last in actor.futures:
            error = each.exception(WAIT_S)
            if error is None:
                self._check(actor, each.result(0).job_manager_owned, first, last)
            elif not isinstance(error, sl.UploadFailedError | sl.BackpressureTimeoutError):
                raise error
        actor.futures.clear()
        self._check(actor, handle, actor.first, len(actor.entries))

    def _check(self, actor: Actor, handle: Any, first: int, last: int) -> None:
        """Compare a snapshot with the entries from *first* to *last*."""
        self.counts["snapshots"] += 1
        found: dict[int, list[bytes]] = {}
        for key_group, value in self.storage.read(handle):
            assert value.startswith(b"%d:" % key_group), f"shifted: {key_group} has {value[:20]!r}"
            found.setdefault(key_group, []).append(value)
        seen = {value for values in found.values() for value in values}
        expected: dict[int, list[bytes]] = {}
        for entry in actor.entries[first:last]:
            there = [change.value in seen for change in entry.changes]
            if entry.certain is None:
                assert all(there) or not any(there), f"a part of a batch: {there}"
                entry.certain = all(there)
                self.counts["interrupted appends kept" if all(there) else "not kept"] += 1
            for change in entry.changes if entry.certain else ():
                expected.setdefault(change.key_group, []).append(change.value)
        assert expected == found, "lost, doubled, out of order, or never appended"

    def _close(self) -> None:
        """Close under fire, then again: no thread and no future is left."""
        for actor in self.actors:
            actor.writer.append(1, b"1:never durable")
            try:
                actor.futures.append((actor.writer.persist(sl.SequenceNumber(actor.lowest)), 0, 0))
            except sl.UploadFailedError:
                continue
        if self.rng.random() < 0.5:
            self.fire.call(self.rng, self.actors[0].writer.close)
        self.fire.call(self.rng, self.storage.close)
        self.storage.close()
        for actor in self.actors:
            for future, _, _ in actor.futures:
                future.exception(WAIT_S)
            try:
                actor.writer.append(1, b"too late")
            except sl.WriterClosedError:
                continue
            raise AssertionError("a closed writer takes changes")
        runtime = self.storage._runtime
        until_s = time.monotonic() + WAIT_S
        for pool in (runtime.upload_pool, runtime.discard_pool):
            assert pool._closed, "a pool is open"
            while pool._threads:
                assert time.monotonic() < until_s, "a thread of a closed pool is left"
                time.sleep(0.001)
        assert runtime.lock._lock.acquire(timeout=WAIT_S), "the lock is held"


class Far:
    """A store that no waiter helps, because its name does not say that it is near."""

    def __init__(self, inner: ChaosStore) -> None:
        self._inner = inner

    @property
    def url(self) -> str:
        return "far://store"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--round", type=int, help="only this round")
    parser.add_argument("--repeat", type=int, default=1, help="how often, with --round")
    given = parser.parse_args()
    logging.getLogger("statelog").setLevel(logging.CRITICAL)
    fire, counts = Fire(), Counter[str]()
    until_s = time.monotonic() + given.seconds
    rounds = [given.round] * given.repeat if given.round is not None else None
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        while number < len(rounds) if rounds else time.monotonic() < until_s:
            at = rounds[number] if rounds else number
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            try:
                counts += Round(f"{given.seed}/{at}", fire, folder).run()
            except BaseException:
                sys.stderr.write(
                    f"to replay: python -m tests.stress.interrupts --seed {given.seed} "
                    f"--round {at} --repeat 50\n"
                )
                raise
            number += 1
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(f"{number} rounds: {dict(counts + fire.counts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
