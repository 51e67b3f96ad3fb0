"""
What the JVM knows of a classic frame, and PySpark does not offer publicly.

That is what it is grouped by, the nodes of its plan, its size, and the ids of its columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql.types import StructType, _parse_datatype_json_string

from statelog.errors import UsageError
from statelog.spark.jvm.gateway import (
    JavaObject,
    column_maker,
    elements,
    is_connect,
    jvm_of,
    scala_object,
)
from statelog.spark.jvm.tricks import Trick, Unfit, attempt

try:
    from pyspark.sql.classic.column import Column as ClassicColumn
except ImportError:  # Spark 3.5
    ClassicColumn = Column  # type: ignore[assignment,misc]

_UNKNOWN_BYTES = 1 << 50
"""Sources without a known size report the largest possible one."""


def grouping_text(grouped: GroupedData) -> str:
    """Return what Spark shows of `df.groupBy(...)`, with the kind of the grouping."""
    text: str = grouped._jgd.toString()
    return text


def grouping_columns(grouped: GroupedData) -> list[tuple[Column, str | None]]:
    """Return each key of `df.groupBy(...)`, and the input column that it is, or None."""
    to_column = column_maker(grouped._df.sparkSession)
    return [
        (ClassicColumn(to_column(key)), _input_name(key))
        for key in elements(grouped._jgd.groupingExprs())
    ]


def _input_name(expression: JavaObject) -> str | None:
    """Return the name of the bare input column that a grouping expression is; else None."""
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
    """Reject a classic frame with a column of a type that this version of PySpark cannot read."""
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
    """Yield the names of the streaming nodes of a plan, with the number of streaming children."""
    pending = [_analyzed(frame)]
    while pending:
        node = pending.pop()
        streaming = [child for child in elements(node.children()) if child.isStreaming()]
        yield node.nodeName(), len(streaming)
        pending += reversed(streaming)


def input_bytes(frame: DataFrame) -> int | None:
    """Return the bytes of a micro-batch's input by its plan, if its source knows them."""
    size = partial(_analyzed_bytes, frame)
    return attempt(Trick.INPUT_SIZE, frame.sparkSession, size)


def _analyzed_bytes(frame: DataFrame) -> int:
    # The input of a micro-batch is a leaf, whose size does not need the optimizer.
    size = int(_analyzed(frame).stats().sizeInBytes())
    if size >= _UNKNOWN_BYTES:
        raise Unfit("the source does not know its size")
    return size


def empty_stream(session: SparkSession, schema: StructType) -> DataFrame:
    """Return a stream of *schema* without rows, which only has a plan."""
    no_rows = session.sparkContext._jsc.emptyRDD().rdd()
    jschema = session._jsparkSession.parseDataType(schema.json())
    return DataFrame(
        session._jsparkSession.internalCreateDataFrame(no_rows, jschema, True), session
    )


def streaming_operators(frame: DataFrame) -> Iterator[str]:
    """Yield the classes of the streaming nodes of a plan, for example `Aggregate`."""
    pending = [_analyzed(frame)]
    while pending:
        node = pending.pop()
        if node.isStreaming():
            yield node.getClass().getSimpleName()
        pending += elements(node.children())


def check_streaming(frame: DataFrame) -> None:
    """Let Spark reject what a stream that a query appends does not support."""
    jvm = jvm_of(frame.sparkSession)
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(_analyzed(frame), mode)


def with_columns_of(shape: DataFrame, frame: DataFrame) -> DataFrame:
    """Return *frame* with the column ids of *shape*, which has as many columns."""
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
