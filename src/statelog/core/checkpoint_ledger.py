"""
The checkpoints of one owner: acknowledgements, the contents of a commit, and garbage.

No IO, no clock, no names of objects: the shell passes events to `handle(event, now_ns)` and
performs the returned actions.  An event that is not allowed is refused with an error and changes
nothing.
Source: Flink, CheckpointCoordinator, PendingCheckpoint and SharedStateRegistry.  Deviations: one
checkpoint at a time; garbage is found by counting references of retained checkpoints, and an
object that a pending acknowledgement names is never garbage.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

from statelog.errors import CheckpointError, FencedError, UsageError, check
from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
    live_log,
    live_snapshots,
)
from statelog.model.checkpoint import Pin, pinned, retained_ids

# --------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class RetainedCheckpoint:
    """
    A retained checkpoint, and the objects that it needs.

    Args:
        checkpoint_id: Its number.
        objects: All objects it needs, its own metadata last.  None if it cannot be read; then no
            object counts as garbage while it is retained.
    """

    checkpoint_id: int
    objects: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Restored:
    """
    The history of the location has been read.

    Args:
        latest: The checkpoint to continue from; None for an empty location.
        retained: Retained checkpoints, ascending, *latest* last.
        pins: The pins of the location.
        given_up: Newer checkpoints that the first commit subsumes, ascending.
    """

    latest: CompletedCheckpoint | None
    retained: tuple[RetainedCheckpoint, ...] = ()
    pins: tuple[Pin, ...] = ()
    given_up: tuple[RetainedCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Triggered:
    """Checkpoint *checkpoint_id* was requested from the tasks that own *ranges*."""

    checkpoint_id: int
    ranges: tuple[KeyGroupRange, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A task made its part of the checkpoint durable."""

    checkpoint_id: int
    snapshot: TaskStateSnapshot


@dataclass(frozen=True, slots=True)
class Declined:
    """A task or the driver declined the checkpoint."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommitRequested:
    """The engine commits the checkpoint, whose contents no longer change."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The metadata object exists, and was written by this owner."""

    checkpoint: CompletedCheckpoint
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """A different owner has taken over the location."""

    reason: str


@dataclass(frozen=True, slots=True)
class CleanUpRequested:
    """
    The engine requests a clean-up.

    Args:
        pins: The pins of the location, read after the commits that subsumed *subsumed*; None if
            they were not read, which is allowed while no checkpoint was subsumed since.
        leftovers: Checkpoints of earlier owners that are no longer retained.
        subsumed: The checkpoints that are settled by these pins; None for all.
    """

    pins: tuple[Pin, ...] | None = None
    leftovers: tuple[RetainedCheckpoint, ...] = ()
    subsumed: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """These objects were deleted."""

    paths: tuple[str, ...]


Event: TypeAlias = (
    Restored
    | Triggered
    | Acknowledged
    | Declined
    | CommitRequested
    | Committed
    | Fenced
    | CleanUpRequested
    | Deleted
)

# -------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """
    Build and write the checkpoint from these parts, then report `Committed` or `Fenced`.

    Args:
        checkpoint_id: Its number.
        parent_id: The checkpoint it continues.
        materialized: Its snapshots.
        log: Its log handles; those of this checkpoint may be inline.
        retained: Checkpoints retained after the commit, itself included.
    """

    checkpoint_id: int
    parent_id: int | None
    materialized: tuple[MaterializedHandle, ...]
    log: tuple[ChangelogStateHandle, ...]
    retained: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteObjects:
    """Delete these objects in this order, then report the ones deleted with `Deleted`."""

    paths: tuple[str, ...]


Action: TypeAlias = WriteMetadata | DeleteObjects


_DECLINED_REMEMBERED: Final = 100
_NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class _Pending:
    checkpoint_id: int
    ranges: tuple[KeyGroupRange, ...]
    triggered_ns: int
    snapshots: dict[KeyGroupRange, TaskStateSnapshot]
    expected: frozenset[KeyGroupRange]  # the ranges: thousands of tasks look theirs up
    committing: bool = False


class Phase(enum.Enum):
    """What an owner is currently doing."""

    IDLE = "no checkpoint under way"
    COLLECTING = "waiting for tasks"
    COMMITTING = "committing"
    FENCED = "fenced"


PHASES: Final[Mapping[Phase, Mapping[type, Phase]]] = {
    Phase.IDLE: {Triggered: Phase.COLLECTING, Fenced: Phase.FENCED},
    Phase.COLLECTING: {
        CommitRequested: Phase.COMMITTING,
        Committed: Phase.IDLE,
        Declined: Phase.IDLE,
        Restored: Phase.IDLE,
        Fenced: Phase.FENCED,
    },
    Phase.COMMITTING: {
        Committed: Phase.IDLE,
        Declined: Phase.IDLE,
        Restored: Phase.IDLE,
        Fenced: Phase.FENCED,
    },
    Phase.FENCED: {Restored: Phase.IDLE},
}
"""For each phase the phase after an event, by the class of the event."""


class CheckpointLedger:
    """
    The checkpoints of one owner, and the phase that the owner is in.

    Invariants:
        1. The references to an object are the retained and subsumed checkpoints that name it.
        2. No garbage is named by one of them.
        3. The pending checkpoint is newer than the latest one.
        4. Retained ids ascend and end with the latest one.
        5. A pending checkpoint holds snapshots of its own ranges only, and these are disjoint.
    """

    def __init__(self, *, max_parallelism: int, retained: int) -> None:
        self._max_parallelism = max_parallelism
        self._retained_max = retained
        # The history: what is retained, and what the next clean-up may delete.
        self._latest: CompletedCheckpoint | None = None
        self._retained: dict[int, tuple[str, ...] | None] = {}
        self._subsumed: dict[int, tuple[str, ...] | None] = {}
        self._given_up: tuple[RetainedCheckpoint, ...] = ()
        self._pins: tuple[Pin, ...] = ()
        self._references: dict[str, int] = {}
        self._garbage: dict[str, None] = {}
        # What is under way.
        self._pending: _Pending | None = None
        self._declined: dict[int, str] = {}
        self._fenced: str | None = None

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest committed checkpoint."""
        return self._latest

    @property
    def retained(self) -> tuple[int, ...]:
        """The checkpoints that can be restored, in ascending order."""
        return tuple(self._retained)

    @property
    def subsumed(self) -> tuple[int, ...]:
        """The checkpoints that are no longer retained, which the next clean-up deletes."""
        return tuple(self._subsumed)

    @property
    def phase(self) -> Phase:
        """The phase of the owner; see `PHASES` for the transitions."""
        if self._fenced is not None:
            return Phase.FENCED
        if self._pending is None:
            return Phase.IDLE
        return Phase.COMMITTING if self._pending.committing else Phase.COLLECTING

    @property
    def is_fenced(self) -> bool:
        """Whether a different owner has taken the location, so that only `Restored` is accepted."""
        return self._fenced is not None

    @property
    def pending_id(self) -> int | None:
        """The checkpoint in progress, or None."""
        return None if self._pending is None else self._pending.checkpoint_id

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Handle an event, and return the actions to perform."""
        # An owner that was fenced must not change the location; a restore takes it back.
        if self._fenced is not None and not isinstance(event, Restored | Fenced):
            raise FencedError(self._fenced)
        match event:
            case Restored():
                self._restore(event)
            case Triggered():
                self._trigger(event, now_ns)
            case Acknowledged():
                self._acknowledge(event)
            case Declined():
                self._decline(event)
            case CommitRequested():
                return [self._plan(event, now_ns)]
            case Committed():
                self._commit(event)
            case Fenced():
                self._fenced = event.reason
                self._pending = None
            case CleanUpRequested():
                return self._clean_up(event)
            case Deleted():
                for path in event.paths:
                    self._garbage.pop(path, None)
            case _:
                assert_never(event)
        return []

    def _restore(self, event: Restored) -> None:
        # Everything before is void: another owner may have committed and deleted meanwhile.
        self._latest = event.latest
        self._fenced = None
        self._pending = None
        self._declined.clear()
        self._garbage.clear()
        self._references.clear()
        self._retained.clear()
        self._subsumed.clear()
        self._pins = event.pins
        self._given_up = event.given_up
        for checkpoint in event.retained:
            self._refer(checkpoint)
            self._retained[checkpoint.checkpoint_id] = checkpoint.objects

    def _trigger(self, event: Triggered, now_ns: int) -> None:
        pending = self._pending
        latest = self._latest
        if pending is not None and pending.checkpoint_id != event.checkpoint_id:
            raise CheckpointError(
                f"checkpoint {event.checkpoint_id} cannot begin while {pending.checkpoint_id} is "
                f"in progress; complete or decline checkpoint {pending.checkpoint_id} first",
                checkpoint_id=event.checkpoint_id,
                reason="in_progress",
            )
        # The metadata object may exist already, so its parts must not change.
        if pending is not None and pending.committing:
            raise CheckpointError(
                f"checkpoint {event.checkpoint_id} is being committed; call complete again, or "
                "decline it",
                checkpoint_id=event.checkpoint_id,
                reason="committing",
            )
        if event.checkpoint_id < 0 or (latest and event.checkpoint_id <= latest.checkpoint_id):
            raise CheckpointError(
                f"checkpoint {event.checkpoint_id} cannot begin: "
                + (f"{latest.checkpoint_id} is already complete" if latest else "negative id"),
                checkpoint_id=event.checkpoint_id,
                reason="not_newer",
            )
        ranges = tuple(sorted(event.ranges))
        # Overlapping ranges would mean two tasks that own one key group, with a log each.
        for before, after in itertools.pairwise(ranges):
            if after.start <= before.end:
                raise UsageError(f"key group ranges {before} and {after} overlap")
        # A range beyond the last key group belongs to a job of another size.
        for key_groups in ranges:
            if not len(key_groups) or key_groups.end >= self._max_parallelism:
                raise UsageError(
                    f"key group range {key_groups} is empty or exceeds the {self._max_parallelism} "
                    "key groups of the job"
                )
        # The same number may be tried again after it was declined.
        self._declined.pop(event.checkpoint_id, None)
        self._pending = _Pending(event.checkpoint_id, ranges, now_ns, {}, frozenset(ranges))

    def _pending_for(self, checkpoint_id: int) -> _Pending:
        if self._pending is not None and self._pending.checkpoint_id == checkpoint_id:
            return self._pending
        # Late acknowledgements of a declined checkpoint get the reason, not "unknown".
        if checkpoint_id in self._declined:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} was declined: {self._declined[checkpoint_id]}",
                checkpoint_id=checkpoint_id,
                reason="declined",
            )
        under_way = "none" if self._pending is None else str(self._pending.checkpoint_id)
        raise CheckpointError(
            f"checkpoint {checkpoint_id} is not in progress (current: {under_way}); trigger it "
            "first",
            checkpoint_id=checkpoint_id,
            reason="unknown",
        )

    def _acknowledge(self, event: Acknowledged) -> None:
        pending = self._pending_for(event.checkpoint_id)
        snapshot = event.snapshot
        if pending.committing:
            raise CheckpointError(
                f"checkpoint {event.checkpoint_id} is being committed; the acknowledgement of "
                f"the task with key groups {snapshot.key_group_range} came too late",
                checkpoint_id=event.checkpoint_id,
                reason="committing",
            )
        if snapshot.key_group_range not in pending.expected:
            raise CheckpointError(
                f"checkpoint {event.checkpoint_id} does not have a task with key groups "
                f"{snapshot.key_group_range}; it was triggered for "
                f"{', '.join(map(str, pending.ranges)) or 'no task'}",
                checkpoint_id=event.checkpoint_id,
                reason="unknown_range",
            )
        self._check_snapshot(event.checkpoint_id, snapshot)
        # A repeated acknowledgement replaces the first: Spark may run a task twice.
        pending.snapshots[snapshot.key_group_range] = snapshot

    def _check_snapshot(self, checkpoint_id: int, snapshot: TaskStateSnapshot) -> None:
        key_groups = snapshot.key_group_range
        for handle in (snapshot.log, snapshot.materialized):
            if (
                handle is not None
                and handle.key_group_range.intersection(key_groups) != handle.key_group_range
            ):
                raise CheckpointError(
                    f"the task with key groups {key_groups} acknowledged state of the key "
                    f"groups {handle.key_group_range}, which it does not own",
                    checkpoint_id=checkpoint_id,
                    reason="foreign_key_groups",
                )
        # Such a snapshot contains changes that this checkpoint must not restore.
        if snapshot.materialized and snapshot.materialized.checkpoint_id > checkpoint_id:
            raise CheckpointError(
                f"the task with key groups {key_groups} acknowledged checkpoint {checkpoint_id} with a "
                f"snapshot of the later checkpoint {snapshot.materialized.checkpoint_id}",
                checkpoint_id=checkpoint_id,
                reason="snapshot_too_new",
            )

    def _decline(self, event: Declined) -> None:
        self._pending_for(event.checkpoint_id)
        self._pending = None
        self._declined[event.checkpoint_id] = event.reason
        # The oldest first: a dict keeps the order of its insertions.
        while len(self._declined) > _DECLINED_REMEMBERED:
            del self._declined[next(iter(self._declined))]

    def _plan(self, event: CommitRequested, now_ns: int) -> WriteMetadata:
        pending = self._pending_for(event.checkpoint_id)
        missing = tuple(
            key_range for key_range in pending.ranges if key_range not in pending.snapshots
        )
        if missing:
            waited_ms = (now_ns - pending.triggered_ns) // _NS_PER_MS
            raise CheckpointError(
                f"checkpoint {event.checkpoint_id} is not complete: after {waited_ms} ms, the "
                f"tasks with key groups {', '.join(map(str, missing))} have not acknowledged it",
                checkpoint_id=event.checkpoint_id,
                reason="incomplete",
                missing=missing,
            )
        # Every task has answered.  The parts are fixed from here on, also if the put is repeated.
        pending.committing = True
        snapshots = [pending.snapshots[key_range] for key_range in pending.ranges]
        latest = self._latest
        # 1. What the tasks logged since the last checkpoint.  Empty logs add nothing.
        fresh_log = tuple(
            replace(snapshot.log, checkpoint_id=event.checkpoint_id)
            for snapshot in snapshots
            if snapshot.log is not None and snapshot.log.handles_and_offsets
        )
        # 2. What the last checkpoint still needed.
        log = latest.inherited_log() if latest else ()
        materialized = latest.materialized if latest else ()
        # 3. New snapshots replace older ones, and the log that they cover is no longer needed.
        if fresh := _unknown(materialized, snapshots):
            materialized = live_snapshots((*materialized, *fresh), self._max_parallelism)
            log = live_log(log, materialized, self._max_parallelism)
        log = (*log, *fresh_log)  # all of them, see `inherited_log`
        return WriteMetadata(
            event.checkpoint_id,
            latest.checkpoint_id if latest else None,
            materialized,
            log,
            retained_ids((*self._retained, event.checkpoint_id), self._retained_max, self._pins),
        )

    def _commit(self, event: Committed) -> None:
        self._pending_for(event.checkpoint.checkpoint_id)
        self._pending = None
        self._latest = event.checkpoint
        self._refer(RetainedCheckpoint(event.checkpoint.checkpoint_id, event.objects))
        self._retained[event.checkpoint.checkpoint_id] = event.objects
        # The commit decided what is retained; the rest waits for a clean-up with the pins.
        for checkpoint_id in list(self._retained):
            if checkpoint_id not in event.checkpoint.retained:
                self._subsumed[checkpoint_id] = self._retained.pop(checkpoint_id)
        # These are of a timeline that this commit ended, so a restore cannot reach them.
        for checkpoint in self._given_up:
            self._refer(checkpoint)
            self._subsumed[checkpoint.checkpoint_id] = checkpoint.objects
        self._given_up = ()

    def _refer(self, checkpoint: RetainedCheckpoint) -> None:
        for path in checkpoint.objects or ():
            self._references[path] = self._references.get(path, 0) + 1
            self._garbage.pop(path, None)

    def _discard(self, objects: tuple[str, ...] | None) -> None:
        for path in objects or ():
            # Another checkpoint may share the object, so only the last reference makes it garbage.
            if path not in self._references:
                self._garbage[path] = None

    def _clean_up(self, event: CleanUpRequested) -> list[Action]:
        # 1. Decide about the checkpoints that are no longer retained.
        self._settle_subsumed(event)
        referring = (*self._retained.values(), *self._subsumed.values())
        if any(objects is None for objects in referring):
            return []  # the needs of the unreadable one are unknown, so every object may be needed
        # 2. An object that an acknowledgement names will be part of the next checkpoint: keep it.
        awaited = self._named_by_pending()
        paths = tuple(path for path in self._garbage if path not in awaited)
        return [DeleteObjects(paths)] if paths else []

    def _settle_subsumed(self, event: CleanUpRequested) -> None:
        """Retain subsumed checkpoints that are pinned; the objects of all others are garbage."""
        latest = -1 if self._latest is None else self._latest.checkpoint_id
        if event.pins is None:
            check(not self._subsumed, "a clean-up after a commit needs the pins of the location")
            return
        self._pins = event.pins
        settled = tuple(self._subsumed) if event.subsumed is None else event.subsumed
        # A pin (a tag, or a fork that reads from here) keeps a checkpoint for as long as it exists.
        pinned_ids = pinned(event.pins, settled, latest)
        for checkpoint_id in settled:
            objects = self._subsumed.pop(checkpoint_id)
            if checkpoint_id in pinned_ids:
                self._retained[checkpoint_id] = objects
                continue
            for path in objects or ():
                self._references[path] -= 1
                if not self._references[path]:
                    del self._references[path]
            self._discard(objects)
        # A pinned checkpoint went back to the end of the dict: restore the ascending order.
        self._retained = dict(sorted(self._retained.items()))
        # Checkpoints of an owner that stopped before its own clean-up were never counted here.
        for leftover in event.leftovers:
            if not pinned(event.pins, (leftover.checkpoint_id,), latest):
                self._discard(leftover.objects)

    def _named_by_pending(self) -> frozenset[str]:
        if self._pending is None:
            return frozenset()
        handles = [
            entry.handle
            for snapshot in self._pending.snapshots.values()
            if snapshot.log is not None
            for entry in snapshot.log.handles_and_offsets
        ]
        handles += [
            snapshot.materialized.handle
            for snapshot in self._pending.snapshots.values()
            if snapshot.materialized is not None
        ]
        return frozenset(handle.path for handle in handles if isinstance(handle, FileStateHandle))

    def check_invariants(self) -> None:
        """Raise `InvariantError` if a numbered invariant is violated."""
        counted: dict[str, int] = {}
        for objects in (*self._retained.values(), *self._subsumed.values()):
            for path in objects or ():
                counted[path] = counted.get(path, 0) + 1
        check(counted == self._references, "1: references do not match the retained checkpoints")
        check(not any(path in counted for path in self._garbage), "2: garbage is still named")
        ids = tuple(self._retained)
        latest = None if self._latest is None else self._latest.checkpoint_id
        if self._pending is not None:
            check(latest is None or self._pending.checkpoint_id > latest, "3: pending is too old")
            ranges = self._pending.ranges
            check(
                all(key_range in ranges for key_range in self._pending.snapshots)
                and all(a.end < b.start for a, b in itertools.pairwise(ranges)),
                "5: pending snapshots do not fit the ranges",
            )
        check(
            ids == tuple(sorted(ids)) and (ids[-1] if ids else None) == latest,
            "4: retained ids do not ascend to the latest",
        )


def _unknown(
    inherited: Sequence[MaterializedHandle], snapshots: Sequence[TaskStateSnapshot]
) -> list[MaterializedHandle]:
    """Return the snapshots that were acknowledged for the first time."""
    before = frozenset(inherited)
    return [
        snapshot.materialized
        for snapshot in snapshots
        if snapshot.materialized is not None and snapshot.materialized not in before
    ]
