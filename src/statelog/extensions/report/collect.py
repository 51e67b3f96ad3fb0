"""
Read the figures of a location.

Only checkpoints that are still stored have all their figures.  Of older ones the log behind the
snapshots says how many bytes of changes they made.  Nothing is claimed, locked or written.
"""

from __future__ import annotations

import datetime as dt
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from statelog import __version__
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.listing import CheckpointSummary, read_listing
from statelog.errors import CheckpointError, IncompatibleFormatError, StatelogError
from statelog.extensions.report.bill import PRICES, Prices, bill_of
from statelog.extensions.report.figures import (
    CheckpointFigures,
    Figures,
    StoredObjects,
    findings_of,
)
from statelog.extensions.report.restart import Speeds, restart_of
from statelog.extensions.report.skew import KeyGroups, key_groups_of
from statelog.model import CompletedCheckpoint, FileStateHandle
from statelog.runtime.clock import wall_clock_ms, wall_clock_seconds
from statelog.store import PATHS, ObjectStore
from statelog.store.paths import parse_checkpoint_folder

_ORPHAN_AGE: Final = dt.timedelta(hours=1)
_KINDS: Final = {
    "dstl": "log",
    "taskowned": "snapshots",
    "shared": "snapshots",
    "output": "output",
    "tags": "tags",
}
_ORDER: Final = ("commits", "log", "snapshots", "output", "tags", "other")
_Listing = Sequence[tuple[CheckpointSummary, CompletedCheckpoint | None]]


def _quiet(message: str) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlan:
    """
    What to read, and what to assume.

    Args:
        speeds: For the time of a restart.
        prices: For the bill.
        with_keys: Count the keys of each key group, which reads the state of the newest checkpoint.
        with_key_groups: Count the changes of each key group, which reads the log; False counts nothing.
        progress: Called with what is being read.
    """

    speeds: Speeds = field(default_factory=Speeds)
    prices: Prices = PRICES["s3"]
    with_keys: bool = True
    with_key_groups: bool = True
    progress: Callable[[str], None] = _quiet


def collect(store: ObjectStore, location: str, plan: ReportPlan) -> Figures:
    """
    Return the figures of a location.

    Args:
        store: Where the location is.
        location: Its path or URL, to be shown; secrets in it are left out.
        plan: What to read, and what to assume.

    Raises:
        StoreError: The store failed.

    Blocks: On the store: a listing, about four requests for each checkpoint, and with
        `plan.with_keys` the state of the newest one.
    """
    plan.progress("listing the objects")
    sizes = {info.path: info.size_bytes for info in store.list()}
    plan.progress("reading the checkpoints")
    listing = read_listing(store)
    stored = _stored(sizes, _orphans(store))
    figures = Figures(
        location=shown_location(location),
        made_at_ms=wall_clock_ms(),
        version=__version__,
        checkpoints=_checkpoints(listing, sizes),
        older_changes=_older_changes(listing),
        stored=stored,
    )
    newest = next((each for summary, each in reversed(listing) if summary.is_retained), None)
    if newest is not None:
        figures = _with_newest(figures, newest, store, sizes, plan)
    return replace(figures, findings=findings_of(figures))


def shown_location(location: str) -> str:
    """Return a location without user names, passwords and parameters in its URL."""
    if "://" not in location:
        return location
    parts = urllib.parse.urlsplit(location)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def _with_newest(
    figures: Figures,
    newest: CompletedCheckpoint,
    store: ObjectStore,
    sizes: Mapping[str, int],
    plan: ReportPlan,
) -> Figures:
    """Add what is said of the newest checkpoint: query, restart, bill, key groups."""
    record = _record_of(newest)
    operators = (
        () if record is None else tuple(operator.operator_id for operator in record.operators)
    )
    restart = restart_of(
        newest,
        sizes,
        tasks=1 if record is None else record.tasks,
        operators=max(len(operators), 1),
        speeds=plan.speeds,
    )
    counted = [
        checkpoint.objects for checkpoint in figures.checkpoints if checkpoint.objects is not None
    ]
    bill = bill_of(
        puts_per_batch=sum(counted) / len(counted) if counted else 1.0,
        seconds_per_batch=_seconds_per_batch(figures.checkpoints),
        stored_bytes=sum(stored_kind.size_bytes for stored_kind in figures.stored),
        prices=plan.prices,
    )
    skew, problem = _skew(store, newest, operators, plan)
    return replace(
        figures,
        query_id="" if record is None else record.query_id,
        operators=operators,
        delivery="" if record is None else record.delivery,
        time_mode="" if record is None else record.time_mode,
        key_groups=newest.max_parallelism,
        newest_id=newest.checkpoint_id,
        restart=restart,
        bill=bill,
        skew=skew,
        skew_problem=problem,
    )


def _skew(
    store: ObjectStore,
    newest: CompletedCheckpoint,
    operators: Sequence[str],
    plan: ReportPlan,
) -> tuple[tuple[KeyGroups, ...], str]:
    """Return the key groups, or why they could not be counted."""
    if not operators or not plan.with_key_groups:
        return (), ""
    try:
        groups = key_groups_of(
            store, newest, operators, with_keys=plan.with_keys, progress=plan.progress
        )
    except StatelogError as error:  # damage, or the query deleted the checkpoint meanwhile
        return (), str(error).splitlines()[0]
    return groups, ""


def _record_of(checkpoint: CompletedCheckpoint) -> BatchRecord | None:
    """Return the record of a checkpoint; None if a query did not make it."""
    try:
        return BatchRecord.of(checkpoint)
    except (CheckpointError, IncompatibleFormatError):
        return None


def _checkpoints(listing: _Listing, sizes: Mapping[str, int]) -> tuple[CheckpointFigures, ...]:
    figures: list[CheckpointFigures] = []
    readable = {each.checkpoint_id: each for _, each in listing if each is not None}
    after_ms = _phases_after_commit(readable)
    for summary, checkpoint in listing:
        if checkpoint is None:
            figures.append(
                CheckpointFigures(
                    checkpoint_id=summary.checkpoint_id,
                    state=summary.state.value,
                    problem=summary.problem,
                    commit_bytes=summary.size_bytes,
                )
            )
            continue
        each = _of_parts(summary, checkpoint, readable, sizes)
        record = _record_of(checkpoint)
        if record is not None:
            parent = readable.get(-1 if checkpoint.parent_id is None else checkpoint.parent_id)
            each = _of_record(each, record, None if parent is None else _record_of(parent))
            later = after_ms.get(each.checkpoint_id, {})
            each = replace(each, durations_ms={**each.durations_ms, **later})
        figures.append(each)
    return tuple(figures)


def _phases_after_commit(
    readable: Mapping[int, CompletedCheckpoint],
) -> dict[int, dict[str, int]]:
    """Return the phases from the commit on, which each micro-batch records for its parent."""
    durations: dict[int, dict[str, int]] = {}
    for each in readable.values():
        record = _record_of(each)
        if record is not None and record.previous_ms and each.parent_id is not None:
            durations[each.parent_id] = record.previous_ms
    return durations


def _of_parts(
    summary: CheckpointSummary,
    checkpoint: CompletedCheckpoint,
    readable: Mapping[int, CompletedCheckpoint],
    sizes: Mapping[str, int],
) -> CheckpointFigures:
    """Return what log and snapshots of a checkpoint say."""
    own_id, parent_id = checkpoint.checkpoint_id, checkpoint.parent_id
    parent = readable.get(-1 if parent_id is None else parent_id)
    if parent is not None:
        before = {each.handle for each in parent.materialized}
        fresh = [each for each in checkpoint.materialized if each.handle not in before]
    else:
        fresh = [each for each in checkpoint.materialized if each.checkpoint_id == own_id]
    commit = PATHS.metadata(own_id)
    created = {commit} | {
        entry.handle.path
        for handle in checkpoint.log
        if handle.checkpoint_id == own_id
        for entry in handle.handles_and_offsets
        if isinstance(entry.handle, FileStateHandle)
    }
    created |= {each.handle.path for each in fresh if isinstance(each.handle, FileStateHandle)}
    return CheckpointFigures(
        checkpoint_id=own_id,
        state=summary.state.value,
        created_at_ms=checkpoint.created_at_ms,
        epoch=checkpoint.epoch,
        commit_bytes=summary.size_bytes,
        rewound=parent_id is not None and checkpoint.timeline.number > parent_id,
        objects=len(created),
        snapshots=len(fresh),
        snapshot_bytes=sum(max(each.handle.size_bytes, 0) for each in fresh),
        log_handles=len(checkpoint.log),
        log_bytes=sum(max(each.size_bytes, 0) for each in checkpoint.log),
        full_snapshots=len(checkpoint.materialized),
        full_snapshot_bytes=sum(max(each.handle.size_bytes, 0) for each in checkpoint.materialized),
    )


def _of_record(
    figures: CheckpointFigures, record: BatchRecord, parent: BatchRecord | None
) -> CheckpointFigures:
    """Add what the record of a micro-batch says."""
    retries = record.retries or {}
    uploads = record.uploads or {}
    objects = figures.objects or 1
    if record.objects is not None:
        objects = 1 + record.objects
    else:
        objects += len(record.output_files)
    return replace(
        figures,
        batch_id=record.batch_id,
        tasks=record.tasks,
        rows=record.rows,
        keys=record.keys,
        output_rows=record.output_rows,
        state_entries=record.state_entries,
        change_bytes=record.delta_bytes,
        output_bytes=record.output_bytes,
        objects=objects,
        durations_ms=record.durations_ms or {},
        task_ms=record.task_ms or {},
        task_retries=retries.get("tasks"),
        put_retries=retries.get("puts"),
        uploads=uploads.get("uploads"),
        upload_retries=uploads.get("retries"),
        upload_bytes=uploads.get("bytes"),
        slowest_upload_ms=uploads.get("slowest_ms"),
        upload_wait_ms=uploads.get("wait_ms"),
    )


def _older_changes(listing: _Listing) -> tuple[tuple[int, int], ...]:
    """Return bytes of changes by checkpoint, of those that are no longer stored."""
    stored = {summary.checkpoint_id for summary, _ in listing}
    handles = {
        handle.state_handle_id: handle
        for _, checkpoint in listing
        if checkpoint is not None
        for handle in checkpoint.log
        if handle.checkpoint_id not in stored
    }
    sums: dict[int, int] = {}
    for handle in handles.values():
        before = sums.get(handle.checkpoint_id, 0)
        sums[handle.checkpoint_id] = before + max(handle.size_bytes, 0)
    return tuple(sorted(sums.items()))


def _seconds_per_batch(checkpoints: Sequence[CheckpointFigures]) -> float | None:
    """Return the mean time between two micro-batches of one run; None if there are no two."""
    timed = [checkpoint for checkpoint in checkpoints if checkpoint.created_at_ms is not None]
    gaps = [
        (after.created_at_ms or 0) - (before.created_at_ms or 0)
        for before, after in pairwise(timed)
        if before.epoch == after.epoch
    ]
    return sum(gaps) / len(gaps) / 1000 if gaps and sum(gaps) > 0 else None


def _orphans(store: ObjectStore) -> frozenset[str]:
    """Return what `statelog gc` would delete; nothing where a damaged checkpoint hides its needs."""
    now = dt.datetime.fromtimestamp(wall_clock_seconds(), dt.UTC)
    try:
        report = collect_garbage(store, min_age=_ORPHAN_AGE, dry_run=True, now=now)
    except (CheckpointError, IncompatibleFormatError):
        return frozenset()
    return frozenset(report.deleted)


def _stored(sizes: Mapping[str, int], orphans: frozenset[str]) -> tuple[StoredObjects, ...]:
    groups: dict[str, list[str]] = {}
    for path in sizes:
        folder = path.partition("/")[0]
        is_commit = parse_checkpoint_folder(folder) is not None
        kind = "commits" if is_commit else _KINDS.get(folder, "other")
        groups.setdefault(kind, []).append(path)
    return tuple(
        StoredObjects(
            kind=kind,
            objects=len(groups[kind]),
            size_bytes=sum(sizes[path] for path in groups[kind]),
            orphans=sum(path in orphans for path in groups[kind]),
            orphan_bytes=sum(sizes[path] for path in groups[kind] if path in orphans),
        )
        for kind in _ORDER
        if kind in groups
    )
