"""
Read facts about a classic frame that PySpark does not expose.

That is what it is grouped by, the nodes of its plan, its size, and the ids of its columns.

Arrow data: small results go to the JVM with few calls.  Towards the workers Spark adds up the
buffers of a batch before it writes a row, to end the batch at a number of bytes, which takes longer
than to write a row of two numbers.  Where every column has a fixed width, the number of rows says
that the bytes are not reached, and here Spark is told so.  Columns of text, binary data, arrays and
maps are measured as before: a batch of long texts could be too large for the worker.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.types import StructType, _parse_datatype_json_string

from statelog.errors import UsageError
from statelog.format.arrow_limits import batches_of
from statelog.spark.jvm.gateway import (
    JavaObject,
    column_maker,
    elements,
    is_connect,
    jvm_of,
    scala_object,
    with_setting,
)
from statelog.spark.jvm.tricks import Trick, Unfit, attempt
from statelog.spark.rows.types import (
    MAX_BYTES,
    MAX_RECORDS,
    NO_LIMIT,
    ArrowLimits,
    arrow_schema,
    row_bytes,
)

try:
    from pyspark.sql.classic.column import Column as ClassicColumn
except ImportError:  # Spark 3.5
    ClassicColumn = Column  # type: ignore[assignment,misc]

_UNKNOWN_BYTES = 1 << 50
"""Sources without a known size report the largest possible one."""


def grouping_text(grouped: GroupedData) -> str:
    """Return Spark's description of `df.groupBy(...)`, which names the kind of grouping."""
    text: str = grouped._jgd.toString()
    return text


def grouping_columns(grouped: GroupedData) -> list[tuple[Column, str | None]]:
    """Return each key of `df.groupBy(...)` with its input column, or None for an expression."""
    to_column = column_maker(grouped._df.sparkSession)
    return [
        (ClassicColumn(to_column(key)), _input_name(key))
        for key in elements(grouped._jgd.groupingExprs())
    ]


def _input_name(expression: JavaObject) -> str | None:
    """Return the name of a grouping expression if it is a plain input column, otherwise None."""
    kind = expression.getClass().getSimpleName()
    if kind == "AttributeReference":
        name: str = expression.name()
        return name
    if kind != "UnresolvedAttribute":
        return None
    # Of several parts, the last is a column of an alias, or a field of a struct.
    parts = expression.nameParts()
    return str(parts.apply(0)) if parts.size() == 1 else None


def refuse_unread_types(frame: DataFrame) -> None:
    """Reject a classic frame with a column type that this version of PySpark cannot read."""
    try:
        _ = frame.schema
    except PySparkException:
        if is_connect(frame):
            raise
        for column in frame._jdf.schema().fields():
            try:
                _parse_datatype_json_string(column.dataType().json())
            except PySparkException as error:
                raise UsageError(
                    f"the input of a stateful operator: the column {column.name()!r} has the type "
                    f"{column.dataType().simpleString():.100}, which this version of PySpark cannot "
                    "read. Cast it to a different type, or omit it"
                ) from error
        raise


def streaming_nodes(frame: DataFrame) -> Iterator[tuple[str, int]]:
    """Yield the streaming nodes of a plan by name, each with its number of streaming children."""
    pending = [_analyzed(frame)]
    while pending:
        node = pending.pop()
        streaming = [child for child in elements(node.children()) if child.isStreaming()]
        yield node.nodeName(), len(streaming)
        pending += reversed(streaming)


def input_bytes(frame: DataFrame) -> int | None:
    """Return the size of a micro-batch's input according to its plan, if the source knows it."""
    size = partial(_analyzed_bytes, frame)
    return attempt(Trick.INPUT_SIZE, frame.sparkSession, size)


def _analyzed_bytes(frame: DataFrame) -> int:
    # The input of a micro-batch is a leaf, whose size does not need the optimizer.
    size = int(_analyzed(frame).stats().sizeInBytes())
    if size >= _UNKNOWN_BYTES:
        raise Unfit("the source does not know its size")
    return size


def empty_stream(session: SparkSession, schema: StructType) -> DataFrame:
    """Return a stream of *schema* that has a plan but no rows."""
    no_rows = session.sparkContext._jsc.emptyRDD().rdd()
    jschema = session._jsparkSession.parseDataType(schema.json())
    return DataFrame(
        session._jsparkSession.internalCreateDataFrame(no_rows, jschema, True), session
    )


def streaming_operators(frame: DataFrame) -> Iterator[str]:
    """Yield the classes of the streaming nodes in a plan, for example `Aggregate`."""
    pending = [_analyzed(frame)]
    while pending:
        node = pending.pop()
        if node.isStreaming():
            yield node.getClass().getSimpleName()
        pending += elements(node.children())


def check_streaming(frame: DataFrame) -> None:
    """Have Spark reject operations that an append-mode stream does not support."""
    jvm = jvm_of(frame.sparkSession)
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(_analyzed(frame), mode)


def with_columns_of(shape: DataFrame, frame: DataFrame) -> DataFrame:
    """Return *frame* with the column ids of *shape*, which has the same number of columns."""
    jvm = jvm_of(frame.sparkSession)
    alias = jvm.org.apache.spark.sql.catalyst.expressions.Alias
    to_column = column_maker(frame.sparkSession)
    no_metadata = jvm.scala.Option.empty()
    nil = scala_object(frame.sparkSession, "scala.collection.immutable.Nil")
    columns = []
    has_changed = False
    for column, target in zip(_output(frame), _output(shape), strict=True):
        if not column.exprId().equals(target.exprId()):
            has_changed = True
            column = alias(
                column, target.name(), target.exprId(), target.qualifier(), no_metadata, nil
            )
        columns.append(ClassicColumn(to_column(column)))
    return frame.select(*columns) if has_changed else frame


def _output(frame: DataFrame) -> list[JavaObject]:
    return elements(_analyzed(frame).output())


def _analyzed(frame: DataFrame) -> JavaObject:
    return frame._jdf.queryExecution().analyzed()


_CREATES_OF_ARROW: Final = hasattr(DataFrame, "toArrow")
"""From Spark 4.0 on `createDataFrame` takes Arrow tables, since `toArrow` returns them."""
_LARGE_TYPES: Final = "spark.sql.execution.arrow.useLargeVarTypes"


def frame_of_arrow(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Convert an Arrow table to a frame, regardless of the configured batch size."""
    if not _CREATES_OF_ARROW:
        limit = ArrowLimits.of(session).records
        batches = batches_of(table.cast(arrow_schema(schema)))
        parts = pa.Table.from_batches(batches).to_batches(limit)
        return _frame_of_batches(session, _filled(parts), schema)
    if is_connect(session):  # the client sends Arrow as it is
        return session.createDataFrame(table, schema=schema)
    if int(session.conf.get(MAX_RECORDS) or 0) > 0:
        return session.createDataFrame(table, schema=schema)
    # 0 means no limit in the session, but PySpark passes the number to Arrow, which rejects it.
    with with_setting(session, MAX_RECORDS, str(NO_LIMIT)):
        return session.createDataFrame(table, schema=schema)


def frame_of_few_rows(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Convert a small Arrow table to a frame, with fewer calls than `createDataFrame`."""
    frame = attempt(Trick.ARROW_FRAMES, session, lambda: _sent(session, table, schema))
    return frame_of_arrow(session, table, schema) if frame is None else frame


def _sent(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """Create the frame in the same way as `SparkConversionMixin._create_from_arrow_table`."""
    if table.schema.types != arrow_schema(schema).types:
        raise Unfit("the rows and the output have different types")
    if session.conf.get(_LARGE_TYPES, "false") == "true":
        raise Unfit(f"{_LARGE_TYPES} is set")
    return _frame_of_batches(session, _filled(batches_of(table)), schema)


def _filled(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [batch for batch in batches if batch.num_rows]


def _frame_of_batches(
    session: SparkSession, batches: list[pa.RecordBatch], schema: StructType
) -> DataFrame:
    """Convert batches to a frame; large batches become one partition each."""
    context: Any = session.sparkContext
    jvm: JavaObject = jvm_of(session)
    utils: JavaObject = jvm.PythonSQLUtils
    serializer: Any = ArrowStreamSerializer()
    read = context._serialize_to_jvm(
        batches,
        serializer,
        lambda path: utils.readArrowStreamFromFile(path),
        lambda: jvm.ArrowIteratorServer(),
    )
    frame = DataFrame(utils.toDataFrame(read, schema.json(), session._jsparkSession), session)
    frame._schema = schema
    return frame


class ArrowBatches:
    """
    The Arrow batches of one query's Python jobs.

    Thread: Spark's thread of the query.
    """

    def __init__(self) -> None:
        self._fit: dict[Hashable, bool] = {}

    @contextmanager
    def not_measured(self, rows: DataFrame, columns: Hashable) -> Iterator[None]:
        """
        Make Spark limit batches by row count only, for all of the session's jobs in the block.

        Nothing changes where a batch may reach the limit in bytes, where the user has set that
        limit, and on Connect, where the session may be the user's own.
        """
        session = rows.sparkSession
        if columns not in self._fit:
            fit = attempt(Trick.ARROW_BATCHES, session, lambda: _fits(session, rows))
            self._fit[columns] = fit is True
        if not self._fit[columns]:
            yield
            return
        with with_setting(session, MAX_BYTES, str(NO_LIMIT), unless_set=True):
            yield


def _fits(session: SparkSession, rows: DataFrame) -> bool:
    """Return whether batches of these rows stay below the byte limit."""
    try:
        size = row_bytes(arrow_schema(rows.schema))
    except PySparkException:  # a type that Arrow lacks: an error where the job is made
        return False
    if size is None:
        return False
    limits = ArrowLimits.of(session)
    return limits.records < NO_LIMIT and limits.records * size <= limits.size
