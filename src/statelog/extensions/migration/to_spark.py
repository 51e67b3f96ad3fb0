"""
Convert the state in a location to a frame that Spark can read.

A frame of state has one row for each key: the columns of the key, then those that are named here.
A snapshot has the expiry of an entry inside it.  In the frame values and expiry are columns of
their own, so that the values have the types that the processor declared.

Tasks read it, each some key groups, through `statelog.state.reader`; the driver reads only the
checkpoint's record.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import CheckpointName, given_checkpoint_id
from statelog.checkpoint.query_files import (
    COMMITS,
    OFFSETS,
    QueryFiles,
    files_upto,
    read_offsets,
    recorded_query_id,
)
from statelog.checkpoint.restore import find_checkpoint
from statelog.core.source_position import OffsetEntry, log_entry, position_of
from statelog.errors import CheckpointError, IncompatibleFormatError, UsageError
from statelog.format.buffers import decode_json
from statelog.model import KeyGroupRange
from statelog.runtime.clock import wall_clock_ms
from statelog.spark.jvm.files import checkpoint_files, write_file
from statelog.spark.query.session import refuse_connect, use_this_python
from statelog.spark.rows.spark_versions import known_arguments
from statelog.state.reader import StateReader
from statelog.state.schema import (
    OperatorStateSchema,
    StateDescriptor,
    is_added,
    stored_schema,
    with_fields,
)

STATE_COLUMN: Final = "statelog_state"
"""A struct with one field for each state variable."""

TIMERS_COLUMN: Final = "statelog_timers"
"""The timers of the key, in milliseconds."""

EXPIRY_COLUMN: Final = "statelog_expiry"
"""
When the values expire, in milliseconds.

A struct with a field for each variable with a time to live.

Only in frames of statelog's state with such variables.  A number for a value, an array for the
elements of a list or the entries of a map, in their order.
"""

CHECKPOINT_COLUMN: Final = "statelog_checkpoint"
"""
The checkpoint that the row is from; only in frames of statelog's state.

The timestamps in their state are in UTC, without a zone: Spark hands a timestamp with a zone
to pandas as local time, in which an hour of each year is ambiguous.
"""


_TIMES = pa.list_(pa.int64())
_OWN = (STATE_COLUMN, TIMERS_COLUMN, EXPIRY_COLUMN, CHECKPOINT_COLUMN)


class KeyRows:
    """Builds the rows for a frame of state."""

    def __init__(
        self,
        schema: OperatorStateSchema,
        checkpoint_id: int,
        variables: Sequence[str] | None = None,
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._key = schema.key_schema
        names = self._key.names
        if len({name.lower() for name in names}) < len(names) or set(names) & set(_OWN):
            raise UsageError(
                f"the key's columns ({', '.join(names)}) cannot be columns of a frame of state: each column "
                f"needs a unique name other than {', '.join(_OWN)}"
            )
        live = [state for state in schema.states if not state.dropped]
        # The processor does not have the variables that extensions add.
        declared = [
            state for state in live if not state.kind.rules.fires and not is_added(state.name)
        ]
        self._states = declared if variables is None else _chosen(declared, variables)
        self._timers = next((state.name for state in live if state.kind.rules.fires), "")
        self._has_timers = bool(self._timers)
        self._expiring = [state for state in self._states if state.ttl_ms is not None]

    def schema(self) -> pa.Schema:
        """Return the columns that the rows have."""
        values = [pa.field(state.name, _type_of(state)) for state in self._states]
        # Parquet has no struct without fields; with timers only all cells are null.
        state = pa.struct(values) if values else pa.bool_()
        fields = [*stored_schema(self._key), pa.field(STATE_COLUMN, state)]
        fields.append(pa.field(TIMERS_COLUMN, _TIMES))
        if self._expiring:
            times = [
                pa.field(state.name, pa.int64() if state.kind.rules.is_single else _TIMES)
                for state in self._expiring
            ]
            fields.append(pa.field(EXPIRY_COLUMN, pa.struct(times)))
        return pa.schema([*fields, pa.field(CHECKPOINT_COLUMN, pa.int64())])

    def of(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of *keys*, a part of a snapshot; keys without state are omitted."""
        schema = self.schema()
        cells = {state.name: keys.column(state.name) for state in self._states}
        timers = keys.column(self._timers) if self._has_timers else pa.nulls(keys.num_rows, _TIMES)
        columns = [keys.column(f"key.{name}") for name in self._key.names]
        columns.append(
            pa.StructArray.from_arrays(
                [cells[state.name].cast(_type_of(state)) for state in self._states],
                fields=list(schema.field(STATE_COLUMN).type),
            )
            if self._states
            else pa.nulls(keys.num_rows, schema.field(STATE_COLUMN).type)
        )
        columns.append(timers)
        if self._expiring:
            expiry = [_expiry(state, cells[state.name]) for state in self._expiring]
            fields = list(schema.field(EXPIRY_COLUMN).type)
            columns.append(pa.StructArray.from_arrays(expiry, fields=fields))
        columns.append(pa.array(np.full(keys.num_rows, self._checkpoint_id)))
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        present = (column.is_valid() for column in (*cells.values(), timers))
        return rows.filter(reduce(pc.or_, present))


def _chosen(states: Sequence[StateDescriptor], names: Sequence[str]) -> list[StateDescriptor]:
    by_name = {state.name: state for state in states}
    missing = [name for name in names if name not in by_name]
    if missing or not names:
        raise UsageError(
            f"the state {', '.join(missing) or 'without a name'} does not exist; the checkpoint contains "
            f"{', '.join(sorted(by_name)) or 'none'}"
        )
    return [state for state in states if state.name in names]


def _type_of(state: StateDescriptor) -> pa.DataType:
    """Return the type that a variable's cells have in a frame of state."""
    user_key = _struct(state.user_key_schema or pa.schema([]))
    return state.kind.rules.cell_type(_struct(state.value_schema), user_key)


def _struct(schema: pa.Schema) -> pa.DataType:
    return pa.struct(
        [field.with_type(_without_zone(field.type)) for field in stored_schema(schema)]
    )


def _without_zone(kind: pa.DataType) -> pa.DataType:
    """Return the type with timestamps without a time zone; see `CHECKPOINT_COLUMN`."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    return with_fields(kind, lambda field: field.with_type(_without_zone(field.type)))


def _expiry(state: StateDescriptor, cells: pa.Array) -> pa.Array:
    """Return the time at which each entry of a variable expires."""
    kind = state.kind.rules
    if kind.is_single:
        return cells.flatten()[-1]
    return _lists(cells, kind.element_expiry(cells.flatten()))


def _lists(like: pa.Array, elements: pa.Array) -> pa.Array:
    """Return lists of *elements* that are as long as the lists in *like*, which may be a slice."""
    lengths = pc.list_value_length(like).fill_null(0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements, mask=like.is_null())


def to_spark(
    spark: SparkSession,
    location: str | os.PathLike[str],
    path: str,
    *,
    checkpoint: CheckpointName | None = None,
    variables: Sequence[str] | None = None,
    storage_options: Mapping[str, object] | None = None,
    operator: str | None = None,
) -> DataFrame:
    """
    Write a query's state as Parquet, one row per key.

    The state is read by tasks, as it is after one checkpoint; nothing in the state location
    changes.  The query may run, but what it does after the checkpoint is not in the frame.

    Example:
        state = to_spark(spark, "s3://bucket/jobs/totals", "s3://bucket/exported")

    Args:
        spark: The session.
        location: The state location, as given to the query.
        path: The folder to write; it is empty or does not exist.
        checkpoint: The checkpoint to read: an id, "latest", a tag or a time; default: the newest
            one.
        variables: The state variables to write; default: all.  Timers are always written.
        storage_options: Options of the store's client, as given to the query.
        operator: Name of the operator, where the query has several.

    Returns:
        What was written: the key's columns, `statelog_state` (a struct with a field for each
        variable: a struct, an array of structs, or an array of (key, value) entries; null if the
        key has none), `statelog_timers` (an array, null if there are none), `statelog_expiry` (when
        values expire, where a variable has a time to live) and `statelog_checkpoint`.  Timestamps
        in state are in UTC.  Expired values are left out.

    Raises:
        CheckpointError: The location has no such checkpoint (`reason` "not_found"), or it is
            damaged.
        UsageError: There is no such directory, a variable or operator does not exist, or *path* is
            not empty.
        IncompatibleFormatError: The checkpoint has a different format version.
        StoreError: The store failed.
    """
    refuse_connect("statelog.spark.to_spark", spark)
    use_this_python(spark)
    if checkpoint_files(spark, path).names(""):
        raise UsageError(
            f"{path} is not empty: to_spark writes a new folder; pass a different path"
        )
    options = dict(storage_options or {})
    reader = StateReader.open(location, checkpoint, storage_options=options, operator=operator)
    with reader:
        read = _Read(
            os.fspath(location),
            options,
            reader.schema.operator_id,
            reader.checkpoint_id,
            None if variables is None else tuple(variables),
            reader.key_groups.split(spark.sparkContext.defaultParallelism),
            wall_clock_ms(),
        )
        columns = KeyRows(reader.schema, reader.checkpoint_id, read.variables).schema()
    # The Arrow types have the session's names for a timestamp without a zone only if asked to.
    schema = known_arguments(from_arrow_schema, prefer_timestamp_ntz=True)(columns)
    parts = spark.range(0, len(read.ranges), 1, len(read.ranges))
    parts.mapInArrow(read, schema).write.mode("append").parquet(path)
    return spark.read.parquet(path)


@dataclass(frozen=True, slots=True)
class _Read:
    """
    Reads portions of a checkpoint, in Spark tasks.

    Args:
        location, storage_options, operator, checkpoint_id, variables: What to read.
        ranges: The key groups of each part.
        now_ms: What expired by then is left out, in all parts.
    """

    location: str
    storage_options: dict[str, object]
    operator: str
    checkpoint_id: int
    variables: tuple[str, ...] | None
    ranges: tuple[KeyGroupRange, ...]
    now_ms: int

    def __call__(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows of the portions with the given numbers."""
        numbers: list[int] = [number for part in parts for number in part.column(0).to_pylist()]
        reader = StateReader.open(
            self.location,
            self.checkpoint_id,
            storage_options=self.storage_options,
            operator=self.operator,
        )
        with reader:
            rows = KeyRows(reader.schema, self.checkpoint_id, self.variables)
            for number in numbers:
                for keys in reader.keys(key_groups=self.ranges[number], now_ms=self.now_ms):
                    yield rows.of(keys)


Offsets = tuple[str | None, ...]

_NO_OFFSET: Final = "-"
_BEGIN: Final = '{"logOffset":1}'
"""The offset of a file source in the planned micro-batch: the entry of `_seen_files`."""
_COMPACT_INTERVAL: Final = "spark.sql.streaming.fileSource.log.compactInterval"
_LEAST_INTERVAL: Final = 3
"""With a lower interval, an entry of the new log would have to be a compact file."""


class _Commit(msgspec.Struct, rename="camel"):
    """An entry of Spark's commit log."""

    next_batch_watermark_ms: int = 0


class _Planned(msgspec.Struct):
    """The settings in an entry of Spark's offset log."""

    conf: dict[str, str] = {}


_commit: Final = msgspec.json.Decoder(_Commit)
_planned: Final = msgspec.json.Decoder(_Planned)
_LEFT_OUT: Final = ("spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.providerClass")
"""Settings that the new query takes from its own session; the old session's mean nothing."""


def spark_checkpoint(
    spark: SparkSession,
    checkpoint_location: str,
    location: str | os.PathLike[str],
    new_checkpoint_location: str,
    *,
    checkpoint: CheckpointName | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Offsets:
    """
    Write a checkpointLocation with which Spark's query continues from a statelog checkpoint.

    Its first micro-batch is planned, and has no rows: it imports the initial state.  It has the
    watermark of the old query, and the time of its last micro-batch.

    Example:
        offsets = spark_checkpoint(
            spark, "s3://bucket/queries/totals", "s3://bucket/jobs/totals", "s3://bucket/queries/new"
        )

    Args:
        spark: The session, with the settings of the new query.
        checkpoint_location: That of the query on statelog, which must have been stopped.
        location: Its state location.
        new_checkpoint_location: The checkpointLocation of the new query; it is empty or does not
            exist.
        checkpoint: The checkpoint, as for `to_spark`; default: the newest one.
        storage_options: Options of the store's client, as given to the query.

    Returns:
        JSON of the offset of each source, None for one that has not been read.  A file source needs
        nothing else; another source must be told to begin there, such as with Kafka's
        `startingOffsets`.

    Raises:
        UsageError: *new_checkpoint_location* is not empty, or the state is of another query.
        CheckpointError: There is no such checkpoint (`reason` "not_found"), or it is damaged; its
            offsets are no longer stored ("not_found") or do not match the state ("gap"), or its
            output may not have been delivered ("undelivered").
        IncompatibleFormatError: The offset log has named sources, or is from a newer Spark.
    """
    refuse_connect("statelog.spark.spark_checkpoint", spark)
    if checkpoint_files(spark, new_checkpoint_location).names(""):
        raise UsageError(f"{new_checkpoint_location} is not empty: pass a new checkpointLocation")
    if int(spark.conf.get(_COMPACT_INTERVAL, "10") or 10) < _LEAST_INTERVAL:
        raise UsageError(f"{_COMPACT_INTERVAL} is less than {_LEAST_INTERVAL}; set a higher value")
    store = open_state(location, options=storage_options)
    record = BatchRecord.of(find_checkpoint(store, given_checkpoint_id(store, checkpoint)))
    old = checkpoint_files(spark, checkpoint_location)
    offsets, written = new_files(old, record, lambda name, value: spark.conf.get(name, value))
    for name, data in written.items():
        write_file(spark, new_checkpoint_location, name, data)
    return offsets


def new_files(
    old: QueryFiles, record: BatchRecord, setting: Callable[[str, str], str | None]
) -> tuple[Offsets, dict[str, bytes]]:
    """Return the offsets of a checkpoint, and the files of the new checkpointLocation."""
    query_id = recorded_query_id(old)
    if query_id != record.query_id:
        raise UsageError(
            f"{old.url} is the checkpointLocation of query {query_id or '(none)'}, but the state belongs to "
            f"query {record.query_id}: pass the checkpointLocation and the stateLocation of one query"
        )
    batch = f"micro-batch {record.batch_id} of {old.url}"
    entry = read_offsets(old, record.batch_id)
    if entry is None:
        raise CheckpointError(
            f"the offsets of {batch} are no longer stored; use a later checkpoint",
            reason="not_found",
        )
    offsets = _offsets_of_user(entry, record, batch)
    commit = old.read(f"{COMMITS}/{record.batch_id}")
    if commit is None:
        raise CheckpointError(
            f"{batch} does not have an entry in {COMMITS}, so its output may not have reached the sink: start "
            "the query on statelog again, which delivers it, and then stop it; or use an earlier checkpoint",
            reason="undelivered",
        )
    # The log comes last: without it Spark would take the folder for a new query's.
    files = {"metadata": msgspec.json.encode({"id": str(uuid.uuid4())})}
    folders = record.source_folders or [str(number) for number in range(len(offsets))]
    new_offsets: list[str | None] = []
    for folder, offset in zip(folders, offsets, strict=True):
        upto = log_entry(offset)
        if offset is None or upto is None:
            new_offsets.append(offset)
            continue
        files[f"sources/{folder}/0"] = b"v1"
        files[f"sources/{folder}/1"] = _seen_files(old, folder, upto)
        new_offsets.append(_BEGIN)
    times = _times(old, record, entry, commit, setting)
    lines = [
        b"v1",
        msgspec.json.encode(times),
        *((offset or _NO_OFFSET).encode() for offset in new_offsets),
    ]
    files[f"{OFFSETS}/0"] = b"\n".join(lines)
    return offsets, files


def _offsets_of_user(entry: OffsetEntry, record: BatchRecord, batch: str) -> Offsets:
    """Return the offsets of the user's sources; the last source may be statelog's own."""
    offsets = entry.offsets
    if offsets is None:
        raise IncompatibleFormatError(
            f"{batch} lists the offsets by source name (version v2); spark_checkpoint needs "
            "them listed by position (version v1)"
        )
    if record.source_folders:
        offsets = offsets[: len(record.source_folders)]
    elif record.position not in (None, position_of(offsets)):
        offsets = offsets[:-1]
    if record.position not in (None, position_of(offsets)):
        raise CheckpointError(
            f"{batch} was planned again: its offsets do not match the state. Use a different checkpoint",
            reason="gap",
        )
    return offsets


def _seen_files(old: QueryFiles, folder: str, upto: int) -> bytes:
    """Return the second entry of a source's log, which lists all files that were read."""
    files = files_upto(old, folder, upto)
    seen = (msgspec.structs.replace(file, batch_id=0) for file in files)
    return b"\n".join([b"v1", *(msgspec.json.encode(file) for file in seen)])


def _times(
    old: QueryFiles,
    record: BatchRecord,
    entry: OffsetEntry,
    commit: bytes,
    setting: Callable[[str, str], str | None],
) -> dict[str, object]:
    """Return the times and settings of the planned micro-batch, as in Spark's offset log."""
    lines = commit.split(b"\n")
    log = (old.read(f"{OFFSETS}/{record.batch_id}") or b"").split(b"\n")
    try:
        next_watermark = decode_json(lines[1], _commit).next_batch_watermark_ms if lines[1:] else 0
        settings = decode_json(log[1], _planned).conf
    except (IndexError, msgspec.DecodeError) as error:
        raise CheckpointError(
            f"{COMMITS}/{record.batch_id} or {OFFSETS}/{record.batch_id} in {old.url} is damaged: {error}. "
            "Use an earlier checkpoint",
            reason="damaged",
        ) from error
    return {
        "batchWatermarkMs": max(entry.watermark_ms, record.watermark_ms, next_watermark, 0),
        "batchTimestampMs": entry.timestamp_ms,
        "conf": {
            name: setting(name, value) for name, value in settings.items() if name not in _LEFT_OUT
        },
    }
