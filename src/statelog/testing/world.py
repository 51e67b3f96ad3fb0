"""
One seed, one history: the real storage and its writers in a world of faults.

Only threads, time and the disk are pretended.  Everything that happens follows from the seed, so
`python -m statelog.testing.world --seed N` shows again what a test has seen.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statelog.changelog.batching_scheduler import BatchingStateChangeUploadScheduler
from statelog.changelog.reader import read_change_batches
from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.uploader import StateChangeFsUploader
from statelog.changelog.writer import FsStateChangelogWriter, PersistFuture
from statelog.core.upload_retry import RetryPolicy
from statelog.errors import (
    BackpressureTimeoutError,
    ChangesTruncatedError,
    ClosedError,
    InvariantError,
    ObjectNotFoundError,
    UploadFailedError,
    check,
)
from statelog.model import (
    ChangelogStateHandle,
    FileStateHandle,
    KeyGroupRange,
    SequenceNumber,
    StateChange,
)
from statelog.options import ChangelogOptions
from statelog.store.paths import LocationPaths
from statelog.testing.checkers import BatchPolicy, Watch, describe, observed
from statelog.testing.faulty_store import FaultPlan, FaultyStore
from statelog.testing.reference_model import ReferenceLog, canonical
from statelog.testing.simulated_runtime import (
    EventQueue,
    SimulatedLock,
    simulated_runtime,
)

_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a history came to: a hash of every step, and how much happened."""

    trace: str
    steps: int
    virtual_ns: int
    persists: int
    failures: int
    waits: int
    files: int


@dataclass(slots=True)
class _Checkpoint:
    """A persist that was asked for, and the range it was to cover."""

    checkpoint_id: int
    from_sqn: int
    to_sqn: int
    future: PersistFuture
    confirmed: bool = False


class _Actor:
    """A writer, its reference model, and its checkpoints."""

    def __init__(self, writer: FsStateChangelogWriter) -> None:
        self.writer = writer
        self.model = ReferenceLog()
        self.checkpoints: list[_Checkpoint] = []
        self.counted: set[int] = set()
        self.wanted_to = 2**62
        self.busy = False
        self.closed = False

    def sync(self) -> None:
        """Let the model follow a cut that an append has made by reaching the threshold."""
        if self.writer._log.active_sqn > self.model.active_sqn:
            self.model.cut()

    def files(self) -> list[str]:
        """Return the files that hold sets of this writer."""
        handles = [each.result.entry.handle for each in self.writer._log._uploaded.values()]
        return [handle.path for handle in handles if isinstance(handle, FileStateHandle)]


class World:
    """
    A storage, some writers, and whatever befalls them.

    Args:
        seed: All there is to know.
        operations: How many operations the writers do.
        story: Gets one line for each step of a core.
    """

    def __init__(
        self, seed: int, *, operations: int = 60, story: Callable[[str], None] | None = None
    ) -> None:
        self._rng = rng = random.Random(seed)
        self._operations = operations
        self._trace = hashlib.sha256()
        self._tell = story
        self._queue = EventQueue()
        self._store = FaultyStore()
        self._plan = self._draw_plan()
        self._runtime = simulated_runtime(
            self._queue, self._store, rng, lambda: self._plan, upload_threads=rng.randrange(1, 4)
        )
        limit = rng.choice([200, 1000, 10_000])
        self._rules = {
            "delay_ns": rng.choice([0, 1, 10, 50]) * _MS,
            "threshold_bytes": rng.randrange(1, limit),
            "limit_bytes": limit,
        }
        self._fixed_delay = rng.random() < 0.3
        policy = self._draw_policy()
        batch_policy = BatchPolicy(**self._rules, fixed_delay=self._fixed_delay)
        self._watch = Watch(batch_policy, policy, self._note)
        self._storage = self._open(policy)
        self._actors = [self._new_actor() for _ in range(rng.randrange(1, 6))]
        self._retired: list[_Actor] = []
        self._next_checkpoint_id = 1
        self._persists = 0
        self._failures = 0
        self._timeouts = 0
        self._closed = False
        self._faulty = self._plan.error_rate > 0
        if rng.random() < 0.15:  # while somebody appends, persists, or waits for room
            self._queue.after(rng.randrange(operations * 5 * _MS), self._close)

    def run(self) -> Outcome:
        """
        Let the history happen and check it.

        Raises:
            InvariantError: Something that must hold did not.
        """
        with observed(self._watch):
            at_ns = 0
            for _ in range(self._operations):
                at_ns += self._rng.randrange(1, 10 * _MS)
                self._queue.at(at_ns, self._operate)
            self._quiet(until_ns=at_ns)
            if self._rng.random() < 0.15:
                self._close()
            if not self._closed:
                self._heal()
            self._quiet()
            self._judge()
            if not self._closed:
                self._storage.close()
            self._quiet()
            self._judge_after_close()
        lock = self._runtime.lock
        return Outcome(
            trace=self._trace.hexdigest(),
            steps=self._watch.steps,
            virtual_ns=self._queue.now_ns(),
            persists=self._persists,
            failures=self._failures,
            waits=lock.waits if isinstance(lock, SimulatedLock) else 0,
            files=len(self._store.objects),
        )

    # --- the draw ---------------------------------------------------------------------------------

    def _draw_plan(self) -> FaultPlan:
        rng = self._rng
        return FaultPlan(
            error_rate=rng.choice([0.0, 0.1, 0.5]),
            slow_rate=rng.choice([0.0, 0.2]),
            hangs=rng.random() < 0.7,
        )

    def _draw_policy(self) -> RetryPolicy:
        rng = self._rng
        timeout_s = rng.choice([0.02, 0.1])
        match rng.randrange(4):
            case 0 if not self._plan.hangs:
                return RetryPolicy.none()
            case 1:
                return RetryPolicy.exponential(4, timeout_s, 0.01, 0.05)
            case _:
                return RetryPolicy.fixed(
                    rng.randrange(1, 4), timeout_s, rng.choice([0.0, 0.01, 0.3])
                )

    def _open(self, policy: RetryPolicy) -> FsStateChangelogStorage:
        registry = TaskChangelogRegistry(self._store, self._runtime)
        uploader = StateChangeFsUploader(
            self._store,
            LocationPaths("job"),
            self._runtime.ids,
            compress=self._rng.random() < 0.3,
            registry=registry,
        )
        scheduler = BatchingStateChangeUploadScheduler(
            uploader,
            self._runtime,
            policy=policy,
            batch_delay_ns=self._rules["delay_ns"],
            batch_threshold_bytes=self._rules["threshold_bytes"],
            max_in_flight_bytes=self._rules["limit_bytes"],
            fixed_delay=self._fixed_delay,
            backpressure_timeout_s=self._rng.choice([0.05, 5.0]),
        )
        threshold = self._rng.choice([0, 50, 500, 10**9])
        return FsStateChangelogStorage(
            self._store,
            options=ChangelogOptions(preemptive_persist_threshold_bytes=threshold),
            job_id="job",
            scheduler=scheduler,
            registry=registry,
            runtime=self._runtime,
        )

    def _new_actor(self) -> _Actor:
        return _Actor(self._storage.create_writer("operator", KeyGroupRange(0, 9)))

    # --- operations -------------------------------------------------------------------------------

    def _quiet(self, until_ns: int | None = None) -> None:
        while self._queue.step(until_ns):
            pass

    def _operate(self) -> None:
        """Let a writer do something; one that waits for room is left alone."""
        rng = self._rng
        idle = [actor for actor in self._actors if not actor.busy]
        if self._closed or not idle:
            return
        actor = rng.choice(idle)
        operation = rng.choices(
            [
                self._append,
                self._append_batch,
                self._append_meta,
                self._cut,
                self._persist,
                self._confirm,
                self._abort,
                self._truncate,
                self._replace,
            ],
            [30, 15, 5, 10, 20, 10, 4, 6, 2],
        )[0]
        actor.busy = True
        try:
            operation(actor)
        except BackpressureTimeoutError:
            self._timeouts += 1  # allowed; what was appended stays in the log
        except ClosedError:
            check(self._closed, "closed without a close")
        actor.busy = False
        actor.sync()

    def _close(self) -> None:
        self._closed = True
        self._storage.close()

    def _value(self) -> bytes:
        return self._rng.randbytes(self._rng.choice([0, 1, 20, 20, 100, 300]))

    def _append(self, actor: _Actor) -> None:
        change = StateChange(self._rng.randrange(10), self._value())
        actor.model.append(change)
        actor.writer.append(change.key_group, change.value)

    def _append_meta(self, actor: _Actor) -> None:
        change = StateChange(-1, self._value())
        actor.model.append(change)
        actor.writer.append_meta(change.value)

    def _append_batch(self, actor: _Actor) -> None:
        changes = [
            StateChange(self._rng.randrange(10), self._value())
            for _ in range(self._rng.randrange(6))
        ]
        for change in changes:
            actor.model.append(change)
        values = pa.array([change.value for change in changes], pa.binary())
        key_groups = np.array([change.key_group for change in changes], np.int64)
        actor.writer.append_batch(key_groups, values)

    def _cut(self, actor: _Actor) -> None:
        actor.model.cut()
        number = actor.writer.next_sequence_number().value
        check(number == actor.model.active_sqn, "numbers differ from the model's")

    def _persist(self, actor: _Actor, from_sqn: int | None = None) -> None:
        lowest, highest = actor.model.truncated_to, actor.model.active_sqn
        if from_sqn is None:  # the last number that exists before the persist cuts
            choices = [lowest, lowest, highest, self._rng.randint(lowest, highest)]
            from_sqn = self._rng.choice(choices)
        actor.model.cut()
        highest = actor.model.active_sqn
        checkpoint_id, self._next_checkpoint_id = (
            self._next_checkpoint_id,
            self._next_checkpoint_id + 1,
        )
        future = actor.writer.persist(SequenceNumber(from_sqn), checkpoint_id)
        self._persists += 1
        checkpoint = _Checkpoint(checkpoint_id, from_sqn, highest, future)
        actor.checkpoints.append(checkpoint)
        future.add_done_callback(lambda _: self._guarded(lambda: self._on_end(actor, checkpoint)))

    def _completed(self, actor: _Actor) -> list[_Checkpoint]:
        return [
            each
            for each in actor.checkpoints
            if each.future.done() and each.future.exception() is None
        ]

    def _confirm(self, actor: _Actor) -> None:
        if completed := self._completed(actor):
            checkpoint = self._rng.choice(completed)
            if checkpoint.from_sqn >= actor.model.truncated_to:
                checkpoint.confirmed = True
            actor.writer.confirm(
                SequenceNumber(checkpoint.from_sqn),
                SequenceNumber(checkpoint.to_sqn),
                checkpoint.checkpoint_id,
            )

    def _abort(self, actor: _Actor) -> None:
        if actor.checkpoints:
            checkpoint = self._rng.choice(actor.checkpoints)
            actor.writer.reset(
                SequenceNumber(checkpoint.from_sqn),
                SequenceNumber(checkpoint.to_sqn),
                checkpoint.checkpoint_id,
            )

    def _truncate(self, actor: _Actor) -> None:
        number = actor.writer.next_sequence_number().value
        actor.model.cut()
        to_sqn = self._rng.randint(0, number)
        actor.model.truncate(to_sqn)
        actor.writer.truncate(SequenceNumber(to_sqn))

    def _replace(self, actor: _Actor) -> None:
        """Close the writer, one way or the other, and open another."""
        actor.closed = True
        if self._rng.random() < 0.5:
            actor.writer.close()
        else:
            actor.wanted_to = self._rng.randint(0, actor.model.active_sqn)
            actor.writer.truncate_and_close(SequenceNumber(actor.wanted_to))
        self._retired.append(actor)
        self._actors[self._actors.index(actor)] = self._new_actor()

    # --- judgement --------------------------------------------------------------------------------

    def _note(self, line: str) -> None:
        self._trace.update(line.encode())
        if self._tell is not None:
            self._tell(line)

    def _guarded(self, judge: Callable[[], None]) -> None:
        """Run *judge* in a callback, where an error would otherwise be swallowed."""
        try:
            judge()
        except AssertionError as error:
            self._watch.broken.append(error)

    def _on_end(self, actor: _Actor, checkpoint: _Checkpoint) -> None:
        lock = self._runtime.lock
        check(not (isinstance(lock, SimulatedLock) and lock.held), "a callback under the lock")
        error = checkpoint.future.exception()
        self._note(f"{self._queue.now_ns()} persist {checkpoint.checkpoint_id} {describe(error)}")
        if error is None:
            self._check_handle(actor, checkpoint)
            sizes = {
                sqn: actor.model.size_bytes(sqn, sqn + 1)
                for sqn in range(checkpoint.from_sqn, checkpoint.to_sqn)
                if sqn not in actor.counted
            }
            actor.counted.update(sizes)
            incremental = _handle_of(checkpoint).incremental_size_bytes
            check(incremental == sum(sizes.values()), "the incremental size is wrong")
            return
        self._failures += 1
        match error:
            case ClosedError():
                check(actor.closed or self._closed, "closed without a close")
            case ChangesTruncatedError():
                check(checkpoint.from_sqn < actor.model.truncated_to, "not truncated")
            case UploadFailedError():
                fair = self._plan.error_rate or self._plan.slow_rate or self._timeouts
                check(bool(fair), "an upload failed without a fault")
            case _:
                check(False, f"an unexpected failure: {error!r}")

    def _check_handle(self, actor: _Actor, checkpoint: _Checkpoint) -> None:
        handle = _handle_of(checkpoint)
        from_sqn, to_sqn = checkpoint.from_sqn, checkpoint.to_sqn
        try:
            batches = list(read_change_batches(self._store, handle))
        except ObjectNotFoundError as error:
            raise InvariantError(f"checkpoint {checkpoint.checkpoint_id} lost a file") from error
        found = [
            canonical(StateChange(row["key_group"], row["value"]) for row in batch.to_pylist())
            for batch in batches
        ]
        check(found == actor.model.sets(from_sqn, to_sqn), "a handle holds other changes")
        check(handle.size_bytes == actor.model.size_bytes(from_sqn, to_sqn), "a size is wrong")
        check(handle.checkpoint_id == checkpoint.checkpoint_id, "a label is wrong")

    def _heal(self) -> None:
        """Make the store well and ask every writer for everything it still has."""
        self._quiet()
        if self._closed:
            return
        self._plan = FaultPlan()
        self._timeouts = 0
        for actor in self._actors:
            try:
                self._persist(actor, from_sqn=actor.model.truncated_to)
            except BackpressureTimeoutError:
                self._quiet()  # the others have taken all room; now there is some
                self._persist(actor, from_sqn=actor.model.truncated_to)

    def _judge(self) -> None:
        """Liveness, and that nothing lies about: when everything is quiet."""
        self._raise_broken()
        self._watch.finish(cancelled=self._closed)
        for actor in (*self._actors, *self._retired):
            for checkpoint in actor.checkpoints:
                check(checkpoint.future.done(), "a persist never ended")
        scheduler = self._storage.scheduler
        check(scheduler.availability.is_available, "there is room, but nobody is told")
        if isinstance(scheduler, BatchingStateChangeUploadScheduler):
            check(scheduler.in_flight_bytes == 0, "bytes in flight while nothing moves")
        if self._closed:
            return
        for actor in self._actors:
            last = actor.checkpoints[-1]
            check(last.future.exception() is None, "a persist failed after the store was well")
        if not self._faulty:
            used = {path for actor in self._actors for path in actor.files()}
            garbage = set(self._store.objects) - used - self._watch.ownership.confirmed
            check(not garbage, f"nobody needs {sorted(garbage)}")

    def _judge_after_close(self) -> None:
        """Safety of what a checkpoint may name, after everything has ended."""
        self._raise_broken()
        for actor in (*self._actors, *self._retired):
            for checkpoint in self._completed(actor):
                kept = checkpoint.from_sqn >= actor.model.truncated_to
                wanted = checkpoint.to_sqn <= actor.wanted_to
                if checkpoint.confirmed or (kept and wanted):
                    self._check_handle(actor, checkpoint)
        if not self._faulty and not self._closed:
            garbage = set(self._store.objects) - self._watch.ownership.confirmed
            check(not garbage, f"nobody was told of {sorted(garbage)}")

    def _raise_broken(self) -> None:
        if self._watch.broken:
            raise self._watch.broken[0]


def _handle_of(checkpoint: _Checkpoint) -> ChangelogStateHandle:
    handle = checkpoint.future.result().job_manager_owned
    check(handle is not None, "a snapshot without a handle")
    return handle  # type: ignore[return-value]


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay one seed, or run many; returns 1 if something broke."""
    parser = argparse.ArgumentParser(prog="python -m statelog.testing.world", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the (first) seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--operations", type=int, default=60, help="operations in a history")
    parser.add_argument("--quiet", action="store_true", help="leave the story out")
    options = parser.parse_args(arguments)
    write = sys.stdout.write
    for seed in range(options.seed, options.seed + options.count):
        story = None if options.quiet or options.count > 1 else _print
        try:
            outcome = World(seed, operations=options.operations, story=story).run()
        except AssertionError as error:
            write(f"seed {seed} broke: {error}\n")
            return 1
        if options.count == 1:
            write(f"seed {seed}: {outcome}\n")
    write(f"{options.count} histories hold\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
