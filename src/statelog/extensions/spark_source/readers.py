"""Read a location in partitions, which tasks can read independently."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import CheckpointState, CheckpointSummary
from statelog.errors import CheckpointError, InvalidOptionsError, UsageError
from statelog.model import KeyGroupRange
from statelog.runtime.clock import utc_time
from statelog.spark.rows.spark_versions import known_arguments
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.keys.key_groups import key_group_of
from statelog.state.reader import LocationReader, StateReader
from statelog.state.reader.state_reader import stored_bytes

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # from Spark 4.1 on

Path = tuple[str, ...]
"""The names that lead to a column in Spark: a struct and its field, or one name."""


def state_path(name: str) -> Path:
    """Return the path of a flat column of state, in a struct if it has a prefix."""
    prefix, dot, rest = name.partition(".")
    return (prefix, rest) if dot else (name,)


def spark_schema(flat: pa.Schema) -> StructType:
    """Convert *flat* to Spark's columns, where columns with a common prefix form a struct."""
    fields = []
    for name, members in _members(flat).items():
        first = flat.field(members[0])
        if len(state_path(first.name)) > 1:
            inner = [flat.field(number) for number in members]
            inner = [field.with_name(state_path(field.name)[1]) for field in inner]
            fields.append(pa.field(name, pa.struct(inner)))
        else:
            fields.append(first.with_name(name))
    # The Arrow types have the names for a timestamp without a zone only if asked to.
    converted = known_arguments(from_arrow_schema, prefer_timestamp_ntz=True)
    schema: StructType = converted(pa.schema(fields))
    return schema


def spark_batch(flat: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Convert *flat* to the columns of `spark_schema`, with exactly the types of *target*."""
    columns = []
    for name, members in _members(flat.schema).items():
        kind = target.field(name).type
        if len(state_path(flat.schema.field(members[0]).name)) > 1:
            inner = list(kind)
            cast = [
                flat.column(number).cast(field.type)
                for number, field in zip(members, inner, strict=True)
            ]
            columns.append(pa.StructArray.from_arrays(cast, fields=inner))
        else:
            columns.append(flat.column(members[0]).cast(kind))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def selected_columns(flat: pa.Schema, chosen: Sequence[str] | None) -> pa.Schema:
    """Return the columns that a user selected, such as `value` or the field `value.amount`."""
    if chosen is None:
        return flat
    names = {name for column in flat.names for name in (column, state_path(column)[0])}
    if unknown := [name for name in chosen if name not in names]:
        raise InvalidOptionsError(
            f"the column {', '.join(unknown)} does not exist; the columns are {', '.join(flat.names)}"
        )
    return pa.schema(
        [field for field in flat if field.name in chosen or state_path(field.name)[0] in chosen]
    )


def _members(flat: pa.Schema) -> dict[str, list[int]]:
    """Return the positions of columns grouped by the first part of their name, in order."""
    positions: dict[str, list[int]] = {}
    for number, name in enumerate(flat.names):
        positions.setdefault(state_path(name)[0], []).append(number)
    return positions


_PARTITION_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Location:
    """A state location that each task opens independently."""

    path: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def open(self, operator: str | None = None) -> LocationReader:
        """Open the location; raises `UsageError` if the directory does not exist."""
        return LocationReader(open_state(self.path, options=self.options), operator=operator)


def checkpoint_of_batch(state: LocationReader, batch_id: int) -> int:
    """Return the newest retained checkpoint of a micro-batch in the query's history."""
    listed = state.checkpoints()
    retained = [summary for summary in listed if summary.is_retained and not summary.is_given_up]
    for summary in reversed(retained):
        if summary.batch_id == batch_id:
            return summary.checkpoint_id
    batches = ", ".join(str(summary.batch_id) for summary in retained) or "none"
    raise CheckpointError(
        f"{state.store.url} does not retain a checkpoint of micro-batch {batch_id} (retained "
        f"micro-batches: {batches})",
        reason="not_found",
    )


def ranges_of(
    reader: StateReader, wanted_groups: KeyGroupRange | None, partitions: int | None
) -> tuple[KeyGroupRange, ...]:
    """Return the key groups for each partition of a read."""
    key_groups = wanted_groups or reader.key_groups
    if key_groups.intersection(reader.key_groups) != key_groups:
        raise InvalidOptionsError(
            f"keyGroups {key_groups} is not inside {reader.key_groups}, the key groups of "
            f"operator {reader.schema.operator_id}"
        )
    stored = int(sum(stored_bytes(reader.checkpoint)))
    return key_groups.split(partitions or 1 + stored // _PARTITION_BYTES)


def only_variable(reader: StateReader) -> str:
    """Return the only variable of an operator, not counting timers."""
    variables = reader.variables()
    declared = [variable.name for variable in variables if not variable.kind.rules.fires]
    names = declared or [variable.name for variable in variables]
    if len(names) != 1:
        texts = ", ".join(variable.name for variable in variables) or "none"
        raise InvalidOptionsError(
            f"operator {reader.schema.operator_id} has the state variables {texts}; select one with "
            "the option variable"
        )
    return names[0]


# Find the key group that the filters of a query leave.


def key_groups_left(
    filters: Iterable[object],
    key: pa.Schema,
    operator: KeyGroupRange,
) -> KeyGroupRange:
    """Return the key groups that can contain rows that pass *filters*."""
    equal = _equalities(filters)
    key_groups = operator
    number = equal.get(state_path(KEY_GROUP_COLUMN))
    if isinstance(number, int) and number >= 0:
        key_groups = key_groups.intersection(KeyGroupRange(number, number))
    columns = [state_path(f"key.{name}") for name in key.names]
    if all(column in equal for column in columns):
        key_group = _key_group([equal[column] for column in columns], key, operator)
        if key_group is not None:
            key_groups = key_groups.intersection(KeyGroupRange(key_group, key_group))
    return key_groups


def _equalities(filters: Iterable[object]) -> dict[tuple[str, ...], object]:
    """Return the columns compared with a single value; Spark 4.0 lacks the filter classes."""
    values: dict[tuple[str, ...], object] = {}
    for condition in filters:
        if type(condition).__name__ == "EqualTo":
            values[tuple(getattr(condition, "attribute", ()))] = getattr(condition, "value", None)
    return values


def _key_group(values: Sequence[object], key: pa.Schema, operator: KeyGroupRange) -> int | None:
    if None in values:
        return None
    try:
        return operator.start + key_group_of(values, key, len(operator))
    except UsageError:  # a type that only Spark hashes
        return None


CHECKPOINT_COLUMNS: pa.Schema = pa.schema(
    [
        ("checkpoint_id", pa.int64()),
        ("state", pa.string()),
        ("created_at", pa.timestamp("us", "UTC")),
        ("parent_id", pa.int64()),
        ("epoch", pa.int64()),
        ("owner_id", pa.string()),
        ("size_bytes", pa.int64()),
        ("log_length", pa.int64()),
        ("log_size_bytes", pa.int64()),
        ("snapshot_count", pa.int64()),
        ("query_id", pa.string()),
        ("batch_id", pa.int64()),
        ("rows", pa.int64()),
        ("keys", pa.int64()),
        ("output_rows", pa.int64()),
        ("delta_bytes", pa.int64()),
        ("tasks", pa.int64()),
        ("operators", pa.list_(pa.string())),
        ("problem", pa.string()),
        ("object_count", pa.int64()),
        ("since_parent_ms", pa.int64()),
        ("durations_ms", pa.map_(pa.string(), pa.int64())),
    ]
)
"""Columns of the view "checkpoints"."""

_SUMMARY_COLUMNS = CHECKPOINT_COLUMNS.names[3:10]
_RECORD_COLUMNS = CHECKPOINT_COLUMNS.names[10:12]
_FIGURE_COLUMNS = CHECKPOINT_COLUMNS.names[12:17]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRead:
    """
    The parameters of a read of state.

    Args:
        location: Where the state is.
        checkpoint_id, operator, variable: Which state.
        columns: The flat columns to read.
        flatten: Whether each element, entry and timer is a row.
        key: The columns of the operator's key.
        operator_key_groups: All key groups of the operator.
        ranges: The key groups of each partition.
    """

    location: Location
    checkpoint_id: int
    operator: str
    variable: str
    columns: Sequence[str]
    flatten: bool
    key: pa.Schema
    operator_key_groups: KeyGroupRange
    ranges: Sequence[KeyGroupRange]


class KeyGroups(InputPartition):
    """The key groups that one task reads."""

    def __init__(self, key_groups: KeyGroupRange) -> None:
        super().__init__(key_groups)
        self.key_groups = key_groups


class StateRows(DataSourceReader):
    """Reads the rows of a state variable."""

    def __init__(self, read: StateRead, target: pa.Schema) -> None:
        self._read = read
        self._target = target
        self._remaining = read.operator_key_groups

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per range of key groups."""
        ranges = [key_range.intersection(self._remaining) for key_range in self._read.ranges]
        parts = [KeyGroups(key_range) for key_range in ranges if len(key_range)]
        # Spark takes no partitions for one without a value.
        return parts or [KeyGroups(KeyGroupRange.empty())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        read = self._read
        key_groups: KeyGroupRange = partition.value
        if not len(key_groups):
            return
        with read.location.open(read.operator) as state:
            batches = state.reader(read.checkpoint_id).batches(
                read.variable, key_groups=key_groups, flatten=read.flatten
            )
            for batch in batches:
                yield spark_batch(batch.select(list(read.columns)), self._target)


class FilteredStateRows(StateRows):
    """
    Reads only the key groups that the query's filters can match.

    A class of its own, because Spark fails a reader with `pushFilters` while its setting
    spark.sql.python.filterPushdown.enabled is false, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Choose key groups by *filters*; return all filters, so that Spark applies them too."""
        read = self._read
        self._remaining = key_groups_left(filters, read.key, read.operator_key_groups)
        return filters


class CheckpointRows(DataSourceReader):
    """Reads one row per checkpoint of a location."""

    def __init__(self, location: Location, target: pa.Schema) -> None:
        self._location = location
        self._target = target

    def partitions(self) -> Sequence[InputPartition]:
        """Return a single partition, because a listing is small."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all checkpoints."""
        summaries = self._location.open().checkpoints()
        created = {summary.checkpoint_id: summary.created_at_ms for summary in summaries}
        rows = [_row(summary, created) for summary in summaries]
        yield spark_batch(pa.RecordBatch.from_pylist(rows, schema=CHECKPOINT_COLUMNS), self._target)


def _row(summary: CheckpointSummary, created: Mapping[int, int | None]) -> dict[str, object]:
    """Return one row; *created* has the creation time of each checkpoint in milliseconds."""
    row = {name: getattr(summary, name) for name in _SUMMARY_COLUMNS}
    parent = None if summary.parent_id is None else created.get(summary.parent_id)
    if parent is not None and summary.created_at_ms is not None:
        row["since_parent_ms"] = summary.created_at_ms - parent
    row |= {
        "checkpoint_id": summary.checkpoint_id,
        "state": summary.state.value,
        "created_at": _time(summary.created_at_ms),
        "problem": summary.problem or None,
        "durations_ms": list(summary.durations_ms.items()),
    }
    if summary.created_at_ms is not None:
        row["object_count"] = summary.object_count
    if summary.state in (CheckpointState.RETAINED, CheckpointState.SUBSUMED):
        record = BatchRecord.of_properties(summary.properties, summary.checkpoint_id)
        row |= {name: getattr(record, name) for name in _RECORD_COLUMNS}
        row |= {name: getattr(record.figures, name) for name in _FIGURE_COLUMNS}
        row["operators"] = [operator.operator_id for operator in record.operators]
    return row


def _time(milliseconds: int | None) -> dt.datetime | None:
    return None if milliseconds is None else utc_time(milliseconds)
