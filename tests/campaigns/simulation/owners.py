"""
Owners come, pause, die and come back; the store loses answers; nothing committed is ever lost.

A seed decides everything.  One owner works at a time, but before any request to the store it may
be paused, and another one takes over, works, and cleans up before the first one goes on.  With even
seeds, conditional puts conflict (S3's 409), and stay in flight while other owners put the same names.

`python -m tests.campaigns.simulation.owners --seed N` replays what a test has seen.
"""

import argparse
import contextlib
import random
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.support.locations.checkpoints import ManualClock, log_in_file, log_inline
from tests.support.locations.sequence_entries import decoded
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint import (
    CheckpointCoordinator,
    CheckpointOptions,
    clean_up,
    read_materialized,
)
from statelog.errors import (
    CheckpointError,
    FencedError,
    StoreError,
    UsageError,
)
from statelog.format.buffers import checksum
from statelog.format.change_set import decode_change_set
from statelog.format.segment import parse_segment, verify_set
from statelog.model import (
    ByteStreamStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
    split_key_groups,
)
from statelog.store import PATHS
from statelog.store.paths import parse_checkpoint_metadata

REPLAY = "python -m tests.campaigns.simulation.owners"
KEY_GROUPS = 8
ALL = KeyGroupRange(0, KEY_GROUPS - 1)


class DiedError(Exception):
    """The process of the running owner is gone."""


class Late(Future[Any]):
    """Requests that another thread makes, at a moment that the dice choose."""

    def __init__(self, work: Callable[[], Any], actor: str) -> None:
        super().__init__()
        self.actor = actor
        self._work: Callable[[], Any] | None = work

    def run(self) -> None:
        work, self._work = self._work, None
        if work is None:
            return
        try:
            self.set_result(work())
        except StoreError as error:
            self.set_exception(error)
        except DiedError:
            self.set_exception(StoreError("the thread is gone"))

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(0)


class World:
    """The store, the model of what must hold, and the dice."""

    def __init__(self, seed: int, *, batched: bool = False) -> None:
        self.rng = random.Random(seed)
        self.batched = batched
        self.actors: list[str] = []
        """The owners that live, the one that makes the requests last."""
        self.late: list[Late] = []
        self.late_rng = random.Random(f"late {seed}")
        self.late_runs = 0
        self.store = self.new_store()
        self.store.on_request = self.on_request
        self.fault_rate = self.rng.choice([0.0, 0.02, 0.1])
        self.pause_rate = self.rng.choice([0.0, 0.01, 0.05])
        self.gap_rate = self.rng.choice([0.0, 0.05, 0.5])
        # Dice of their own: what the other seeds show stays as it is.
        self.conflict_rng = random.Random(f"conflicts {seed}")
        self.conflict_rate = self.conflict_rng.choice([0.05, 0.2]) if seed % 2 == 0 else 0.0
        self.conflicts_in_a_row = 0
        self.store.while_in_flight = self.while_in_flight
        self.conflicts = self.flights = self.faults = 0
        self.owner_of: dict[int, str] = {}
        self.depth = 0
        self.quiet = False
        self.tokens = 0
        # Model: per attempt (token) the state it stands for and the attempt it continues.
        self.state_of: dict[int, dict[int, list[str]]] = {}
        self.parent_of: dict[int, int | None] = {}
        self.gave_up: dict[int, set[int]] = {}
        """Per attempt: the attempts that it gives up, because its owner went back to an older one."""
        self.acknowledged: dict[int, int] = {}
        self.finished = self.fenced = self.died = self.lost = self.given_up = 0

    def new_store(self) -> DictStore:
        return DictStore()

    def on_request(self, operation: str, path: str) -> str | None:
        if self.quiet:
            return None
        if self.late and self.late_rng.random() < 0.1:
            self.run_late()
        # Before its put is the worst place for an owner to fall asleep.
        rate = self.pause_rate * (4 if operation == "put_if_absent" else 1)
        if self.rng.random() < rate and self.depth < 2:
            self.depth += 1
            Owner(self).live(self.rng.randint(1, 4))
            self.depth -= 1
        dice = self.rng.random()
        if dice < self.fault_rate * 0.8:
            self.faults += 1
        if dice < self.fault_rate / 3:
            raise StoreError(f"{operation} {path}: no route to host", path=path)
        if dice < self.fault_rate * 2 / 3:
            self.lost += 1
            return "lose"
        if dice < self.fault_rate * 0.8:
            self.died += 1
            raise DiedError
        return self.conflict() if operation == "put_if_absent" else None

    def conflict(self) -> str | int | None:
        """Let a conditional put conflict, at most three in a row, or stay in flight."""
        dice = self.conflict_rng.random()
        if dice < self.conflict_rate and self.conflicts_in_a_row < 3:
            self.conflicts_in_a_row += 1
            self.conflicts += 1
            return "conflict"
        self.conflicts_in_a_row = 0
        if self.conflict_rate and dice > 0.9 and self.depth < 2:
            return self.conflict_rng.randrange(3)
        return None

    def while_in_flight(self) -> bool:
        """Let another owner live; return whether the put that is in flight succeeds."""
        self.flights += 1
        self.depth += 1
        Owner(self).live(self.rng.randint(1, 3))
        self.depth -= 1
        succeeds = self.conflict_rng.random() < 0.5
        self.faults += not succeeds
        return succeeds

    def in_background(self, work: Callable[[], Any]) -> Future[Any]:
        """Keep the requests of a batch for a later moment, of this owner's time or of another's."""
        self.late.append(Late(work, self.actors[-1]))
        return self.late[-1]

    def settle(self) -> None:
        """From here on nothing fails, and no other owner lives."""
        self.fault_rate = self.pause_rate = self.gap_rate = self.conflict_rate = 0.0

    def rested(self, owner: "Owner") -> None:
        """An owner is between two checkpoints; some worlds let it go on later."""

    def restore(self, owner: "Owner") -> CompletedCheckpoint | None:
        """Let an owner restore after its claim; some worlds let it go back."""
        return owner.coordinator.restore()

    def restored(self, owner: str, epoch: int, checkpoint: Any, timeline: int) -> None:
        """An owner restored; a trace notes it."""

    def reported(self, owner: str, checkpoint_id: int) -> None:
        """An owner reported a commit; a trace notes it."""

    def run_late(self) -> None:
        late = self.late.pop(self.late_rng.randrange(len(self.late)))
        depth, self.depth = self.depth, 2  # no other owner lives between these requests
        self.actors.append(late.actor)
        late.run()
        self.actors.pop()
        self.depth = depth
        self.late_runs += 1

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def check(self) -> None:
        """Everything that any moment must show; asks the store without dice."""
        quiet, self.quiet = self.quiet, True
        reader = self.coordinator("reader")
        newest = reader.restore()
        line = []
        if newest is not None:
            for checkpoint_id in newest.retained:
                checkpoint = reader.load(checkpoint_id)
                missing = [p for p in checkpoint.referenced_paths() if p not in self.store.objects]
                assert missing == [], f"checkpoint {checkpoint_id} lost {missing}"
                assert read_state(self.store, checkpoint) == self.state_of[token_of(checkpoint)]
            line = self.line(token_of(newest))
            self.check_histories(newest, line)
        forgotten = set(self.acknowledged.values()) - set(line)
        forgotten -= self.given_up_by(line)
        assert forgotten == set(), f"attempts {forgotten} were acknowledged, then forgotten"
        self.quiet = quiet

    def line(self, token: int | None) -> list[int]:
        """Return an attempt and those that it continues, newest first."""
        line = []
        while token is not None:
            line.append(token)
            token = self.parent_of[token]
        return line

    def given_up_by(self, line: list[int]) -> set[int]:
        """Return the attempts that those of a line gave up, and that the given-up ones gave up before."""
        given_up: set[int] = set()
        waiting = [*line]
        while waiting:
            fresh = self.gave_up.get(waiting.pop(), set()) - given_up
            given_up |= fresh
            waiting += fresh
        return given_up

    def check_histories(self, newest: CompletedCheckpoint, line: list[int]) -> None:
        """What the newest checkpoint says of any other one is what happened."""
        for path in [*self.store.objects]:
            number = parse_checkpoint_metadata(path)
            entry = None if number is None else decoded(path, self.store.objects[path][0])
            if isinstance(entry, CompletedCheckpoint):
                is_part = token_of(entry) in line
                assert newest.continues(entry.position) is is_part, f"{number} is given up, or not"

    def check_winner(self, token: int) -> None:
        """No other attempt that was acknowledged continues the same checkpoint."""
        parent = self.parent_of[token]
        winners = [number for number in self.acknowledged if self.parent_of[number] == parent]
        assert winners == [token], f"{winners} all continue the same checkpoint"

    def coordinator(self, name: str, retained: int = 2) -> CheckpointCoordinator:
        return CheckpointCoordinator(
            self.store,
            owner_id=name,
            max_parallelism=KEY_GROUPS,
            options=CheckpointOptions(retained=retained),
            clock_ms=ManualClock(),
            pause=lambda seconds: None,
        )


def token_of(checkpoint) -> int:
    return checkpoint.properties["token"]


def read_state(store, checkpoint) -> dict[int, list[str]]:
    """Restore as tasks of a random parallelism would, every byte verified."""
    state: dict[int, list[str]] = {key_group: [] for key_group in ALL}
    parallelism = checkpoint.checkpoint_id % KEY_GROUPS + 1
    for part in split_key_groups(KEY_GROUPS, parallelism):
        handle = checkpoint.for_range(part)
        for snapshot in handle.materialized:
            for line in bytes(read_materialized(store, snapshot)).decode().splitlines():
                key_group, _, values = line.partition(":")
                if int(key_group) in snapshot.key_group_range:
                    state[int(key_group)] = values.split()
        for log in handle.log:
            for entry in log.handles_and_offsets:
                segment = parse_segment(store.get(entry.handle.path))
                encoded = segment.payload[entry.offset : entry.offset + entry.size_bytes]
                verify_set(encoded, entry.crc32c)
                for change in decode_change_set(segment.payload, entry.offset).batch:
                    if change.key_group in log.key_group_range:
                        state[change.key_group].append(change.value.decode())
    return state


class Owner:
    """One life of a job: claim, restore, checkpoints, until it dies or is fenced."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.name = f"owner-{world.token()}"
        self.coordinator = world.coordinator(self.name, self.rng.randint(1, 3))
        self.state: dict[int, list[str]] = {key_group: [] for key_group in ALL}
        self.token: int | None = None
        self.gives_up: set[int] = set()
        self.may_decline = True
        self.has_begun = False
        if world.batched:
            self.coordinator._clean_ups._start = world.in_background

    def live(self, checkpoints: int) -> None:
        self.world.actors.append(self.name)
        try:
            self._live(checkpoints)
        finally:
            self.world.actors.pop()

    def _live(self, checkpoints: int) -> None:
        faults = self.world.faults
        try:
            if not self.has_begun:
                self.take_over()
                self.has_begun = True
            for _ in range(checkpoints):
                self.checkpoint()
            self.world.rested(self)
        except FencedError:
            self.world.fenced += 1
        except StoreError as error:
            # A conflict is no fault: it is settled by reading back and putting again.
            assert self.world.faults > faults, f"a conflict alone ended an owner: {error}"
        except DiedError:
            return

    def take_over(self) -> None:
        """Claim the location, and continue its newest checkpoint."""
        epoch = self.coordinator.claim()
        other = self.world.owner_of.setdefault(epoch, self.name)
        assert other == self.name, f"{other} and {self.name} both own epoch {epoch}"
        checkpoint = self.world.restore(self)
        self.world.restored(self.name, epoch, checkpoint, self.coordinator.timeline.number)
        self.token = None if checkpoint is None else token_of(checkpoint)
        known = self.world.state_of.get(self.token, {})
        self.state = {key_group: list(known.get(key_group, ())) for key_group in ALL}

    def checkpoint(self) -> None:
        checkpoint_id = self.coordinator.next_checkpoint_id
        ranges = split_key_groups(KEY_GROUPS, self.rng.randint(1, KEY_GROUPS))
        if self.rng.random() < self.world.gap_rate:
            with pytest.raises(CheckpointError, match="the next id"):
                self.coordinator.trigger(checkpoint_id + self.rng.choice([-1, 1, 3]), ranges)
        self.coordinator.trigger(checkpoint_id, ranges)
        token = self.world.token()
        state = {key_group: list(values) for key_group, values in self.state.items()}
        absent = self.rng.choice(ranges) if self.may_decline and self.rng.random() < 0.1 else None
        for part in self.rng.sample(ranges, len(ranges)):
            if part != absent:
                self.coordinator.acknowledge(checkpoint_id, self.snapshot(part, state, token, 0))
        if absent is not None:
            with pytest.raises(CheckpointError) as raised:
                self.coordinator.complete(checkpoint_id, properties={})
            assert raised.value.missing == (absent,)
            self.coordinator.decline(checkpoint_id, "a task is gone")
            return
        self.world.state_of[token] = state
        self.world.parent_of[token] = self.token
        self.world.gave_up[token] = self.gives_up
        if not self.commit(checkpoint_id, token):
            return
        self.state, self.token = state, token
        self.coordinator._ledger.check_invariants()
        if self.world.batched:
            with contextlib.suppress(StoreError):  # logged by a driver; a later batch tries again
                self.coordinator.clean_up_when_due()
        elif self.rng.random() < 0.8:
            self.coordinator.clean_up()
        self.coordinator._ledger.check_invariants()

    def snapshot(self, part, state, token, checkpoint_id) -> TaskStateSnapshot:
        """What one task acknowledges; its changes go into *state* as well."""
        before = {key_group: list(state[key_group]) for key_group in part}
        log = materialized = None
        changed = [key_group for key_group in part if self.rng.random() < 0.7]
        if changed:
            changes = [(key_group, f"{token}.{key_group}".encode()) for key_group in changed]
            for key_group, value in changes:
                state[key_group].append(value.decode())
            if self.rng.random() < 0.5:
                log = log_inline(part, [changes])
            else:
                log = log_in_file(self.world.store, part, [changes])
        if self.rng.random() < 0.2:
            materialized = self.materialize(part, before, state)
        return TaskStateSnapshot(part, log, materialized)

    def materialize(self, part, before, state) -> MaterializedHandle | None:
        """A snapshot as of the last checkpoint, or of the one under way."""
        latest, pending = self.coordinator.latest, self.coordinator._ledger.pending_id
        of_pending = latest is None or self.rng.random() < 0.5
        chosen = state if of_pending else before
        text = "".join(f"{k}:{' '.join(chosen[k])}\n" for k in part).encode()
        checkpoint_id = pending if of_pending else latest.checkpoint_id
        name = PATHS.task_owned(f"snapshot-{self.world.token()}")
        if self.rng.random() < 0.3:
            return MaterializedHandle(part, checkpoint_id, ByteStreamStateHandle(name, text))
        self.world.store.put(name, text)
        handle = FileStateHandle(name, len(text), checksum([text]))
        return MaterializedHandle(part, checkpoint_id, handle)

    def give_up(self, checkpoint_id: int) -> None:
        """Decline a checkpoint whose put has an unknown outcome, and take the location over."""
        self.coordinator.decline(checkpoint_id, "the outcome is unknown")
        with pytest.raises(UsageError, match=r"claim\(\) and then restore\(\)"):
            self.coordinator.trigger(checkpoint_id, [ALL])
        self.world.given_up += 1
        self.take_over()

    def commit(self, checkpoint_id: int, token: int) -> bool:
        """Commit; return False if the owner gives the checkpoint up, without knowing the outcome."""
        for _ in range(4):
            faults = self.world.faults
            try:
                self.coordinator.complete(checkpoint_id, properties={"token": token})
            except StoreError as error:
                assert self.world.faults > faults, f"a conflict alone failed a commit: {error}"
                if self.rng.random() < 0.6:
                    self.give_up(checkpoint_id)
                    return False
                continue
            break
        else:
            raise DiedError
        self.world.reported(self.name, checkpoint_id)
        assert self.world.acknowledged.setdefault(token, token) == token
        self.world.check_winner(token)
        self.gives_up = set()
        self.world.finished += 1
        return True


def simulate(seed: int, *, batched: bool = False, new_world: type[World] = World) -> World:
    world = new_world(seed, batched=batched)
    for _ in range(world.rng.randint(2, 6)):
        Owner(world).live(world.rng.randint(1, 8))
        world.check()
    # In the end: with nobody else around and nothing failing, a job goes on at once.
    world.settle()
    before = world.finished
    last = Owner(world)
    last.may_decline = False
    last.live(4)
    assert world.finished == before + 4, "the last owner is stuck"
    world.check()
    return world


def replayable(seed: int, *, batched: bool = False) -> World:
    """Simulate a world; the error of one that fails has the command that shows it again."""
    try:
        return simulate(seed, batched=batched)
    except Exception as error:
        command = f"{REPLAY} {'--batched ' if batched else ''}--seed {seed}"
        raise AssertionError(f"{error!r}; replay: {command}") from error


class Rewinding(World):
    """A world in which many owners go back to an older checkpoint, or begin a timeline."""

    rewinds = 0

    def check_winner(self, token: int) -> None:
        """A checkpoint is continued again after each rewind to it."""

    def restore(self, owner: Owner) -> CompletedCheckpoint | None:
        newest = owner.coordinator.restore()
        owner.gives_up = set()
        if newest is None or self.conflict_rng.random() < 0.4:
            return newest
        self.rewinds += 1
        older = self.conflict_rng.choice(owner.coordinator.checkpoints())
        begins = self.conflict_rng.random() < 0.3
        try:
            base = owner.coordinator.restore(older, begins_timeline=begins)
        except CheckpointError as error:
            numbers = map(parse_checkpoint_metadata, [*self.store.objects])
            assert max(filter(None, numbers)) > owner.coordinator.next_checkpoint_id - 1
            raise FencedError("another owner deleted it meanwhile") from error
        assert base is not None
        owner.gives_up = {*self.line(token_of(newest))}.difference(self.line(token_of(base)))
        return base


def main(arguments=None):
    """Replay one seed; an error comes through with its trace."""
    parser = argparse.ArgumentParser(prog=REPLAY)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--batched", action="store_true", help="clean up in batches of two commits")
    options = parser.parse_args(arguments)
    seed = options.seed
    if options.batched:
        clean_up.BATCH_COMMITS = 2
    world = simulate(seed, batched=options.batched)
    sys.stdout.write(f"seed {seed} holds: {world.finished} checkpoints, {world.died} deaths\n")


if __name__ == "__main__":
    main()
