"""Run a columnar processor in a unit test: all keys of a table at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from statelog.errors import UsageError
from statelog.extensions.columns.rows import ColumnarFormat, ColumnarInput, ColumnarOutput
from statelog.extensions.columns.run import ColumnarRun
from statelog.extensions.columns.slots import SlotState
from statelog.extensions.testing.tester_rows import TesterExtensions
from statelog.extensions.testing.tester_state import TesterState
from statelog.format.arrow_limits import one_array
from statelog.spark.rows.formats import RowFormat
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN, InputLayout
from statelog.spark.rows.types import table_of
from statelog.spark.rows.unfit_output import OutputCalls
from statelog.spark.worker.protocol import BatchContext
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.key_hash import hash_columns


class Tester(Protocol):
    """What a test of columns needs of a `ProcessorTester`."""

    _state: TesterState
    _output: pa.Schema | None
    _extractor: Callable[[pa.Table], object] | None
    _time_mode: str
    _watermark_ms: int
    _batch_id: int
    _side_rows: Mapping[str, list[Row]]

    def _context(self) -> BatchContext: ...

    def _extensions(self, context: BatchContext, row_format: RowFormat) -> TesterExtensions: ...


def run_columns(
    tester: Tester, rows: pa.Table | None = None, initial: pa.Table | None = None
) -> pa.Table:
    """Run one micro-batch; without rows only the timers that are due fire."""
    extractor = tester._extractor if tester._time_mode == "eventtime" else None
    if rows is not None and extractor is not None:
        times = np.asarray(extractor(rows))
        rows = rows.filter(pa.array(times > tester._watermark_ms))
    tester._batch_id += 1
    output = _Tables(tester._output, tester._batch_id)
    state = tester._state.in_form(SlotState)
    context = tester._context()
    extensions = tester._extensions(context, ColumnarFormat())
    groups = tester._state.key_group_range
    run = ColumnarRun(context, state, groups, output, extensions.of_run)
    run.begin()
    run.take(_input(tester, rows), None if initial is None else _input(tester, initial))
    run.end()
    tester._side_rows = extensions.side_rows()
    tester._state.append(run.encoded())
    return output.table()


def _input(tester: Tester, rows: pa.Table | None) -> ColumnarInput:
    keys = tester._state.given_keys
    if keys is None:
        raise UsageError("a tester of a columnar processor needs a keySchema")
    read = ColumnarInput(InputLayout(tuple(range(1, 1 + len(keys))), 1 + len(keys)), KeyCodec(keys))
    if rows is None or not rows.num_rows:
        return read
    if missing := [name for name in keys.names if name not in rows.column_names]:
        raise UsageError(f"the rows have no column {', '.join(missing)}, which keySchema names")
    whole = rows.combine_chunks()
    columns = [one_array(whole.column(field.name).cast(field.type)) for field in keys]
    count = np.uint64(len(tester._state.key_group_range))
    groups = (hash_columns(columns, keys).view(np.int64) % np.int64(count)).astype(np.int32)
    names = [INPUT_KEY_GROUP_COLUMN, *(f"__key_{name}" for name in keys.names), *rows.column_names]
    arrays = [pa.array(groups), *columns, *(one_array(column) for column in whole.columns)]
    read.read([pa.RecordBatch.from_arrays(arrays, names=names)])
    return read


class _Tables:
    """Collects tables; typed where the output is known."""

    def __init__(self, schema: pa.Schema | None, batch_id: int) -> None:
        self._typed = None if schema is None else ColumnarOutput(schema, batch_id)
        self.items = self._tables = list[pa.Table]()
        self.calls = OutputCalls()

    def extend(self, produced: Iterable[object]) -> None:
        """Take the tables of one call."""
        if self._typed is not None:
            self._typed.extend(produced)
            return
        self._tables += [table_of(each, "the output") for each in produced]

    def bound_each_call(self) -> None:
        """Do nothing: the rows of a test fit in memory."""

    def convert_if_many(self) -> None:
        """Do nothing, as `bound_each_call`."""

    def flush(self) -> None:
        """Do nothing, as `bound_each_call`."""

    def table(self) -> pa.Table:
        """Return all rows."""
        if self._typed is not None:
            return pa.Table.from_batches([self._typed.batch()])
        return pa.concat_tables(self._tables) if self._tables else pa.table({})
