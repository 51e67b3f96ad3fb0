"""
Handle the differences between the supported Spark versions: 3.5, and 4.0 to 4.3.

All of it is here, so that no other module asks for a version.  A function asks whether Spark has an
API, rather than for a number, because managed platforms add later APIs to an earlier version.
What differs in the JVM is in the modules of `spark/jvm`.
Docs: docs/reference/spark-versions.md, with what each version does differently.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyspark
from pyspark.errors import (
    IllegalArgumentException,
    PySparkAssertionError,
    PySparkException,
    PySparkRuntimeError,
    PySparkValueError,
)
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql.functions import expr

from statelog.errors import Fact, UsageError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

try:
    from pyspark.sql.classic.dataframe import DataFrameNaFunctions
except ImportError:  # Spark 3.5
    from pyspark.sql import DataFrameNaFunctions  # type: ignore[assignment]
try:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        ListState,
        MapState,
        StatefulProcessor,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )
except ImportError:  # Spark 3.5
    from statelog.spark.rows.stateful_processor import (  # type: ignore[assignment]
        ExpiredTimerInfo,
        ListState,
        MapState,
        StatefulProcessor,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

__all__ = [  # classes that are imported from here
    "DataFrameNaFunctions",
    "ExpiredTimerInfo",
    "ListState",
    "MapState",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "TimerValues",
    "ValueState",
]

SPARK: Final[tuple[int, int]] = (
    int(pyspark.__version__.split(".")[0]),
    int(pyspark.__version__.split(".")[1]),
)
"""The running version: major and minor."""

_SEED: Final = np.uint32(42)


def refuse_before(version: tuple[int, int], what: str) -> None:
    """Reject *what* on Spark versions before *version*, which lack what it needs."""
    if version > SPARK:
        raise UsageError(
            f"{what} is not available on Spark {SPARK[0]}.{SPARK[1]}: it requires Spark "
            f"{version[0]}.{version[1]} or later"
        )


def known_arguments(function: Callable[..., Any], **arguments: object) -> Callable[..., Any]:
    """Return *function* bound to the named arguments that it accepts in this version."""
    parameters = inspect.signature(function).parameters
    return functools.partial(
        function, **{name: value for name, value in arguments.items() if name in parameters}
    )


def takes(function: Callable[..., object], argument: str) -> bool:
    """Return whether *function* has an argument of this name in this version."""
    return argument in inspect.signature(function).parameters


def offered(place: object, names: Iterable[str]) -> list[str]:
    """Return the *names* that a class or module of Spark has in this version."""
    return [name for name in names if hasattr(place, name)]


def parsed_ddl(session: SparkSession, text: str) -> types.DataType:
    """Return the type that DDL text describes."""
    if hasattr(session, "_parse_ddl"):
        parsed: types.DataType = session._parse_ddl(text)
        return parsed
    return types._parse_datatype_string(text)


def setting_or(session: SparkSession, name: str, absent: str) -> str | None:
    """
    Return the value of a setting, or Spark's default if it is not set.

    *absent* on 3.5, which does not have its default.
    """
    return session.conf.get(name) if SPARK >= (4, 0) else session.conf.get(name, absent)


def arrow_of(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    """Return the rows of *frame*, whose Arrow schema is *schema*."""
    if hasattr(type(frame), "toArrow"):
        return frame.toArrow()
    batches = frame._collect_as_arrow()  # type: ignore[operator]
    # Timestamps have the session's time zone there.
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def condition_of(error: PySparkException) -> str | None:
    """Return the condition of a Spark error, which Spark 3.5 calls the error class."""
    name = "getCondition" if hasattr(error, "getCondition") else "getErrorClass"
    condition: str | None = getattr(error, name)()
    return condition


def value_error(condition: str, parameters: Mapping[str, str]) -> PySparkValueError:
    """Return PySpark's error for an invalid value."""
    if takes(PySparkValueError.__init__, "errorClass"):
        return PySparkValueError(errorClass=condition, messageParameters=dict(parameters))
    return PySparkValueError(error_class=condition, message_parameters=dict(parameters))  # type: ignore[call-arg]


ERROR_READER: Final = next(name for name in vars(PySparkException("")) if "error_reader" in name)
"""The attribute of PySpark's errors with the texts of its conditions."""


def begin_error(error: PySparkException, message: str, condition: str | None) -> None:
    """Create a PySpark error with the arguments that this version of Spark accepts."""
    PySparkException.__init__(error, message)
    name = "_errorClass" if hasattr(error, "_errorClass") else "error_class"
    setattr(error, name, condition)


def described_in(error: object) -> str | None:
    """Return the attribute in which a JVM error stores its text, or None."""
    for name in ("_desc", "desc"):
        if isinstance(getattr(error, name, None), str):
            return name
    return None


def progress_fields(progress: Any) -> dict[str, Any]:
    """Return a trigger's progress as a dict in JSON form, which Spark 3.5 already provides."""
    fields: dict[str, Any] = json.loads(progress.json) if hasattr(progress, "json") else progress
    return fields


def progress_of(fields: Mapping[str, Any]) -> StreamingQueryProgress:
    """Parse a trigger's progress from JSON, as Spark's own queries do."""
    if SPARK < (4, 0):
        return dict(fields)  # type: ignore[return-value]
    # Imported here, because tasks do not need it.
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    return StreamingQueryProgress.fromJson(dict(fields))


DATE_AND_TIME_TYPES: Final[tuple[type[types.DataType], ...]] = tuple(
    getattr(types, name)
    for name in offered(types, ("DateType", "TimestampType", "TimestampNTZType", "TimeType"))
)
"""
The types of dates and times in this version.

4.0 has neither times nor a common base of these.
"""


def frames_are_inferred(*, has_initial: bool) -> bool:
    """
    Return whether Spark builds the frames for pandas processors from Python objects.

    Then pandas infers the types of their columns again.  Otherwise they are as Arrow made them.
    4.0 never infers, 4.1 does without initial state, later versions always do.
    """
    if SPARK == (4, 1):
        return not has_initial
    return SPARK > (4, 1)


def lists_are_sent_as_frames() -> bool:
    """
    Return whether Spark's list state sends several elements together as a pandas frame.

    Then `put` and `appendList` let pandas and Arrow infer types, which fails for nested values;
    `appendValue` does not.
    """
    return SPARK < (4, 1)


def repartition_by_id(frame: DataFrame, partitions: int, partition: str) -> DataFrame:
    """
    Move each row of *frame* to the partition whose number an SQL expression computes.

    On 4.0, which does not have `repartitionById`, Spark takes the hash of a column.
    """
    if hasattr(type(frame), "repartitionById"):
        return frame.repartitionById(partitions, expr(partition))
    return frame.repartition(partitions, expr(hashed_to(partitions, partition)))


def hashed_to(partitions: int, partition: str) -> str:
    """Return SQL for an int that Spark's hash partitioning maps to the given partition."""
    return f"array({', '.join(map(str, values_by_partition(partitions)))})[{partition}]"


@functools.lru_cache(maxsize=16)
def values_by_partition(partitions: int) -> tuple[int, ...]:
    """Return, for each partition, an int that Spark's hash (Murmur3, seed 42) maps to it."""
    by_partition: dict[int, int] = {}
    start = 0
    step = 16 * partitions
    while len(by_partition) < partitions:
        values = np.arange(start, start + step, dtype=np.uint32)
        places = _murmur3(values).astype(np.int32).astype(np.int64) % partitions
        for place, first in zip(*np.unique(places, return_index=True), strict=True):
            by_partition.setdefault(int(place), start + int(first))
        start += step
    return tuple(by_partition[place] for place in range(partitions))


def _murmur3(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return Spark's `hash` of ints."""
    mixed = _rotated(values * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    hashed = _rotated(_SEED ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashed ^= np.uint32(4)  # the length of an int
    hashed ^= hashed >> np.uint32(16)
    hashed *= np.uint32(0x85EBCA6B)
    hashed ^= hashed >> np.uint32(13)
    hashed *= np.uint32(0xC2B2AE35)
    hashed ^= hashed >> np.uint32(16)
    return hashed


def _rotated(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    rotated: npt.NDArray[np.uint32] = (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
    return rotated


# Streams of Python data sources: limits and the trigger availableNow came with Spark 4.2.
try:
    from pyspark.sql.streaming import datasource as _streaming
except ImportError:
    _streaming = None  # type: ignore[assignment]

AvailableNow: Final[type] = getattr(_streaming, "SupportsTriggerAvailableNow", object)
"""What a stream inherits to end at what is there now; `object` where Spark does not have it."""


def read_limit(most: int | None) -> Any:
    """Return Spark's limit of *most* parts of a stream per micro-batch, or None for no limit."""
    if most is None:
        return _streaming.ReadAllAvailable()
    return _streaming.ReadMaxFiles(most)


def limit_of(limit: object) -> int | None:
    """Return how many parts of a stream a Spark limit allows, or None for no limit."""
    most: int | None = getattr(limit, "max_files", None)
    return most


_ERROR_READER: object = vars(PySparkException(""))[ERROR_READER]


class _SparkUsageError(UsageError):
    """
    A usage error with the methods of `PySparkException`.

    The fact `condition` is Spark's error class, shown before the message.
    """

    condition: str | None = None

    def __init__(self, message: str = "", **facts: Fact) -> None:
        UsageError.__init__(self, message, **facts)
        if isinstance(self, PySparkException):
            begin_error(self, message, self.condition)
            # Shared by all errors, so that a copy is equal.
            vars(self)[ERROR_READER] = _ERROR_READER

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}" if self.condition else self.message


class DeletedStateError(_SparkUsageError, PySparkRuntimeError):
    """A processor uses a state variable that was deleted with `deleteIfExists`."""


class UnsupportedOperationError(_SparkUsageError, PySparkValueError):
    """A call is not allowed in the current time mode."""


class MissingStateError(_SparkUsageError, PySparkAssertionError):
    """A state variable with this name does not exist."""


class WrongTimeError(_SparkUsageError, IllegalArgumentException):
    """A time moves backward, or is earlier than the watermark."""


class WrongArgumentError(_SparkUsageError, AssertionError):
    """An argument is wrong in a way that PySpark detects with `assert`."""
