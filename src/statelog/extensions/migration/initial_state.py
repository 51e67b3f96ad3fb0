"""
Start a processor with its initial state taken from a frame.

Variables and fields are matched by their names, at every depth.

The frame is one of `spark_state` or `to_spark`, and the operator Spark's own or statelog's: a state
object is set through the methods that both have.  Where it is Spark's, values come from Arrow or
pandas in forms that Spark's state does not take back, so they are converted by the declared types.
"""

from __future__ import annotations

import datetime as dt
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn, SupportsInt, TypeAlias

import numpy as np
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.extensions.migration.to_spark import (
    CHECKPOINT_COLUMN,
    EXPIRY_COLUMN,
    STATE_COLUMN,
    TIMERS_COLUMN,
)
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.rows.interface import RowLike
from statelog.spark.rows.spark_versions import (
    ExpiredTimerInfo,
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
    lists_are_sent_as_frames,
)

# Values of a frame of state as those that Spark's state takes.

_EXACT = 2**53
"""Floats hold each whole number below this."""

Plain: TypeAlias = Callable[[Any], Any]
"""Converts a value that is not null."""


def plain_struct(
    schema: T.StructType, *, is_utc: bool, path: str
) -> Callable[[object], tuple[object, ...]]:
    """Return a function that converts a struct to a tuple, matching fields by name."""
    names = tuple(schema.names)
    converters = [
        _optional(_plain(field.dataType, is_utc, f"{path}.{field.name}")) for field in schema.fields
    ]

    def convert(struct: object) -> tuple[object, ...]:
        stored, values = _fields(struct)
        if stored != names:
            if sorted(stored) != sorted(names):
                raise UsageError(
                    f"the initial state contains the fields ({', '.join(stored)}) in {path!r}, but init() "
                    f"declares ({', '.join(names)}): declare the fields of the frame, in any order"
                )
            by_name = dict(zip(stored, values, strict=True))
            values = tuple(by_name[name] for name in names)
        return tuple(convert(value) for convert, value in zip(converters, values, strict=True))

    return convert


def _plain(kind: T.DataType, is_utc: bool, path: str) -> Plain:
    match kind:
        case T.StructType():
            # Not a Row, which Spark 4.0 does not take there.
            return plain_struct(kind, is_utc=is_utc, path=path)
        case T.ArrayType():
            element = _optional(_plain(kind.elementType, is_utc, f"{path}.element"))
            return lambda values: [element(value) for value in values]
        case T.MapType():
            key = _plain(kind.keyType, is_utc, f"{path}.key")
            item = _optional(_plain(kind.valueType, is_utc, f"{path}.value"))
            return lambda pairs: {
                key(map_key): item(value)
                for map_key, value in (pairs.items() if isinstance(pairs, Mapping) else pairs)
            }
        case T.TimestampType():
            return _timestamp_utc if is_utc else _time
        case T.TimestampNTZType() | T.DateType() | T.DayTimeIntervalType():
            return _time
        case T.BinaryType():
            return bytes
        case T.IntegralType():
            return _whole
        case _:
            return _scalar


def _optional(convert: Plain) -> Plain:
    return lambda value: None if value is None else convert(value)


def _scalar(value: object) -> object:
    """Convert a NumPy or pandas value to a Python value."""
    if isinstance(value, np.datetime64 | np.timedelta64):  # `item` of nanoseconds is a number
        value = value.astype(f"{'M' if isinstance(value, np.datetime64) else 'm'}8[us]")
    for name in ("to_pydatetime", "to_pytimedelta", "item"):
        if hasattr(value, name):
            return getattr(value, name)()
    return value


def _whole(value: SupportsInt) -> int | None:
    """
    Convert a whole number to an integer, even if it is stored as a float.

    In frames of Spark before 4.2 an array of whole numbers with a null is an array of floats.
    """
    if not isinstance(value, float | np.floating):
        return int(value)
    number = float(value)
    if math.isnan(number):
        return None
    if abs(number) >= _EXACT:
        raise UsageError(
            f"the initial state contains {number!r} in an array with nulls, which this version of Spark converts "
            "to floats; floats cannot represent it exactly. Use a processor of Rows, or Spark "
            "4.2 or later"
        )
    return int(number)


def _time(value: object) -> Any:
    """Convert a NumPy or pandas time to a Python time, or to None if it is missing."""
    return None if value != value else _scalar(value)


def _timestamp_utc(value: object) -> dt.datetime | None:
    """Convert a timestamp in UTC to a point in time."""
    plain: dt.datetime | None = _time(value)
    if plain is None or plain.tzinfo is not None:
        return plain
    return plain.replace(tzinfo=dt.UTC)


def with_initial_state(processor: StatefulProcessor) -> StatefulProcessor:
    """
    Return a processor that starts with rows produced by `to_spark` or `spark_state`.

    It calls *processor*, of either row format, for everything but `handleInitialState`.  Give it to
    the operator of Spark or statelog together with `initialState=frame.groupBy(...)`.  It may be
    kept after the first start, or replaced by *processor*.

    Example:
        state = to_spark(spark, "s3://bucket/jobs/totals", "s3://bucket/moved")
        totals = events.groupBy("customer").transformWithState(
            with_initial_state(Totals()),
            "customer string, total double",
            "Update",
            "none",
            initialState=state.groupBy("customer"),
        )

    Args:
        processor: A processor; its own `handleInitialState`, if it has one, is not called.

    Raises:
        UsageError: In a task: the rows have a variable that its `init` does not create, or creates
            as another kind or with other names of fields.
    """
    return WithInitialState(processor)


class WithInitialState(StatefulProcessor):
    """A processor whose initial state comes from a frame; see `with_initial_state`."""

    def __init__(self, processor: StatefulProcessor) -> None:
        self._processor = processor
        self._handle: _NotingHandle

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Call the processor's `init`, and record the state objects that it creates."""
        self._handle = _NotingHandle(handle)
        self._processor.init(self._handle)

    def handleInputRows(
        self, key: object, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Call the processor."""
        return self._processor.handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(
        self, key: object, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Call the processor."""
        # By name, as Spark calls it.
        return self._processor.handleExpiredTimer(
            key=key, timerValues=timerValues, expiredTimerInfo=expiredTimerInfo
        )

    def handleInitialState(
        self, key: object, initialState: RowLike, timerValues: TimerValues
    ) -> None:
        """Set all state of one key."""
        for cells in _cells_of(initialState):
            for name, cell in cells.state.items():
                if cell is not None:
                    self._set(name, cell, cells, timerValues.getCurrentProcessingTimeInMs())
            for time in cells.timers:
                self._handle.registerTimer(int(time))

    def _set(self, name: str, cell: Any, cells: _Cells, now_ms: int) -> None:
        variable = self._handle.variables.get(name)
        if variable is None:
            raise UsageError(
                f"the initial state contains the variable {name!r}, which init() does not create; "
                "create it, or exclude it with variables=..."
            )
        # A struct is a dict or a Row, an array anything else.
        is_struct = isinstance(cell, Mapping | tuple)
        if is_struct is not isinstance(variable, _ValueVariable):
            raise UsageError(
                f"the kind of {name!r} in the initial state differs from the {variable.kind} state that "
                "init() creates; exclude it with variables=..."
            )
        variable.set(cells.live(name, [cell] if is_struct else cell, now_ms), cells.is_utc)

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()


@dataclass(frozen=True, slots=True)
class _Cells:
    """
    The state of one key, in a row of the frame.

    Args:
        state: The cell of each variable; None for none.
        timers: Times in milliseconds.
        expiry: When the entries of variables expire, for those that have it.
        is_utc: Whether timestamps are in UTC; see `CHECKPOINT_COLUMN`.
    """

    state: Mapping[str, object]
    timers: Sequence[int]
    expiry: Mapping[str, object]
    is_utc: bool

    def live(self, name: str, entries: Sequence[object], now_ms: int) -> Sequence[object]:
        """Return the entries of a variable that have not expired by the micro-batch's time."""
        times = self.expiry.get(name)
        if times is None:
            return entries
        # For a value it is one number.
        expiry = [times] if not isinstance(times, Iterable) else times
        return [entry for entry, time in zip(entries, expiry, strict=True) if time > now_ms]


def _cells_of(initial: RowLike) -> Iterator[_Cells]:
    """Yield the cells of a Row, or of each row in a frame."""
    is_row = isinstance(initial, Row)
    names = initial.__fields__ if is_row else list(initial.columns)
    expected = (STATE_COLUMN, TIMERS_COLUMN, EXPIRY_COLUMN)
    missing = [name for name in expected[:2] if name not in names]
    if missing:
        raise UsageError(
            f"the initial state lacks the column {missing[0]}; it has {', '.join(names)}; pass the frame "
            "of to_spark or spark_state, grouped by the key"
        )
    columns: list[Sequence[object]] = []
    for name in expected:
        if name not in names:
            columns.append([None] * len(columns[0]))
        else:
            columns.append([initial[name]] if is_row else list(initial[name]))
    for state, timers, expiry in zip(*columns, strict=True):
        yield _Cells(
            _named(state),
            () if timers is None else timers,
            _named(expiry),
            CHECKPOINT_COLUMN in names,
        )


def _named(struct: Row | Mapping[str, object] | None) -> Mapping[str, object]:
    """Return a struct as a mapping from field names to values, or None for null."""
    if struct is None:
        return {}
    return (
        struct if isinstance(struct, Mapping) else dict(zip(struct.__fields__, struct, strict=True))
    )


def _fields(struct: object) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """Return the field names and values of a struct that is a Row or a mapping."""
    if isinstance(struct, Mapping):
        return tuple(struct), tuple(struct.values())
    if not isinstance(struct, tuple):
        raise UsageError(
            f"the initial state contains a {type(struct).__name__} instead of a struct"
        )
    return tuple(getattr(struct, "__fields__", ())), tuple(struct)


@dataclass(frozen=True)
class _Variable(ABC):
    """
    A state variable that `init` created.

    Args:
        name: Its name.
        state: The state object.
        schema, user_key_schema: The declared fields, maybe as DDL text.
    """

    kind: ClassVar[str]

    name: str
    state: Any
    schema: StructType | str
    user_key_schema: StructType | str = ""

    @cached_property
    def _values(self) -> tuple[Plain, Plain]:
        return _converters(self.schema, self.name)

    @cached_property
    def _user_keys(self) -> tuple[Plain, Plain]:
        return _converters(self.user_key_schema, f"{self.name}.key")

    def value(self, struct: object, is_utc: bool) -> tuple[object, ...]:
        """Convert a value, list element or map value for the state."""
        values: tuple[object, ...] = self._values[is_utc](struct)
        return values

    def user_key(self, struct: object, is_utc: bool) -> tuple[object, ...]:
        """Convert a map key for the state."""
        key: tuple[object, ...] = self._user_keys[is_utc](struct)
        return key

    @abstractmethod
    def set(self, entries: Sequence[object], is_utc: bool) -> None:
        """Set the entries of a key that does not have any yet."""


class _ValueVariable(_Variable):
    kind = "value"

    def set(self, entries: Sequence[object], is_utc: bool) -> None:
        for entry in entries:
            self.state.update(self.value(entry, is_utc))


class _ListVariable(_Variable):
    kind = "list"

    def set(self, entries: Sequence[object], is_utc: bool) -> None:
        elements = [self.value(entry, is_utc) for entry in entries]
        if lists_are_sent_as_frames():
            for element in elements:
                self.state.appendValue(element)
        elif elements:  # Spark refuses an empty list
            self.state.put(elements)


class _MapVariable(_Variable):
    kind = "map"

    def set(self, entries: Sequence[object], is_utc: bool) -> None:
        for entry in entries:
            _, (user_key, value) = _fields(entry)
            self.state.updateValue(self.user_key(user_key, is_utc), self.value(value, is_utc))


def _converters(schema: StructType | str, path: str) -> tuple[Plain, Plain]:
    """Return converters for timestamps in any zone, and for timestamps in UTC."""
    try:
        fields = parse_ddl(schema) if isinstance(schema, str) else schema
    except UsageError as error:
        refuse = partial(_refuse, schema, error)
        return refuse, refuse
    return plain_struct(fields, is_utc=False, path=path), plain_struct(
        fields, is_utc=True, path=path
    )


def _refuse(schema: StructType | str, error: UsageError, struct: object) -> NoReturn:
    """Raise the error for values whose types must be declared."""
    raise UsageError(
        f"a task needs the types of {schema!r}, but cannot parse them from text: {error}. "
        "Declare them as a StructType in init()"
    ) from error


class _NotingHandle(StatefulProcessorHandle):
    """A handle that records each state object it returns."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self.variables: dict[str, _Variable] = {}

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        """Return a value state."""
        state = self._handle.getValueState(stateName, schema, ttlDurationMs)
        self.variables[stateName] = _ValueVariable(stateName, state, schema)
        return state

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        """Return a list state."""
        state = self._handle.getListState(stateName, schema, ttlDurationMs)
        self.variables[stateName] = _ListVariable(stateName, state, schema)
        return state

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Return a map state."""
        state = self._handle.getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs)
        self.variables[stateName] = _MapVariable(stateName, state, valueSchema, userKeySchema)
        return state

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer for the current key."""
        self._handle.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        self._handle.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key."""
        return self._handle.listTimers()

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys."""
        self._handle.deleteIfExists(stateName)
        self.variables.pop(stateName, None)
