"""
What makes rows a new snapshot of an Iceberg table, as updates of its metadata.

A snapshot has at most two manifests, of its data files and of its files of deleted positions.  They have
an entry for each file of the rows, added now or before, and for each file that the snapshot before had
and this one has not.  So an update depends on two things only, the rows and the table.
Source: the table specification of Apache Iceberg, version 2; pyiceberg's own writers of snapshots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from statelog.operations.publish_rows import TableFile, TableRows, Write, parquet
from statelog.operations.publish_schema import (
    check_types,
    iceberg_schema,
    mapped_paths,
    mapping_json,
)
from statelog.operations.publish_table import CHECKPOINT
from statelog.state.kinds.kind import RowNumbers

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate

TAGS: Final = "statelog.tags"
"""Property of the table with the names of the tags that statelog put, in JSON."""
PREFIX: Final = "statelog-"
"""What the names of all files that statelog writes begin with."""
_DELETES_MAX: Final = 24
"""Files with deleted positions; beyond it the smaller half is merged."""
MAIN: Final = "main"
_MAPPING: Final = "schema.name-mapping.default"
_COMPRESSION: Final = "deflate"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    A file of a table snapshot.

    Args:
        file: The file.
        snapshot_id: The snapshot that added it.
        sequence_number: The sequence number of that snapshot.
    """

    file: DataFile
    snapshot_id: int
    sequence_number: int


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """
    A snapshot that is about to be committed.

    Args:
        snapshot_id: Its id.
        checkpoint: The id of its checkpoint, as text.
        entries: Its files by URL.
        updates: What adds it as the newest snapshot of the table.
    """

    snapshot_id: int
    checkpoint: str
    entries: Mapping[str, Entry]
    updates: Sequence[TableUpdate]


@dataclass(eq=False, slots=True)
class DeleteFile:
    """
    A Parquet file with deleted positions.

    Args:
        positions: By the number of a file, ascending positions.
        url: Where it is stored.
        size_bytes: Its size.
        row_count: Its rows.
    """

    positions: dict[int, RowNumbers]
    url: str
    size_bytes: int
    row_count: int


class PositionDeletes:
    """The files of deleted positions of a table; see `publish_rows.Deletes`."""

    def __init__(self) -> None:
        self.files: list[DeleteFile] = []

    def clear(self) -> None:
        """Forget all files."""
        self.files = []

    def settle(self, files: Mapping[int, TableFile], write: Write) -> None:
        """Write the positions that no file has; raises as *write*."""
        for delete in self.files:
            delete.positions = {at: rows for at, rows in delete.positions.items() if at in files}
        self.files = [each for each in self.files if each.positions]
        new = {
            at: np.flatnonzero(~file.live & ~file.deleted)
            for at, file in files.items()
            if not (file.live | file.deleted).all()
        }
        merged: list[DeleteFile] = []
        if len(self.files) >= _DELETES_MAX:
            self.files.sort(key=lambda each: each.row_count)
            merged = self.files[: _DELETES_MAX // 2]
            for number in {at for each in merged for at in each.positions}:
                parts = [each.positions[number] for each in merged if number in each.positions]
                new[number] = np.sort(np.concatenate([new.get(number, parts[0][:0]), *parts]))
        if new:
            written = _delete_file(files, new, write)
            self.files = [*(each for each in self.files if each not in merged), written]
            for number, rows in new.items():
                files[number].deleted[rows] = True


def _delete_file(
    files: Mapping[int, TableFile], positions: dict[int, RowNumbers], write: Write
) -> DeleteFile:
    by_url = sorted(positions, key=lambda at: files[at].url)
    urls = [files[at].url for at in by_url]
    counts = [len(positions[at]) for at in by_url]
    paths = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(len(urls)), counts), pa.int32()),
        pa.array(urls, pa.string()),
    )
    table = pa.Table.from_arrays(
        [paths.cast(pa.string()), pa.array(np.concatenate([positions[at] for at in by_url]))],
        schema=_DELETES,
    )
    data = parquet(table)
    return DeleteFile(positions, write("deletes", data), data.size, table.num_rows)


def _field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})


_DELETES: Final = pa.schema(
    [_field("file_path", pa.string(), 2147483546), _field("pos", pa.int64(), 2147483545)]
)
"""Columns of a file of deleted positions.  Source: Iceberg's specification, position delete files."""


def stored_entries(table: Table, snapshot: Snapshot) -> dict[str, Entry]:
    """Return the files of a snapshot by URL; blocks on the store."""
    return {
        entry.data_file.file_path: Entry(
            entry.data_file, entry.snapshot_id or 0, entry.sequence_number or 0
        )
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def new_snapshot(
    table: Table,
    rows: TableRows,
    deletes: Sequence[DeleteFile],
    facts: Mapping[str, str],
    before: Mapping[str, Entry],
) -> NewSnapshot:
    """
    Write the manifests of rows whose files are written, and return their snapshot.

    Args:
        table: The table.
        rows: What the snapshot has.
        deletes: Which rows of its files are deleted.
        facts: Its summary, with the checkpoint.
        before: The files of the current snapshot.

    Raises:
        UsageError: The table cannot have the columns of the rows.

    Blocks: On the store.
    """
    from pyiceberg.manifest import DataFileContent, write_manifest_list
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary
    from pyiceberg.table.update import AddSnapshotUpdate

    metadata = table.metadata
    snapshot_id, sequence = metadata.new_snapshot_id(), metadata.next_sequence_number()
    schema, updates = _evolved(table, rows)
    after = _files_of(rows, deletes)
    manifests = []
    for content in (DataFileContent.DATA, DataFileContent.POSITION_DELETES):
        entries = _manifest_entries(before, after, content, snapshot_id)
        if entries:
            manifests.append(write_entries(table, schema, snapshot_id, content, entries))
    url = f"{table.location().rstrip('/')}/metadata/{new_name()}-list.avro"
    parent = metadata.current_snapshot_id
    with write_manifest_list(
        format_version=2,
        output_file=table.io.new_output(url),
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent,
        sequence_number=sequence,
        avro_compression=_COMPRESSION,
    ) as writer:
        writer.add_manifests(manifests)
    facts_of_snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": sequence,
        "manifest-list": url,
        "summary": Summary(operation=Operation.OVERWRITE, **facts, **_totals(rows, deletes)),
        "schema-id": schema.schema_id,
    }
    updates.append(AddSnapshotUpdate(snapshot=Snapshot.model_validate(facts_of_snapshot)))
    updates.append(_ref_update(MAIN, "branch", snapshot_id))
    kept = {
        path: before.get(path, Entry(file, snapshot_id, sequence)) for path, file in after.items()
    }
    return NewSnapshot(snapshot_id, facts[CHECKPOINT], kept, updates)


def ref_updates(
    table: Table, added: NewSnapshot | None, tags: Mapping[str, int], retain: int
) -> list[TableUpdate]:
    """
    Return what gives the table the tags of the location, and removes old snapshots.

    Args:
        table: The table.
        added: The snapshot that is committed together with it; None for none.
        tags: The checkpoint of each tag of the location.
        retain: Number of snapshots to keep besides those with a tag or in a branch.
    """
    from pyiceberg.table.update import (
        RemoveSnapshotRefUpdate,
        RemoveSnapshotsUpdate,
        SetPropertiesUpdate,
    )

    updates: list[TableUpdate] = []
    ordered = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)
    snapshots = [(each.snapshot_id, fact(each, CHECKPOINT)) for each in ordered]
    current = table.metadata.current_snapshot_id
    if added is not None:
        current = added.snapshot_id
        snapshots.append((current, added.checkpoint))
    snapshot_of = {checkpoint: snapshot_id for snapshot_id, checkpoint in snapshots}
    stored, refs = stored_tags(table), table.metadata.refs
    mine = {
        name: snapshot_of[str(checkpoint_id)]
        for name, checkpoint_id in tags.items()
        if str(checkpoint_id) in snapshot_of and (name in stored or name not in refs)
    }
    for name, snapshot_id in mine.items():
        if name not in refs or refs[name].snapshot_id != snapshot_id:
            updates.append(_ref_update(name, "tag", snapshot_id))
    gone = [name for name in stored - mine.keys() if name in refs]
    updates += [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in gone]
    if stored != mine.keys():
        updates.append(SetPropertiesUpdate(updates={TAGS: json.dumps(sorted(mine))}))
    others = {ref.snapshot_id for name, ref in refs.items() if name not in {*stored, MAIN}}
    kept = {current, *mine.values(), *others, *(each for each, _ in snapshots[-retain:])}
    removed = [snapshot_id for snapshot_id, _ in snapshots if snapshot_id not in kept]
    if removed:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": removed}))
    return updates


def _ref_update(name: str, kind: str, snapshot_id: int) -> TableUpdate:
    from pyiceberg.table.update import SetSnapshotRefUpdate

    facts = {"ref-name": name, "type": kind, "snapshot-id": snapshot_id}
    return SetSnapshotRefUpdate.model_validate(facts)


def new_name() -> str:
    """Return the begin of a file's name, which is never used again."""
    return f"{PREFIX}{os.urandom(16).hex()}"


def fact(snapshot: Snapshot, name: str) -> str:
    """Return a property in the summary of a snapshot, or ""."""
    summary = snapshot.summary
    return "" if summary is None else summary.additional_properties.get(name, "")


def stored_tags(table: Table) -> set[str]:
    """Return the names of the tags that statelog put."""
    return set(json.loads(table.properties.get(TAGS, "[]")))


def _evolved(table: Table, rows: TableRows) -> tuple[Schema, list[TableUpdate]]:
    """Return the schema of rows, and what makes it the schema of the table."""
    from pyiceberg.table.name_mapping import create_mapping_from_schema, parse_mapping_from_json
    from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, SetPropertiesUpdate

    updates: list[TableUpdate] = []
    stored = table.properties.get(_MAPPING)
    mapping = (
        create_mapping_from_schema(table.schema())
        if stored is None
        else parse_mapping_from_json(stored)
    )
    before = dict(mapped_paths(mapping.root))
    schema, ids = iceberg_schema(
        rows.schema, rows.stored_schema, before, table.metadata.last_column_id
    )
    check_types(schema, table.metadata.schemas, ".".join(table.name()))
    if ids != before or stored is None:
        text = json.dumps(mapping_json(ids))
        updates.append(SetPropertiesUpdate(updates={_MAPPING: text}))
    for present in table.metadata.schemas:
        if present.as_struct() == schema.as_struct():
            if present.schema_id != table.metadata.current_schema_id:
                updates.append(
                    SetCurrentSchemaUpdate.model_validate({"schema-id": present.schema_id})
                )
            return present, updates
    number = 1 + max(each.schema_id for each in table.metadata.schemas)
    schema = schema.model_copy(update={"schema_id": number})
    updates.append(AddSchemaUpdate(schema=schema))
    updates.append(SetCurrentSchemaUpdate.model_validate({"schema-id": -1}))
    return schema, updates


def _manifest_entries(
    before: Mapping[str, Entry],
    after: Mapping[str, DataFile],
    content: DataFileContent,
    snapshot_id: int,
) -> list[ManifestEntry]:
    """Return the entries of a manifest: files that are added, that stay, and that are removed."""
    from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

    entries = []
    for path in {**before, **after}:
        stored = before.get(path)
        if (after[path] if stored is None else stored.file).content != content:
            continue
        if stored is None:
            status, number, added_by = ManifestEntryStatus.ADDED, None, snapshot_id
        elif path in after:
            status, number, added_by = (
                ManifestEntryStatus.EXISTING,
                stored.sequence_number,
                stored.snapshot_id,
            )
        else:
            status, number, added_by = (
                ManifestEntryStatus.DELETED,
                stored.sequence_number,
                snapshot_id,
            )
        entries.append(
            ManifestEntry.from_args(
                status=status,
                snapshot_id=added_by,
                sequence_number=number,
                file_sequence_number=number,
                data_file=after[path] if stored is None else stored.file,
            )
        )
    return entries


def write_entries(
    table: Table,
    schema: Schema,
    snapshot_id: int,
    content: DataFileContent,
    entries: Sequence[ManifestEntry],
) -> ManifestFile:
    """Write a manifest; blocks on the store."""
    from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestWriterV2

    class Deletes(ManifestWriterV2):
        """Writes a manifest of files of deleted positions, for which pyiceberg lacks a writer."""

        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    url = f"{table.location().rstrip('/')}/metadata/{new_name()}-manifest.avro"
    kind = ManifestWriterV2 if content == DataFileContent.DATA else Deletes
    output = table.io.new_output(url)
    with kind(table.spec(), schema, output, snapshot_id, _COMPRESSION) as writer:
        for entry in entries:
            writer.add_entry(entry)
    return writer.to_manifest_file()


def _files_of(rows: TableRows, deletes: Sequence[DeleteFile]) -> dict[str, DataFile]:
    """Return the files of rows by URL, as a manifest has them."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    sized = [
        (DataFileContent.DATA, each.url, each.rows.num_rows, each.size_bytes)
        for each in rows.files.values()
    ]
    sized += [
        (DataFileContent.POSITION_DELETES, each.url, each.row_count, each.size_bytes)
        for each in deletes
    ]
    return {
        url: DataFile.from_args(
            content=content,
            file_path=url,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=count,
            file_size_in_bytes=size,
            column_sizes={},
            value_counts={},
            null_value_counts={},
            nan_value_counts={},
            lower_bounds={},
            upper_bounds={},
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=0,
        )
        for content, url, count, size in sized
    }


def _totals(rows: TableRows, deletes: Sequence[DeleteFile]) -> dict[str, str]:
    """Return the figures that Iceberg has in a summary."""
    totals = {
        "total-records": sum(each.rows.num_rows for each in rows.files.values()),
        "total-data-files": len(rows.files),
        "total-delete-files": len(deletes),
        "total-position-deletes": sum(each.row_count for each in deletes),
        "total-equality-deletes": 0,
        "total-files-size": sum(each.size_bytes for each in rows.files.values())
        + sum(each.size_bytes for each in deletes),
    }
    return {name: str(number) for name, number in totals.items()}
