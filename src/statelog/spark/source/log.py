"""
The view "log": the changes in the log, one row for each.

Of a state location the operations on one variable, or the bytes of all changes; of changelog files
of Flink their bytes, which only the job that wrote them can decode.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from statelog.changelog.reader import read_change_batches, whole_file_handle
from statelog.errors import UsageError
from statelog.model import ChangelogStateHandle, CompletedCheckpoint, KeyGroupRange
from statelog.spark.source.columns import spark_batch
from statelog.spark.source.opened import Location
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.kinds import kind
from statelog.state.reader import StateReader
from statelog.state.reader.chain import chain_before
from statelog.state.reader.feed import own_log
from statelog.state.reader.window import LoggedOperations

RAW_COLUMNS: Final = pa.schema(
    [
        ("checkpoint_id", pa.int64()),
        ("sequence", pa.int64()),
        ("key_group", pa.int32()),
        ("value", pa.binary()),
    ]
)
"""Columns of a log that is not decoded."""
FILE_COLUMNS: Final = pa.schema([("file", pa.string()), *list(RAW_COLUMNS)[1:]])
"""Columns of changelog files without a checkpoint."""
_OPERATIONS: Final = {
    kind.OP_CLEAR: "clear",
    kind.OP_SET: "set",
    kind.OP_ADD_ELEMENT: "append",
    kind.OP_PUT: "put",
    kind.OP_REMOVE: "remove",
}
_NO_LOG: Final = (".", "_")
_NO_LOG_ENDINGS: Final = (".json", ".py", ".md")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """
    What a read of a log reads.

    Args:
        location: Where the state is.
        operator: Name of the operator.
        checkpoint_id: The checkpoint whose log is read, in whose schema operations are shown.
        after: Only changes after this checkpoint; None for all that are in the log.
        variable: The variable; None for the bytes of all changes.
        key_groups: Which key groups.
    """

    location: Location
    operator: str
    checkpoint_id: int
    after: int | None
    variable: str | None
    key_groups: KeyGroupRange


def operation_columns(reader: StateReader, variable: str) -> pa.Schema:
    """Return the columns of the operations on a variable; raises `UsageError` if there is none."""
    reader.arrow_schema(variable)
    codec = OperatorCodec(reader.schema).states[reader.schema.state_id(variable)]
    width = len(codec.key.schema)
    fields = list(codec.schema)
    head = list(RAW_COLUMNS)[:3]
    return pa.schema(
        [*head, pa.field("operation", pa.string()), *fields[:width], *fields[width + 1 :]]
    )


class LogRows(DataSourceReader):
    """Reads the log of a location, one partition for each checkpoint that wrote to it."""

    def __init__(self, read: LogRead, target: pa.Schema, flat: pa.Schema) -> None:
        self._read = read
        self._target = target
        self._flat = flat

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each checkpoint with changes."""
        with self._reader() as reader:
            ids = sorted({each for each, _ in _handles(self._read, reader)})
        return [InputPartition(identifier) for identifier in ids] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a checkpoint."""
        if partition.value is None:
            return
        with self._reader() as reader:
            handles = [each for at, each in _handles(self._read, reader) if at == partition.value]
            rows = _raw if self._read.variable is None else _decoded
            first = 0
            for batch in rows(self._read, reader, handles, self._flat):
                count = batch.num_rows
                head = [
                    pa.array(np.full(count, partition.value, np.int64)),
                    pa.array(np.arange(first, first + count)),
                ]
                first += count
                whole = pa.RecordBatch.from_arrays([*head, *batch.columns], schema=self._flat)
                yield spark_batch(whole, self._target)

    def _reader(self) -> StateReader:
        return self._read.location.reader(self._read.checkpoint_id, self._read.operator)


class FileRows(DataSourceReader):
    """
    Reads changelog files, one partition for each.

    Args:
        folder: Where the files are.
        names: The files.
        key_groups: Which key groups; None for all.
        target: The columns, in the types that Spark takes.
    """

    def __init__(
        self,
        folder: Location,
        names: Sequence[str],
        key_groups: KeyGroupRange | None,
        target: pa.Schema,
    ) -> None:
        self._folder = folder
        self._names = names
        self._key_groups = key_groups
        self._target = target

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each file."""
        return [InputPartition(name) for name in self._names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a file, in their order."""
        store = self._folder.store()
        handle = whole_file_handle(store, partition.value)
        first = 0
        for batch in read_change_batches(store, handle, self._key_groups):
            count = batch.num_rows
            columns = [
                pa.array([partition.value] * count, pa.string()),
                pa.array(np.arange(first, first + count)),
                *batch.columns,
            ]
            first += count
            out = pa.RecordBatch.from_arrays(columns, schema=FILE_COLUMNS)
            yield spark_batch(out, self._target)


def changelog_files(path: str, options: Location) -> tuple[Location, list[str]] | None:
    """
    Return the changelog files at a path, and the folder they are in; None for a state location.

    Args:
        path: A folder, or a file on local disk.
        options: The location with this path.

    Raises:
        UsageError: There are no files.

    Blocks: On the store.
    """
    parts = urlsplit(path)
    local = url2pathname(parts.path) if parts.scheme == "file" else path
    if os.path.isfile(local):
        folder, name = os.path.split(os.path.abspath(local))
        return Location(folder, options.options), [name]
    store = options.store()
    if any(name.rpartition("/")[2].startswith("chk-") for name in store.list_folders("")):
        return None
    names = [
        info.path
        for info in store.list("")
        if "/" not in info.path
        and not info.path.startswith(_NO_LOG)
        and not info.path.endswith(_NO_LOG_ENDINGS)
    ]
    if not names:
        raise UsageError(
            f"{store.url} is no state location, and has no changelog files: name the folder that "
            "Flink calls dstl, or one file"
        )
    return options, sorted(names)


def _handles(read: LogRead, reader: StateReader) -> Iterator[tuple[int, ChangelogStateHandle]]:
    """Yield the log handles to read, and the checkpoint that made each."""
    key_groups = read.key_groups
    if read.after is None:
        checkpoints: Sequence[CompletedCheckpoint] = ()
        logs = list(reader.checkpoint.log)
    else:
        chain = chain_before(read.location.store(), reader.checkpoint, read.after)
        checkpoints = [*chain[1:], reader.checkpoint] if chain else []
        logs = [handle for checkpoint in checkpoints for handle in own_log(checkpoint, key_groups)]
    for handle in logs:
        if len(handle.key_group_range.intersection(key_groups)):
            yield handle.checkpoint_id, handle


def _raw(
    read: LogRead, reader: StateReader, handles: Sequence[ChangelogStateHandle], _flat: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield key group and bytes of each change."""
    for handle in handles:
        key_groups = handle.key_group_range.intersection(read.key_groups)
        with reader.explained():
            yield from read_change_batches(reader.store, handle, key_groups)


def _decoded(
    read: LogRead, reader: StateReader, handles: Sequence[ChangelogStateHandle], flat: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the operations on the variable, in the columns behind `sequence`."""
    state_id = reader.schema.state_id(read.variable or "")
    words = pa.array([_OPERATIONS.get(number, "") for number in range(1 + max(_OPERATIONS))])
    for handle in handles:
        logged = LoggedOperations(OperatorCodec(reader.schema))
        key_groups = handle.key_group_range.intersection(read.key_groups)
        with reader.explained():
            for changes in read_change_batches(reader.store, handle, key_groups):
                logged.add(0, changes)
        operations = logged.operations().get(state_id)
        if operations is None:
            continue
        at = operations.batch.schema.get_field_index("op")
        columns = operations.batch.columns
        rows = [
            pa.array(operations.key_groups),
            words.take(columns[at]),
            *columns[:at],
            *columns[at + 1 :],
        ]
        yield pa.RecordBatch.from_arrays(rows, names=flat.names[2:])
