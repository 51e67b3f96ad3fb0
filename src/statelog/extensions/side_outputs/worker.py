"""
The side outputs of a task, to which a processor emits rows.

A row is checked when it is emitted, so a row that does not fit fails the call that emits it.  Rows
are converted many calls later, all together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import chain
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import Row

from statelog.checkpoint.attachments import Addition
from statelog.errors import InvariantError, UsageError
from statelog.extensions.side_outputs.declaration import SideSchema, emitted_too_early
from statelog.spark.query.state_variables import SchemaLike
from statelog.spark.rows.formats import SparkRowFormat
from statelog.spark.rows.interface import Output, RowLike
from statelog.spark.rows.types import row_factory
from statelog.spark.rows.unfit_output import UnfitOutputError, described_item, row_call
from statelog.spark.worker.extension import TaskExtension, TaskTools
from statelog.spark.worker.output_parts import Collector, StagedOutputParts

_INT64: Final = 1 << 63
_PLAIN: Final = {pa.string(): str, pa.bool_(): bool, pa.float64(): float, pa.int64(): int}
"""The Python type of values that certainly fit a type."""


def _certainly_fits(value: object, kind: type | None) -> bool:
    """
    Return whether a value has exactly the Python type for a column.

    The others are converted to find out.
    """
    if value.__class__ is not kind:
        return False
    return not isinstance(value, int) or -_INT64 <= value < _INT64


class _Stored:
    """An output that adds the checkpoint and the micro-batch as its first columns."""

    def __init__(self, plain: Output, schema: pa.Schema, checkpoint_id: int, batch_id: int) -> None:
        self.plain = plain
        self._schema = schema
        self._values = (checkpoint_id, batch_id)
        self.extend = plain.extend  # called for each row, so without a method in between

    @property
    def items(self) -> Sized:
        """See `Output`."""
        return self.plain.items

    @property
    def pending(self) -> int:
        """See `Output`."""
        return self.plain.pending

    @property
    def unnamed(self) -> None:
        """None, because each row is checked when it is emitted."""
        return

    def batch(self) -> pa.RecordBatch:
        """Return all rows as one batch, including the added columns."""
        batch = self.plain.batch()
        columns = [pa.repeat(pa.scalar(value, pa.int64()), len(batch)) for value in self._values]
        return pa.RecordBatch.from_arrays([*columns, *batch.columns], schema=self._schema)

    def clear(self) -> None:
        """Discard all rows."""
        self.plain.clear()


class TaskSideOutput:
    """A side output in a task."""

    def __init__(
        self, name: str, schema: SideSchema, outputs: TaskSideOutputs, tools: TaskTools
    ) -> None:
        self._name = name
        self._schema = schema
        self._outputs = outputs
        spec = tools.spec
        self._batch_id = spec.context.batch_id
        self._operator = tools.codec.schema.operator_id
        columns = schema.columns.names
        self._columns, self._names = columns, frozenset(columns)
        self._fields = [
            (field.name, _PLAIN.get(field.type), field.nullable) for field in schema.arrow
        ]
        self._format = spec.rows.row_format.of_columns(schema.columns)
        self._make = row_factory(columns)
        self._takes_rows = isinstance(self._format, SparkRowFormat)
        self._plain = self._new_output()
        stored = _Stored(self._plain, schema.stored, spec.checkpoint_id, self._batch_id)
        # The rows are staged with every delivery.
        self.parts = StagedOutputParts(
            stored, lambda _batch: None, schema.stored, tools.files, spec.inline_bytes
        )
        self.parts.bound_pending()

    def __repr__(self) -> str:
        return f"<side output {self._name}: {', '.join(self._columns)}>"

    def _new_output(self) -> Output:
        return self._format.output(self._schema.arrow, self._batch_id)

    def emit(self, row: object) -> None:
        """Emit a row; see `SideOutput`."""
        outputs = self._outputs
        if not outputs.is_open:
            raise emitted_too_early(self._name)
        item = self._checked_row(row) if self._takes_rows else cast("RowLike", row)
        if not self._takes_rows:
            self._check(item)
        self.parts.extend((item,))
        if self.parts.is_full:
            self.parts.flush()

    def _checked_row(self, row: object) -> Row:
        """Convert a Row or tuple to a Row that fits the columns."""
        fitting = self._row_of(row)
        values: Iterable[object] = fitting  # Row's own access by position takes longer
        for value, (name, kind, is_nullable) in zip(values, self._fields, strict=True):
            if value is None and not is_nullable:
                raise UsageError(
                    f"side output {self._name!r}: {name!r} is NOT NULL, but the row {fitting!r:.200} "
                    "does not set it"
                )
            if not (value is None or _certainly_fits(value, kind)):
                self._check(fitting)
                break
        return fitting

    def _row_of(self, row: object) -> Row:
        """Convert a Row or tuple to a Row with all columns in order."""
        columns = self._columns
        if not isinstance(row, Row) or not hasattr(row, "__fields__"):
            if not isinstance(row, tuple) or len(row) != len(columns):
                call = row_call(columns).removeprefix("`yield ").removesuffix("`")
                raise UsageError(
                    f"side output {self._name!r} takes emit({call}), or a tuple of {len(columns)} "
                    f"values; got {described_item(row)}"
                )
            return self._make(row)
        if row.__fields__ == columns:
            return row
        if others := sorted(set(row.__fields__) - self._names):
            raise UsageError(
                f"side output {self._name!r} does not have the column {', '.join(others)}; its columns "
                f"are {', '.join(columns)}"
            )
        values = row.asDict()
        return self._make([values.get(name) for name in columns])

    def _check(self, row: RowLike) -> None:
        """Convert a single item; raise `UsageError` if it does not fit."""
        alone = self._new_output()
        try:
            alone.extend([row])
            alone.batch()
        except UnfitOutputError as error:
            raise UsageError(f"side output {self._name!r}: {error.what}") from error

    def flush(self) -> None:
        """Convert all rows to a batch."""
        if len(self._plain.items):
            self.parts.flush()

    def additions(self) -> list[Addition]:
        """Return the rows, or the files that contain them."""
        staged = self.parts.staged()
        place = (self._name, self._operator)
        if isinstance(staged, tuple):
            files = zip(staged, self.parts.file_rows, strict=True)
            return [Addition((), file, rows, *place) for file, rows in files]
        return [] if staged is None else [Addition((staged,), None, self.parts.row_count, *place)]


class TaskSideOutputs(TaskExtension):
    """
    The side outputs of a task.

    Attributes: `is_open`: whether rows may be emitted; `by_name`: the outputs.
    """

    def __init__(self, part: Mapping[str, SideSchema] | None, tools: TaskTools | None) -> None:
        self.is_open = False
        self._tools = tools
        self.by_name: dict[str, TaskSideOutput] = {}
        if part:
            if tools is None:
                raise InvariantError("side outputs can be used only in a task")
            self.by_name = {
                name: TaskSideOutput(name, schema, self, tools) for name, schema in part.items()
            }
        self._all = tuple(self.by_name.values())

    def calls(self) -> Mapping[str, Callable[..., object]]:
        """Return the method `sideOutput`."""
        return {"sideOutput": self._side_output}

    def _side_output(self, name: str, schema: SchemaLike) -> TaskSideOutput:
        """Return a side output; raise `UsageError` if `init` did not declare it on the driver."""
        if self.is_open:
            raise UsageError(f"side output {name!r}: side outputs can be declared only in init()")
        output = self.by_name.get(name)
        if output is None:
            raise UsageError(
                f"init() declares the side output {name!r} in a task, but not on the driver; it "
                "must declare the same side outputs everywhere"
            )
        return output

    def collectors(self) -> Sequence[Collector]:
        """Return the collector of each side output."""
        return [output.parts for output in self._all]

    def opened(self) -> None:
        """Allow rows to be emitted."""
        self.is_open = True

    def closed(self) -> None:
        """Reject rows."""
        self.is_open = False

    def flush(self) -> None:
        """Convert all rows."""
        for output in self._all:
            output.flush()

    def answer(self) -> tuple[Addition, ...] | None:
        """Count and return the emitted rows, after writing large ones to files."""
        additions = tuple(chain(*(output.additions() for output in self._all)))
        if self._tools is not None:
            self._tools.figures["side_output_rows"] = sum(addition.count for addition in additions)
        return additions or None
