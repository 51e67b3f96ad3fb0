"""
The coordinator: once all tasks have acknowledged, one object commits the checkpoint.

A checkpoint exists once the put-if-absent of `chk-<id>/_metadata` has succeeded.  Every step before
it can be repeated, and every step after it can be lost.  Decisions are in `core.checkpoint_ledger`.
Claims and checkpoints are numbered together: an owner that lost the location finds the claim of the
next one under the number of its next checkpoint.  Metrics have Flink's names, but their values are
about the whole job.
Source: Flink, CheckpointCoordinator, ChangelogMaterializationMetricGroup and
ChangelogStateBackendMetricGroup; fencing by claims is our own (Flink has leader election).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from statelog.checkpoint.clean_up import BatchedCleanUp, CleanUpReport
from statelog.checkpoint.history import Entries, StoredCheckpoint, read_entry
from statelog.checkpoint.ownership import claim_location, describe_claim
from statelog.checkpoint.restore import (
    check_key_groups,
    find_restore_point,
    objects_of,
)
from statelog.checkpoint.retained import retained_checkpoints
from statelog.core.checkpoint_ledger import (
    Acknowledged,
    CheckpointLedger,
    CommitRequested,
    Committed,
    Declined,
    Fenced,
    Restored,
    Triggered,
    WriteMetadata,
)
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    FencedError,
    IncompatibleFormatError,
    UsageError,
)
from statelog.format.checkpoint_metadata import MetadataFile, write_metadata
from statelog.format.checkpoint_record import ClaimRecord
from statelog.metrics import Metrics
from statelog.model import CompletedCheckpoint, Json, KeyGroupRange, TaskStateSnapshot, Timeline
from statelog.model.checkpoint import Pin
from statelog.options import CheckpointOptions
from statelog.runtime.clock import pause as pause_thread
from statelog.runtime.fail_points import fail_point
from statelog.store import PATHS, ObjectStore
from statelog.store.verified import put_or_find

_NS_PER_MS = 1_000_000

_SIZES = (
    "last_full_size_of_materialization",
    "last_inc_size_of_materialization",
    "last_full_size_of_non_materialization",
    "last_inc_size_of_non_materialization",
    "log_bytes_behind_snapshots",
    "log_handles_behind_snapshots",
)


class CheckpointCoordinator:
    """
    Completes checkpoints in one location, on behalf of one owner.

    The order of calls: `claim`, `restore`, and then for every checkpoint `trigger`, `acknowledge`
    for each range, `complete` (or `decline`), `clean_up`.

    Args:
        store: The store of the location.
        owner_id: Name of this owner.
        max_parallelism: Number of key groups of the job.
        options: Retention and compression.
        clock_ms: Milliseconds since 1970 (UTC).
        recorder: Records completed checkpoints; None disables it.
        pause: Waits the given number of seconds between two puts of one name.

    Thread: Not for several at once.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        owner_id: str,
        max_parallelism: int,
        options: CheckpointOptions,
        clock_ms: Callable[[], int],
        recorder: CheckpointRecorder | None = None,
        pause: Callable[[float], None] = pause_thread,
    ) -> None:
        # What the caller chose.
        self._recorder = recorder
        self._pause = pause
        self._store = store
        self._owner_id = owner_id
        self._max_parallelism = max_parallelism
        self._options = options
        self._clock_ms = clock_ms
        # What `claim` and `restore` find, and every checkpoint changes.
        self._ledger = self._new_ledger()
        self._claim: ClaimRecord | None = None
        self._entries = Entries(store)
        self._pins: tuple[Pin, ...] | None = None
        self._restored = False
        self._clean_ups = BatchedCleanUp(store, clock_ms=clock_ms)
        self._next_id = 0
        self._timeline = Timeline()
        """The timeline of the checkpoints that this owner commits, from `restore` on."""
        self._committed_bytes = 0
        self._prepared: MetadataFile | None = None
        """
        The object of the current checkpoint, from the first `complete` on.

        Its put may have succeeded.
        """
        self._restored_from: StoredCheckpoint | None = None
        """Kept until the first `trigger`: its sections may be asked for, to deliver them again."""

    def _new_ledger(self) -> CheckpointLedger:
        retained = self._options.retained
        return CheckpointLedger(max_parallelism=self._max_parallelism, retained=retained)

    def _now_ns(self) -> int:
        return self._clock_ms() * _NS_PER_MS

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest checkpoint that this coordinator has restored or completed."""
        return self._ledger.latest

    @property
    def next_checkpoint_id(self) -> int:
        """The id that `trigger` accepts: the next number in the sequence."""
        return self._next_id

    @property
    def committed_bytes(self) -> int:
        """The size in bytes of the object that `complete` wrote last."""
        return self._committed_bytes

    @property
    def epoch(self) -> int | None:
        """The sequence number of this owner's claim, or None before `claim` is called."""
        return None if self._claim is None else self._claim.number

    def claim(self, entries: Entries | None = None) -> int:
        """
        Claim the location; after that, every earlier owner fails with `FencedError`.

        Call `restore` afterwards, because the earlier owner may have committed meanwhile.

        Args:
            entries: Entries that the caller has read of this location; not read again.

        Returns:
            The number of the claim, >= 0: the epoch of this owner.

        Raises:
            StoreError: The store failed; the claim may be repeated.  Or the store ignores the
                condition of put-if-absent (`reason` "put_if_absent"), so no commit is possible.
            CheckpointError: Other owners keep claiming the location (`reason` "contended").
            IncompatibleFormatError: The newest entry has a different format version.

        Blocks: On the store: four round trips (two listings, the newest entry, a put; first a
        probe).
        Thread: the driver's.
        """
        self._entries = Entries(self._store) if entries is None else entries
        self._claim, self._pins = claim_location(
            self._entries,
            self._owner_id,
            self._clock_ms,
            self._pause,
            verify=self._verify_store,
        )
        self._ledger = self._new_ledger()
        self._clean_ups.begin()
        self._restored = False  # `restore` replaces what is left of the history before
        return self._claim.number

    def _verify_store(self) -> None:
        # Imported here: a store is probed once.
        from statelog.store.probe import verify_put_if_absent

        verify_put_if_absent(self._store, self._pause)

    @property
    def timeline(self) -> Timeline:
        """The timeline of the checkpoints that this owner commits."""
        return self._timeline

    def restore(
        self, checkpoint_id: int | None = None, *, begins_timeline: bool = False
    ) -> CompletedCheckpoint | None:
        """
        Find the checkpoint from which to continue.

        A damaged newest checkpoint is reported, never skipped.  Restoring an older one by its id
        gives up the newer ones, and begins a new timeline: `clean_up` deletes them after the first
        `complete`.

        Args:
            checkpoint_id: None for the newest one, or the id of one.
            begins_timeline: Begin a new timeline, although no checkpoint is given up: the numbers
                of micro-batches are used again.

        Returns:
            The checkpoint, read whole and verified; None if the location has none.

        Raises:
            CheckpointError: `reason` "damaged": the checkpoint is damaged; `path` is its object
                and `usable_id` an older checkpoint that can be restored.  "not_found", "subsumed",
                "objects_missing": the id cannot be restored.  "max_parallelism": the job began
                with another number of key groups.
            IncompatibleFormatError: It has a different format version.
            FencedError: Another owner has claimed the location since, and has committed.

        Blocks: On the store.   Thread: the driver's.
        """
        claim = self._claim
        entries = Entries(self._store) if claim is None else self._entries
        # 1. Read what the location has.
        point = find_restore_point(entries, checkpoint_id, pins=self._pins)
        checkpoint = point.checkpoint
        if checkpoint is not None:
            # 2. A checkpoint above this owner's claim: a later owner has committed, so this one
            # must stop.
            if claim is not None and checkpoint.checkpoint_id > claim.number:
                self._fence(
                    f"checkpoint {checkpoint.checkpoint_id} of {self._store.url} was committed by "
                    f"{checkpoint.owner_id!r} after this owner had made claim {claim.number}"
                )
            check_key_groups(self._store.url, checkpoint, self._max_parallelism)
        # 3. Begin with it.  Everything that was learned of the history before is replaced.
        restored = Restored(checkpoint, point.retained, point.pins, point.given_up)
        self._ledger.handle(restored, self._now_ns())
        self._clean_ups.begin(point.leftovers)
        self._next_id = 0 if claim is None else claim.next_number
        self._timeline = _timeline_after(claim, checkpoint, begins_timeline)
        # Drop the entries that were read: their change sets take memory.
        self._entries = Entries(self._store, entries.ids)
        self._pins = None
        self._prepared = None
        self._restored = True
        self._restored_from = point.stored
        return checkpoint

    def trigger(self, checkpoint_id: int, ranges: Sequence[KeyGroupRange]) -> None:
        """
        Start a checkpoint, or restart the current one.

        Args:
            checkpoint_id: `next_checkpoint_id`.
            ranges: Key groups of each task that will acknowledge; disjoint.

        Raises:
            CheckpointError: `reason` "not_next", "in_progress" or "committing".
            UsageError: The ranges overlap, or `claim` and `restore` were not called before.
            FencedError: Another owner has taken over the location.

        Thread: the driver's.
        """
        if self._claim is None or not self._restored:
            raise UsageError(
                "call claim() and then restore() before the first checkpoint, and again when the "
                "outcome of a checkpoint is unknown: by then the location may have a different owner and "
                "different checkpoints"
            )
        # A checkpoint under way may be triggered again; a fenced ledger has its own error.
        is_first = self._ledger.pending_id is None and not self._ledger.is_fenced
        if is_first and checkpoint_id != self._next_id:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} cannot begin: the next id in {self._store.url} is "
                f"{self._next_id}. Ids are never skipped or reused",
                checkpoint_id=checkpoint_id,
                reason="not_next",
            )
        self._ledger.handle(Triggered(checkpoint_id, tuple(ranges)), self._now_ns())
        self._prepared = None
        self._restored_from = None

    def acknowledge(self, checkpoint_id: int, snapshot: TaskStateSnapshot) -> None:
        """
        Record the durable state of one task; the last call for a range takes precedence.

        Raises:
            CheckpointError: It does not fit the checkpoint under way (`reason`).
            FencedError: Another owner has taken over.

        Thread: the driver's.
        """
        self._ledger.handle(Acknowledged(checkpoint_id, snapshot), self._now_ns())

    def decline(self, checkpoint_id: int, reason: str) -> None:
        """
        Abandon the current checkpoint; garbage collection deletes its uploads.

        If its object may have been put, the owner must call `claim` and `restore` again before the
        next checkpoint: the object may exist, or may still arrive.

        Raises:
            CheckpointError: It is not under way.
            FencedError: Another owner has taken over.

        Thread: the driver's.
        """
        self._ledger.handle(Declined(checkpoint_id, reason), self._now_ns())
        # Its put may have succeeded, or may succeed later: only a new claim finds out which.
        if self._prepared is not None:
            self._claim = None
            self._restored = False
        self._prepared = None

    def complete(
        self,
        checkpoint_id: int,
        *,
        properties: Mapping[str, Json],
        sections: Mapping[bytes, bytes] | None = None,
    ) -> CompletedCheckpoint:
        """
        Commit: write the one object that makes the checkpoint exist.

        After an error of the store the outcome may be unknown.  A second call puts the bytes of the
        first one again and finds the outcome.

        Args:
            checkpoint_id: The checkpoint under way, acknowledged by all its tasks.
            properties: What the engine stores with it, in JSON.
            sections: Opaque bytes by four-byte tag, in the same object (`OUTP`: staged output).

        Returns:
            The checkpoint; inline change sets are now stored in its metadata object.

        Raises:
            CheckpointError: "incomplete" names the `missing` ranges; or it is not under way.
            FencedError: Another owner has taken over, or has committed this id.  This owner must
                stop; the new owner may have read its object.
            StoreError: The store failed; call again.
            UsageError: A property is not JSON, or a tag is reserved.

        Blocks: On the store (one put).   Thread: the driver's.
        """
        # 1. Fix the parts.
        (plan,) = self._ledger.handle(CommitRequested(checkpoint_id), self._now_ns())
        if not isinstance(plan, WriteMetadata):
            raise UsageError(f"checkpoint {checkpoint_id} has nothing to commit")
        # 2. Build the object once: a repeated put must have the same bytes to be recognized.
        if self._prepared is None:
            self._prepared = self._prepare(plan, properties, sections or {})
        prepared = self._prepared
        # 3. The put is the commit.  Before it nothing has happened; after it, it cannot be undone.
        fail_point("before-commit")
        try:
            put_commit(self._store, prepared, self._pause)
        except FencedError as conflict:
            self._fence(str(conflict), conflict.__cause__)
        fail_point("after-commit")
        # 4. From here on only this process is informed; a crash loses nothing.
        checkpoint = prepared.checkpoint
        self._committed_bytes = sum(len(buffer) for buffer in prepared.buffers)
        self._next_id = checkpoint_id + 1
        self._prepared = None
        previous = self._ledger.latest
        committed = Committed(checkpoint, objects_of(checkpoint))
        self._ledger.handle(committed, self._now_ns())
        if self._recorder is not None:
            self._recorder.completed(checkpoint, previous)
        return checkpoint

    def _prepare(
        self,
        plan: WriteMetadata,
        properties: Mapping[str, Json],
        sections: Mapping[bytes, bytes],
    ) -> MetadataFile:
        checkpoint = CompletedCheckpoint(
            checkpoint_id=plan.checkpoint_id,
            parent_id=plan.parent_id,
            created_at_ms=self._clock_ms(),
            epoch=self.epoch or 0,
            owner_id=self._owner_id,
            max_parallelism=self._max_parallelism,
            timeline=self._timeline,
            materialized=plan.materialized,
            log=plan.log,
            retained=plan.retained,
            properties=dict(properties),
        )
        return prepare_commit(checkpoint, sections, compress=self._options.compress_metadata)

    def _fence(self, reason: str, cause: BaseException | None = None) -> NoReturn:
        message = (
            f"{self._owner_id!r} is fenced: {reason}. Stop this driver; a restart continues the job"
        )
        self._ledger.handle(Fenced(message), self._now_ns())
        self._prepared = None
        raise FencedError(message) from cause

    def checkpoints(self) -> list[int]:
        """
        Return the ids of the checkpoints that can be restored, in ascending order.

        Raises:
            CheckpointError: Not restored yet, and the newest checkpoint is damaged.

        Blocks: On the store, before the first `restore`.   Thread: the driver's.
        """
        if not self._restored:
            return list(retained_checkpoints(self._store))
        return list(self._ledger.retained)

    def load(self, checkpoint_id: int) -> CompletedCheckpoint:
        """
        Read a checkpoint without restoring it; raises like `Entries.load`.

        Blocks: On the store.   Thread: any.
        """
        if (latest := self._ledger.latest) and latest.checkpoint_id == checkpoint_id:
            return latest
        return Entries(self._store).load(checkpoint_id).checkpoint

    def section(self, checkpoint_id: int, tag: bytes) -> bytes | None:
        """
        Return a section that a caller added to a checkpoint, or None; raises like `Entries.load`.

        Blocks: On the store.   Thread: any.
        """
        stored = self._restored_from
        if stored is not None and stored.checkpoint.checkpoint_id == checkpoint_id:
            return stored.sections.get(tag)
        return Entries(self._store).load(checkpoint_id).sections.get(tag)

    def clean_up(self) -> CleanUpReport:
        """
        Delete unneeded objects and abandoned checkpoints; list only the tags.

        An object that cannot be deleted is in the report, and the next call tries again.

        Raises:
            FencedError: A commit of this owner was rejected before.
            StoreError: The tags could not be read; nothing was deleted.

        Blocks: On the store, a listing and the requests to delete, if there is anything.   Thread:
        the driver's.
        """
        return self._clean_ups.now(self._ledger)

    def clean_up_when_due(self) -> None:
        """
        Clean up in batches in a separate thread; see `BatchedCleanUp`.

        Raises:
            FencedError, StoreError: As `clean_up`; the requests of a batch raise in a later call.

        Blocks: On the store, if a full batch waits for one under way.   Thread: the driver's.
        """
        self._clean_ups.when_due(self._ledger)


class CheckpointRecorder:
    """
    Records the sizes of checkpoints and of their snapshots as metrics.

    Thread: The driver's; values may be read from any thread.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._values: dict[str, float] = dict.fromkeys(_SIZES, 0)
        self._values["last_duration_of_materialization"] = -1
        for name in self._values:
            metrics.gauge(name, partial(self._values.__getitem__, name))

    def completed(
        self, checkpoint: CompletedCheckpoint, previous: CompletedCheckpoint | None
    ) -> None:
        """Record a completed checkpoint; parts shared with *previous* do not count as new."""
        # What the parent has too was counted with an earlier checkpoint.
        before = set(previous.materialized) if previous is not None else set()
        sizes = [
            (max(snapshot.handle.size_bytes, 0), snapshot not in before)
            for snapshot in checkpoint.materialized
        ]
        fresh = [log for log in checkpoint.log if log.checkpoint_id == checkpoint.checkpoint_id]
        behind = sum(log.size_bytes for log in checkpoint.log)
        self._values.update(
            last_full_size_of_materialization=sum(size for size, _ in sizes),
            last_inc_size_of_materialization=sum(size for size, new in sizes if new),
            last_full_size_of_non_materialization=behind,
            last_inc_size_of_non_materialization=sum(log.incremental_size_bytes for log in fresh),
            log_bytes_behind_snapshots=behind,
            log_handles_behind_snapshots=len(checkpoint.log),
        )

    def snapshots_started(self, runs: int) -> None:
        """Count *runs* snapshots as started."""
        self._metrics.count("started_materialization", runs)

    def snapshots_completed(self, runs: int, milliseconds: float) -> None:
        """Count *runs* snapshots of a completed checkpoint; record the longest duration."""
        self._metrics.count("completed_materialization", runs)
        if runs:
            self._values["last_duration_of_materialization"] = milliseconds

    def snapshots_failed(self, runs: int) -> None:
        """Count *runs* snapshots that failed, or whose checkpoint was not completed."""
        self._metrics.count("failed_materialization", runs)


def prepare_commit(
    checkpoint: CompletedCheckpoint, sections: Mapping[bytes, bytes], *, compress: bool
) -> MetadataFile:
    """Build the metadata object of a checkpoint."""
    # The random text tells this object from one with equal content that another owner put.
    checkpoint = replace(checkpoint, attempt=os.urandom(8).hex())
    path = PATHS.metadata(checkpoint.checkpoint_id)
    return write_metadata(checkpoint, path, compress=compress, sections=sections)


def _timeline_after(
    claim: ClaimRecord | None, base: CompletedCheckpoint | None, begins_timeline: bool
) -> Timeline:
    """
    Return the timeline of the checkpoints that continue *base* under a claim.

    It is a new one if a checkpoint is given up, on request, and in a copy, whose claim names
    another location than the checkpoint.
    """
    if claim is None:
        return Timeline() if base is None else base.timeline
    if base is None:
        return Timeline(claim.location_id, claim.timeline)
    # The original may go on too, so the numbers of the copy must not be taken for its numbers.
    is_moved = base.timeline.location_id != claim.location_id
    if is_moved or begins_timeline or claim.newest != base.checkpoint_id:
        return base.timeline.continued(claim.location_id, claim.number, base.checkpoint_id)
    return base.timeline


def put_commit(store: ObjectStore, prepared: MetadataFile, pause: Callable[[float], None]) -> None:
    """Write a checkpoint's metadata object, and verify that this owner wrote it."""
    checkpoint = prepared.checkpoint
    path = PATHS.metadata(checkpoint.checkpoint_id)
    # A lost answer looks like a fault, or (repeated by the client) like a conflict.
    try:
        entry = put_or_find(
            store,
            path,
            prepared.buffers,
            lambda: read_entry(store, checkpoint.checkpoint_id),
            pause,
        )
    except (CorruptionError, IncompatibleFormatError) as error:
        raise FencedError(f"{path} exists, but this owner did not write it: {error}") from error
    if isinstance(entry, ClaimRecord):
        raise FencedError(f"a different owner has claimed the location: {describe_claim(entry)}")
    if isinstance(entry, StoredCheckpoint) and entry.checkpoint.attempt != checkpoint.attempt:
        other = entry.checkpoint
        raise FencedError(
            f"checkpoint {checkpoint.checkpoint_id} was committed by {other.owner_id!r} in epoch "
            f"{other.epoch} (attempt {other.attempt}), not by {checkpoint.owner_id!r} in epoch "
            f"{checkpoint.epoch} (attempt {checkpoint.attempt})"
        )
