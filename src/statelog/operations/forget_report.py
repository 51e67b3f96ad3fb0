"""What a forgotten key leaves, and what makes each trace go away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import ParentRelease
from statelog.checkpoint.history import present_ids, read_checkpoint
from statelog.checkpoint.restore import objects_of
from statelog.checkpoint.tags import list_tags, retained_ids
from statelog.errors import CheckpointError
from statelog.model import CompletedCheckpoint, FileStateHandle
from statelog.store import ObjectStore
from statelog.store.location_store import parse_parent_path


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTrace:
    """
    One object in which a key is stored.

    Args:
        path: Its name.
        kind: "checkpoint", "changelog", "snapshot", "output", or the folder of another kind.
        checkpoints: The retained checkpoints that need it, ascending; none for an orphan.
        pins: The tags, forks and readers that keep one of them, such as "tag before-upgrade".
        leaves: When the object is deleted.
    """

    path: str
    kind: str
    checkpoints: tuple[int, ...]
    pins: tuple[str, ...]
    leaves: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReport:
    """
    What forgetting a key did, or would do.

    Args:
        operator: Name of the operator.
        key: The key.
        base_id: The checkpoint that had the key.
        checkpoint_id: The new checkpoint; None for a dry run, and where nothing was left to do.
        removed: Entries of the key by variable, timers too.
        traces: Objects that still hold the key.
        given_up: Checkpoints that can no longer be restored.
        deleted: Objects that were deleted, or would be.
        parents: URLs of the parents of this fork that hold the key in objects which the fork needs, or
            needed before the call.  Their state is not changed.
        outside: The tags that keep checkpoints of parents for this fork and were deleted there, because
            no checkpoint of the fork needs them; in a dry run all that may be.
        dry_run: Whether nothing was changed.
    """

    operator: str
    key: tuple[object, ...]
    base_id: int
    checkpoint_id: int | None
    removed: Mapping[str, int]
    traces: tuple[KeyTrace, ...]
    given_up: tuple[int, ...] = ()
    deleted: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    outside: tuple[ParentRelease, ...] = ()
    dry_run: bool = False


class Needs:
    """
    Which retained checkpoints need which objects.

    Raises:
        CheckpointError: A retained checkpoint is damaged or missing.

    Blocks: On the store.
    """

    def __init__(self, store: ObjectStore, newest: CompletedCheckpoint) -> None:
        self._newest = newest
        ids = present_ids(store)
        self.checkpoints = retained_ids(store, newest, ids)
        self._by_path: dict[str, list[int]] = {}
        self._handles: dict[str, FileStateHandle] = {}
        for checkpoint_id in self.checkpoints:
            checkpoint = read_checkpoint(store, checkpoint_id).checkpoint
            for path in objects_of(checkpoint):
                self._by_path.setdefault(path, []).append(checkpoint_id)
            snapshots = [each.handle for each in checkpoint.materialized]
            for handle in (*snapshots, *BatchRecord.of(checkpoint).staged_files()):
                if isinstance(handle, FileStateHandle):
                    self._handles[handle.path] = handle
        self._pins: dict[int, list[str]] = {}
        for tag in list_tags(store):
            for checkpoint_id in self.checkpoints:
                if tag.pin.holds(checkpoint_id, newest.checkpoint_id):
                    name = f"{tag.kind.value} {tag.name}"
                    self._pins.setdefault(checkpoint_id, []).append(name)

    @property
    def parent_objects(self) -> tuple[str, ...]:
        """The objects of parents that the checkpoints need."""
        return tuple(path for path in self._by_path if parse_parent_path(path) is not None)

    def handle_of(self, path: str) -> FileStateHandle | None:
        """Return the handle of a snapshot or of staged rows; None for another object, or an orphan."""
        return self._handles.get(path)

    def pins_of(self, checkpoints: Iterable[int]) -> tuple[str, ...]:
        """Return what pins any of the checkpoints."""
        return tuple(
            dict.fromkeys(
                name for checkpoint in checkpoints for name in self._pins.get(checkpoint, ())
            )
        )

    def trace(self, path: str, kind: str) -> KeyTrace:
        """Return a trace with what makes it go away."""
        needed = tuple(self._by_path.get(path, ()))
        pins = self.pins_of(needed)
        return KeyTrace(
            path=path, kind=kind, checkpoints=needed, pins=pins, leaves=self._leaves(path, needed)
        )

    def _leaves(self, path: str, needed: tuple[int, ...]) -> str:
        if parse_parent_path(path) is not None:
            return "with the key in the parent of this fork: forget it there too"
        if not needed:
            return "with the next garbage collection (statelog gc --apply)"
        pinned = [each for each in needed if self._pins.get(each)]
        steps = []
        newest = self._newest
        kept = len(newest.retained)
        if newest.checkpoint_id in needed:
            groups = _ranges(path, newest)
            if not groups:  # rows of its own micro-batch, and no state
                steps.append(f"{kept} more {_checkpoints(kept)}")
            else:
                steps.append(
                    f"the next snapshot of key groups {groups}, and {kept} more {_checkpoints(kept)}"
                )
        else:
            after = sum(checkpoint_id > max(needed) for checkpoint_id in newest.retained)
            more = max(kept - after, 1)
            if any(each in newest.retained for each in needed):
                steps.append(f"{more} more {_checkpoints(more)}")
        if pinned:
            steps.append(f"the end of {', '.join(self.pins_of(pinned))} (statelog untag)")
        return "after " + ", and after ".join(steps)


def _ranges(path: str, checkpoint: CompletedCheckpoint) -> str:
    """Return the key groups for which a checkpoint needs an object."""
    ranges = {
        str(log.key_group_range)
        for log in checkpoint.log
        if any(getattr(entry.handle, "path", None) == path for entry in log.handles_and_offsets)
    }
    ranges |= {
        str(each.key_group_range)
        for each in checkpoint.materialized
        if getattr(each.handle, "path", None) == path
    }
    return ", ".join(sorted(ranges))


def _checkpoints(count: int) -> str:
    return "checkpoint" if count == 1 else "checkpoints"


def refuse_pinned(url: str, traces: Iterable[KeyTrace]) -> None:
    """
    Check that no pinned checkpoint holds the key.

    Raises:
        CheckpointError: A tag, a fork or a reader keeps one (`reason` "pinned").
    """
    names = sorted({name for trace in traces for name in trace.pins})
    if names:
        raise CheckpointError(
            f"{url} has checkpoints with this key that are kept by {', '.join(names)}; nothing was "
            "changed. Delete these tags first (statelog untag); a fork holds the key too: forget it there, "
            "or copy the fork so that it needs no object of this location",
            reason="pinned",
        )
