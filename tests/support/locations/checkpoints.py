"""Small makers for checkpoint tests."""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from statelog.checkpoint import CheckpointCoordinator, CheckpointOptions
from statelog.checkpoint.history import may_be_claim, present_ids
from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import put_tag
from statelog.format.change_set import decode_change_set
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model import (
    ByteStreamStateHandle,
    ChangeBatch,
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    StateChange,
    TaskStateSnapshot,
)
from statelog.store import PATHS, ObjectStore

names = itertools.count()
Changes = Sequence[tuple[int, bytes]]


def batch_of(changes: Changes) -> ChangeBatch:
    return ChangeBatch(
        np.array([key_group for key_group, _ in changes], np.int32),
        pa.array([value for _, value in changes], pa.binary()),
    )


def log_in_file(
    store: ObjectStore,
    key_groups: KeyGroupRange,
    sets: Sequence[Changes],
    checkpoint_id: int = 0,
    *,
    compress: bool = False,
) -> ChangelogStateHandle:
    """Write the sets into one changelog file and return the handle on them."""
    writer = SegmentWriter(compress=compress)
    entries = [writer.add([batch_of(changes)]) for changes in sets]
    path = PATHS.changelog(f"file-{next(names)}")
    store.put(path, writer.finish())
    file = FileStateHandle(path, writer.payload_size)
    return _handle(key_groups, file, entries, sets, checkpoint_id)


def log_inline(
    key_groups: KeyGroupRange, sets: Sequence[Changes], checkpoint_id: int = 0
) -> ChangelogStateHandle:
    """Return a handle that carries the sets as the bytes of a changelog file."""
    writer = SegmentWriter()
    entries = [writer.add([batch_of(changes)]) for changes in sets]
    data = b"".join(bytes(piece) for piece in writer.finish())
    inline = ByteStreamStateHandle(f"inline-{next(names)}", data)
    return _handle(key_groups, inline, entries, sets, checkpoint_id)


def _handle(key_groups, file, entries, sets, checkpoint_id):
    size = sum(len(value) for changes in sets for _, value in changes)
    return ChangelogStateHandle(
        key_groups,
        tuple(
            HandleAndOffset(file, entry.offset, entry.size_bytes, entry.crc32c) for entry in entries
        ),
        size,
        size,
        f"handle-{next(names)}",
        checkpoint_id,
    )


def read_log(
    store: ObjectStore, log: Sequence[ChangelogStateHandle], *, metadata: bool = False
) -> list[StateChange]:
    """Read what a restoring task would replay."""
    changes = []
    for handle in log:
        for entry in handle.handles_and_offsets:
            if isinstance(entry.handle, FileStateHandle):
                segment = parse_segment(store.get(entry.handle.path), where=entry.handle.path)
            else:
                segment = parse_segment(entry.handle.data)
            for change in decode_change_set(segment.payload, entry.offset).batch:
                if change.key_group in handle.key_group_range or (
                    metadata and change.key_group == -1
                ):
                    changes.append(change)
    return changes


class ManualClock:
    """Milliseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def coordinator(store: ObjectStore, owner: str = "a", **options: object) -> CheckpointCoordinator:
    max_parallelism = int(options.pop("max_parallelism", 8))
    return CheckpointCoordinator(
        store,
        owner_id=owner,
        max_parallelism=max_parallelism,
        options=CheckpointOptions(**options),
        clock_ms=ManualClock(),
    )


def started(store: ObjectStore, owner: str = "a", **options: object) -> CheckpointCoordinator:
    driver = coordinator(store, owner, **options)
    driver.claim()
    driver.restore()
    return driver


def run_checkpoint(
    owner: CheckpointCoordinator,
    checkpoint_id: int,
    snapshots: Sequence[TaskStateSnapshot],
    **more: object,
):
    owner.trigger(checkpoint_id, [snapshot.key_group_range for snapshot in snapshots])
    for snapshot in snapshots:
        owner.acknowledge(checkpoint_id, snapshot)
    return owner.complete(checkpoint_id, properties=more.pop("properties", {}), **more)


def small_checkpoint(owner: CheckpointCoordinator, checkpoint_id: int, **more: object):
    """Complete a checkpoint of one task with one inline change per key group pair."""
    key_groups = KeyGroupRange(0, 7)
    changes = [(k, f"{checkpoint_id}/{k}".encode()) for k in (0, 3, 7)]
    snapshot = TaskStateSnapshot(key_groups, log_inline(key_groups, [changes]))
    return run_checkpoint(owner, checkpoint_id, [snapshot], **more)


def checkpoint_ids(store: ObjectStore) -> list[int]:
    """Return the entries that are checkpoints, ascending; the other ones are claims."""
    return [number for number in present_ids(store) if not may_be_claim(store, number)]


def put_named_tag(
    store: ObjectStore, name: str, checkpoint_id: int, kind: TagKind = TagKind.TAG, **more: Any
) -> Tag:
    """Tag a checkpoint that may be incomplete, without the files of a query."""
    tag = Tag(kind=kind, name=name, checkpoint_id=checkpoint_id)
    return put_tag(store, tag, clock_ms=ManualClock(), **more)


def memory_url() -> str:
    return f"memory://checkpoint-{os.urandom(8).hex()}"


def record_of(log=(), materialized=(), **more) -> CompletedCheckpoint:
    fields = {
        "checkpoint_id": 40,
        "parent_id": 39,
        "created_at_ms": 1_700_000_000_000,
        "epoch": 3,
        "owner_id": "owner",
        "max_parallelism": 128,
        "retained": (39, 40),
        "attempt": "a7",
    }
    return CompletedCheckpoint(
        **{**fields, "log": tuple(log), "materialized": tuple(materialized), **more}
    )
