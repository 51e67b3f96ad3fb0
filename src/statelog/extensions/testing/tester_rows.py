"""The input and the output of a processor in a test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from statelog.errors import ProcessorError, UsageError
from statelog.extensions.side_outputs.declaration import SIDE_COLUMNS
from statelog.format.buffers import Buffers
from statelog.runtime.clock import RandomIds
from statelog.spark.rows.formats import PandasRowFormat, RowFormat, SparkRowFormat
from statelog.spark.rows.interface import RowLike
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.spark_row import RowOutput
from statelog.spark.rows.types import arrow_schema, from_ipc, make_row
from statelog.spark.rows.unfit_output import OutputCalls, UnfitOutputError
from statelog.spark.worker.extension import TaskExtensions, TaskTools
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import (
    BatchContext,
    TaskRows,
    TaskSpec,
    TaskState,
    part_of,
)
from statelog.spark.worker.stopwatch import Stopwatch
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.values import UNENCODABLE
from statelog.state.heap.tables import Key
from statelog.store import open_store


@dataclass(slots=True)
class TesterRows:
    """The rows (or frames) of a few keys, as a run's input."""

    by_group: dict[int, dict[Key, tuple[Key, list[RowLike]]]] = field(default_factory=dict)
    row_count: int = 0

    def add(self, key_group: int, key: Key, key_object: Key, rows: Iterable[RowLike]) -> None:
        """Add rows (or frames) of one key."""
        keyed = self.by_group.setdefault(key_group, {})
        keyed.setdefault(key, (key_object, []))[1].extend(rows)

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read nothing: `add` gets the rows."""

    def key_groups(self) -> list[int]:
        """Return the key groups that have rows, ascending."""
        return sorted(self.by_group)

    def table_keys(self, key_group: int) -> list[Key]:
        """Return the keys as tables hold them."""
        return list(self.by_group.get(key_group, {}))

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """Yield each key, in both its forms, and its rows."""
        for key, (key_object, rows) in self.by_group.get(key_group, {}).items():
            yield key, key_object, iter(rows)


class TesterOutput:
    """
    Collects what a processor yields.

    Attributes: `rows`: the rows or frames; `has_frames`: whether there are frames.
    """

    def __init__(self) -> None:
        self.items = self.rows = list[RowLike]()
        self.calls = OutputCalls()
        self.has_frames = False

    def extend(self, produced: Iterable[RowLike]) -> None:
        """Run one call's generator, and take what it yields; frames are copied, as in a task."""
        for each in produced:
            is_frame = hasattr(each, "iloc")
            self.has_frames |= is_frame
            self.rows.append(each.copy() if is_frame else each)

    def bound_each_call(self) -> None:
        """Do nothing: the rows of a test fit in memory."""

    def convert_if_many(self) -> None:
        """Do nothing, as `bound_each_call`."""

    def flush(self) -> None:
        """Do nothing, as `bound_each_call`."""


def check_rows(
    rows: Iterable[Row],
    schema: pa.Schema,
    batch_id: int,
    located: Callable[[UnfitOutputError], ProcessorError],
) -> None:
    """
    Check that rows fit the output.

    Raises:
        ProcessorError: A row does not fit.
    """
    output = RowOutput(schema, batch_id)
    output.extend(rows)
    try:
        output.batch()
    except UnfitOutputError as error:
        raise located(error) from error.__cause__


def typed_rows(produced: object, columns: StructType, batch_id: int, timezone: str) -> list[Row]:
    """
    Return what a processor yielded as rows of the output's types.

    Args:
        produced: Rows, or one frame.
        columns: Names and types of the output.
        batch_id: For messages.
        timezone: The zone of times without one in a frame.

    Raises:
        ProcessorError: A row does not fit.
    """
    schema = arrow_schema(columns)
    if isinstance(produced, list) and not any(hasattr(each, "iloc") for each in produced):
        rows = RowOutput(schema, batch_id)
        rows.extend(produced)
        return rows_in(rows.batch())
    # Imported here, because the import of pandas takes time.
    from statelog.spark.rows.pandas_input import PandasSettings
    from statelog.spark.rows.pandas_output import FrameOutput

    frames = FrameOutput(schema, columns, batch_id, PandasSettings.defaults(timezone))
    frames.extend(produced if isinstance(produced, list) else [produced])
    return rows_in(frames.batch())


def format_of(*, in_pandas: bool, timezone: str) -> RowFormat:
    """Return the row format of a test, with Spark's default settings."""
    if not in_pandas:
        return SparkRowFormat()
    from statelog.spark.rows.pandas_input import PandasSettings  # the import of pandas takes time

    return PandasRowFormat(PandasSettings.defaults(timezone), StructType())


def rows_as(schema: StructType, rows: object, name: str) -> pa.Table:
    """Return a list of Rows or dicts as a table of a schema; raises `UsageError` if it does not fit."""
    listed = [row.asDict(recursive=True) if isinstance(row, Row) else row for row in _items(rows)]
    try:
        return pa.Table.from_pylist(listed, schema=arrow_schema(schema))
    except (*UNENCODABLE, AttributeError) as error:
        raise UsageError(
            f"the broadcast table {name!r} does not fit its schema: {error}"
        ) from error


def _items(rows: object) -> Iterable[object]:
    if not isinstance(rows, list | tuple):
        raise UsageError(f"a schema needs a list of Rows or dicts, not {type(rows).__name__}")
    return rows


class TesterExtensions:
    """
    The extensions of a run in a test.

    Args:
        extras: Their parts, by name.
        context: The micro-batch.
        row_format: The form in which the processor gets rows.
        codec: The operator's codec.
    """

    def __init__(
        self,
        extras: Mapping[str, object],
        context: BatchContext,
        row_format: RowFormat,
        codec: OperatorCodec,
    ) -> None:
        self._store = open_store("memory:///")
        spec = TaskSpec(
            context=context,
            rows=TaskRows(layout=InputLayout((), 0), row_format=row_format, output=pa.schema([])),
            state=TaskState(location="", storage_options={}, fsync=False, epoch=0, schema={}),
            checkpoint_id=-1,
            base_id=-1,
            restore_id=-1,
            committed=(),
            ranges=(),
            snapshots={},
            inline_bytes=sys.maxsize,
            staged=True,
        )
        files = OutputFiles(self._put, RandomIds())
        self.of_run = TaskExtensions(extras, TaskTools(spec, codec, files, self._store))

    def _put(self, path_of: Callable[[], str], data: Buffers) -> str:
        path = path_of()
        self._store.put(path, data)
        return path

    def side_rows(self) -> dict[str, list[Row]]:
        """Return the rows that a run emitted, by side output; converts them."""
        self.of_run.flush()
        answers = self.of_run.answers(Stopwatch())
        rows: dict[str, list[Row]] = {}
        for addition in part_of(answers, "side_outputs", tuple) or ():
            data = (self._store.get(addition.file.path),) if addition.file else addition.data
            for table in map(from_ipc, data):
                emitted = table.select(range(len(SIDE_COLUMNS), table.num_columns))
                rows.setdefault(addition.name, []).extend(rows_in(emitted))
        return rows


def rows_in(table: pa.RecordBatch | pa.Table) -> list[Row]:
    """Return the rows of a table; times are aware, structs are dicts."""
    names = table.schema.names
    columns = [column.to_pylist() for column in table.columns]
    return [make_row(names, values) for values in zip(*columns, strict=True)]
