"""
The edit session: how anything but a query commits.

    with edit_session(store, "forget") as session:
        session.claim(newest)
        ...                                   # write objects of the checkpoint session.checkpoint_id
        session.commit(changes)

The claim fences a query that runs; its next start continues from the new checkpoint.  The record of the
micro-batch and its staged rows are copied from the checkpoint before, so the query continues at the same
position of its sources, and a micro-batch whose delivery was interrupted is delivered again.  The audit
line begins with the first change of the location; a session that changes nothing does not write one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from statelog.checkpoint.attachments import Attachment
from statelog.checkpoint.audit import AuditedOperation, audited
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.history import Entries, read_checkpoint
from statelog.checkpoint.ownership import new_owner_id
from statelog.errors import CheckpointError
from statelog.format.checkpoint_metadata import OUTPUT_TAG, RESERVED_TAGS
from statelog.model import (
    CompletedCheckpoint,
    FileStateHandle,
    Json,
    KeyGroupRange,
    TaskStateSnapshot,
)
from statelog.options import CheckpointOptions
from statelog.runtime.clock import wall_clock_ms
from statelog.runtime.fail_points import fail_point
from statelog.store import ObjectStore


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


@contextlib.contextmanager
def edit_session(
    store: ObjectStore,
    operation: str,
    *,
    retained: int | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
    **arguments: Json,
) -> Iterator[EditSession]:
    """
    Return a session for one operation, whose changes are one line of the audit log.

    Args:
        store: The store of the location.
        operation: Its name, for the audit line and for the owner of the claim.
        retained: Checkpoints to retain; None for as many as the claimed one does, and two at least, so
            that the one before can be gone back to.
        clock_ms: Milliseconds since 1970 (UTC).
        arguments: What was asked for, see `audited`.
    """
    with audited(store, operation, **arguments) as line:
        yield EditSession(store, operation, line, retained, clock_ms)


class EditSession:
    """
    The commit of an owner that is not a query; see `edit_session`.

    Args:
        store: The store of the location.
        operation: The operation.
        line: Its audit line.
        retained, clock_ms: See `edit_session`.
    """

    def __init__(
        self,
        store: ObjectStore,
        operation: str,
        line: AuditedOperation,
        retained: int | None,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store, self._operation = store, operation
        self._retained, self._clock_ms = retained, clock_ms
        self._claimed: CheckpointCoordinator | None = None
        self._base: CompletedCheckpoint | None = None
        self.result = line.result

    @property
    def _coordinator(self) -> CheckpointCoordinator:
        if self._claimed is None:
            raise CheckpointError("claim the location before a commit", reason="unknown")
        return self._claimed

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint that a commit makes."""
        return self._coordinator.next_checkpoint_id

    def claim_location(self, max_parallelism: int, retained: int) -> None:
        """
        Claim a location whose newest checkpoint may be damaged, for `commit_older`.

        Args:
            max_parallelism: Number of its key groups.
            retained: How many checkpoints it retains.

        Blocks: On the store.
        """
        self._claimed = CheckpointCoordinator(
            self._store,
            owner_id=new_owner_id(self._operation),
            max_parallelism=max_parallelism,
            options=CheckpointOptions(retained=self._retained or max(2, retained)),
            clock_ms=self._clock_ms,
        )
        self._claimed.claim()
        fail_point("edit-claimed")

    def claim(self, expected: CompletedCheckpoint) -> None:
        """
        Claim the location, for `commit`.

        Args:
            expected: The newest checkpoint that the caller has read.

        Raises:
            CheckpointError: A newer one was committed meanwhile (`reason` "active"): the caller
                repeats its work.
            StoreError: The store failed.

        Blocks: On the store.
        """
        self.claim_location(expected.max_parallelism, len(expected.retained))
        base = self._coordinator.restore()
        if base is None or base.checkpoint_id != expected.checkpoint_id:
            newest_text = "none" if base is None else str(base.checkpoint_id)
            raise CheckpointError(
                f"{self._store.url} had checkpoint {expected.checkpoint_id} and has {newest_text} now: its query "
                "committed meanwhile. Nothing was changed, and the query is fenced; repeat the "
                "call, then start the query",
                reason="active",
                checkpoint_id=expected.checkpoint_id,
            )
        self._base = base

    def commit(
        self,
        changes: Sequence[TaskStateSnapshot],
        *,
        timers_changed: frozenset[int] = frozenset(),
        output: StagedRows | None = None,
        attachments: tuple[Attachment, ...] | None = None,
    ) -> CompletedCheckpoint:
        """
        Commit changes on top of the claimed checkpoint.

        Args:
            changes: What was written, by disjoint ranges of key groups.
            timers_changed: Positions of the operators whose timers may be due at another time.
            output: The staged rows of the micro-batch, in place of the present ones.
            attachments: The attachments, in place of the present ones.

        Returns:
            The new checkpoint.

        Raises:
            FencedError: A query has claimed the location meanwhile; nothing was changed.
            StoreError: The store failed; the checkpoint may exist.

        Blocks: On the store.
        """
        base = self._base
        if base is None:
            raise CheckpointError("claim a checkpoint before a commit", reason="unknown")
        sections = _sections_of(self._store, base)
        record = BatchRecord.of(base)
        # None is "unknown": the query looks, and runs a micro-batch if a timer is due.
        operators = tuple(
            msgspec.structs.replace(operator, next_due_ms=None)
            if at in timers_changed
            else operator
            for at, operator in enumerate(record.operators)
        )
        changed: dict[str, object] = {}
        if output is not None:
            sections.pop(OUTPUT_TAG, None)
            sections |= {} if output.section is None else {OUTPUT_TAG: output.section}
            changed["output_files"] = [handle.to_json() for handle in output.files]
        if attachments is not None:
            changed["attachments"] = attachments
        record = msgspec.structs.replace(record, operators=operators, **changed)
        properties = {**base.properties, **record.to_properties()}
        completed = _put(self._coordinator, changes, properties, sections)
        fail_point("edit-committed")
        self._coordinator.clean_up()
        return completed

    def commit_older(self, checkpoint_id: int, went_back_to: int | None) -> CompletedCheckpoint:
        """
        Commit the state of an older checkpoint as the newest one; see `commit_older`.

        Nothing is cleaned up: an active run needs its checkpoints until its next commit, where it is
        fenced.
        """
        return commit_older(self._coordinator, self._store, checkpoint_id, went_back_to)

    def clean_up(self) -> None:
        """Delete the metadata of checkpoints that are no longer retained."""
        self._coordinator.clean_up()


def commit_older(
    coordinator: CheckpointCoordinator,
    store: ObjectStore,
    older_id: int,
    went_back_to: int | None,
) -> CompletedCheckpoint:
    """
    Commit the state of an older checkpoint as the newest one, on a new timeline.

    Args:
        coordinator: The owner, which has claimed the location.
        store: The store of the location.
        older_id: The older checkpoint.
        went_back_to: The checkpoint of the last rewind of the query, if any.

    Raises:
        CheckpointError: The older checkpoint cannot be restored.
        FencedError: A run has claimed the state location meanwhile.

    Blocks: On the store.
    """
    base = coordinator.restore(older_id, begins_timeline=True)
    if base is None:
        raise CheckpointError(f"checkpoint {older_id} does not exist", reason="not_found")
    everything = KeyGroupRange(0, base.max_parallelism - 1)
    properties: dict[str, Json] = {**base.properties, "went_back_to": went_back_to}
    # The staged rows of the micro-batch too, in case it must be delivered again.
    sections = _sections_of(store, base)
    return _put(coordinator, [TaskStateSnapshot(everything, None)], properties, sections)


def _sections_of(store: ObjectStore, checkpoint: CompletedCheckpoint) -> dict[bytes, bytes]:
    """Return the sections of a checkpoint that its commit does not write itself."""
    stored = read_checkpoint(store, checkpoint.checkpoint_id)
    return {tag: data for tag, data in stored.sections.items() if tag not in RESERVED_TAGS}


def _put(
    coordinator: CheckpointCoordinator,
    changes: Sequence[TaskStateSnapshot],
    properties: dict[str, Json],
    sections: dict[bytes, bytes],
) -> CompletedCheckpoint:
    checkpoint_id = coordinator.next_checkpoint_id
    coordinator.trigger(checkpoint_id, [change.key_group_range for change in changes])
    for change in changes:
        coordinator.acknowledge(checkpoint_id, change)
    return coordinator.complete(checkpoint_id, properties=properties, sections=sections)
