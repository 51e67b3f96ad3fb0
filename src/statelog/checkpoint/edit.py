"""
The edit session: how operations that are not part of a query commit changes.

    with edit_session(store, "forget") as session:
        session.claim(newest)
        ...                                   # write objects of the checkpoint session.checkpoint_id
        session.commit(changes)

A session also pins a checkpoint (`pin`), and makes the first entries of a location that goes on
from another one (`leave_out`, `commit_first`).

The claim fences a running query; when restarted, it continues from the new checkpoint.  The record
of the micro-batch and its staged rows are copied from the checkpoint before, so the query continues
at the same position of its sources, and a micro-batch whose delivery was interrupted is delivered
again.  The audit line begins with the first change of the location; a session that changes nothing
does not write one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from statelog.checkpoint.attachments import Attachment
from statelog.checkpoint.audit import AuditedOperation, audited
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.coordinator import CheckpointCoordinator, prepare_commit, put_commit
from statelog.checkpoint.history import Entries, read_checkpoint
from statelog.checkpoint.ownership import new_owner_id, put_claim
from statelog.checkpoint.restore import keep_tag
from statelog.checkpoint.retained import Tag
from statelog.checkpoint.tags import put_tag
from statelog.errors import CheckpointError
from statelog.format.checkpoint_metadata import OUTPUT_TAG, RESERVED_TAGS
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import (
    CompletedCheckpoint,
    FileStateHandle,
    Json,
    KeyGroupRange,
    TaskStateSnapshot,
)
from statelog.options import CheckpointOptions
from statelog.runtime.clock import pause, wall_clock_ms
from statelog.runtime.fail_points import fail_point
from statelog.store import ObjectStore


@dataclass(frozen=True, slots=True)
class StagedRows:
    """
    The staged rows of one micro-batch.

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
        raise CheckpointError(f"{store.url} does not contain a checkpoint", reason="not_found")
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
    Return a session for one operation, which the audit log records as one line.

    Args:
        store: The store of the location.
        operation: Its name, for the audit line and for the owner of the claim.
        retained: Checkpoints to retain; None for as many as the claimed one does, and two at least,
            so that the one before can be gone back to.
        clock_ms: Milliseconds since 1970 (UTC).
        arguments: What was asked for, see `audited`.
    """
    with audited(store, operation, **arguments) as line:
        yield EditSession(store, operation, line, retained, clock_ms)


class EditSession:
    """
    Commits on behalf of an owner that is not a query; see `edit_session`.

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
        self._store = store
        self._operation = operation
        self._retained = retained
        self._clock_ms = clock_ms
        self._claimed: CheckpointCoordinator | None = None
        self._base: CompletedCheckpoint | None = None
        self.begin = line.begin
        self.result = line.result

    @property
    def _coordinator(self) -> CheckpointCoordinator:
        if self._claimed is None:
            raise CheckpointError("claim the location before you commit", reason="unknown")
        return self._claimed

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint that the commit creates."""
        return self._coordinator.next_checkpoint_id

    def _claim(self, like: CompletedCheckpoint) -> None:
        self._claimed = CheckpointCoordinator(
            self._store,
            owner_id=new_owner_id(self._operation),
            max_parallelism=like.max_parallelism,
            options=CheckpointOptions(retained=self._retained or max(2, len(like.retained))),
            clock_ms=self._clock_ms,
        )
        # From here on a running query cannot commit.
        self._claimed.claim()
        fail_point("edit-claimed")

    def claim_older(self, checkpoint_id: int) -> None:
        """
        Claim a location whose newest checkpoint may be damaged, to call `commit_older`.

        Args:
            checkpoint_id: The older checkpoint.

        Blocks: On the store.
        """
        self._claim(read_checkpoint(self._store, checkpoint_id).checkpoint)

    def claim(self, expected: CompletedCheckpoint) -> None:
        """
        Claim the location, to call `commit`.

        Args:
            expected: The newest checkpoint that the caller has read.

        Raises:
            CheckpointError: A newer one was committed meanwhile (`reason` "active"): the caller
                repeats its work.
            StoreError: The store failed.

        Blocks: On the store.
        """
        self._claim(expected)
        # What the caller read may be old by now: compare before anything is written.
        base = self._coordinator.restore()
        if base is None or base.checkpoint_id != expected.checkpoint_id:
            newest_text = "none" if base is None else str(base.checkpoint_id)
            raise CheckpointError(
                f"{self._store.url} was at checkpoint {expected.checkpoint_id} and is now at "
                f"{newest_text}: its query committed in the meantime. "
                "Nothing was changed, and the query is fenced; repeat the "
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
        Commit changes that are based on the claimed checkpoint.

        Args:
            changes: What was written, by disjoint ranges of key groups; none for the state as it
                is.
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
            raise CheckpointError("claim a checkpoint before you commit", reason="unknown")
        # 1. All that the claimed checkpoint has, so that the query continues where it was.
        sections = _unreserved(read_checkpoint(self._store, base.checkpoint_id).sections)
        record = BatchRecord.of(base)
        # None is "unknown": the query looks, and runs a micro-batch if a timer is due.
        operators = tuple(
            msgspec.structs.replace(operator, next_due_ms=None)
            if index in timers_changed
            else operator
            for index, operator in enumerate(record.operators)
        )
        # 2. What this edit replaces of it.
        changed: dict[str, object] = {}
        if output is not None:
            sections.pop(OUTPUT_TAG, None)
            sections |= {} if output.section is None else {OUTPUT_TAG: output.section}
            changed["output_files"] = [handle.to_json() for handle in output.files]
        if attachments is not None:
            changed["attachments"] = attachments
        # 3. Commit, and then delete what the commit subsumed.
        record = msgspec.structs.replace(record, operators=operators, **changed)
        properties = with_record(base.properties, record)
        completed = _put(self._coordinator, base, changes, properties, sections)
        fail_point("edit-committed")
        self._coordinator.clean_up()
        return completed

    def commit_older(self, checkpoint_id: int, **changed: Json) -> CompletedCheckpoint:
        """
        Commit the state of an older checkpoint as the newest one; see `commit_older`.

        Nothing is cleaned up: an active run needs its checkpoints until its next commit, where it
        is fenced.
        """
        return commit_older(self._coordinator, self._store, checkpoint_id, **changed)

    def clean_up(self) -> None:
        """Delete the metadata of checkpoints that are no longer retained."""
        self._coordinator.clean_up()

    def pin(
        self,
        tag: Tag,
        *,
        facts: Mapping[str, Json] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Tag:
        """
        Pin a checkpoint so that it is retained; raises like `put_tag` and `keep_tag`.

        Args:
            tag: The tag.  With a path it is the tag of an earlier call, which may have ended before
                it checked that the checkpoint is retained.
            facts: See `TagContent`.
            files: See `TagContent`.

        Blocks: On the store.
        """
        if tag.path:
            keep_tag(self._store, tag)
            return tag
        return put_tag(self._store, tag, clock_ms=self._clock_ms, facts=facts, files=files)

    def leave_out(
        self,
        number: int,
        next_number: int,
        *,
        owner_id: str | None = None,
        location_id: str | None = None,
    ) -> bool:
        """
        Claim a number in a location built from a different one; *next_number* comes after it.

        A query that starts here meanwhile then wants *next_number* too, and one of both is refused.

        Args:
            number: The first free number.
            next_number: The number that the next checkpoint has in the other location.
            owner_id: The owner; None for a new one.
            location_id: The identity of the location; None for the one of its copy, or a new one.

        Returns:
            Whether the number was claimed; False if it has another entry.

        Blocks: On the store.
        """
        entries = Entries(self._store).list_again()
        attempt = os.urandom(8).hex()
        claim = ClaimRecord(
            number=number,
            owner_id=owner_id or new_owner_id(self._operation),
            attempt=attempt,
            created_at_ms=self._clock_ms(),
            newest=entries.newest_id(),
            next_number=next_number,
            location_id=location_id or entries.copy_id or attempt,
            timeline=number,
        )
        return put_claim(self._store, claim)

    def commit_first(
        self, checkpoint: CompletedCheckpoint, sections: Mapping[bytes, bytes]
    ) -> None:
        """
        Commit a checkpoint of a different location as the first one, under its original number.

        Raises:
            FencedError: Another owner's entry has the number.
            StoreError: The store failed; the checkpoint may exist.

        Blocks: On the store.
        """
        prepared = prepare_commit(checkpoint, _unreserved(sections), compress=True)
        put_commit(self._store, prepared, pause)


def commit_older(
    coordinator: CheckpointCoordinator, store: ObjectStore, older_id: int, **changed: Json
) -> CompletedCheckpoint:
    """
    Commit the state of an older checkpoint as the newest one, on a new timeline.

    Args:
        coordinator: The owner, which has claimed the location.
        store: The store of the location.
        older_id: The older checkpoint.
        changed: Properties in place of the older checkpoint's.

    Raises:
        CheckpointError: The older checkpoint cannot be restored.
        FencedError: A run has claimed the state location meanwhile.

    Blocks: On the store.
    """
    base = coordinator.restore(older_id, begins_timeline=True)
    if base is None:
        raise CheckpointError(f"checkpoint {older_id} does not exist", reason="not_found")
    properties = {**base.properties, **changed}
    # The staged rows of the micro-batch too, in case it must be delivered again.
    sections = _unreserved(read_checkpoint(store, older_id).sections)
    return _put(coordinator, base, (), properties, sections)


def with_record(properties: Mapping[str, Json], record: BatchRecord) -> dict[str, Json]:
    """Return a checkpoint's properties with the record of its micro-batch replaced."""
    names = record.__struct_fields__
    others = {name: value for name, value in properties.items() if name not in names}
    return {**others, **record.to_properties()}


def _unreserved(sections: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the sections of a checkpoint that a commit does not write itself."""
    return {tag: data for tag, data in sections.items() if tag not in RESERVED_TAGS}


def _put(
    coordinator: CheckpointCoordinator,
    base: CompletedCheckpoint,
    changes: Sequence[TaskStateSnapshot],
    properties: dict[str, Json],
    sections: dict[bytes, bytes],
) -> CompletedCheckpoint:
    checkpoint_id = coordinator.next_checkpoint_id
    everything = KeyGroupRange(0, base.max_parallelism - 1)
    # A checkpoint needs an acknowledgement of at least one range, with or without changes.
    changes = changes or [TaskStateSnapshot(everything, None)]
    coordinator.trigger(checkpoint_id, [change.key_group_range for change in changes])
    for change in changes:
        coordinator.acknowledge(checkpoint_id, change)
    return coordinator.complete(checkpoint_id, properties=properties, sections=sections)
