"""Run a columnar processor in a unit test, on all keys of a table at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa

from statelog.errors import UsageError
from statelog.extensions.columns.processor import columns_named_by
from statelog.extensions.columns.rows import ColumnarFormat, ColumnarInput
from statelog.extensions.testing.memory_job import KEY_GROUPS
from statelog.extensions.testing.tester_rows import CollectedOutput, GivenFormat
from statelog.format.arrow_limits import one_array
from statelog.spark.query.face import AnyProcessor
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN, InputLayout
from statelog.spark.rows.types import table_of
from statelog.state.encoding.values import KeyCodec
from statelog.state.keys.key_hash import hash_columns


class Tester(Protocol):
    """What a columnar test needs from a `ProcessorTester`."""

    processor: AnyProcessor
    _keys: pa.Schema | None
    _output: pa.Schema | None
    _extractor: Callable[[pa.Table], object] | None
    _time_mode: str
    _watermark_ms: int

    def _task(self, rows: GivenFormat, output: pa.Schema | None) -> list[pa.RecordBatch]: ...


def run_columns(
    tester: Tester, rows: pa.Table | None = None, initial: pa.Table | None = None
) -> pa.Table:
    """Run one micro-batch; without rows, it only fires timers that are due."""
    extractor = tester._extractor if tester._time_mode == "eventtime" else None
    if rows is not None and extractor is not None:
        times = np.asarray(extractor(rows))
        rows = rows.filter(pa.array(times > tester._watermark_ms))
    schema = tester._output
    plain = ColumnarFormat()
    inputs = (
        _input(tester, None if rows is None else _read(tester, rows)),
        None if initial is None else _input(tester, initial),
    )
    if schema is not None:
        return pa.Table.from_batches(tester._task(GivenFormat(plain, *inputs), schema), schema)
    collected = _Tables(plain, *inputs)
    tester._task(collected, None)
    return pa.concat_tables(collected.produced) if collected.produced else pa.table({})


def _read(tester: Tester, rows: pa.Table) -> pa.Table:
    """Return the columns that the processor gets on Spark: the keys, and the columns it names."""
    read = columns_named_by(tester.processor, rows.column_names)
    if read is None or tester._keys is None:
        return rows
    return rows.select([name for name in rows.column_names if name in read | {*tester._keys.names}])


class _Tables(CollectedOutput):
    """Collects tables with any columns."""

    def extend(self, produced: Iterable[object]) -> None:
        """Collect the tables of one call."""
        super().extend(table_of(table, "the output") for table in produced)


def _input(tester: Tester, rows: pa.Table | None) -> ColumnarInput:
    keys = tester._keys
    if keys is None:
        raise UsageError("ProcessorTester requires keySchema for a columnar processor")
    # As Spark sends them: the key group, the columns of the key, the columns of the input.
    layout = InputLayout(tuple(range(1, 1 + len(keys))), 1 + len(keys))
    task_input = ColumnarInput(layout, KeyCodec(keys))
    if rows is None or not rows.num_rows:
        return task_input
    if missing := [name for name in keys.names if name not in rows.column_names]:
        raise UsageError(f"the rows lack the column {', '.join(missing)}, which keySchema names")
    whole = rows.combine_chunks()
    columns = [one_array(whole.column(field.name).cast(field.type)) for field in keys]
    groups = hash_columns(columns, keys).view(np.int64) % np.int64(len(KEY_GROUPS))
    names = [INPUT_KEY_GROUP_COLUMN, *(f"__key_{name}" for name in keys.names), *rows.column_names]
    arrays = [pa.array(groups.astype(np.int32)), *columns, *map(one_array, whole.columns)]
    task_input.read([pa.RecordBatch.from_arrays(arrays, names=names)])
    return task_input
