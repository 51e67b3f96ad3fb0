"""
Collect the figures of a location.

Only checkpoints that are still stored have all their figures.  Of older ones the log behind the
snapshots says how many bytes of changes they made.  Nothing is claimed, locked or written.
"""

from __future__ import annotations

import datetime as dt
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, TypeAlias

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
from statelog.extensions.report.skew import key_groups_of
from statelog.model import ChangelogStateHandle, CompletedCheckpoint, StreamStateHandle
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
_Listing: TypeAlias = Sequence[tuple[CheckpointSummary, CompletedCheckpoint | None]]


def _quiet(message: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlan:
    """
    What to read for a report, and what to assume.

    Args:
        speeds: For the time of a restart.
        prices: For the bill.
        with_keys: Count the keys of each key group, which reads the state of the newest checkpoint.
        with_key_groups: Count the changes of each key group, which reads the log; False counts
            nothing.
        progress: Called with what is being read.
    """

    speeds: Speeds = field(default_factory=Speeds)
    prices: Prices = PRICES["s3"]
    with_keys: bool = True
    with_key_groups: bool = True
    progress: Callable[[str], None] = _quiet


def collect(store: ObjectStore, location: str, plan: ReportPlan) -> Figures:
    """Return the figures of a location."""
    return collect_with_newest(store, location, plan)[0]


def collect_with_newest(
    store: ObjectStore, location: str, plan: ReportPlan
) -> tuple[Figures, CompletedCheckpoint | None]:
    """Return the result of `collect`, and the newest retained checkpoint or None."""
    plan.progress("listing the objects")
    sizes = {info.path: info.size_bytes for info in store.list()}
    plan.progress("reading the checkpoints")
    listing = read_listing(store)
    newest = next((stored for summary, stored in reversed(listing) if summary.is_retained), None)
    figures = Figures(
        location=shown_location(location),
        made_at_ms=wall_clock_ms(),
        version=__version__,
        checkpoints=_checkpoints(listing),
        older_changes=_older_changes(listing),
        stored=_stored(sizes, _orphans(store)),
    )
    if newest is not None:
        figures = _with_newest(figures, newest, sizes, plan)
        figures = _with_key_groups(figures, newest, store, plan)
    return replace(figures, findings=findings_of(figures)), newest


def shown_location(location: str) -> str:
    """Return a location's URL without user names, passwords and parameters."""
    if "://" not in location:
        return location
    parts = urllib.parse.urlsplit(location)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def _with_newest(
    figures: Figures, newest: CompletedCheckpoint, sizes: Mapping[str, int], plan: ReportPlan
) -> Figures:
    """Add what the newest checkpoint shows about the query, a restart and the bill."""
    record = _record_of(newest)
    if record is not None:
        figures = replace(
            figures,
            query_id=record.query_id,
            operators=tuple(operator.operator_id for operator in record.operators),
            delivery=record.delivery,
            time_mode=record.time_mode,
        )
    puts = [
        checkpoint.objects for checkpoint in figures.checkpoints if checkpoint.objects is not None
    ]
    return replace(
        figures,
        key_groups=newest.max_parallelism,
        newest_id=newest.checkpoint_id,
        restart=restart_of(
            newest,
            sizes,
            tasks=1 if record is None else record.figures.tasks,
            operators=max(len(figures.operators), 1),
            speeds=plan.speeds,
        ),
        bill=bill_of(
            puts_per_batch=sum(puts) / len(puts) if puts else 1.0,
            seconds_per_batch=_seconds_per_batch(figures.checkpoints),
            stored_bytes=sum(kind.size_bytes for kind in figures.stored),
            prices=plan.prices,
        ),
    )


def _with_key_groups(
    figures: Figures, newest: CompletedCheckpoint, store: ObjectStore, plan: ReportPlan
) -> Figures:
    """Add the key groups, or the reason that they could not be counted."""
    if not figures.operators or not plan.with_key_groups:
        return figures
    try:
        skew = key_groups_of(
            store, newest, figures.operators, with_keys=plan.with_keys, progress=plan.progress
        )
    except StatelogError as error:  # damage, or the query deleted the checkpoint meanwhile
        return replace(figures, skew_problem=str(error).splitlines()[0])
    return replace(figures, skew=skew)


def _record_of(checkpoint: CompletedCheckpoint) -> BatchRecord | None:
    """Return the record in a checkpoint, or None if no query created the checkpoint."""
    try:
        return BatchRecord.of(checkpoint)
    except (CheckpointError, IncompatibleFormatError):
        return None


def _checkpoints(listing: _Listing) -> tuple[CheckpointFigures, ...]:
    readable = {stored.checkpoint_id: stored for _, stored in listing if stored is not None}
    records = {number: _record_of(checkpoint) for number, checkpoint in readable.items()}
    after = {checkpoint.parent_id: records[number] for number, checkpoint in readable.items()}
    checkpoints = []
    for summary, checkpoint in listing:
        figures = CheckpointFigures(
            checkpoint_id=summary.checkpoint_id,
            state=summary.state.value,
            problem=summary.problem,
            created_at_ms=summary.created_at_ms,
            epoch=summary.epoch,
            commit_bytes=summary.size_bytes,
        )
        if checkpoint is not None:
            parent = None if checkpoint.parent_id is None else readable.get(checkpoint.parent_id)
            figures = _with_objects(figures, checkpoint, parent)
            record = records[checkpoint.checkpoint_id]
            if record is not None:
                figures = _with_record(figures, record, after.get(checkpoint.checkpoint_id))
        checkpoints.append(figures)
    return tuple(checkpoints)


def _with_objects(
    figures: CheckpointFigures, checkpoint: CompletedCheckpoint, parent: CompletedCheckpoint | None
) -> CheckpointFigures:
    """Add the figures for the log and snapshots of a checkpoint."""
    number = checkpoint.checkpoint_id
    snapshots = checkpoint.materialized
    if parent is None:
        fresh = [snapshot for snapshot in snapshots if snapshot.checkpoint_id == number]
    else:
        before = {snapshot.handle for snapshot in parent.materialized}
        fresh = [snapshot for snapshot in snapshots if snapshot.handle not in before]
    changes = tuple(handle for handle in checkpoint.log if handle.checkpoint_id == number)
    new = replace(checkpoint, log=changes, materialized=tuple(fresh), properties={})
    return replace(
        figures,
        rewound=checkpoint.parent_id is not None
        and checkpoint.timeline.number > checkpoint.parent_id,
        objects=len({PATHS.metadata(number), *new.referenced_paths()}),
        snapshots=len(fresh),
        snapshot_bytes=_bytes_of(snapshot.handle for snapshot in fresh),
        log_handles=len(checkpoint.log),
        log_bytes=_bytes_of(checkpoint.log),
        full_snapshots=len(snapshots),
        full_snapshot_bytes=_bytes_of(snapshot.handle for snapshot in snapshots),
    )


def _bytes_of(handles: Iterable[ChangelogStateHandle | StreamStateHandle]) -> int:
    """Return the total size of handles, counting unknown sizes as 0."""
    return sum(max(handle.size_bytes, 0) for handle in handles)


def _with_record(
    figures: CheckpointFigures, record: BatchRecord, after: BatchRecord | None
) -> CheckpointFigures:
    """Add the figures in the record of a micro-batch."""
    retries = record.retries or {}
    batch = record.figures
    later = (after.previous_ms if after is not None else None) or {}
    return replace(
        figures,
        batch_id=record.batch_id,
        figures=replace(batch, milliseconds={**batch.milliseconds, **later}),
        objects=1 + batch.objects,
        task_retries=retries.get("tasks"),
        put_retries=retries.get("puts"),
    )


def _older_changes(listing: _Listing) -> tuple[tuple[int, int], ...]:
    """Return the size of changes whose checkpoints are no longer stored."""
    stored = {summary.checkpoint_id for summary, _ in listing}
    handles = {
        handle.state_handle_id: handle
        for _, checkpoint in listing
        if checkpoint is not None
        for handle in checkpoint.log
        if handle.checkpoint_id not in stored
    }
    sums: Counter[int] = Counter()
    for handle in handles.values():
        sums[handle.checkpoint_id] += max(handle.size_bytes, 0)
    return tuple(sorted(sums.items()))


def _seconds_per_batch(checkpoints: Sequence[CheckpointFigures]) -> float | None:
    """Return the mean time between micro-batches of a run, or None for fewer than two."""
    timed = [checkpoint for checkpoint in checkpoints if checkpoint.created_at_ms is not None]
    gaps = [
        (after.created_at_ms or 0) - (before.created_at_ms or 0)
        for before, after in pairwise(timed)
        if before.epoch == after.epoch
    ]
    return sum(gaps) / len(gaps) / 1000 if gaps and sum(gaps) > 0 else None


def _orphans(store: ObjectStore) -> frozenset[str]:
    """
    Return the objects that `statelog gc` would delete.

    Nothing where a damaged checkpoint hides its needs.
    """
    now = dt.datetime.fromtimestamp(wall_clock_seconds(), dt.UTC)
    try:
        report = collect_garbage(store, min_age=_ORPHAN_AGE, apply=False, now=now)
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
