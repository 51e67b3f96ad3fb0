"""
The log of a Delta table: actions as JSON, one a line, and as the rows of a checkpoint in Parquet.

A version of the table is a file of actions.  A checkpoint of the log has all that a version consists of,
so that a reader does not read a file before it.  Actions and fields that statelog does not use are left out.
Source: the protocol of Delta, "Actions" and "Checkpoints".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.errors import CorruptionError, UsageError
from statelog.format.arrow_data import open_parquet
from statelog.format.bounds import decode_json
from statelog.format.buffers import Buffer
from statelog.model import Json, JsonObject


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object in an action."""


class Vector(_Part, frozen=True, kw_only=True):
    """
    Where the deletion vector of a file is stored.

    Args:
        storage_type: "u" for a file in the table's folder.
        path_or_inline_dv: Which file, see `deletion_vectors.vector_reference`.
        offset: Position in the file.
        size_in_bytes: Of the vector.
        cardinality: Number of deleted rows.
    """

    storage_type: str
    path_or_inline_dv: str
    offset: int | None = None
    size_in_bytes: int
    cardinality: int


class Add(_Part, frozen=True, kw_only=True):
    """
    A file becomes part of the table.

    Args:
        path: Its URL, or its name relative to the table, both percent-encoded.
        partition_values: Values of the columns that partition the table.
        size: Bytes.
        modification_time: Milliseconds since 1970.
        data_change: Whether the rows of the table change.
        stats: JSON with the number of rows, deleted ones included.
        deletion_vector: Which rows are deleted.
    """

    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    deletion_vector: Vector | None = None


class Remove(_Part, frozen=True, kw_only=True):
    """A file, with its deletion vector, ceases to be part of the table; fields as in `Add`."""

    path: str
    deletion_timestamp: int | None = None
    data_change: bool
    deletion_vector: Vector | None = None


class Protocol(_Part, frozen=True, kw_only=True):
    """What a reader and a writer of the table must know."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


class Format(_Part, frozen=True, kw_only=True):
    """The format of the files."""

    provider: str
    options: dict[str, str]


class Metadata(_Part, frozen=True, kw_only=True):
    """
    The table's metadata.

    Args:
        id: Its id, which is a UUID.
        name: Its name in a catalog.
        description: Text of a user.
        format: Parquet.
        schema_string: JSON with the columns.
        partition_columns: Columns that partition the table.
        configuration: Properties of the table.
        created_time: Milliseconds since 1970.
    """

    id: str
    name: str | None = None
    description: str | None = None
    format: Format
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    created_time: int | None = None


class Transaction(_Part, frozen=True, kw_only=True):
    """The newest transaction of an application."""

    app_id: str
    version: int


class Action(_Part, frozen=True, kw_only=True):
    """One action; one of the fields is set."""

    commit_info: JsonObject | None = None
    protocol: Protocol | None = None
    meta_data: Metadata | None = None
    txn: Transaction | None = None
    add: Add | None = None
    remove: Remove | None = None


_DECODER: Final = msgspec.json.Decoder(Action)
_MAP: Final = pa.map_(pa.string(), pa.string())
_TEXTS: Final = pa.list_(pa.string())
_VECTOR: Final = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_CHECKPOINT: Final = pa.schema(
    {
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _TEXTS,
                "writerFeatures": _TEXTS,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _MAP}),
                "schemaString": pa.string(),
                "partitionColumns": _TEXTS,
                "configuration": _MAP,
                "createdTime": pa.int64(),
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _MAP,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "deletionVector": _VECTOR,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
            }
        ),
    }
)


def encode_version(actions: Iterable[Action]) -> bytes:
    """Return the file of a version."""
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def decode_version(data: Buffer, path: str) -> list[Action]:
    """
    Return the actions in the file of a version.

    Raises:
        CorruptionError: The file *path* is damaged.
    """
    try:
        return [decode_json(line, _DECODER) for line in bytes(data).splitlines() if line.strip()]
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptionError(
            f"{path} is not a version of a Delta table: {error}", path=path
        ) from error


def encode_checkpoint(actions: Iterable[Action]) -> bytes:
    """Return a checkpoint of the log."""
    table = pa.Table.from_pylist(
        [msgspec.to_builtins(action) for action in actions], schema=_CHECKPOINT
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def decode_checkpoint(data: Buffer, path: str) -> list[Action]:
    """
    Return the actions in a checkpoint of the log.

    Raises:
        CorruptionError: The file *path* is damaged.
    """
    try:
        file = open_parquet(data)
        table = file.read([name for name in _CHECKPOINT.names if name in file.schema_arrow.names])
        return msgspec.convert(table.to_pylist(maps_as_pydicts="strict"), list[Action])
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError) as error:
        raise CorruptionError(
            f"{path} is not a checkpoint of a Delta table's log: {error}", path=path
        ) from error


# --- columns ----------------------------------------------------------------------------------------

_PRIMITIVES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
}


def delta_schema(columns: pa.Schema) -> str:
    """
    Return columns as the schema of a Delta table.

    Raises:
        UsageError: A column has a type that Delta lacks, or two names differ in case only.
    """
    return msgspec.json.encode(_struct(list(columns))).decode()


def has_local_times(schema: str) -> bool:
    """Return whether the schema of a table has times without a zone, which are a feature."""
    return '"timestamp_ntz"' in schema


def _struct(fields: Sequence[pa.Field], where: str = "") -> dict[str, Json]:
    names = [f"{where}{field.name}" for field in fields]
    distinct = {name.lower(): name for name in reversed(names)}
    for name in names:
        if distinct[name.lower()] != name:
            raise UsageError(
                f"the state cannot be a table of Delta: the names {distinct[name.lower()]} and {name} "
                "differ in case only; publish other variables with --state"
            )
    members: Sequence[Json] = [
        {
            "name": field.name,
            "type": _type(field.type, name),
            "nullable": True,
            "metadata": {},
        }
        for field, name in zip(fields, names, strict=True)
    ]
    return {"type": "struct", "fields": members}


def _type(kind: pa.DataType, name: str) -> Json:
    if pa.types.is_struct(kind):
        return _struct(list(kind), f"{name}.")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _type(kind.value_type, name)
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type, name),
            "valueType": _type(kind.item_type, name),
            "valueContainsNull": True,
        }
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None:
        return "timestamp"
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    raise UsageError(
        f"the state cannot be a table of Delta: {name} has the type {kind}; publish other variables "
        "with --state"
    )
