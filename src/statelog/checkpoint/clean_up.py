"""
Clean-up: by the owner from memory after each checkpoint, and by a sweep over everything.

The sweep marks what any retained checkpoint reaches and takes the rest, if it is old enough: a
younger object may belong to a checkpoint under way.  Where anything is in doubt it keeps: unknown
names, claims, and everything as long as one retained checkpoint cannot be read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final

from statelog.checkpoint.history import find_newest, read_checkpoint
from statelog.checkpoint.ownership import newest_epoch
from statelog.errors import CheckpointError, CorruptionError, ObjectNotFoundError, StoreError
from statelog.store import LocationPaths, ObjectInfo, ObjectStore
from statelog.store.paths import (
    TEMPORARY_FOLDER,
    parse_checkpoint_folder,
    parse_checkpoint_metadata,
)

_FAILURES_MAX: Final = 3
_PART_MAX: Final = 1000
"""What S3 takes in one request; a part that fails is deleted one by one, so it is not endless."""


@dataclass(frozen=True, slots=True)
class CleanUpReport:
    """
    What a clean-up did.

    Args:
        deleted: Objects deleted; in a dry run, those that would be.
        failed: Objects that could not be deleted; they are tried again the next time.
        deleted_bytes: Summed size of `deleted`; 0 where sizes are not known (no listing).
        reachable: Number of objects that retained checkpoints need.
        too_young: Number of orphans left alone because of their age.
        unknown: Number of objects left alone because their names are not of statelog's making.
        reason: Why objects could not be deleted, or why nothing was tried; "" if all is well.
        dry_run: Whether nothing was really deleted.
    """

    deleted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    deleted_bytes: int = 0
    reachable: int = 0
    too_young: int = 0
    unknown: int = 0
    reason: str = ""
    dry_run: bool = False


def delete_objects(store: ObjectStore, paths: Iterable[str]) -> CleanUpReport:
    """
    Delete objects, many with one request where the store can, and give up after a few failures.

    The order of *paths* is kept where it matters: the metadata of a checkpoint and what it refers
    to never share a request, because a request that fails may have deleted any part of it.  Such
    a part is then deleted again one by one, so that the report is true.

    Blocks: On the store, one request for up to 1000 objects where it has such a request.
    """
    waiting = list(paths)
    deleted: list[str] = []
    failed: list[str] = []
    reason = ""
    for part in _parts(waiting):
        try:
            store.delete(part)
            deleted += part
            continue
        except StoreError as error:
            reason = str(error)
            failed += part if len(part) == 1 else []
        for path in part if len(part) > 1 else []:
            try:
                store.delete([path])
                deleted.append(path)
            except StoreError as error:
                failed.append(path)
                reason = str(error)
            if len(failed) >= _FAILURES_MAX:
                break
        if len(failed) >= _FAILURES_MAX:
            break
    return _report(waiting, deleted, reason if failed else "")


def _parts(paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield *paths* in order, in parts of one kind: either all metadata, or none."""
    for _, run in groupby(paths, key=lambda path: parse_checkpoint_metadata(path) is not None):
        while part := list(islice(run, _PART_MAX)):
            yield part


def _report(waiting: Sequence[str], deleted: Sequence[str], reason: str) -> CleanUpReport:
    gone = set(deleted)
    failed = tuple(path for path in waiting if path not in gone)
    return CleanUpReport(deleted=tuple(deleted), failed=failed, reason=reason)


def collect_garbage(
    store: ObjectStore,
    paths: LocationPaths,
    *,
    min_age: dt.timedelta,
    dry_run: bool,
    now: dt.datetime,
) -> CleanUpReport:
    """
    Delete what no retained checkpoint reaches and what is older than *min_age*.

    Safe beside a running job as long as *min_age* exceeds the longest time from the upload of a
    change set to the commit of its checkpoint.

    Args:
        store: Where the location is.
        paths: The location in the store.
        min_age: Younger objects are kept.
        dry_run: Only say what would be deleted.
        now: The time, with a time zone; compared with the store's own times.

    Raises:
        CheckpointError: A retained checkpoint is damaged or gone (`reason` "damaged"); nothing was
            deleted, because what it needs is unknown.
        IncompatibleFormatError: A newer statelog wrote one; nothing was deleted.
        StoreError: The store failed while it was read.

    Blocks: On the store (a listing, all retained checkpoints, requests to delete).
    """
    # Listed first: what a checkpoint committed after the listing needs was marked with it below.
    listed = list(store.list(paths.root))
    marked = reachable_objects(store, paths)
    if marked is None:
        reason = f"{store.url} holds neither a checkpoint nor a claim of statelog"
        return CleanUpReport(unknown=len(listed), reason=reason, dry_run=dry_run)
    ours = [info for info in listed if _is_ours(paths, info.path)]
    orphans = [info for info in ours if info.path not in marked]
    old = [info for info in orphans if now - info.last_modified >= min_age]
    old.sort(key=lambda info: info.path)
    sizes = {info.path: info.size_bytes for info in old}
    report = CleanUpReport(deleted=tuple(sizes)) if dry_run else delete_objects(store, sizes)
    return CleanUpReport(
        deleted=report.deleted,
        failed=report.failed,
        deleted_bytes=sum(sizes[path] for path in report.deleted),
        reachable=sum(info.path in marked for info in listed),
        too_young=len(orphans) - len(old),
        unknown=_count_unknown(paths, listed),
        reason=report.reason,
        dry_run=dry_run,
    )


def reachable_objects(store: ObjectStore, paths: LocationPaths) -> frozenset[str] | None:
    """
    Return every object that some retained checkpoint needs, metadata included.

    Returns:
        The names; nothing at all (None) if this is no location of statelog.

    Raises:
        CheckpointError: A retained checkpoint is damaged or gone.
        IncompatibleFormatError: A newer statelog wrote one.

    Blocks: On the store.
    """
    newest = find_newest(store, paths).newest
    if newest is None:
        return frozenset() if newest_epoch(store, paths) else None
    marked: set[str] = set()
    for checkpoint_id in newest.retained:
        path = paths.metadata(checkpoint_id)
        try:
            checkpoint = read_checkpoint(store, paths, checkpoint_id).checkpoint
        except (CorruptionError, ObjectNotFoundError) as error:
            raise CheckpointError(
                f"retained checkpoint {checkpoint_id} cannot be read, so what it needs is unknown "
                f"and nothing is deleted: {error}",
                reason="damaged",
                checkpoint_id=checkpoint_id,
                path=path,
            ) from error
        marked.add(path)
        marked.update(checkpoint.referenced_paths())
    return frozenset(marked)


def _is_ours(paths: LocationPaths, path: str) -> bool:
    """Tell state, log, output and checkpoint objects from claims and from strangers."""
    relative = path[len(paths.root) + 1 :] if paths.root else path
    folder, separator, _ = relative.partition("/")
    if not separator:
        return False
    if folder in ("dstl", "shared", "taskowned", "output"):
        return True
    if folder == TEMPORARY_FOLDER:  # of the whole store: another location may be in it
        return not paths.root
    return parse_checkpoint_folder(folder) is not None


def _count_unknown(paths: LocationPaths, listed: Iterable[ObjectInfo]) -> int:
    claims = paths.owners + "/"
    return sum(
        not _is_ours(paths, info.path) and not info.path.startswith(claims) for info in listed
    )
