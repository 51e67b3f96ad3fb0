"""
A Delta table whose versions are checkpoints of a location.

A commit writes the log of the table itself: one put-if-absent of the next version.  The files that it
adds are the snapshots of the location, and statelog's own files of changed rows; deletion vectors say
which of their rows are deleted.  The path of a snapshot leads out of the table's folder (`../`), as a
relative URI may: more readers follow it than an absolute one.  The own files are in the folder `_statelog` of the table,
which the VACUUM of other engines leaves alone, as it does with files outside of the table.

Each version that is kept has a checkpoint of the log, so that any older version can be deleted.  The
table's properties have the version of each checkpoint of the location and of each tag.
Source: the protocol of Delta, reader version 3, writer version 7.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from statelog.errors import CorruptionError, ObjectNotFoundError, UsageError
from statelog.format.bounds import decode_json
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
    Protocol,
    Remove,
    Transaction,
    Vector,
    decode_checkpoint,
    decode_version,
    delta_schema,
    encode_checkpoint,
    encode_version,
    has_local_times,
)
from statelog.model import Json
from statelog.operations.publish_rows import TableFile, TableRows, Write
from statelog.operations.publish_table import (
    CHECKPOINT,
    LOCATION,
    CommitConflictError,
    PublishedTable,
    check_properties,
)
from statelog.runtime.clock import pause, wall_clock_seconds
from statelog.store import open_store, verify_put_if_absent
from statelog.store.conditional_put import put_or_find
from statelog.store.paths import TEMPORARY_FOLDER

_LOG: Final = "_delta_log"
_FILES: Final = "_statelog"
_CLEANED: Final = (f"{_FILES}/", f"{TEMPORARY_FOLDER}/{_LOG}-")
"""Files of statelog; on local disk a process that is killed leaves temporary ones."""
_HINT: Final = f"{_LOG}/_last_checkpoint"
_VERSION_OBJECT: Final = re.compile(rf"{_LOG}/(\d{{20}})\.(.+)")
_APPLICATION: Final = "statelog"
_CHECKPOINTS: Final = "statelog.checkpoints"
"""Property of the table with the version of each checkpoint, in JSON."""
_TAGS: Final = "statelog.tags"
"""Property of the table with the version of each tag, in JSON."""
_VERSIONS: Final = msgspec.json.Decoder(dict[int, int])
_TAGGED: Final = msgspec.json.Decoder(dict[str, int])
_Numbers = TypeVar("_Numbers")
_ATTEMPT: Final = "statelog.attempt"
_VECTORS: Final = "deletionVectors"
_LOCAL_TIMES: Final = "timestampNtz"
_PROPERTIES: Final = {
    "delta.enableDeletionVectors": "true",
    # Statelog deletes what no version needs; other engines keep it.
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}


@dataclass(frozen=True, slots=True)
class _Version:
    """
    A version of the table.

    Args:
        number: Its number.
        protocol: What readers must know.
        metadata: The table's metadata.
        files: Its files by path.
        facts: What its commit says of it, among it the checkpoint.
        data: Its file in the log.
    """

    number: int
    protocol: Protocol
    metadata: Metadata
    files: Mapping[str, Add]
    facts: Mapping[str, str]
    data: bytes = b""

    @property
    def checkpoint(self) -> int | None:
        """The checkpoint of the location; None without one, or if another writer committed the version."""
        text = self.facts.get(CHECKPOINT, "")
        return int(text) if text.isdecimal() else None

    @property
    def versions(self) -> dict[int, int]:
        """The version of each checkpoint that is kept, ascending."""
        versions = self._property(_CHECKPOINTS, _VERSIONS)
        return dict(sorted(versions.items(), key=lambda pair: pair[1]))

    @property
    def tags(self) -> dict[str, int]:
        """The version of each tag."""
        return self._property(_TAGS, _TAGGED)

    def _property(self, name: str, decoder: msgspec.json.Decoder[_Numbers]) -> _Numbers:
        text = self.metadata.configuration.get(name, "{}")
        try:
            return decode_json(text, decoder)
        except msgspec.DecodeError as error:
            raise CorruptionError(f"the table's property {name} is damaged: {error}") from error


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
        self._version: _Version | None = None
        self._listed: set[str] = set()

    def close(self) -> None:
        """Do nothing: a store is not closed."""

    def load(self) -> PublishedTable | None:
        """Read what the table has; None if it does not exist."""
        self._listed = {info.path for info in self._store.list(_LOG)}
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

    def _numbers(self, kind: str) -> set[int]:
        """Return the versions with an object of a kind in the log."""
        matches = filter(None, map(_VERSION_OBJECT.fullmatch, self._listed))
        return {int(match[1]) for match in matches if match[2] == kind}

    def _replayed(self, number: int, data: bytes) -> _Version:
        """Return a version as the log before it and its own file *data* make it."""
        before = {each for each in self._numbers("checkpoint.parquet") if each <= number}
        actions: list[Action] = []
        if before:
            actions += self._checkpoint_of(max(before))
        for each in range(max(before, default=-1) + 1, number):
            actions += decode_version(self._store.get(_object(each)), _object(each))
        last = decode_version(data, _object(number))
        files: dict[str, Add] = {}
        protocol, metadata, facts = None, None, {}
        for action in (*actions, *last):
            protocol, metadata = action.protocol or protocol, action.meta_data or metadata
            if action.remove is not None:
                present = files.get(action.remove.path)
                if present and present.deletion_vector == action.remove.deletion_vector:
                    del files[action.remove.path]
            if action.add is not None:
                files[action.add.path] = action.add
        for action in last:
            for name, text in (action.commit_info or {}).items():
                if name.startswith("statelog.") and isinstance(text, str):
                    facts[name] = text
        if protocol is None or metadata is None:
            raise CorruptionError(f"the log of the table {self.name} lacks its metadata")
        return _Version(number, protocol, metadata, files, facts, data)

    def _checkpoint_of(self, number: int) -> list[Action]:
        """Return the checkpoint of the log at a version; blocks on the store."""
        path = _object(number, "checkpoint.parquet")
        return decode_checkpoint(self._store.get(path), path)

    def _loaded(self) -> _Version:
        if self._version is None:
            raise UsageError(f"the table {self.name} does not exist")
        return self._version

    def _published(self, version: _Version) -> PublishedTable:
        checkpoints = {number: checkpoint for checkpoint, number in version.versions.items()}
        return PublishedTable(
            uuid=version.metadata.id,
            newest=version.checkpoint,
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
            created_time=_now_ms(),
        )
        self._put(None, _Version(0, _protocol(text), metadata, {}, {}))
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
        expected = _protocol(version.metadata.schema_string)
        features = {*version.protocol.reader_features, *version.protocol.writer_features}
        if features - {_LOCAL_TIMES, *expected.writer_features}:
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
            _CHECKPOINTS: _json({str(each): at for each, at in versions.items() if each in kept}),
            _TAGS: _json(mine),
        }
        if rows is not None or configuration != metadata.configuration:
            if _LOCAL_TIMES not in protocol.reader_features:
                protocol = _protocol(text)
            metadata = msgspec.structs.replace(
                metadata, schema_string=text, partition_columns=(), configuration=configuration
            )
            after = _Version(before.number + 1, protocol, metadata, files, facts)
            self._put(before, after)
            self._write_checkpoints()
        self._delete_versions()
        return self._published(self._loaded())

    def _files_of(self, rows: TableRows) -> dict[str, Add]:
        """Return the files of rows by path."""
        files = [
            Add(
                path=quote(self._path_of(file.url), safe="/:@"),
                partition_values={},
                size=file.size_bytes,
                modification_time=_now_ms(),
                data_change=True,
                stats=_json({"numRecords": file.rows.num_rows}),
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

    def _put(self, before: _Version | None, after: _Version) -> None:
        """Commit a version; find out after an error whether the commit succeeded."""
        after = replace(after, facts={**after.facts, _ATTEMPT: os.urandom(16).hex()})
        data = encode_version(_actions(before, after))
        path = _object(after.number)
        verify_put_if_absent(self._store, pause)
        present = put_or_find(self._store, path, data, lambda: bytes(self._store.get(path)), pause)
        if present not in (None, data):
            raise CommitConflictError(f"the table {self.name} has version {after.number} meanwhile")
        self._listed.add(path)
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
            data = encode_checkpoint(_state(version))
            # Another process may have written it: from the same version, so that either will do.
            put_or_find(self._store, path, data, partial(self._store.head, path), pause)
            self._listed.add(path)

    def _delete_versions(self) -> None:
        """Delete from the log all versions that are not kept."""
        current = self._loaded()
        kept = {current.number, *current.versions.values()}
        if current.number not in self._numbers("checkpoint.parquet"):
            return  # the versions before it are needed
        doomed = {_HINT} & self._listed
        for path in self._listed:
            match = _VERSION_OBJECT.fullmatch(path)
            if match and int(match[1]) < current.number and int(match[1]) not in kept:
                doomed.add(path)
        self._store.delete(sorted(doomed))
        self._listed -= doomed


def _actions(before: _Version | None, after: _Version) -> list[Action]:
    """Return what makes one version the next one."""
    info: dict[str, Json] = {
        "timestamp": _now_ms(),
        "operation": "WRITE" if before else "CREATE TABLE",
        "operationParameters": {},
        "engineInfo": _APPLICATION,
        **after.facts,
    }
    actions = [Action(commit_info=info), Action(meta_data=after.metadata)]
    if before is None or before.protocol != after.protocol:
        actions.append(Action(protocol=after.protocol))
    if after.checkpoint is not None:
        actions.append(Action(txn=_transaction(after.checkpoint)))
    for path, file in () if before is None else before.files.items():
        stays = after.files.get(path)
        if stays is None or stays.deletion_vector != file.deletion_vector:
            gone = Remove(
                path=path,
                deletion_timestamp=_now_ms(),
                data_change=True,
                deletion_vector=file.deletion_vector,
            )
            actions.append(Action(remove=gone))
    for path, file in after.files.items():
        present = None if before is None else before.files.get(path)
        if present is None or present.deletion_vector != file.deletion_vector:
            actions.append(Action(add=file))
    return actions


def _state(version: _Version) -> list[Action]:
    """Return what a version consists of."""
    actions = [Action(protocol=version.protocol), Action(meta_data=version.metadata)]
    if version.checkpoint is not None:
        actions.append(Action(txn=_transaction(version.checkpoint)))
    return [*actions, *(Action(add=file) for file in version.files.values())]


def _path(url: str) -> str:
    """Return what follows the server or the bucket in a URL."""
    return url[len("/".join(url.split("/", 3)[:3])) :]


def _transaction(checkpoint: int) -> Transaction:
    return Transaction(app_id=_APPLICATION, version=checkpoint)


def _protocol(schema: str) -> Protocol:
    features = (_VECTORS, _LOCAL_TIMES) if has_local_times(schema) else (_VECTORS,)
    return Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=features,
        writer_features=features,
    )


def _object(version: int, kind: str = "json") -> str:
    return f"{_LOG}/{version:020}.{kind}"


def _json(value: Mapping[str, int]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _now_ms() -> int:
    return int(wall_clock_seconds() * 1000)
