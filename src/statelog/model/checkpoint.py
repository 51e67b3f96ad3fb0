"""
Checkpoints as values: acknowledgements, committed checkpoints, and what a restore reads.

A checkpoint is a list of log positions, and snapshots that make parts of the log unnecessary.  The
state of a key group is the newest snapshot that covers it, and then every log handle that covers it
and is newer than that snapshot, in order.  Ranges of log and snapshots may differ, because the
number of tasks may change.  So the rule is applied per key group, and handles are narrowed to the
runs of key groups for which they still count.

A location has an identity, which its first claim makes.  A rewind, a fork and a copy begin a new
*timeline* of it: the checkpoints after a given one are given up, and later ones continue that one.
A checkpoint names its timeline, and the timelines before it with the last checkpoint that it has of
each.  So two checkpoints of one number are told apart by what one of them says.

A *pin* keeps a checkpoint although the retention would give it up.  A tag pins one checkpoint.  A
reader that follows a location pins its position and everything newer, up to a bound, so that a
reader that is never started again does not fill the store.
Source: PostgreSQL, timelines and timeline history files; Flink, ChangelogStateBackendHandle and
CompletedCheckpoint.  Deviations: a task acknowledges only the log that is new since the last
checkpoint, and the coordinator keeps the list; covering is decided per key group instead of per
task, so that rescaling never replays old over new.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from statelog.errors import UsageError
from statelog.model.handles import (
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    Json,
    StreamStateHandle,
)
from statelog.model.key_group import KeyGroupRange

ANCESTORS_MAX: Final = 256
"""
Number of earlier timelines that a checkpoint records.

Older ones are forgotten with their checkpoints.
"""
_SEPARATOR: Final = "/"
_NAME: Final = re.compile(r"[0-9a-f]{0,32}")
_FIELDS: Final = 4


def is_history_name(text: str) -> bool:
    """Return whether a text can identify a location or name an attempt."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class TimelineEnd:
    """
    The end of a timeline that a later timeline continues.

    Args:
        location_id: The location of the timeline.
        number: The number of the timeline.
        last_id: Its last checkpoint that the later timeline continues.
    """

    location_id: str
    number: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """
    One timeline in the history of a location.

    Args:
        location_id: The identity of the location.
        number: The number of the claim that began it, >= 0.  Later timelines have higher numbers.
        ancestors: The timelines that it continues, oldest first.
    """

    location_id: str = ""
    number: int = 0
    ancestors: tuple[TimelineEnd, ...] = ()

    def continued(self, location_id: str, number: int, last_id: int) -> Timeline:
        """Return a new timeline that continues this one after checkpoint *last_id*."""
        end = TimelineEnd(self.location_id, self.number, last_id)
        return Timeline(location_id, number, (*self.ancestors, end)[-ANCESTORS_MAX:])

    def has(self, position: CheckpointPosition, newest_id: int) -> bool:
        """
        Return whether a checkpoint belongs to the history that ends with *newest_id*.

        The name of the attempt is not compared; see `CompletedCheckpoint.continues`.
        """
        if (position.location_id, position.timeline) == (self.location_id, self.number):
            return position.checkpoint_id <= newest_id
        return any(
            (position.location_id, position.timeline) == (end.location_id, end.number)
            and position.checkpoint_id <= end.last_id
            for end in self.ancestors
        )


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """
    A checkpoint, identified uniquely across all histories.

    What remembers a checkpoint outside of its location remembers this: offsets of readers,
    published tables, replicas.

    Args:
        location_id: The identity of its location.
        timeline: The number of its timeline.
        checkpoint_id: Its number.
        attempt: The random name of the attempt that committed it.  It differs where a location was
            restored from a backup by other means than statelog, and then used the number again.
    """

    location_id: str
    timeline: int
    checkpoint_id: int
    attempt: str

    def to_text(self) -> str:
        """Format the position as `location/timeline/number/attempt`."""
        parts = (self.location_id, str(self.timeline), str(self.checkpoint_id), self.attempt)
        return _SEPARATOR.join(parts)

    @classmethod
    def from_text(cls, text: str) -> CheckpointPosition:
        """Parse a position that was formatted by `to_text`."""
        parts = text.split(_SEPARATOR)
        are_names = (
            len(parts) == _FIELDS and is_history_name(parts[0]) and is_history_name(parts[3])
        )
        if not are_names or not (parts[1].isdecimal() and parts[2].isdecimal()):
            raise UsageError(
                f"{text[:100]!r} does not identify a checkpoint: expected location/timeline/number/attempt"
            )
        return cls(parts[0], int(parts[1]), int(parts[2]), parts[3])


_Int64Array = npt.NDArray[np.int64]
_NO_SNAPSHOT = -1

OBJECTS_PROPERTY = "statelog.objects"
"""Property with a list of object paths that are deleted with the checkpoint (staged output)."""


@dataclass(frozen=True, slots=True)
class MaterializedHandle:
    """
    A snapshot of the state of some key groups, as stored.

    Args:
        key_group_range: The key groups to take from it; the snapshot itself may hold more.
        checkpoint_id: It contains every change up to and including this checkpoint; >= 0.
        handle: The bytes.

    Raises:
        UsageError: The range is empty or the id negative.
    """

    key_group_range: KeyGroupRange
    checkpoint_id: int
    handle: StreamStateHandle

    def __post_init__(self) -> None:
        if not len(self.key_group_range) or self.checkpoint_id < 0:
            raise UsageError(
                f"a snapshot requires at least one key group and a checkpoint id of at least 0; got "
                f"{self.key_group_range} and {self.checkpoint_id}"
            )


StatePart: TypeAlias = HandleAndOffset | MaterializedHandle
"""A part of the state in a stream: a change set, or a snapshot."""


@dataclass(frozen=True, slots=True)
class TaskStateSnapshot:
    """
    What one task acknowledges for a checkpoint.

    Args:
        key_group_range: The key groups of the task.
        log: Its changes since the last completed checkpoint; None if there are none.
        materialized: A snapshot that the task has finished since, or None.
    """

    key_group_range: KeyGroupRange
    log: ChangelogStateHandle | None
    materialized: MaterializedHandle | None = None


@dataclass(frozen=True, slots=True)
class ChangelogStateBackendHandle:
    """
    What one task restores: first the snapshots, then the log.

    Readers drop the key groups outside the range of each single handle.  No key group is in two
    snapshots, and none is in a log handle that its snapshot contains already.

    Args:
        key_group_range: The key groups of the task.
        checkpoint_id: The checkpoint restored.
        materialized: Snapshots, ascending by checkpoint.
        log: Log handles, ascending by checkpoint.
    """

    key_group_range: KeyGroupRange
    checkpoint_id: int
    materialized: tuple[MaterializedHandle, ...]
    log: tuple[ChangelogStateHandle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """
    A checkpoint that was committed.

    Args:
        checkpoint_id: Its number, >= 0.
        parent_id: The checkpoint it continues; None for the first.
        created_at_ms: When it was built, milliseconds since 1970 (UTC).
        epoch: Number of the claim under which it was committed, >= 0.
        owner_id: The owner that committed it.
        max_parallelism: Number of key groups of the job.
        attempt: Random name of the attempt that committed it; tells a lost answer from a lost race.
        timeline: The history that its number belongs to.
        materialized: Snapshots, ascending by checkpoint.
        log: Log handles, ascending by checkpoint; each has the id of the checkpoint that made it.
        retained: Checkpoints that count when this one is the newest, ascending, itself included.
        properties: What the engine stores with it, in JSON.
    """

    checkpoint_id: int
    parent_id: int | None
    created_at_ms: int
    epoch: int
    owner_id: str
    max_parallelism: int
    attempt: str = ""
    timeline: Timeline = field(default_factory=Timeline)
    materialized: tuple[MaterializedHandle, ...] = ()
    log: tuple[ChangelogStateHandle, ...] = ()
    retained: tuple[int, ...] = ()
    properties: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @property
    def position(self) -> CheckpointPosition:
        """The position of the checkpoint, for records outside the location."""
        timeline = self.timeline
        return CheckpointPosition(
            timeline.location_id, timeline.number, self.checkpoint_id, self.attempt
        )

    def continues(self, position: CheckpointPosition) -> bool:
        """Return whether a checkpoint belongs to the history that ends with this one."""
        newest = self.position
        if (position.location_id, position.checkpoint_id) == (
            newest.location_id,
            newest.checkpoint_id,
        ):
            return position == newest
        return self.timeline.has(position, self.checkpoint_id)

    def for_range(self, key_group_range: KeyGroupRange) -> ChangelogStateBackendHandle:
        """
        Return what a task that owns *key_group_range* must restore.

        A handle that counts for some key groups of the range only is narrowed to them.  It appears
        more than once if they are not contiguous.
        """
        if key_group_range.end >= self.max_parallelism:
            raise UsageError(
                f"key groups {key_group_range} exceed the {self.max_parallelism} key groups of "
                f"checkpoint {self.checkpoint_id}; use the number with which the job started"
            )
        winner, covered = _coverage(self.materialized, self.max_parallelism)
        materialized = tuple(
            replace(snapshot, key_group_range=run)
            for index, snapshot in enumerate(self.materialized)
            for run in _runs(snapshot.key_group_range.intersection(key_group_range), winner, index)
        )
        log = tuple(
            handle if run == handle.key_group_range else replace(handle, key_group_range=run)
            for handle in self.log
            for run in _runs_below(
                handle.key_group_range.intersection(key_group_range), covered, handle.checkpoint_id
            )
        )
        return ChangelogStateBackendHandle(key_group_range, self.checkpoint_id, materialized, log)

    def inherited_log(self) -> tuple[ChangelogStateHandle, ...]:
        """
        Return the log that the next checkpoint inherits.

        What a checkpoint itself changed is in its log even where its own snapshot contains it, for
        readers of its changes.  The next checkpoint leaves that out.
        """
        logs = [log for log in self.log if log.checkpoint_id == self.checkpoint_id]
        older = self.log[: len(self.log) - len(logs)]
        return (*older, *live_log(logs, self.materialized, self.max_parallelism))

    def objects(self) -> Iterator[tuple[FileStateHandle, StatePart | None]]:
        """
        Yield the objects that the checkpoint needs, except its own metadata, part by part.

        With each is the part of the state in it.  The engine's other objects follow with None and
        an unknown size.
        """
        yield from file_parts(self)
        listed = self.properties.get(OBJECTS_PROPERTY)
        for path in listed if isinstance(listed, list | tuple) else ():
            if isinstance(path, str):
                yield FileStateHandle(path, -1), None

    def referenced_paths(self) -> tuple[str, ...]:
        """Return the distinct names of `objects` in sorted order."""
        return tuple(sorted({handle.path for handle, _ in self.objects()}))


def file_parts(
    state: CompletedCheckpoint | ChangelogStateBackendHandle,
) -> Iterator[tuple[FileStateHandle, StatePart]]:
    """Yield the change sets and snapshots that are stored in files, with the files' handles."""
    parts: list[StatePart] = [set_ for log in state.log for set_ in log.handles_and_offsets]
    for piece in (*parts, *state.materialized):
        if isinstance(piece.handle, FileStateHandle):
            yield piece.handle, piece


def live_snapshots(
    snapshots: Iterable[MaterializedHandle], max_parallelism: int
) -> tuple[MaterializedHandle, ...]:
    """
    Return the snapshots that at least one key group needs, ascending by checkpoint.

    Of two snapshots of one checkpoint, the later in *snapshots* counts.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.checkpoint_id)
    winner, _ = _coverage(ordered, max_parallelism)
    needed = set(np.unique(winner).tolist())
    return tuple(snapshot for index, snapshot in enumerate(ordered) if index in needed)


def live_log(
    log: Iterable[ChangelogStateHandle],
    snapshots: Sequence[MaterializedHandle],
    max_parallelism: int,
) -> tuple[ChangelogStateHandle, ...]:
    """Return the log handles that contain changes not in any snapshot, in the same order."""
    _, covered = _coverage(snapshots, max_parallelism)
    return tuple(
        handle
        for handle in log
        if (
            covered[handle.key_group_range.start : handle.key_group_range.end + 1]
            < handle.checkpoint_id
        ).any()
    )


def covered_checkpoints(
    snapshots: Sequence[MaterializedHandle], max_parallelism: int
) -> npt.NDArray[np.int64]:
    """Return the checkpoint of each key group's snapshot, or -1 if it does not have one."""
    return _coverage(snapshots, max_parallelism)[1]


def _coverage(
    snapshots: Sequence[MaterializedHandle], max_parallelism: int
) -> tuple[_Int64Array, _Int64Array]:
    """Return the index of each key group's snapshot, and the checkpoint of that snapshot."""
    winner = np.full(max_parallelism, _NO_SNAPSHOT, np.int64)
    covered = np.full(max_parallelism, _NO_SNAPSHOT, np.int64)
    for index, snapshot in enumerate(snapshots):
        span = slice(snapshot.key_group_range.start, snapshot.key_group_range.end + 1)
        newer = covered[span] <= snapshot.checkpoint_id
        winner[span][newer] = index
        covered[span][newer] = snapshot.checkpoint_id
    return winner, covered


def _runs(overlap: KeyGroupRange, winner: _Int64Array, index: int) -> Iterator[KeyGroupRange]:
    return _runs_of(overlap, winner[overlap.start : overlap.end + 1] == index)


def _runs_below(
    overlap: KeyGroupRange, covered: _Int64Array, checkpoint_id: int
) -> Iterator[KeyGroupRange]:
    return _runs_of(overlap, covered[overlap.start : overlap.end + 1] < checkpoint_id)


def _runs_of(overlap: KeyGroupRange, counts: npt.NDArray[np.bool_]) -> Iterator[KeyGroupRange]:
    """Yield the contiguous runs in *overlap* for which *counts* is true."""
    if counts.all():
        if len(overlap):
            yield overlap
        return
    edges = np.flatnonzero(np.diff(np.concatenate(([False], counts, [False])).astype(np.int8)))
    for start, end in edges.reshape(-1, 2).tolist():
        yield KeyGroupRange(overlap.start + start, overlap.start + end - 1)


@dataclass(frozen=True, slots=True)
class Pin:
    """
    A pin on one or more checkpoints.

    Args:
        checkpoint_id: The pinned checkpoint, >= 0.
        newest: 0 to pin this checkpoint only.  Otherwise this one and every newer one are pinned,
            as long as they are among this many newest ids.
    """

    checkpoint_id: int
    newest: int = 0

    def holds(self, checkpoint_id: int, latest_id: int) -> bool:
        """Return whether a checkpoint is pinned."""
        if not self.newest:
            return checkpoint_id == self.checkpoint_id
        return checkpoint_id >= max(self.checkpoint_id, latest_id - self.newest + 1)


def pinned(pins: Iterable[Pin], checkpoint_ids: Iterable[int], latest_id: int) -> frozenset[int]:
    """Return the ids in *checkpoint_ids* that are pinned."""
    all_pins = tuple(pins)
    return frozenset(
        checkpoint_id
        for checkpoint_id in checkpoint_ids
        if any(pin.holds(checkpoint_id, latest_id) for pin in all_pins)
    )


def retained_ids(
    checkpoint_ids: Sequence[int], retained: int, pins: Iterable[Pin]
) -> tuple[int, ...]:
    """Return the *retained* newest ids in *checkpoint_ids* (ascending), and pinned ids."""
    newest = checkpoint_ids[-retained:]
    pinned_ids = pinned(pins, checkpoint_ids, checkpoint_ids[-1])
    return tuple(
        checkpoint_id
        for checkpoint_id in checkpoint_ids
        if checkpoint_id in pinned_ids or checkpoint_id in newest
    )
