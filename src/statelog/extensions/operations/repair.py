"""
Repair a location: remove only what is provably safe to remove, or what the user names.

What can be removed without loss, and why:

* *temporary*: an object in `tmp/` is needed during one call only; older than any call, no writer
  uses it.
* *staged*: a file that a write on local disk left behind when it was killed; listings omit it, and
  the name it was written for was never given to it.
* *clean-up*: metadata of a checkpoint below the newest one that no retained checkpoint needs; its
  owner died before it had deleted it.  No number is used again.
* *orphan*: a log file, snapshot or output that no retained checkpoint refers to, older than the
  longest time from an upload to its commit: an unfinished checkpoint left it.

Kept are claims, unknown names, and entries above the newest checkpoint.  While a retained
checkpoint cannot be read, its needs are unknown, so that only temporary and staged files are
removed.

A damaged newest checkpoint is never dropped by that.  `give_up_after` is the one repair with a
loss: it commits the state of an older checkpoint again, as the newest one, and fences a run that is
active.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from statelog.checkpoint.clean_up import (
    CleanUpReport,
    delete_objects,
    is_kept_entry,
    is_ours,
    reachable_objects,
)
from statelog.checkpoint.edit import edit_session
from statelog.checkpoint.history import Entries, present_ids
from statelog.checkpoint.listing import CheckpointSummary, list_checkpoints
from statelog.checkpoint.restore import find_restore_point
from statelog.checkpoint.verify import verify_checkpoint
from statelog.errors import CheckpointError, UsageError
from statelog.store import ObjectInfo, ObjectStore
from statelog.store.location import local_path
from statelog.store.paths import TEMPORARY_FOLDER, parse_checkpoint_metadata

TEMPORARY: Final = "temporary"
STAGED: Final = "staged"
CLEAN_UP: Final = "clean-up"
ORPHAN: Final = "orphan"
REASONS: Final = {
    TEMPORARY: "was needed only during one call",
    STAGED: "left by a killed write; no object has this name",
    CLEAN_UP: "metadata of an unretained checkpoint that nothing references",
    ORPHAN: "no retained checkpoint references it",
}
_STAGED_NAME: Final = re.compile(r".+#\d+$")


@dataclass(frozen=True, slots=True)
class Repair:
    """
    An object that a repair can remove.

    Args:
        kind: "temporary", "staged", "clean-up" or "orphan"; `REASONS` says why each is safe.
        path: Its name relative to the root of the store.
        size_bytes: Its length.
    """

    kind: str
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """
    The changes that a repair would make.

    Args:
        repairs: What can be removed, by name.
        too_young: Number of objects kept because of their age.
        problems: What this repair cannot mend, with advice.
        usable_id: The checkpoint that `give_up_after` could go back to; None if the newest one is
            sound, or no older one is.
    """

    repairs: tuple[Repair, ...]
    too_young: int = 0
    problems: tuple[str, ...] = ()
    usable_id: int | None = None


@dataclass(frozen=True, slots=True)
class GivenUp:
    """
    The checkpoints that `give_up_after` discards.

    Args:
        checkpoint_id: The checkpoint whose state becomes the newest again.
        lost: The later checkpoints, ascending.
        committed_id: The checkpoint that was committed for it; None for a plan.
    """

    checkpoint_id: int
    lost: tuple[CheckpointSummary, ...]
    committed_id: int | None = None


def plan_repair(store: ObjectStore, *, min_age: dt.timedelta, now: dt.datetime) -> RepairPlan:
    """Determine what can be removed, without changing anything."""
    # Listed first: the objects of a checkpoint committed after the listing are marked below.
    listed = list(store.list())
    problems: list[str] = []
    usable: int | None = None
    marked: frozenset[str] | None = None
    newest_id = -1
    try:
        newest = Entries(store).newest()
        newest_id = -1 if newest is None else newest.checkpoint_id
        marked = reachable_objects(store)
    except CheckpointError as error:
        problems.append(
            f"{error}. Log objects are kept, because it is unknown whether they are needed"
        )
        usable = error.usable_id
    candidates: list[tuple[str, ObjectInfo]] = []
    for info in listed:
        kind = _kind(store, info, marked, newest_id)
        if kind is not None:
            candidates.append((kind, info))
    candidates += [(STAGED, info) for info in _staged_files(store)]
    old = [candidate for candidate in candidates if now - candidate[1].last_modified >= min_age]
    repairs = [Repair(kind, info.path, info.size_bytes) for kind, info in old]
    repairs.sort(key=lambda repair: repair.path)
    return RepairPlan(tuple(repairs), len(candidates) - len(old), tuple(problems), usable)


def apply_repair(store: ObjectStore, plan: RepairPlan) -> CleanUpReport:
    """Remove the objects listed in a plan; stop after a few failures."""
    staged = [repair.path for repair in plan.repairs if repair.kind == STAGED]
    with edit_session(store, "repair") as session:
        if staged:  # they are no objects of the store
            session.begin()
        removed = _remove_files(store, staged)
        report = delete_objects(
            store, [repair.path for repair in plan.repairs if repair.kind != STAGED]
        )
        report = removed.merged(report)
        session.result(deleted=len(report.deleted), not_deleted=len(report.failed))
    return report


def _kind(
    store: ObjectStore,
    info: ObjectInfo,
    marked: frozenset[str] | None,
    newest_id: int,
) -> str | None:
    """Return the kind of a leftover object, or None if the object must be kept."""
    if not is_ours(info.path):
        return None
    if info.path.startswith(f"{TEMPORARY_FOLDER}/"):
        return TEMPORARY
    if marked is None or info.path in marked:
        return None
    if parse_checkpoint_metadata(info.path) is None:
        return ORPHAN
    return None if is_kept_entry(store, info.path, newest_id) else CLEAN_UP


def _staged_files(store: ObjectStore) -> Iterator[ObjectInfo]:
    """Yield the files of incomplete writes on local disk, which store listings omit."""
    root = local_path(store.url)
    if root is None:
        return
    for folder, _, names in os.walk(root):
        for name in names:
            if _STAGED_NAME.fullmatch(name):
                full = os.path.join(folder, name)
                facts = os.lstat(full)
                modified = dt.datetime.fromtimestamp(facts.st_mtime, dt.UTC)
                path = os.path.relpath(full, root).replace(os.sep, "/")
                if is_ours(path):
                    yield ObjectInfo(path, facts.st_size, modified)


def _remove_files(store: ObjectStore, names: Iterable[str]) -> CleanUpReport:
    root = local_path(store.url) or ""
    deleted = []
    failed = []
    reason = ""
    for name in names:
        try:
            os.unlink(os.path.join(root, name))
            deleted.append(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed.append(name)
            reason = str(error)
    return CleanUpReport(deleted=tuple(deleted), failed=tuple(failed), reason=reason)


def plan_give_up(store: ObjectStore, checkpoint_id: int) -> GivenUp:
    """Determine what going back to a checkpoint would discard, without changing anything."""
    find_restore_point(Entries(store), checkpoint_id)  # raises if it cannot be restored
    for problem in verify_checkpoint(store, checkpoint_id):
        if problem.blocks_restore:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} is also damaged: {problem.problem}; choose a different one",
                reason="damaged",
                checkpoint_id=checkpoint_id,
                path=problem.path,
            )
    later = tuple(
        checkpoint
        for checkpoint in list_checkpoints(store)
        if checkpoint.checkpoint_id > checkpoint_id
    )
    if not later:
        raise UsageError(
            f"checkpoint {checkpoint_id} is the newest checkpoint and all its objects are intact: there is "
            "nothing to discard"
        )
    return GivenUp(checkpoint_id, later)


def give_up_after(store: ObjectStore, checkpoint_id: int, clock_ms: Callable[[], int]) -> GivenUp:
    """
    Make a checkpoint's state the newest again, and discard the checkpoints after it.

    A claim fences a run that is active.  One commit, with an id that was never used, is the point
    of no return; then the metadata of the checkpoints given up is deleted.  The sources of a query
    are left as they are: `statelog rewind` takes both back.
    """
    plan = plan_give_up(store, checkpoint_id)
    if max(present_ids(store)) < plan.lost[-1].checkpoint_id:
        raise CheckpointError("the location changed in the meantime; try again", reason="active")
    with edit_session(store, "repair", clock_ms=clock_ms, give_up_after=checkpoint_id) as session:
        session.claim_older(checkpoint_id)
        committed = session.commit_older(checkpoint_id).checkpoint_id
        session.clean_up()
        lost = [checkpoint.checkpoint_id for checkpoint in plan.lost]
        session.result(checkpoint_id=committed, given_up=lost)
    return GivenUp(checkpoint_id, plan.lost, committed)
