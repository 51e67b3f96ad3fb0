"""
Remove a key from a location: from the state at once, from objects now or later.

The default commits the key's deletion.  Its bytes leave with the snapshots and checkpoints that
hold them, and the report says when.  `now` writes the affected key groups again without the key,
gives up all older checkpoints, and deletes what they needed.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from statelog.checkpoint.attachments import Attachment
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import CleanUpReport, ParentRelease, collect_garbage, tag_releases
from statelog.checkpoint.edit import EditSession, StagedRows, edit_session, newest_checkpoint
from statelog.checkpoint.history import open_state, read_checkpoint
from statelog.checkpoint.state_stream import random_name, read_stream
from statelog.errors import CheckpointError, ObjectNotFoundError
from statelog.extensions.operations.copy_plan import parents_of
from statelog.extensions.operations.edit_keys import EditTarget
from statelog.extensions.operations.key_traces import (
    KeyTrace,
    ObjectUses,
    SoughtKey,
    has_rows,
    ranges_needing,
    staged_rows,
    staged_table,
)
from statelog.extensions.recordings import location as recordings
from statelog.format.arrow_data import write_stream
from statelog.format.buffers import checksum
from statelog.format.checkpoint_metadata import OUTPUT_TAG, decode_streams, encode_streams
from statelog.model import (
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
)
from statelog.runtime.clock import wall_clock_seconds
from statelog.state.columnar.run_set import contiguous
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN, SCHEMA_METADATA, SnapshotWriter
from statelog.state.keys.state_key import StateKey
from statelog.state.reader import StateReader
from statelog.store import PATHS, ObjectStore
from statelog.store.location_store import parse_parent_path


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReport:
    """
    The changes that forgetting a key made, or would make.

    Args:
        operator: Name of the operator.
        key: The key.
        base_id: The checkpoint that had the key.
        checkpoint_id: The new checkpoint; None for a dry run, and where nothing was left to do.
        removed: Entries of the key by variable, timers too.
        traces: Objects that still hold the key.
        given_up: Checkpoints that can no longer be restored.
        deleted: Objects that were deleted, or would be.
        parents: URLs of the parents of this fork that hold the key in objects which the fork needs,
            or needed before the call.  Their state is not changed.
        outside: The tags that keep checkpoints of parents for this fork and were deleted there,
            because no checkpoint of the fork needs them; in a dry run all that may be.
        dry_run: Whether nothing was changed.
    """

    operator: str
    key: tuple[object, ...]
    base_id: int
    checkpoint_id: int | None
    removed: Mapping[str, int]
    traces: tuple[KeyTrace, ...]
    given_up: tuple[int, ...] = ()
    deleted: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    outside: tuple[ParentRelease, ...] = ()
    dry_run: bool = False


def refuse_pinned(url: str, traces: Iterable[KeyTrace]) -> None:
    """Check that none of the pinned checkpoints contains the key."""
    names = sorted({name for trace in traces for name in trace.pins})
    if names:
        raise CheckpointError(
            f"{url} contains checkpoints with this key that are pinned by {', '.join(names)}; nothing was "
            "changed. Delete these tags first (statelog tag --remove); forks contain the key too: forget it there, "
            "or copy the fork so that it does not need objects of this location",
            reason="pinned",
        )


def forget(
    location: str | os.PathLike[str],
    key: object,
    *,
    operator: str | None = None,
    now: bool = False,
    apply: bool = False,
    on_progress: Callable[[str], None] = lambda path: None,
    storage_options: Mapping[str, object] | None = None,
) -> ForgetReport:
    """
    Remove a key from all state of an operator, and report which objects still contain it.

    A query of the location must be stopped; one that runs is fenced, and its next start goes on at
    the same source position.  The caller deletes the key's rows in the source and in the sink.

    Example:
        report = statelog.forget("s3://bucket/jobs/totals", "c1", apply=True)

    Args:
        location: Path or URL of the state location.
        key: The values of the key columns as a tuple; for one column the value alone will do.
        operator: Name of the operator, where the query has several.
        now: Delete all data stored for the key now: snapshots of the affected key groups are
            written without it, all older checkpoints are given up, and rows of the staged output in
            which the key's values occur are dropped.
        apply: Remove the key; False only reports, and claims and changes nothing.
        on_progress: Called with the name of each object before it is read.
        storage_options: Options of the store's client, as for `open_store`.

    Returns:
        What was removed, and the objects that still hold the key, with what makes each go away.

    Raises:
        UsageError: The operator is unknown, or the key does not fit it.
        CheckpointNotFoundError: The location does not contain a checkpoint.
        QueryActiveError: The query commits meanwhile.
        CheckpointError: With *now*, a tag or fork keeps a checkpoint with the key (`reason`
            "pinned").
        FencedError: A query has claimed the location meanwhile.
        CorruptionError: An object is damaged, so what it holds is unknown.
        StoreError: The store failed; call again.

    Blocks: On the store; reads every object of the location, with *now* twice.
    """
    store = open_state(location, options=storage_options)
    base = newest_checkpoint(store)
    forgetting = _Forgetting(store, base, key, operator, on_progress)
    # The line has no key, and no checksum of it, which is found out by trying keys.
    retained = 1 if now else None
    with edit_session(store, "forget", retained=retained, operator=operator, now=now) as session:
        by = forgetting.by_rewriting if now else forgetting.by_deletion
        report = by(session, dry_run=not apply)
        session.result(
            checkpoint_id=report.checkpoint_id,
            given_up=report.given_up,
            deleted=len(report.deleted),
        )
    return report


class _Forgetting:
    """The removal of one key from one location."""

    def __init__(
        self,
        store: ObjectStore,
        base: CompletedCheckpoint,
        key: object,
        operator: str | None,
        on_progress: Callable[[str], None],
    ) -> None:
        self._store = store
        self._base = base
        self._on_progress = on_progress
        self._target = EditTarget(store, base, operator)
        self._key = SoughtKey(key, self._target.codec.schema, self._target.key_groups)
        self._removed = self._entries()

    def by_deletion(self, session: EditSession, *, dry_run: bool) -> ForgetReport:
        """Commit the deletion of the key, and report which objects still contain it."""
        newest = self._base
        checkpoint_id = None
        if self._removed and not dry_run:
            edits = self._target.edits({}, [self._key.values])
            overlays, counts = self._target.overlays(edits)
            checkpoint_id = self._target.commit(session, overlays, counts).checkpoint_id
            newest = newest_checkpoint(self._store)
        return self._report(newest, checkpoint_id, dry_run)

    def by_rewriting(self, session: EditSession, *, dry_run: bool) -> ForgetReport:
        """Commit the state without the key in new objects, then delete the old objects."""
        traces = self._traces(self._base)
        report = self._report(self._base, None, dry_run, traces)
        if not traces:
            # An interrupted call may have left objects, and the tag of a fork in its parent.
            if dry_run:
                return replace(report, outside=tag_releases(self._store))
            cleaned = self._collect()
            return replace(report, deleted=cleaned.deleted, outside=cleaned.outside)
        refuse_pinned(self._store.url, traces)
        before = ObjectUses(self._store, self._base).checkpoints
        if dry_run:
            doomed = tuple(trace.path for trace in traces if parse_parent_path(trace.path) is None)
            outside = tag_releases(self._store)
            return replace(report, given_up=before, deleted=doomed, outside=outside)
        session.claim(self._base)
        checkpoint_id = session.checkpoint_id
        paths_with_key = {trace.path for trace in traces}
        listed = {info.path for info in self._store.list()}
        changes = [
            TaskStateSnapshot(snapshot.key_group_range, None, snapshot)
            for snapshot in self._snapshots(paths_with_key, checkpoint_id)
        ]
        session.commit(
            changes,  # none if only older checkpoints, or rows of output, hold it
            timers_changed=frozenset([self._target.position]),
            output=self._output(),
            attachments=tuple(self._attachments()),
        )
        newest = newest_checkpoint(self._store)
        present = {info.path for info in self._store.list()}
        outside = self._collect().outside
        recordings.forget_key(self._store, self._key.values, operator=self._key.operator_id)
        remaining = {info.path for info in self._store.list()}
        retained = ObjectUses(self._store, newest).checkpoints
        return replace(
            self._report(newest, checkpoint_id, False),
            parents=report.parents,
            outside=outside,
            given_up=tuple(number for number in before if number not in retained),
            deleted=tuple(sorted({*paths_with_key & listed, *(present - remaining)} - remaining)),
        )

    def _collect(self) -> CleanUpReport:
        """Delete all objects that no checkpoint needs."""
        return collect_garbage(
            self._store,
            min_age=dt.timedelta(0),
            apply=True,
            # Later than the store's own clock, which tells the age of objects.
            now=dt.datetime.fromtimestamp(wall_clock_seconds(), dt.UTC) + dt.timedelta(days=1),
        )

    def _report(
        self,
        newest: CompletedCheckpoint,
        checkpoint_id: int | None,
        dry_run: bool,
        traces: tuple[KeyTrace, ...] | None = None,
    ) -> ForgetReport:
        if traces is None:
            traces = self._traces(newest)
        return ForgetReport(
            operator=self._key.operator_id,
            key=self._key.values,
            base_id=self._base.checkpoint_id,
            checkpoint_id=checkpoint_id,
            removed=self._removed,
            traces=traces,
            parents=parents_of(self._store, (trace.path for trace in traces)),
            dry_run=dry_run,
        )

    def _entries(self) -> dict[str, int]:
        """Return how many entries the key has, by variable."""
        with StateReader(self._store, self._base, operator=self._key.operator_id) as reader:
            key_groups = KeyGroupRange(self._key.key_group, self._key.key_group)
            tables = reader.tables(key_groups=key_groups, include_expired=True)
            schema = reader.schema.key_schema
        rows = {
            name: sum(self._key.rows_of(batch, schema).num_rows for batch in table.to_batches())
            for name, table in tables.items()
        }
        return {name: count for name, count in rows.items() if count}

    def _traces(self, newest: CompletedCheckpoint) -> tuple[KeyTrace, ...]:
        """Read all objects, and return the ones that contain the key."""
        uses = ObjectUses(self._store, newest)
        traces = []
        listed = {info.path for info in self._store.list()}
        for path in sorted({*listed, *uses.parent_objects}):
            self._on_progress(path)
            try:
                kind = self._key.is_in_object(self._store, path, uses.handle_of(path))
            except ObjectNotFoundError:
                continue  # deleted meanwhile
            if kind is not None:
                traces.append(uses.trace(path, kind))
        recorded = recordings.objects_with_key(
            self._store, self._key.values, operator=self._key.operator_id
        )
        traced = {trace.path for trace in traces}
        traces += [uses.trace(path, "recording") for path in recorded if path not in traced]
        return tuple(traces)

    # --- new objects without the key ----------------------------------------------------------------

    def _snapshots(
        self, paths_with_key: set[str], checkpoint_id: int
    ) -> Iterator[MaterializedHandle]:
        """Write snapshots for the key groups that need an object in *paths_with_key*."""
        needed = {
            key_group
            for key_range in ranges_needing(self._base, paths_with_key)
            for key_group in key_range
        }
        operators = BatchRecord.of(self._base).operators
        groups_of_operator = self._base.max_parallelism // len(operators)
        for position, operator in enumerate(operators):
            key_groups = KeyGroupRange(
                position * groups_of_operator, (position + 1) * groups_of_operator - 1
            )
            with StateReader(self._store, self._base, operator=operator.operator_id) as reader:
                for key_range in contiguous(sorted(needed & set(key_groups))):
                    data = self._snapshot_without_key(reader, key_range)
                    handle = self._put(PATHS.task_owned(random_name()), data)
                    yield MaterializedHandle(key_range, checkpoint_id, handle)

    def _snapshot_without_key(self, reader: StateReader, key_groups: KeyGroupRange) -> bytes:
        metadata = {SCHEMA_METADATA: OperatorCodec(reader.schema).metadata_change()}
        writer = SnapshotWriter(reader.keys_schema().with_metadata(metadata))
        for batch in reader.keys(key_groups=key_groups, include_expired=True):
            rows = pa.Table.from_batches([self._without_key(batch, reader)])
            writer.write(rows.replace_schema_metadata(metadata))
        data: bytes = writer.finish().to_pybytes()
        return data

    def _without_key(self, batch: pa.RecordBatch, reader: StateReader) -> pa.RecordBatch:
        if reader.schema.operator_id != self._key.operator_id:
            return batch
        groups = batch.column(KEY_GROUP_COLUMN).to_pylist()
        if self._key.key_group not in groups:
            return batch
        sought = StateKey(self._key.values, reader.schema.key_schema)
        numbered = batch.append_column("__row", pa.array(range(batch.num_rows)))
        rows = set(sought.select(numbered).column("__row").to_pylist())
        other_rows = [row for row in range(batch.num_rows) if row not in rows]
        return batch.take(pa.array(other_rows, pa.int64()))

    def _output(self) -> StagedRows:
        """Return the staged rows of the micro-batch, without the key's rows."""
        stored = read_checkpoint(self._store, self._base.checkpoint_id)
        section = stored.sections.get(OUTPUT_TAG)
        inline = [self._filtered(stream) for stream in decode_streams(section)]
        files = []
        for handle in BatchRecord.of(self._base).staged_files():
            data = read_stream(self._store, handle, what="staged rows")
            filtered = self._filtered(data)
            if filtered is data:
                files.append(handle)
                continue
            files.append(self._put(PATHS.output(random_name()), filtered))
        return StagedRows(encode_streams(inline) if inline else None, tuple(files))

    def _attachments(self) -> Iterator[Attachment]:
        """Yield the attachments of the checkpoint, without the key's output rows."""
        for attachment in BatchRecord.of(self._base).attachments:
            if has_rows(attachment):
                data = read_stream(self._store, attachment.handle, what="rows of output")
                filtered = self._filtered(data)
                if filtered is not data:
                    file = self._put(PATHS.output(random_name()), filtered)
                    count = staged_table(filtered).num_rows
                    place = {"path": file.path, "size": file.size_bytes, "crc": file.crc32c}
                    attachment = msgspec.structs.replace(attachment, count=count, **place)
            yield attachment

    def _put(self, path: str, data: bytes | memoryview) -> FileStateHandle:
        self._store.put(path, data)
        return FileStateHandle(path, len(data), checksum([data]))

    def _filtered(self, stream: bytes | memoryview) -> bytes | memoryview:
        """
        Return staged rows, without the rows in which the key occurs.

        The same object if none does.
        """
        table = staged_table(stream)
        numbers = [
            number for number, row in enumerate(staged_rows(table)) if not self._key.is_in_row(row)
        ]
        if len(numbers) == table.num_rows:
            return stream
        others = table.take(pa.array(numbers, pa.int64()))
        return write_stream(others.to_batches(), table.schema)
