"""
Make the frame of a Python job with few calls to the JVM.

`DataFrame.mapInArrow` makes some thirty calls to the JVM.  Most of them give the same in each
micro-batch: types, settings, the environment of the workers, the columns of the input.  So they are
made once for a query, and a micro-batch only makes its function, and the frame.  Where PySpark does
more than that (broadcasts, a profiler), and where an API differs, `mapInArrow` itself is called.
Source: pyspark/sql/udf.py, pyspark/sql/pandas/map_ops.py; PythonWorkerFactory (Spark).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.classic.column import _to_java_column, _to_seq
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from statelog.spark.driver.own_workers import OwnWorkers
from statelog.spark.query.session import is_connect
from statelog.spark.rows.jvm import JavaObject, jvm_of

ArrowFunction: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _Template:
    """
    What is the same in all jobs over inputs of the same columns.

    Args:
        function_class: The JVM's class of a Python function.
        variables: The environment of the workers that all tasks share.
        own_workers: Gives each task workers of its own.
        surroundings: The arguments of that class behind the function's bytes and the environment.
        job: The JVM's user-defined function, of which copies with another function are made.
        rest: The arguments of `copy` behind the function.
        name, returns: Its name and what it returns.
        columns: The columns of the input, for the JVM.
        environment: The environment of the workers and their files, as they were.
        most_bytes: Longer functions are sent as broadcasts.
    """

    function_class: JavaObject
    variables: JavaObject
    own_workers: OwnWorkers
    surroundings: tuple[JavaObject, ...]
    job: JavaObject
    rest: tuple[JavaObject, ...]
    name: str
    returns: StructType
    columns: JavaObject
    environment: tuple[dict[str, str], list[str]]
    most_bytes: int


class PythonJobs:
    """
    Makes the frames of the Python jobs of one query that return rows of one schema.

    Args:
        output: Names and types of these rows.

    Thread: Spark's thread of the query.
    """

    def __init__(self, output: StructType | str) -> None:
        self._output = output
        self._templates: dict[Hashable, _Template | None] = {}

    def frame(
        self, rows: DataFrame, function: ArrowFunction, columns: Hashable, *, tasks: int
    ) -> DataFrame:
        """
        Return what `rows.mapInArrow(function, output)` returns.

        Args:
            rows: The input.
            function: Called with the batches of a partition.
            columns: The same for all inputs that have the same columns.
            tasks: Number of partitions of the input.
        """
        if not is_connect(rows):
            known = columns in self._templates
            try:
                if not known:
                    self._templates[columns] = _template(rows, function, self._output)
                made = _made(rows, function, self._templates[columns], tasks)
                if made is not None:
                    return made
            except (Py4JError, PySparkException, AttributeError, TypeError):
                # Of another version of Spark; or an error of the user's, raised below.
                self._templates[columns] = None
        return rows.mapInArrow(function, self._output)


def _environment(rows: DataFrame) -> tuple[dict[str, str], list[str]]:
    context: Any = rows.sparkSession.sparkContext
    return dict(context.environment), list(context._python_includes)


def _template(
    rows: DataFrame, function: ArrowFunction, output: StructType | str
) -> _Template | None:
    """Return what later jobs take over; None where PySpark does more than this module."""
    context: Any = rows.sparkSession.sparkContext
    if context.profiler_collector is not None:
        return None
    kind: Any = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf: Any = pandas_udf(function, output, kind)._unwrapped
    job: JavaObject = udf._judf
    first: JavaObject = job.func()
    if first.broadcastVars().size():
        return None
    jvm = jvm_of(rows.sparkSession)
    names = [col(f"`{name.replace('`', '``')}`") for name in rows.columns]
    return _Template(
        function_class=jvm.SimplePythonFunction,
        variables=first.envVars(),
        own_workers=OwnWorkers(rows.sparkSession, first.envVars()),
        surroundings=(
            first.pythonIncludes(),
            first.pythonExec(),
            first.pythonVer(),
            first.broadcastVars(),
            first.accumulator(),
        ),
        job=job,
        rest=tuple(job.productElement(at) for at in range(2, job.productArity())),
        name=udf._name,
        returns=udf.returnType,
        columns=_to_seq(context, [_to_java_column(name) for name in names]),
        environment=_environment(rows),
        most_bytes=jvm.PythonUtils.getBroadcastThreshold(context._jsc),
    )


def _made(
    rows: DataFrame, function: ArrowFunction, template: _Template | None, tasks: int
) -> DataFrame | None:
    """Return the frame of a job; None if it has to be made by `mapInArrow`."""
    if template is None or template.environment != _environment(rows):
        return None
    command = CloudPickleSerializer().dumps((function, template.returns))
    context: Any = rows.sparkSession.sparkContext
    # The function's broadcasts were collected there while it was pickled.
    broadcasts = list(context._pickled_broadcast_vars)
    context._pickled_broadcast_vars.clear()
    if broadcasts or len(command) > template.most_bytes:
        return None

    def function_in(variables: JavaObject) -> JavaObject:
        return template.function_class(bytearray(command), variables, *template.surroundings)

    def job_of(function: JavaObject) -> DataFrame:
        udf = template.job.copy(template.name, function, *template.rest)
        mapped = rows._jdf.mapInArrow(udf.apply(template.columns), False, None)
        return DataFrame(mapped, rows.sparkSession)

    own = [function_in(one) for one in template.own_workers.environments(tasks)]
    if own:
        job = job_of(own[0])
        made = job if tasks == 1 else template.own_workers.frame(job, own)
        if made is not None:
            return made
    return job_of(function_in(template.variables))
