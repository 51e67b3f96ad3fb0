"""
Make the frame of a Python job with few calls to the JVM.

`DataFrame.mapInArrow` makes some thirty calls to the JVM.  Most of them give the same in each
micro-batch: types, settings, the environment of the workers, the columns of the input.  They are made
once for a query, and a micro-batch only makes its function and the frame.  Where PySpark does more than
that (broadcasts, a profiler), `mapInArrow` itself is called.
Source: pyspark/sql/udf.py, pyspark/sql/pandas/map_ops.py; PythonWorkerFactory (Spark).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.classic.column import _to_java_column, _to_seq
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from statelog.spark.jvm.gateway import JavaObject, jvm_of
from statelog.spark.jvm.own_workers import OwnWorkers
from statelog.spark.jvm.tricks import Trick, Unfit, attempt

ArrowFunction: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _Template:
    """
    What is the same in all jobs over inputs of the same columns.

    Args:
        function_class: The JVM's class of a Python function.
        variables: The environment of the workers that all tasks share.
        own_workers: Gives each task workers of its own; None where the tasks share workers.
        surroundings: The arguments of that class after the function's bytes and the environment.
        job: The JVM's user-defined function, of which copies with another function are made.
        rest: The arguments of `copy` after the function.
        name, returns: Its name and what it returns.
        columns: The columns of the input, for the JVM.
        environment: The environment of the workers and their files when the template was made.
        most_bytes: Longer functions are sent as broadcasts.
    """

    function_class: JavaObject
    variables: JavaObject
    own_workers: OwnWorkers | None
    surroundings: tuple[JavaObject, ...]
    job: JavaObject
    rest: tuple[JavaObject, ...]
    name: str
    returns: StructType
    columns: JavaObject
    environment: tuple[dict[str, str], list[str]]
    most_bytes: int

    def frame(self, rows: DataFrame, function: ArrowFunction, tasks: int) -> DataFrame:
        """Return the frame of a job; reject a function that only `mapInArrow` can send."""
        if self.environment != _environment(rows):
            raise Unfit("the environment of the workers has changed")
        command = self._pickled(rows, function)

        def function_in(variables: JavaObject) -> JavaObject:
            return self.function_class(bytearray(command), variables, *self.surroundings)

        def job_of(function: JavaObject) -> DataFrame:
            udf = self.job.copy(self.name, function, *self.rest)
            mapped = rows._jdf.mapInArrow(udf.apply(self.columns), False, None)
            return DataFrame(mapped, rows.sparkSession)

        workers = self.own_workers
        environments = [] if workers is None else workers.environments(tasks)
        if workers is None or not environments:
            return job_of(function_in(self.variables))
        functions = [function_in(variables) for variables in environments]
        job = job_of(functions[0])
        if tasks == 1:
            return job
        frame = attempt(Trick.OWN_WORKERS, rows.sparkSession, lambda: workers.frame(job, functions))
        return job_of(function_in(self.variables)) if frame is None else frame

    def _pickled(self, rows: DataFrame, function: ArrowFunction) -> bytes:
        command: bytes = CloudPickleSerializer().dumps((function, self.returns))
        context: Any = rows.sparkSession.sparkContext
        # The function's broadcasts were collected there while it was pickled.
        broadcasts = list(context._pickled_broadcast_vars)
        context._pickled_broadcast_vars.clear()
        if broadcasts:
            raise Unfit("the function has broadcasts")
        if len(command) > self.most_bytes:
            raise Unfit(f"the function has {len(command)} bytes and is sent as a broadcast")
        return command


class PythonJobs:
    """
    Makes the frames of a query's Python jobs that return rows of one schema.

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
            rows: The input, with one partition for each task.
            function: Called with the batches of a partition.
            columns: The same for all inputs that have the same columns.
            tasks: Number of tasks.
        """

        def made() -> DataFrame | None:
            if columns not in self._templates:
                self._templates[columns] = None  # unless it can be made
                self._templates[columns] = _template(rows, function, self._output)
            template = self._templates[columns]
            return None if template is None else template.frame(rows, function, tasks)

        frame = attempt(Trick.PYTHON_JOBS, rows.sparkSession, made)
        return rows.mapInArrow(function, self._output) if frame is None else frame


def _environment(rows: DataFrame) -> tuple[dict[str, str], list[str]]:
    context: Any = rows.sparkSession.sparkContext
    return dict(context.environment), list(context._python_includes)


def _template(rows: DataFrame, function: ArrowFunction, output: StructType | str) -> _Template:
    """Return what later jobs reuse; reject a session in which PySpark does more than this."""
    context: Any = rows.sparkSession.sparkContext
    if context.profiler_collector is not None:
        raise Unfit("a profiler is on")
    kind: Any = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf: Any = pandas_udf(function, output, kind)._unwrapped
    job: JavaObject = udf._judf
    first: JavaObject = job.func()
    if first.broadcastVars().size():
        raise Unfit("the function has broadcasts")
    jvm = jvm_of(rows.sparkSession)
    names = [col(f"`{name.replace('`', '``')}`") for name in rows.columns]
    variables = first.envVars()
    return _Template(
        function_class=jvm.SimplePythonFunction,
        variables=variables,
        own_workers=attempt(
            Trick.OWN_WORKERS,
            rows.sparkSession,
            lambda: OwnWorkers(rows.sparkSession, variables),
        ),
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
