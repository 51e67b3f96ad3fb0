"""
Copy a location to a different store: verified, resumable, while the query can keep running.

Each object is read, verified by its own checksums, put under the same name, and read back.  A
second call puts only what is missing.  Metadata objects are put last, under the numbers that they
have in the source.  A claim of the copy says which numbers are left out before them, so that a
query which starts in the copy meanwhile wants the same number, and one of both is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from statelog.arguments import whole_number
from statelog.checkpoint.edit import EditSession, edit_session
from statelog.checkpoint.history import (
    Entries,
    exists,
    may_be_claim,
    open_state,
    present_ids,
    read_entry,
)
from statelog.checkpoint.listing import CheckpointName, given_checkpoint_id
from statelog.checkpoint.ownership import describe_claim
from statelog.errors import CorruptionError, ObjectNotFoundError, StoreError, UsageError
from statelog.extensions.operations.copy_plan import (
    CopiedObject,
    CopyPlan,
    missing_in_source,
    parents_of,
    plan_copy,
)
from statelog.format.buffers import Buffer, checksum
from statelog.format.checkpoint_record import ClaimRecord
from statelog.runtime.clock import pause as pause_thread
from statelog.store import PATHS, ObjectStore, open_location, read_verified
from statelog.store.paths import is_audit_end, parse_checkpoint_metadata
from statelog.store.verified import create

_ATTEMPTS: Final = 3
_PLANS: Final = 5
_PAUSE_S: Final = 0.2
_OWNER: Final = "copy-"
"""Begins the name of the owner in claims of copies."""
_BYTES_IN_FLIGHT: Final = 256 * 1024 * 1024
"""Start copying objects while fewer bytes are in progress; one object may be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """
    How far a copy has progressed.

    Args:
        objects, objects_done: Objects of the copy, and those that are in it, verified.
        size_bytes, bytes_done: Their bytes.
        copied: Objects that this call has put.
    """

    objects: int
    objects_done: int
    size_bytes: int
    bytes_done: int
    copied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """
    What a copy contains.

    Args:
        checkpoints: The checkpoints that can be restored from it, ascending.
        objects: Number of objects, all verified.
        size_bytes: Their bytes.
        copied, copied_bytes: Those that this call put; the others were there.
        parents: URLs of the parents of a fork from which objects were read.  Nothing is changed
            there.
    """

    checkpoints: tuple[int, ...]
    objects: int
    size_bytes: int
    copied: int
    copied_bytes: int
    parents: tuple[str, ...] = ()


def copy_location(
    source: ObjectStore,
    target: ObjectStore,
    *,
    checkpoint_id: int | None = None,
    parallelism: int = 4,
    on_progress: Callable[[CopyProgress], None] = lambda progress: None,
    pause: Callable[[float], None] = pause_thread,
) -> CopyReport:
    """
    Copy the retained checkpoints of a location, and all objects that they reference.

    A query may go on in the source.  Call it again to copy what was committed meanwhile; to move a
    query, stop it before the last call.  An interrupted call leaves whole objects only.
    """
    whole_number(parallelism, "parallelism", low=1)
    with edit_session(target, "copy", source=source.url, checkpoint_id=checkpoint_id) as session:
        work = _Copy(session, source, target, parallelism, on_progress, pause)
        report = work.run(checkpoint_id)
        session.result(checkpoints=report.checkpoints, objects=report.objects, copied=report.copied)
    return report


def copy(
    location: str | os.PathLike[str],
    new_location: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName | None = None,
    parallelism: int = 4,
    on_progress: Callable[[CopyProgress], None] = lambda progress: None,
    storage_options: Mapping[str, object] | None = None,
    new_storage_options: Mapping[str, object] | None = None,
) -> CopyReport:
    """
    Copy a state location to a different folder, bucket or store.

    The copy contains the retained checkpoints and all that they refer to.  A query may run in
    *location* meanwhile: call again to copy what it committed since.  To move a query, stop it
    before the last call.  Objects that an interrupted call copied are verified, and not copied
    again.

    Example:
        statelog.copy("s3://bucket/jobs/totals", "s3://bucket/backup/totals")

    Args:
        location: Path or URL of the location.
        new_location: Path or URL of the copy.
        checkpoint: The newest checkpoint of the copy: its id, "latest", "earliest", a tag, or a
            time of ISO 8601; None for the newest there is.
        parallelism: Objects copied at once, >= 1.
        on_progress: Called after each object.
        storage_options: Options of the client of *location*, as for `open_store`.
        new_storage_options: Options of the client of *new_location*.

    Raises:
        CheckpointError: *location* does not have the checkpoint (`reason` "not_found").
        UsageError: *location* does not exist, or *new_location* contains a different location.
        CorruptionError: An object is damaged.
        StoreError: A store failed; repeat the call.

    Blocks: On both stores.
    """
    source = open_state(location, options=storage_options)
    return copy_location(
        source,
        open_location(new_location, options=new_storage_options),
        checkpoint_id=given_checkpoint_id(source, checkpoint),
        parallelism=parallelism,
        on_progress=on_progress,
    )


class _Copy:
    """A copy in progress, which is planned again if the query deletes objects meanwhile."""

    def __init__(
        self,
        session: EditSession,
        source: ObjectStore,
        target: ObjectStore,
        parallelism: int,
        on_progress: Callable[[CopyProgress], None],
        pause: Callable[[float], None],
    ) -> None:
        self._session = session
        self._source = source
        self._target = target
        self._parallelism = parallelism
        self._on_progress = on_progress
        self._pause = pause
        self._copied_bytes = 0
        self._progress = CopyProgress(
            objects=0, objects_done=0, size_bytes=0, bytes_done=0, copied=0
        )

    def run(self, checkpoint_id: int | None) -> CopyReport:
        """Copy up to a checkpoint; see `copy_location`."""
        _check_target(self._source, self._target)
        last = ObjectNotFoundError("an object")
        for _ in range(_PLANS):
            try:
                plan = plan_copy(self._source, checkpoint_id)
                _check_is_newest(self._target, plan)
                self._carry_out(plan)
            except ObjectNotFoundError as error:  # the query has deleted it; newer ones replace it
                last = error
                continue
            return CopyReport(
                checkpoints=plan.checkpoints,
                objects=self._progress.objects,
                size_bytes=plan.size_bytes,
                copied=self._progress.copied,
                copied_bytes=self._copied_bytes,
                parents=parents_of(self._source, (copied.source for copied in plan.objects)),
            )
        raise missing_in_source(last, self._source.url)

    def _carry_out(self, plan: CopyPlan) -> None:
        """
        Copy all objects, and then the metadata.

        The newest first, where numbers are left out before it.
        """
        self._present = {info.path for info in self._target.list()}
        self._progress = replace(
            self._progress,
            objects=len(plan.objects) + len(plan.metadata),
            objects_done=0,
            size_bytes=plan.size_bytes,
            bytes_done=0,
        )
        for is_end in (False, True):  # the end of an audit line follows its begin
            objects = [copied for copied in plan.objects if is_audit_end(copied.path) is is_end]
            self._in_parallel(objects)
        by_number = dict(plan.metadata)
        newest = plan.checkpoints[-1]
        # Each number is the next one of the copy when it is put.
        number = Entries(self._target).next_number
        while number < newest:
            if number in by_number:
                self._in_parallel([by_number.pop(number)])
            elif not exists(self._target, PATHS.metadata(number)):
                self._leave_out(number, newest)
                break
            number += 1
        self._in_parallel([by_number.pop(newest)])
        self._in_parallel([*by_number.values()])

    def _leave_out(self, number: int, newest: int) -> None:
        """Claim a number so that the newest checkpoint becomes the next entry of the copy."""
        if self._session.leave_out(number, newest):
            return
        target = self._target
        path = PATHS.metadata(number)
        if _is_damaged(target, number):
            raise StoreError(
                f"writing {path} in {target.url} was interrupted; repeat the call", path=path
            )
        raise UsageError(
            f"{target.url} was claimed by a different owner at the same time; pass an empty location"
        )

    def _in_parallel(self, objects: Sequence[CopiedObject]) -> None:
        waiting = list(reversed(objects))
        running: dict[Future[bool], CopiedObject] = {}
        size = 0
        pool = ThreadPoolExecutor(self._parallelism, thread_name_prefix="statelog-copy")
        try:
            while waiting or running:
                while waiting and len(running) < self._parallelism:
                    if running and size + waiting[-1].size_bytes > _BYTES_IN_FLIGHT:
                        break
                    copied = waiting.pop()
                    running[pool.submit(self._copy, copied)] = copied
                    size += copied.size_bytes
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    copied = running.pop(future)
                    size -= copied.size_bytes
                    self._finished(copied, future.result())
        finally:
            # Ctrl-C too ends here: an object under way is put whole, no other is begun.
            pool.shutdown(wait=True, cancel_futures=True)

    def _finished(self, item: CopiedObject, was_copied: bool) -> None:
        now = self._progress
        self._copied_bytes += item.size_bytes if was_copied else 0
        self._progress = replace(
            now,
            objects_done=now.objects_done + 1,
            bytes_done=now.bytes_done + item.size_bytes,
            copied=now.copied + was_copied,
        )
        self._on_progress(self._progress)

    def _copy(self, item: CopiedObject) -> bool:
        """Copy an object unless it already exists; return whether it was copied."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                # After a failed attempt the object may be there, or a part of it.
                is_known = attempt > 1 or item.path in self._present
                content = _stored(self._target, item.path) if is_known else None
                if content is not None and self._is_whole(item, content):
                    return attempt > 1
                self._put(item, is_there=content is not None)
                return True
            except ObjectNotFoundError:
                raise
            except StoreError:
                if attempt == _ATTEMPTS:
                    raise
            self._pause(_PAUSE_S * attempt)
        raise AssertionError("the last attempt must return or raise an error")

    def _is_whole(self, item: CopiedObject, content: Buffer) -> bool:
        """Verify *content*, and return whether it is the complete object."""
        if not item.verifies_itself:
            return checksum([content]) == checksum([self._content(item)])
        try:
            item.check(content)
        except CorruptionError:
            return False
        return not item.size_bytes or len(content) == item.size_bytes

    def _content(self, item: CopiedObject) -> Buffer:
        return read_verified(self._source, item.source, item.content)

    def _put(self, item: CopiedObject, *, is_there: bool) -> None:
        content = self._content(item)
        digest = checksum([content])
        size = len(content)
        number = parse_checkpoint_metadata(item.path)
        if is_there:  # what an interrupted call left, or a checkpoint with another record
            if number is not None:
                _is_damaged(self._target, number)
            self._target.delete([item.path])
        if number is None:
            self._target.put(item.path, content)
        else:
            create(self._target, item.path, content)
        del content

        def compare(written: memoryview) -> None:
            if len(written) != size or checksum([written]) != digest:
                raise CorruptionError(
                    f"{item.path} in {self._target.url} differs from the copied content: {len(written)} "
                    f"bytes instead of {size}, or a different checksum",
                    path=item.path,
                )

        read_verified(self._target, item.path, compare)


def _stored(target: ObjectStore, path: str) -> Buffer | None:
    """Read an object of the copy, or return None if it does not exist."""
    try:
        return target.get(path)
    except ObjectNotFoundError:
        return None


def _check_target(source: ObjectStore, target: ObjectStore) -> None:
    """Check that the target is empty or a copy of the source, and mark it as a copy."""
    if source.url == target.url:
        raise UsageError(f"{source.url} cannot be copied onto itself")
    mark = msgspec.json.encode({"version": 2, "source": source.url})
    copy_id = Entries(target).list_again().copy_id
    if copy_id is None and present_ids(target):
        raise UsageError(
            f"{target.url} is a state location, not a copy of {source.url}; pass an empty location"
        )
    path = PATHS.copied_from(copy_id or os.urandom(8).hex())
    content = b"" if copy_id is None else bytes(_stored(target, path) or b"")
    if not mark.startswith(content):  # an interrupted put may have left the beginning of it
        raise UsageError(
            f"{target.url} is a copy of a different location ({content.decode(errors='replace')}), not of "
            f"{source.url}; pass an empty location"
        )
    if content != mark:
        target.delete([path])
        target.put(path, mark)
    for number in present_ids(target):  # what is left of an interrupted claim of a copy is deleted
        if _is_damaged(target, number) and may_be_claim(target, number):
            target.delete([PATHS.metadata(number)])


def _check_is_newest(target: ObjectStore, plan: CopyPlan) -> None:
    """Check that the newest checkpoint in the copy is not newer than the plan."""
    newest = Entries(target).newest_id()
    if newest is not None and newest > plan.checkpoints[-1]:
        raise UsageError(
            f"{target.url} contains checkpoint {newest}, which is newer than checkpoint "
            f"{plan.checkpoints[-1]}; copy the newer checkpoint, or pass an empty location"
        )


def _is_damaged(target: ObjectStore, number: int) -> bool:
    """Return whether an interrupted call left a partial entry, which must be written again."""
    try:
        entry = read_entry(target, number)
    except ObjectNotFoundError:
        return False
    except CorruptionError:
        return True
    if isinstance(entry, ClaimRecord) and not entry.owner_id.startswith(_OWNER):
        raise UsageError(
            f"{target.url} has been claimed by a query since it was copied "
            f"({describe_claim(entry)}), and a copy would overwrite its state; pass an "
            "empty location"
        )
    return False
