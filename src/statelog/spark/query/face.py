"""
`Face`: the form in which a processor receives rows and state, such as Rows or columns.

The engine asks the face of a processor, and never what class a processor or a state has.  The faces
are rows of the table below.  To add one: make a `Face` of the functions below, add its line to the
table, and name the line in the base class of its processors by `FACE`.

A face is used in this order.  On the driver, at the call: `row_format`, then `driver_handle` for a
copy of the processor, then `processor_type` and `methods` for checks.  In a task: `new_state` once
in a worker, then `new_run` in each micro-batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Never, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from statelog.errors import UsageError
from statelog.spark.extension_table import loaded
from statelog.spark.rows.formats import RowFormat
from statelog.state.cache import AnyState

if TYPE_CHECKING:
    from statelog.spark.query.declared_state import DriverHandle
    from statelog.spark.worker.extension import TaskRun

FACE: Final = "__statelog_face__"
"""
The attribute of a processor's class that names its face.

A class without it has the face of Rows.
"""


class AnyProcessor(Protocol):
    """A processor of any face."""

    def init(self, handle: Never) -> None:
        """Create the state variables; called once on the driver and once in each task."""

    def close(self) -> None:
        """Release the resources that `init` acquired."""


class Methods(NamedTuple):
    """The names of a processor's methods for rows, timers and initial state."""

    rows: str
    timer: str
    initial: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """
    What the engine knows about processors with one face.

    Args:
        processor_type: The base class of the processors, whose methods have the parameters that
            calls pass.
        methods: The methods that a task calls.
        handles_single_keys: Whether the processor is called key by key, so that a single key can
            fail, be recorded and be replayed.
        row_format: Makes the row format from the session, the output and whether there is initial
            state.  The format is sent to each task; it makes the input and the output of the task.
        driver_handle: Makes the handle of the `init` on the driver, which notes what the processor
            declares, from a parser of DDL and whether variables may have a time to live.
        new_state: Makes the empty state of a worker from an `OperatorCodec`; for bounded memory
            also from `MemoryLimits` and an opener of the host's files.
        columns_read: Returns which input columns a processor reads, from the processor and the
            names of all columns; None if that is not certain.  Tasks get no others.
        new_run: Makes the run of a task from a `BatchContext`, the worker's state, the
            `KeyGroupRange` of the task, its `OutputCollector`, and its `TaskExtensions`.
        test_tables: Runs a micro-batch of `ProcessorTester.testColumns`, from the tester, the rows
            and the initial rows; without rows only timers fire.  None where a test runs key by key.
    """

    processor_type: type
    methods: Methods
    handles_single_keys: bool
    row_format: Callable[[SparkSession, StructType, bool], RowFormat]
    driver_handle: Callable[[Callable[[str], StructType], bool], DriverHandle]
    new_state: Callable[..., AnyState]
    new_run: Callable[..., TaskRun]
    columns_read: Callable[[AnyProcessor, Sequence[str]], frozenset[str] | None]
    test_tables: Callable[[object, pa.Table | None, pa.Table | None], pa.Table] | None = None


_FACES: Final = {
    "rows": "statelog.spark.worker.processor_run:ROWS",
    "pandas": "statelog.spark.worker.processor_run:PANDAS",
    "columns": "statelog.extensions.columns.face:COLUMNS",
}
"""The constant of each face, as `module:name`."""

PROCESSORS: Final = "a StatefulProcessor or ColumnarProcessor"
"""The base classes of the faces, for messages."""


def face_of(processor: object) -> Face:
    """Return the face of a processor passed to `transform_with_state`."""
    return _face(getattr(type(processor), FACE, "rows"))


def pandas_face_of(processor: object) -> Face:
    """
    Return the face of a processor that uses pandas frames.

    Raises `UsageError` for one of another face.
    """
    face = face_of(processor)
    if not face.handles_single_keys:
        raise UsageError(
            f"{type(processor).__name__} is a {face.processor_type.__name__}: pass it to "
            "transform_with_state, not to transform_with_state_in_pandas"
        )
    return _face("pandas")


@functools.cache
def _face(name: str) -> Face:
    return loaded(_FACES[name], Face)
