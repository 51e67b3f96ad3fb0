"""
Commit one checkpoint more, at the source position of the newest one.

The claim fences a query that runs; its next start goes on from the new checkpoint.  The record of
the micro-batch and its staged rows are those of the checkpoint before, so the query continues at the
same position, and a micro-batch whose delivery was interrupted is delivered again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from statelog.checkpoint.attachments import Attachment
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.history import Entries, read_checkpoint
from statelog.checkpoint.ownership import new_owner_id
from statelog.errors import CheckpointError
from statelog.format.checkpoint_metadata import OUTPUT_TAG, RESERVED_TAGS
from statelog.model import CompletedCheckpoint, FileStateHandle, Json, TaskStateSnapshot
from statelog.operations.key_edits import EditCounts
from statelog.options import CheckpointOptions
from statelog.runtime.clock import wall_clock_ms
from statelog.runtime.fail_points import fail_point
from statelog.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class EditReport:
    """
    What an edit changed, or would change.

    Args:
        base_id: The checkpoint that was edited.
        checkpoint_id: The new checkpoint; None for a dry run, and where nothing changes.
        counts: Number of keys.
        delta_bytes: Bytes of the changes.
    """

    base_id: int
    checkpoint_id: int | None
    counts: EditCounts
    delta_bytes: int = 0


def result_of(report: EditReport) -> dict[str, Json]:
    """Return what the audit line of an edit has: the checkpoint, and how many keys changed."""
    counts = dataclasses.asdict(report.counts)
    return {"checkpoint_id": report.checkpoint_id, **counts}


@dataclass(frozen=True, slots=True)
class StagedRows:
    """
    The staged rows of a micro-batch.

    Args:
        section: Those in the checkpoint's own object, or None.
        files: Those in objects of their own.
    """

    section: bytes | None
    files: tuple[FileStateHandle, ...]


def newest_checkpoint(store: ObjectStore) -> CompletedCheckpoint:
    """
    Return the newest checkpoint of a location.

    Raises:
        CheckpointError: There is none (`reason` "not_found"), or it is damaged.

    Blocks: On the store.
    """
    newest = Entries(store).newest()
    if newest is None:
        raise CheckpointError(f"{store.url} has no checkpoint", reason="not_found")
    return newest


class Recommit:
    """
    A commit by an owner that is no query.

    Args:
        store: The store of the location.
        owner: What commits, for the name in the claim.
        retained: Checkpoints to retain; None for as many as the newest one does, and two at least, so
            that the one before can be gone back to.
    """

    def __init__(self, store: ObjectStore, owner: str, retained: int | None = None) -> None:
        self._store, self._owner, self._retained = store, owner, retained
        self._coordinator: CheckpointCoordinator | None = None

    def begin(self, expected: CompletedCheckpoint) -> int:
        """
        Claim the location, and return the id of the new checkpoint.

        Args:
            expected: The newest checkpoint that the caller has read.

        Raises:
            CheckpointError: A newer one was committed meanwhile (`reason` "active"): the caller
                repeats its work.
            StoreError: The store failed.

        Blocks: On the store.
        """
        coordinator = CheckpointCoordinator(
            self._store,
            owner_id=new_owner_id(self._owner),
            max_parallelism=expected.max_parallelism,
            options=CheckpointOptions(retained=self._retained or max(2, len(expected.retained))),
            clock_ms=wall_clock_ms,
        )
        coordinator.claim()
        fail_point("recommit-claimed")
        base = coordinator.restore()
        if base is None or base.checkpoint_id != expected.checkpoint_id:
            newest_text = "none" if base is None else str(base.checkpoint_id)
            raise CheckpointError(
                f"{self._store.url} had checkpoint {expected.checkpoint_id} and has {newest_text} now: its query "
                "committed meanwhile. Nothing was changed, and the query is fenced; repeat the "
                "call, then start the query",
                reason="active",
                checkpoint_id=expected.checkpoint_id,
            )
        self._coordinator = coordinator
        return coordinator.next_checkpoint_id

    def commit(
        self,
        base: CompletedCheckpoint,
        changes: Sequence[TaskStateSnapshot],
        *,
        timers_changed: frozenset[int] = frozenset(),
        output: StagedRows | None = None,
        attachments: tuple[Attachment, ...] | None = None,
    ) -> CompletedCheckpoint:
        """
        Commit changes on top of *base*.

        Args:
            base: The checkpoint given to `begin`.
            changes: What was written, by disjoint ranges of key groups.
            timers_changed: Positions of the operators whose timers may be due at another time.
            output: The staged rows of the micro-batch, in place of the base's.
            attachments: The attachments, in place of the base's.

        Returns:
            The new checkpoint.

        Raises:
            FencedError: A query has claimed the location meanwhile; nothing was changed.
            StoreError: The store failed; the checkpoint may exist.

        Blocks: On the store.
        """
        coordinator = self._coordinator
        if coordinator is None:
            raise CheckpointError("begin() was not called", reason="unknown")
        checkpoint_id = coordinator.next_checkpoint_id
        stored = read_checkpoint(self._store, base.checkpoint_id)
        sections = {tag: data for tag, data in stored.sections.items() if tag not in RESERVED_TAGS}
        record = BatchRecord.of(base)
        # None is "unknown": the query looks, and runs a micro-batch if a timer is due.
        operators = tuple(
            msgspec.structs.replace(each, next_due_ms=None) if at in timers_changed else each
            for at, each in enumerate(record.operators)
        )
        changed: dict[str, object] = {}
        if output is not None:
            sections.pop(OUTPUT_TAG, None)
            sections |= {} if output.section is None else {OUTPUT_TAG: output.section}
            changed["output_files"] = [handle.to_json() for handle in output.files]
        if attachments is not None:
            changed["attachments"] = attachments
        record = msgspec.structs.replace(record, operators=operators, **changed)
        coordinator.trigger(checkpoint_id, [change.key_group_range for change in changes])
        for each in changes:
            coordinator.acknowledge(checkpoint_id, each)
        completed = coordinator.complete(
            checkpoint_id,
            properties={**base.properties, **record.to_properties()},
            sections=sections,
        )
        fail_point("recommit-committed")
        coordinator.clean_up()
        return completed
