"""
A Delta table whose versions are checkpoints of a location.

A commit writes the log of the table itself: one put-if-absent of the next version.  The files that it
adds are the snapshots of the location, and statelog's own files of changed rows; deletion vectors say
which of their rows are deleted.  The path of a snapshot leads out of the table's folder (`../`), as a
relative URI may: more readers follow it than an absolute one.  Statelog's files are in the folder
`_statelog` of the table, which the VACUUM of other engines leaves alone, as it does files elsewhere.

Each version that is kept has a checkpoint of the log, so that any older version can be deleted.  The
table's properties have the version of each checkpoint of the location and of each tag.
Source: the protocol of Delta, reader version 3, writer version 7.
"""

from __future__ import annotations

import datetime as dt
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from statelog.errors import CorruptionError, ObjectNotFoundError, UsageError
from statelog.format.deletion_vectors import (
    referenced_name,
    uuid_text,
    vector_file,
    vector_file_name,
    vector_reference,
)
from statelog.format.delta_log import (
    Action,
    Add,
    Format,
    Metadata,
    Vector,
    decode_checkpoint,
    decode_version,
    delta_schema,
    encode_checkpoint,
    encode_version,
)
from statelog.operations.publish_delta_log import (
    ATTEMPT,
    CHECKPOINTS,
    LOCAL_TIMES,
    TAGS,
    Version,
    checkpoint_actions,
    commit_actions,
    compact_json,
    protocol_of,
    replayed,
)
from statelog.operations.publish_rows import TableFile, TableRows, Write
from statelog.operations.publish_table import (
    CHECKPOINT,
    LOCATION,
    POSITION,
    CommitConflictError,
    PublishedTable,
    check_properties,
)
from statelog.runtime.clock import pause, wall_clock_ms
from statelog.store import open_store, verify_put_if_absent
from statelog.store.conditional_put import put_or_find
from statelog.store.paths import TEMPORARY_FOLDER

_LOG: Final = "_delta_log"
_FILES: Final = "_statelog"
_CLEANED: Final = (f"{_FILES}/", f"{TEMPORARY_FOLDER}/{_LOG}-")
"""Files of statelog; on local disk a process that is killed leaves temporary ones."""
_HINT: Final = f"{_LOG}/_last_checkpoint"
_VERSION_OBJECT: Final = re.compile(rf"{_LOG}/(\d{{20}})\.(.+)")
_PROPERTIES: Final = {
    "delta.enableDeletionVectors": "true",
    # Statelog deletes what no version needs; other engines keep it.
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}


class DeletionVectors:
    """The deletion vectors of the files of a table; see `publish_rows.Deletes`."""

    def __init__(self) -> None:
        self.vectors: dict[int, Vector] = {}
        """By the number of the file."""

    def clear(self) -> None:
        """Forget all vectors."""
        self.vectors = {}

    def settle(self, files: Mapping[int, TableFile], write: Write) -> None:
        """Write the vectors of the files in which more rows are deleted; raises as *write*."""
        self.vectors = {at: vector for at, vector in self.vectors.items() if at in files}
        due = {
            at: np.flatnonzero(~file.live)
            for at, file in files.items()
            if not (file.live | file.deleted).all()
        }
        if not due:
            return
        data, places = vector_file(list(due.values()))
        reference = write("vectors", pa.py_buffer(data))
        for (at, rows), (offset, size) in zip(due.items(), places, strict=True):
            self.vectors[at] = Vector(
                storage_type="u",
                path_or_inline_dv=reference,
                offset=offset,
                size_in_bytes=size,
                cardinality=len(rows),
            )
            files[at].deleted[rows] = True


class DeltaTable:
    """
    A table in a folder of a store; see `publish_table.PublishableTable`.

    Args:
        place: Path or URL of the folder.
        options: Options of the store's client, as for `open_store`.

    Raises:
        InvalidOptionsError: The place or an option is not valid.

    Thread: one at a time.
    """

    def __init__(
        self, place: str | os.PathLike[str], options: Mapping[str, object] | None = None
    ) -> None:
        self._store = open_store(place, options=options)
        self.kind, self.name = "delta", self._store.url
        root = self._store.local_root
        self._root = self.name if root is None else f"file://{root}"
        self.label = self.name.rstrip("/").rpartition("/")[2]
        self.deletes = DeletionVectors()
        self._version: Version | None = None
        self._listed: set[str] = set()

    def close(self) -> None:
        """Do nothing: a store is not closed."""

    def load(self) -> PublishedTable | None:
        """Read what the table has; None if it does not exist."""
        self._list()
        numbers = self._numbers("json")
        if not numbers:
            self._version = None
            return None
        try:
            data = bytes(self._store.get(_object(max(numbers))))
            if self._version is None or self._version.data != data:
                self._version = self._replayed(max(numbers), data)
        except ObjectNotFoundError as error:
            raise CommitConflictError(
                f"the table {self.name} has a newer version meanwhile, or its log is incomplete: {error}"
            ) from error
        return self._published(self._version)

    def _list(self) -> None:
        self._listed = {info.path for info in self._store.list(_LOG)}

    def _numbers(self, kind: str) -> set[int]:
        """Return the versions with an object of a kind in the log."""
        matches = filter(None, map(_VERSION_OBJECT.fullmatch, self._listed))
        return {int(match[1]) for match in matches if match[2] == kind}

    def _replayed(self, number: int, data: bytes) -> Version:
        """Return a version as the log before it and its own file *data* make it."""
        bases = {each for each in self._numbers("checkpoint.parquet") if each <= number}
        before: list[Action] = []
        if bases:
            before += self._checkpoint_of(max(bases))
        for each in range(max(bases, default=-1) + 1, number):
            before += decode_version(self._store.get(_object(each)), _object(each))
        version = replayed(number, before, decode_version(data, _object(number)), data)
        if version is None:
            raise CorruptionError(f"the log of the table {self.name} lacks its metadata")
        return version

    def _checkpoint_of(self, number: int) -> list[Action]:
        """Return the checkpoint of the log at a version; blocks on the store."""
        path = _object(number, "checkpoint.parquet")
        return decode_checkpoint(self._store.get(path), path)

    def _loaded(self) -> Version:
        if self._version is None:
            raise UsageError(f"the table {self.name} does not exist")
        return self._version

    def _published(self, version: Version) -> PublishedTable:
        checkpoints = {number: checkpoint for checkpoint, number in version.versions.items()}
        return PublishedTable(
            uuid=version.metadata.id,
            newest=version.checkpoint,
            position=version.facts.get(POSITION, ""),
            checkpoints=checkpoints,
            tags={
                name: checkpoints[number]
                for name, number in version.tags.items()
                if number in checkpoints
            },
        )

    def create(self, schema: pa.Schema, source: Mapping[str, str]) -> PublishedTable:
        """Make the table, without rows."""
        self._check_place(source[LOCATION])
        text = delta_schema(schema)
        metadata = Metadata(
            id=uuid_text(os.urandom(16)),
            format=Format(provider="parquet", options={}),
            schema_string=text,
            partition_columns=(),
            configuration={**_PROPERTIES, **source},
            created_time=wall_clock_ms(),
        )
        self._put(None, Version(0, protocol_of(text), metadata, {}, {}))
        return self._published(self._loaded())

    def _check_place(self, location: str) -> None:
        """Check that the VACUUM of an engine does not see the objects of the location."""
        if not f"{location}/".startswith(f"{self.name}/"):
            return
        folder = location[len(self.name) + 1 :].partition("/")[0]
        if not folder.startswith(("_", ".")) or folder in (_LOG, _FILES):
            raise UsageError(
                f"the location {location} is in the folder {self.name}, where the VACUUM of a table "
                "deletes its objects: publish to another folder, or move the location to a folder in it "
                "whose name begins with _, which VACUUM leaves alone"
            )

    def check_source(self, source: Mapping[str, str]) -> None:
        """Check that the table was made for the same state."""
        version = self._loaded()
        check_properties(self.name, version.metadata.configuration, source)
        expected = protocol_of(version.metadata.schema_string)
        features = {*version.protocol.reader_features, *version.protocol.writer_features}
        if features - {LOCAL_TIMES, *expected.writer_features}:
            raise UsageError(
                f"the table {self.name} has the features {', '.join(sorted(features))}, and statelog "
                f"writes {', '.join(expected.writer_features)}: publish to another table"
            )

    # --- files ------------------------------------------------------------------------------------

    def can_name(self, url: str) -> bool:
        """Return whether an object is in the store of the table: readers do not follow it elsewhere."""
        return url.removesuffix(_path(url)) == self._root.removesuffix(_path(self._root))

    def write(self, kind: str, data: pa.Buffer) -> str:
        """Write a file of the table; return its path, or the reference of a file of vectors."""
        number = os.urandom(16)
        name = vector_file_name(number) if kind == "vectors" else f"{number.hex()}-{kind}.parquet"
        self._store.put(f"{_FILES}/{name}", data.to_pybytes())
        return vector_reference(_FILES, number) if kind == "vectors" else f"{_FILES}/{name}"

    def clean_up(self, older_than: dt.datetime) -> int:
        """Delete files that statelog wrote and no version of the table names; return how many."""
        listed = [*self._store.list(_FILES), *self._store.list(TEMPORARY_FOLDER)]
        old = [
            info.path
            for info in listed
            if info.last_modified < older_than and info.path.startswith(_CLEANED)
        ]
        named = self._names() if old else set()
        doomed = [path for path in old if path not in named]
        self._store.delete(doomed)
        return len(doomed)

    def _names(self) -> set[str]:
        """Return the paths of all files that the versions of the table need."""
        current = self._loaded()
        files = list(current.files.values())
        for number in current.versions.values():
            if number != current.number:
                files += [each.add for each in self._checkpoint_of(number) if each.add]
        vectors = {each.deletion_vector.path_or_inline_dv for each in files if each.deletion_vector}
        try:
            names = {f"{_FILES}/{referenced_name(each)}" for each in vectors}
        except ValueError as error:
            raise CorruptionError(
                f"a version of the table {self.name} is damaged: {error}"
            ) from error
        return {*names, *(each.path for each in files)}

    # --- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        rows: TableRows | None,
        facts: Mapping[str, str],
        tags: Mapping[str, int],
        *,
        retain: int,
    ) -> PublishedTable:
        """Make rows the table; without a change of the table nothing is written."""
        before = self._loaded()
        self._write_checkpoints()
        protocol, metadata = before.protocol, before.metadata
        present = self._numbers("json")
        versions = {each: at for each, at in before.versions.items() if at in present}
        text, files = metadata.schema_string, before.files
        if rows is None:
            facts = before.facts
        else:
            text, files = delta_schema(rows.schema), self._files_of(rows)
            versions[int(facts[CHECKPOINT])] = before.number + 1
        mine = {name: versions[each] for name, each in tags.items() if each in versions}
        kept = {*list(versions)[-retain:], *(tags[name] for name in mine)}
        configuration = {
            **metadata.configuration,
            CHECKPOINTS: compact_json(
                {str(each): at for each, at in versions.items() if each in kept}
            ),
            TAGS: compact_json(mine),
        }
        if rows is not None or configuration != metadata.configuration:
            if LOCAL_TIMES not in protocol.reader_features:
                protocol = protocol_of(text)
            metadata = msgspec.structs.replace(
                metadata, schema_string=text, partition_columns=(), configuration=configuration
            )
            after = Version(before.number + 1, protocol, metadata, files, facts)
            self._put(before, after)
            self._write_checkpoints()
        self._delete_versions(1 if retain > 1 else 0)
        return self._published(self._loaded())

    def _files_of(self, rows: TableRows) -> dict[str, Add]:
        """Return the files of rows by path."""
        files = [
            Add(
                path=quote(self._path_of(file.url), safe="/:@"),
                partition_values={},
                size=file.size_bytes,
                modification_time=wall_clock_ms(),
                data_change=True,
                stats=compact_json({"numRecords": file.rows.num_rows}),
                deletion_vector=self.deletes.vectors.get(at),
            )
            for at, file in rows.files.items()
        ]
        return {file.path: file for file in files}

    def _path_of(self, url: str) -> str:
        """Return the path of a file relative to the table."""
        if "://" not in url:
            return url
        return posixpath.relpath(_path(url), _path(self._root) or "/")

    def _put(self, before: Version | None, after: Version) -> None:
        """
        Commit a version; find out after an error whether the commit succeeded.

        Its number may be free because others committed it, and later ones, and deleted it.  The newest
        version is never deleted, so that a listing after the put shows it.  What was put then is deleted by
        the next commit, as any version that is not kept.
        """
        after = replace(after, facts={**after.facts, ATTEMPT: os.urandom(16).hex()})
        data = encode_version(commit_actions(before, after))
        path = _object(after.number)
        verify_put_if_absent(self._store, pause)
        present = put_or_find(self._store, path, data, lambda: bytes(self._store.get(path)), pause)
        self._list()
        newest = max(self._numbers("json"), default=after.number)
        if present not in (None, data) or newest != after.number:
            raise CommitConflictError(f"the table {self.name} has version {newest} meanwhile")
        self._version = replace(after, data=data)

    def _write_checkpoints(self) -> None:
        """Write the missing checkpoints of the log, at this version of statelog's and all that are kept."""
        current = self._loaded()
        due = set(current.versions.values()) & self._numbers("json")
        if current.checkpoint is not None:
            due.add(current.number)
        for number in sorted(due - self._numbers("checkpoint.parquet")):
            version = current
            if number != current.number:
                version = self._replayed(number, bytes(self._store.get(_object(number))))
            path = _object(number, "checkpoint.parquet")
            data = encode_checkpoint(checkpoint_actions(version))
            # Another process may have written it: from the same version, so that either will do.
            put_or_find(self._store, path, data, partial(self._store.head, path), pause)
            self._listed.add(path)

    def _delete_versions(self, spared: int) -> None:
        """
        Delete from the log all versions that are not kept.

        Args:
            spared: Versions before the current one that stay, because a reader may have listed them just
                now.  Their rows are kept with more than one checkpoint, or there are none.
        """
        current = self._loaded()
        kept = {current.number, current.number - spared, *current.versions.values()}
        if current.number not in self._numbers("checkpoint.parquet"):
            return  # the versions before it are needed
        doomed = {_HINT} & self._listed
        for path in self._listed:
            match = _VERSION_OBJECT.fullmatch(path)
            if match and int(match[1]) < current.number and int(match[1]) not in kept:
                doomed.add(path)
        self._store.delete(sorted(doomed))
        self._listed -= doomed


def _path(url: str) -> str:
    """Return what follows the server or the bucket in a URL."""
    return url[len("/".join(url.split("/", 3)[:3])) :]


def _object(version: int, kind: str = "json") -> str:
    return f"{_LOG}/{version:020}.{kind}"
