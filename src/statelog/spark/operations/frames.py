"""
Check frames of state variables, and bring them into one frame of rows.

A frame has the columns of `spark.read.format("statelog")`: `key`, `value` and, by kind, `position`,
`user_key`, `expires_at_ms` or `fires_at_ms`.  `key_group` may be present and is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit, pmod, struct, when, xxhash64
from pyspark.sql.types import DataType, StructType

from statelog.errors import UsageError
from statelog.spark.operations.state_rows import (
    ORDER_COLUMN,
    STATE_COLUMN,
    key_column,
    user_key_column,
    value_column,
)
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN
from statelog.spark.source.columns import spark_schema
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.kinds.kind import EXPIRES_FIELD, USER_KEY_COLUMN, VALUE_COLUMN

KEY: Final = "key"


def check_frames(frames: object) -> Mapping[str, DataFrame]:
    """
    Return frames by the names of their variables.

    Raises:
        UsageError: It is no such mapping, is empty, or has a frame of a stream.
    """
    if not isinstance(frames, Mapping) or not frames:
        raise UsageError(
            'a mapping from the names of state variables to frames is needed, such as {"total": df}'
        )
    for name, frame in frames.items():
        if not hasattr(frame, "isStreaming") or not hasattr(frame, "mapInArrow"):
            raise UsageError(f"state {name!r}: a DataFrame is needed, not {type(frame).__name__}")
        if frame.isStreaming:
            raise UsageError(f"state {name!r}: a batch frame is needed; this is a stream")
    return frames


def key_schema_of(frames: Mapping[str, DataFrame]) -> StructType:
    """
    Return the columns of the key, which all frames must have.

    Raises:
        UsageError: A frame has no struct `key`, or another one.
    """
    first: tuple[str, StructType] | None = None
    for name, frame in frames.items():
        key = _type_of(frame, KEY)
        if not isinstance(key, StructType) or not key.fields:
            raise UsageError(
                f"state {name!r}: the frame has no column {KEY!r} that is a struct of the key's columns; it "
                f"has {', '.join(frame.columns)}. Make one: struct(...).alias({KEY!r})"
            )
        if first is None:
            first = name, key
        elif _text(key) != _text(first[1]):
            raise UsageError(
                f"state {name!r} has the key ({_text(key)}), state {first[0]!r} ({_text(first[1])}); all "
                "variables of an operator have the same key"
            )
    if first is None:
        raise UsageError("no frame was given")
    return first[1]


def state_rows(
    frames: Mapping[str, DataFrame],
    codec: OperatorCodec,
    key_groups: int,
    first_key_group: int,
    now_ms: int,
) -> DataFrame:
    """
    Return the rows of all variables in one frame, see `state_rows.py`.

    Args:
        frames: By variable.
        codec: The operator's codec.
        key_groups: Number of key groups of the operator.
        first_key_group: The first of them.
        now_ms: The time from which the time to live counts, where a frame has no expiry.

    Raises:
        UsageError: A variable is unknown, or a frame has other columns or types.
    """
    spark_types = {
        state_id: _SparkTypes(codec.states[state_id], codec.key.schema) for state_id in codec.live
    }
    parts = []
    for name, frame in frames.items():
        state_id = state_id_of(codec, name)
        rows = _Variable(frame, codec.states[state_id], spark_types[state_id], now_ms)
        columns = _columns(
            rows.key(), key_groups, first_key_group, state_id, rows.order(), rows.expiry()
        )
        for other, types in spark_types.items():
            mine = other == state_id
            if types.user_key is not None:
                columns.append(rows.user_key(mine, types.user_key).alias(user_key_column(other)))
            if types.value is not None:
                columns.append(rows.value(mine, types.value).alias(value_column(other)))
        parts.append(frame.select(*columns))
    return reduce(DataFrame.unionAll, parts)


def deleted_rows(
    frame: DataFrame,
    state_id: int,
    codec: OperatorCodec,
    key_groups: int,
    first_key_group: int,
) -> DataFrame:
    """
    Return rows that delete state of keys, in the columns of `state_rows`.

    Args:
        frame: The keys, in a column `key`; other columns are ignored.
        state_id: What is deleted, see `DELETE_ALL` and `deleted_variable`.
        codec: The operator's codec.
        key_groups: Number of key groups of the operator.
        first_key_group: The first of them.

    Raises:
        UsageError: The frame has no such keys.
    """
    types = {at: _SparkTypes(codec.states[at], codec.key.schema) for at in codec.live}
    key_type = spark_schema(_flat_key(codec.key.schema))[KEY].dataType
    key = _struct_parts(frame, KEY, key_type, "the frame of deleted keys")
    return frame.select(*_columns(key, key_groups, first_key_group, state_id), *_nulls(types))


def _columns(
    key: Sequence[Column],
    key_groups: int,
    first_key_group: int,
    state_id: int,
    order: Column | None = None,
    expiry: Column | None = None,
) -> list[Column]:
    """Return the columns that the rows of all variables have."""
    none = lit(None).cast("bigint")
    key_group = pmod(xxhash64(*key), lit(key_groups)).cast("int") + lit(first_key_group)
    return [
        key_group.alias(INPUT_KEY_GROUP_COLUMN),
        lit(state_id).alias(STATE_COLUMN),
        (lit(0).cast("bigint") if order is None else order).alias(ORDER_COLUMN),
        (none if expiry is None else expiry).alias(EXPIRES_FIELD),
        *(column.alias(key_column(at)) for at, column in enumerate(key)),
    ]


def _nulls(types: Mapping[int, _SparkTypes]) -> list[Column]:
    """Return nulls in the columns of all variables."""
    columns = []
    for state_id, kind in types.items():
        if kind.user_key is not None:
            columns.append(lit(None).cast(kind.user_key).alias(user_key_column(state_id)))
        if kind.value is not None:
            columns.append(lit(None).cast(kind.value).alias(value_column(state_id)))
    return columns


def _flat_key(key: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f"{KEY}.{field.name}", field.type) for field in key])


def state_id_of(codec: OperatorCodec, name: str) -> int:
    """Return the id of a variable; raises `UsageError` if there is none."""
    try:
        return codec.schema.state_id(name)
    except KeyError:
        names = ", ".join(repr(codec.states[at].descriptor.name) for at in codec.live) or "none"
        raise UsageError(
            f"operator {codec.schema.operator_id} has no state variable {name!r}; it has {names}"
        ) from None


class _SparkTypes:
    """The types that the columns of a variable have in Spark."""

    def __init__(self, state: StateCodec, key: pa.Schema) -> None:
        flat = [*_flat_key(key), *state.kind.row_fields(state)]
        nested = {field.name: field.dataType for field in spark_schema(pa.schema(flat))}
        self.key: DataType = nested[KEY]
        self.value: DataType | None = nested.get(VALUE_COLUMN)
        self.user_key: DataType | None = nested.get(USER_KEY_COLUMN)


class _Variable:
    """
    The frame of one variable.

    Raises:
        UsageError: It lacks a column, or has one that the variable does not.
    """

    def __init__(
        self, frame: DataFrame, state: StateCodec, types: _SparkTypes, now_ms: int
    ) -> None:
        self._frame, self._state, self._types, self._now_ms = frame, state, types, now_ms
        self._what = f"state {state.descriptor.name!r}"
        needed = state.kind.row_columns
        optional = [KEY_GROUP_COLUMN, *([EXPIRES_FIELD] if state.expires else [])]
        missing = [name for name in (KEY, *needed) if name not in frame.columns]
        unknown = [name for name in frame.columns if name not in (KEY, *needed, *optional)]
        if missing or unknown:
            problem = f"no column {missing[0]!r}" if missing else f"a column {unknown[0]!r}"
            raise UsageError(
                f"{self._what}: the frame has {problem}; {state.descriptor.kind_text} state"
                f"{' with a time to live' if state.expires else ''} has the columns "
                f"{', '.join((KEY, *needed))}"
                f"{f', and {EXPIRES_FIELD} if wanted' if state.expires else ''}"
            )

    def key(self) -> list[Column]:
        """Return the columns of the key."""
        return _struct_parts(self._frame, KEY, self._types.key, self._what)

    def order(self) -> Column:
        """Return the position in a list, or the time of a timer."""
        column = self._state.kind.order_column
        return (col(column) if column else lit(0)).cast("bigint")

    def expiry(self) -> Column:
        """Return when the entry expires."""
        if not self._state.expires:
            return lit(None).cast("bigint")
        ttl_ms = self._state.descriptor.ttl_ms or 0
        given = EXPIRES_FIELD in self._frame.columns
        return (col(EXPIRES_FIELD) if given else lit(self._now_ms + ttl_ms)).cast("bigint")

    def user_key(self, is_mine: bool, expected: DataType) -> Column:
        """Return the map key, or null in the column of another variable."""
        return self._struct(USER_KEY_COLUMN, is_mine, expected)

    def value(self, is_mine: bool, expected: DataType) -> Column:
        """Return the value, or null in the column of another variable."""
        return self._struct(VALUE_COLUMN, is_mine, expected)

    def _struct(self, name: str, is_mine: bool, expected: DataType) -> Column:
        if not is_mine:
            return lit(None).cast(expected)
        parts = _struct_parts(self._frame, name, expected, self._what)
        return when(col(name).isNotNull(), struct(*parts))


def _struct_parts(frame: DataFrame, name: str, expected: DataType, what: str) -> list[Column]:
    """Return the fields of a struct column in the order of *expected*, by their names."""
    given = _type_of(frame, name)
    if not isinstance(expected, StructType) or not isinstance(given, StructType):
        raise UsageError(
            f"{what}: the column {name!r} must be a struct of ({_text(expected)})"
            + ("" if given is None else f", not {given.simpleString()}")
        )
    types = {field.name: field.dataType for field in given}
    if sorted(types) != sorted(expected.names) or any(
        types[field.name].simpleString() != field.dataType.simpleString() for field in expected
    ):
        raise UsageError(
            f"{what}: the column {name!r} must be a struct of ({_text(expected)}), not of "
            f"({_text(given)}); cast it"
        )
    return [col(name).getField(field.name).alias(field.name) for field in expected]


def _type_of(frame: DataFrame, name: str) -> DataType | None:
    return next((field.dataType for field in frame.schema if field.name == name), None)


def _text(kind: DataType) -> str:
    if not isinstance(kind, StructType):
        return kind.simpleString()
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kind)


def session_of_frames(frames: Mapping[str, DataFrame]) -> SparkSession:
    """Return the session of the frames."""
    (first, *_) = frames.values()
    return first.sparkSession
