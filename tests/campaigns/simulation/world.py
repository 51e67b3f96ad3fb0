"""
One seed, one history: the real storage and its writers in a world of faults.

Only threads, time and disks are simulated.  The whole history follows from the seed, so
`python -m tests.campaigns.simulation.world --seed N` replays what a test has seen.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from tests.campaigns.simulation.actors import Actor, Checkpoint
from tests.campaigns.simulation.history_oracle import HistoryOracle
from tests.campaigns.simulation.simulated_environment import MS, SimulatedEnvironment
from tests.campaigns.simulation.watch import Watch, describe, observed

from statelog.errors import BackpressureTimeoutError, ClosedError, InvariantError, check
from statelog.model import KeyGroupRange, SequenceNumber, StateChange


@dataclass(frozen=True, slots=True)
class Outcome:
    steps: int
    virtual_ns: int
    persists: int
    failures: int
    waits: int
    files: int
    local_reads: int
    set_aside: int


class World:
    """A storage, some writers, and a history of operations and faults."""

    def __init__(
        self, seed: int, *, operations: int = 60, trace: Callable[[str], None] | None = None
    ) -> None:
        self._rng = rng = random.Random(seed)
        self._operations = operations
        self._trace = trace
        self._around = around = SimulatedEnvironment(rng)
        self._queue = around.queue
        self._storage = around.storage
        self._watch = Watch(around.batching, around.policy, trace)
        self._oracle = HistoryOracle(around.store, around.disk, self._watch)
        self._actors = [self._new_actor() for _ in range(rng.randrange(1, 6))]
        self._retired: list[Actor] = []
        self._next_checkpoint_id = 1
        self._persists = 0
        self._failures = 0
        self._timeouts = 0
        self._closed = False
        if rng.random() < 0.15:  # during an append, a persist, or a wait for capacity
            self._queue.after(rng.randrange(operations * 5 * MS), self._close)

    def run(self) -> Outcome:
        """Run the history and check it."""
        with observed(self._watch):
            at_ns = 0
            for _ in range(self._operations):
                at_ns += self._rng.randrange(1, 10 * MS)
                self._queue.at(at_ns, self._operate)
            self._quiet(until_ns=at_ns)
            if self._rng.random() < 0.15:
                self._close()
            if not self._closed:
                self._heal()
            self._quiet()
            self._release()
            self._check_when_quiet()
            if not self._closed:
                self._around.close()
            self._quiet()
            self._check_after_close()
        return Outcome(
            steps=self._watch.steps,
            virtual_ns=self._queue.now_ns(),
            persists=self._persists,
            failures=self._failures,
            waits=self._around.waits,
            files=len(self._around.store.objects),
            local_reads=self._oracle.local_reads,
            set_aside=self._oracle.set_aside,
        )

    # --- operations -------------------------------------------------------------------------------

    def _new_actor(self) -> Actor:
        return Actor(self._storage.create_writer("operator", KeyGroupRange(0, 9)))

    def _quiet(self, until_ns: int | None = None) -> None:
        while self._queue.step(until_ns):
            pass

    def _operate(self) -> None:
        """Run an operation of a writer that does not wait for capacity."""
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
                self._restore,
            ],
            [30, 15, 5, 10, 20, 10, 4, 6, 2, 4],
        )[0]
        actor.busy = True
        try:
            operation(actor)
        except BackpressureTimeoutError:
            self._timeouts += 1  # allowed; the appended changes stay in the log
        except ClosedError:
            check(self._closed, "closed without a close")
        actor.busy = False
        actor.sync()

    def _close(self) -> None:
        self._closed = True
        self._around.close()

    def _value(self) -> bytes:
        return self._rng.randbytes(self._rng.choice([0, 1, 20, 20, 100, 300]))

    def _append(self, actor: Actor) -> None:
        change = StateChange(self._rng.randrange(10), self._value())
        actor.model.append(change)
        actor.writer.append(change.key_group, change.value)

    def _append_meta(self, actor: Actor) -> None:
        change = StateChange(-1, self._value())
        actor.model.append(change)
        actor.writer.append_meta(change.value)

    def _append_batch(self, actor: Actor) -> None:
        changes = [
            StateChange(self._rng.randrange(10), self._value())
            for _ in range(self._rng.randrange(6))
        ]
        for change in changes:
            actor.model.append(change)
        values = pa.array([change.value for change in changes], pa.binary())
        key_groups = np.array([change.key_group for change in changes], np.int64)
        actor.writer.append_batch(key_groups, values)

    def _cut(self, actor: Actor) -> None:
        actor.model.cut()
        number = actor.writer.next_sequence_number().value
        check(number == actor.model.active_sqn, "numbers differ from the model's")

    def _persist(self, actor: Actor, from_sqn: int | None = None) -> None:
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
        checkpoint = Checkpoint(checkpoint_id, from_sqn, highest, future)
        actor.checkpoints.append(checkpoint)
        future.add_done_callback(lambda _: self._guarded(lambda: self._on_end(actor, checkpoint)))

    def _confirm(self, actor: Actor) -> None:
        if completed := actor.completed:
            checkpoint = self._rng.choice(completed)
            if checkpoint.from_sqn >= actor.model.truncated_to:
                checkpoint.confirmed = True
            newest = max(self._oracle.newest_confirmed, checkpoint.checkpoint_id)
            self._oracle.newest_confirmed = newest
            actor.writer.confirm(
                SequenceNumber(checkpoint.from_sqn),
                SequenceNumber(checkpoint.to_sqn),
                checkpoint.checkpoint_id,
            )

    def _abort(self, actor: Actor) -> None:
        if actor.checkpoints:
            checkpoint = self._rng.choice(actor.checkpoints)
            if checkpoint.checkpoint_id > self._oracle.newest_confirmed:
                checkpoint.aborted = True
            actor.writer.reset(
                SequenceNumber(checkpoint.from_sqn),
                SequenceNumber(checkpoint.to_sqn),
                checkpoint.checkpoint_id,
            )

    def _truncate(self, actor: Actor) -> None:
        number = actor.writer.next_sequence_number().value
        actor.model.cut()
        to_sqn = self._rng.randint(0, number)
        actor.model.truncate(to_sqn)
        actor.writer.truncate(SequenceNumber(to_sqn))

    def _replace(self, actor: Actor) -> None:
        """Close the writer in one of two ways, and open another."""
        actor.closed = True
        if self._rng.random() < 0.5:
            actor.writer.close()
        else:
            actor.wanted_to = self._rng.randint(0, actor.model.active_sqn)
            actor.writer.truncate_and_close(SequenceNumber(actor.wanted_to))
        self._retired.append(actor)
        self._actors[self._actors.index(actor)] = self._new_actor()

    def _restore(self, actor: Actor) -> None:
        """Read a checkpoint as a restart on this host would."""
        if self._around.disk_faulty and self._rng.random() < 0.5:
            self._around.disk.rot()
        if kept := actor.kept():
            self._oracle.read_back(actor, self._rng.choice(kept))

    # --- checks -----------------------------------------------------------------------------------

    def _guarded(self, verify: Callable[[], None]) -> None:
        """Run *verify* in a callback, where an error would otherwise be swallowed."""
        try:
            verify()
        except AssertionError as error:
            self._watch.broken.append(error)

    def _on_end(self, actor: Actor, checkpoint: Checkpoint) -> None:
        check(not self._around.lock_is_held, "a callback under the lock")
        error = checkpoint.future.exception()
        if self._trace is not None:
            now_ns, number = self._queue.now_ns(), checkpoint.checkpoint_id
            self._trace(f"{now_ns} persist {number} {describe(error)}")
        if error is None:
            self._oracle.look_at(actor, checkpoint)
            return
        self._failures += 1
        # A slow disk counts, because the wait for a copy is part of the attempt.
        plans = (self._around.plan, self._around.disk_plan)
        faults = self._timeouts or any(plan.error_rate or plan.slow_rate for plan in plans)
        # An attempt that waits for a copy cannot end before a wait that began inside of it, which
        # takes seconds.  Threads would not delay each other.
        faults = bool(faults) or self._around.holds_up_work
        self._oracle.reason_is_fair(actor, checkpoint, closed=self._closed, faults=faults)

    def _heal(self) -> None:
        self._quiet()
        if self._closed:
            return
        self._around.heal()
        self._release()
        self._timeouts = 0
        for actor in self._actors:
            try:
                self._persist(actor, from_sqn=actor.model.truncated_to)
            except BackpressureTimeoutError:
                self._quiet()  # the other writers had used all capacity
                self._persist_with_capacity(actor)

    def _release(self) -> None:
        """Let hanging work return, after a check that it counts as in flight."""
        self._oracle.what_hangs_is_in_flight(self._storage.scheduler)
        self._around.release()
        self._quiet()

    def _persist_with_capacity(self, actor: Actor) -> None:
        try:
            self._persist(actor, from_sqn=actor.model.truncated_to)
        except BackpressureTimeoutError as error:
            raise InvariantError("no capacity without events: an upload never ended") from error

    def _check_when_quiet(self) -> None:
        """Check liveness, and that no garbage is stored."""
        self._raise_broken()
        self._watch.finish(cancelled=self._closed)
        self._oracle.when_quiet(self._all_actors, self._storage.scheduler)
        if self._closed:
            return
        for actor in self._actors:
            last = actor.checkpoints[-1]
            check(last.future.exception() is None, "a persist failed after the faults ended")
        if self._around.faulty:
            return
        self._oracle.no_garbage(self._actors)
        if not self._around.disk_faulty:
            self._oracle.no_local_garbage(self._around.known_copies())

    def _check_after_close(self) -> None:
        self._raise_broken()
        self._oracle.local_copies_are_there(self._all_actors)
        self._oracle.after_close(self._all_actors)
        if not self._around.faulty and not self._closed:
            self._oracle.only_owned_files()

    @property
    def _all_actors(self) -> list[Actor]:
        return [*self._actors, *self._retired]

    def _raise_broken(self) -> None:
        if self._watch.broken:
            raise self._watch.broken[0]


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay one seed, or run many; return 1 if an invariant broke."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.simulation.world", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=0, help="the (first) seed")
    parser.add_argument("--count", type=int, default=1, help="number of seeds")
    parser.add_argument("--operations", type=int, default=60, help="operations in a history")
    parser.add_argument("--quiet", action="store_true", help="omit the trace")
    options = parser.parse_args(arguments)
    write = sys.stdout.write
    for seed in range(options.seed, options.seed + options.count):
        trace = None if options.quiet or options.count > 1 else _print
        try:
            outcome = World(seed, operations=options.operations, trace=trace).run()
        except Exception as error:
            write(f"seed {seed} broke: {type(error).__name__}: {error}\n")
            return 1
        if options.count == 1:
            write(f"seed {seed}: {outcome}\n")
    write(f"{options.count} histories hold\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
