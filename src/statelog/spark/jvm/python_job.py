"""
Create the frame of a Python job with only a few calls to the JVM.

`DataFrame.mapInArrow` makes some thirty calls to the JVM.  Most of them give the same in each
micro-batch: types, settings, the environment of the workers, the columns of the input.  They are
made once for a query, and a micro-batch only makes its function and the frame.  Where PySpark does
more than that (broadcast variables, a profiler), `mapInArrow` itself is called.

Each task gets Python workers of its own.  Spark gives a task the worker that has been idle for
longest, so tasks change workers from one micro-batch to the next, and a worker has missed what
another one did.  But Spark shares workers only among functions of the same environment.  An extra
environment variable, the numbers of the query and of the task, gives a task the same worker each
time.  The query's number keeps apart two queries that run at the same time.  Nothing relies on it:
a worker that missed something catches up.

A job has one function for all tasks.  So a job of several tasks is put together from several: the
plan is made once and copied with the function of each task, and one partition is taken of each
copy.  The shuffle below begins at once, while the sink plans what it does with the rows.
Source: pyspark/sql/udf.py, pyspark/sql/pandas/map_ops.py; PythonWorkerFactory, MapInArrowExec and
PythonUDF (Spark).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType

from statelog.spark.jvm.gateway import (
    JavaObject,
    classic_class,
    jvm_of,
    query_of,
    scala_object,
    with_setting,
)
from statelog.spark.jvm.tricks import Trick, Unfit, attempt
from statelog.spark.rows.spark_versions import takes
from statelog.spark.rows.types import sql_name

if TYPE_CHECKING:
    from pyspark.sql.classic.column import _to_java_column, _to_seq
    from pyspark.util import PythonEvalType
else:
    try:
        from pyspark.sql.classic.column import _to_java_column, _to_seq
        from pyspark.util import PythonEvalType
    except ImportError:  # Spark 3.5
        from pyspark.rdd import PythonEvalType
        from pyspark.sql.column import _to_java_column, _to_seq

_JOBS: Final = ("MapInArrow", "PythonMapInArrow")
"""The node of a job; it has the second name before Spark 4.0."""
_HAS_PROFILE: Final = takes(DataFrame.mapInArrow, "profile")
"""From Spark 4.0 on: a job takes the resources of its tasks, and a column in place of an expression."""
_TASK: Final = "STATELOG_TASK"
"""The environment variable with which a task of a query finds its workers."""

_MOST_TASKS: Final = 8
"""Bounds the time to make the copies: some milliseconds for each."""
_NO_QUERY: Final = "batch"
_SHARED: Final = "shared"
"""In place of a query's number: for a job outside of queries, and for queries without a number."""


class QueryNumbers:
    """
    Assigns small numbers to running queries.

    A query that starts again has the number that it had, unless another took it meanwhile.

    Thread: any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}

    def number(self, query: str, most: int, is_active: Callable[[str], bool]) -> int | None:
        """Return a query's number, counted from 0, or None if *most* active queries have one."""
        with self._lock:
            if query not in self._numbers:
                self._numbers = {
                    other: number for other, number in self._numbers.items() if is_active(other)
                }
                free = set(range(most)).difference(self._numbers.values())
                if not free:
                    return None
                self._numbers[query] = min(free)
            return self._numbers[query]


_numbers = QueryNumbers()


class OwnWorkers:
    """
    Creates the functions and frames of jobs whose tasks have dedicated Python workers.

    On several hosts, or with the tasks of many queries, there would be many idle workers.  So all
    tasks have workers of their own in local mode only, while the cores are enough for the tasks of
    all queries at once; else only a single task has.  Queries beyond the number of cores (on a
    cluster: all except one) share the workers of their single tasks.

    Thread: Spark's thread of the query.
    """

    def __init__(self, session: SparkSession, environment: JavaObject) -> None:
        context = session.sparkContext
        jvm = jvm_of(session)
        self._cores = context.defaultParallelism if context._jsc.isLocal() else 1
        self._queries = session._jsparkSession.sharedState().activeStreamingQueries()
        owner = self._owner(session)
        most = 1 if owner == _SHARED else min(self._cores, _MOST_TASKS)
        self._environments: list[JavaObject] = []
        for task in range(most):
            variables = jvm.java.util.HashMap(environment)
            variables.put(_TASK, f"{owner}.{task}")
            self._environments.append(variables)
        # A set of Scala is also a function: whether a number is in it.
        self._only = [jvm.PythonUtils.toSeq([task]).toSet() for task in range(most)]
        self._chosen = jvm.org.apache.spark.rdd.PartitionPruningRDD.create
        self._copies = PlanCopies(jvm)
        self._plans = scala_object(session, "org.apache.spark.sql.execution.LogicalRDD")
        self._flags = [False]
        with contextlib.suppress(Py4JError):  # newer versions have one more
            self._flags.append(getattr(self._plans, "fromDataset$default$4")())
        self._of_plan = classic_class(session, "Dataset").ofRows

    def _owner(self, session: SparkSession) -> str:
        """Return the name under which workers are assigned to this query."""
        query = query_of(session)
        if not query:
            return _NO_QUERY
        uuid = jvm_of(session).java.util.UUID

        def is_active(other: str) -> bool:
            return bool(self._queries.containsKey(uuid.fromString(other)))

        number = _numbers.number(query, self._cores, is_active)
        return _SHARED if number is None else str(number)

    def environments(self, tasks: int) -> list[JavaObject]:
        """
        Return the environment variables for the workers of each task.

        None if the tasks have to share workers.
        """
        if tasks > len(self._environments):
            return []
        if tasks > 1 and tasks * self._queries.size() > self._cores:
            return []
        return self._environments[:tasks]

    def frame(self, job: DataFrame, functions: Sequence[JavaObject]) -> DataFrame:
        """Return the frame of a `mapInArrow` job whose tasks run the given JVM functions."""
        plan = executed_plan(job.sparkSession, job._jdf)
        if plan.nodeName() not in _JOBS:
            raise Unfit(f"the plan of the job has the unexpected root {plan.nodeName()}")
        below = plan.child()
        if below.nodeName() == SHUFFLE:
            begin_shuffle(below)
        partitions = below.execute().getNumPartitions()
        if partitions != len(functions):
            raise Unfit(f"the input has {partitions} partitions, not {len(functions)}")
        rows: JavaObject | None = None
        udf = plan.func()
        of_plan = self._copies.arguments(plan)
        of_udf = self._copies.arguments(udf)
        for function, only in zip(functions, self._only, strict=False):
            of_udf[1] = function
            of_plan[0] = udf.makeCopy(of_udf)
            rows_of_task = self._chosen(plan.makeCopy(of_plan).execute(), only)
            rows = rows_of_task if rows is None else rows.union(rows_of_task)
        # With what Spark knows of the job, such as its size, by which it chooses how to join.
        union = self._plans.fromDataset(rows, job._jdf, *self._flags)
        session = job.sparkSession
        return DataFrame(self._of_plan(session._jsparkSession, union), session)


ArrowFunction: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _Template:
    """
    What all jobs have in common whose inputs have the same columns.

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
        most_bytes: Longer functions are sent as broadcast variables.
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
        """Return the frame of a job; reject a function that can only be sent by `mapInArrow`."""
        if self.environment != _environment(rows):
            raise Unfit("the environment of the workers has changed")
        command = self._pickled(rows, function)

        def function_in(variables: JavaObject) -> JavaObject:
            return self.function_class(bytearray(command), variables, *self.surroundings)

        def job_of(function: JavaObject) -> DataFrame:
            udf = self.job.copy(self.name, function, *self.rest)
            column = udf.apply(self.columns)
            if _HAS_PROFILE:
                mapped = rows._jdf.mapInArrow(column, False, None)
            else:
                mapped = rows._jdf.pythonMapInArrow(column.expr(), False)
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
        context = rows.sparkSession.sparkContext
        # The function's broadcasts were collected there while it was pickled.
        broadcasts = list(context._pickled_broadcast_vars)
        context._pickled_broadcast_vars.clear()
        if broadcasts:
            raise Unfit("the function uses broadcast variables")
        if len(command) > self.most_bytes:
            raise Unfit(f"the function is {len(command)} bytes and is sent as a broadcast variable")
        return command


class PythonJobs:
    """
    Creates the frames of a query's Python jobs, which all return rows of one schema.

    Thread: Spark's thread of the query.
    """

    def __init__(self, output: StructType | str) -> None:
        self._output = output
        self._templates: dict[Hashable, _Template | None] = {}

    def frame(
        self, rows: DataFrame, function: ArrowFunction, columns: Hashable, *, tasks: int
    ) -> DataFrame:
        """Return the frame that `rows.mapInArrow(function, output)` would return."""

        def made() -> DataFrame | None:
            if columns not in self._templates:
                self._templates[columns] = None  # unless it can be made
                self._templates[columns] = _template(rows, function, self._output)
            template = self._templates[columns]
            return None if template is None else template.frame(rows, function, tasks)

        frame = attempt(Trick.PYTHON_JOBS, rows.sparkSession, made)
        return rows.mapInArrow(function, self._output) if frame is None else frame


def _environment(rows: DataFrame) -> tuple[dict[str, str], list[str]]:
    context = rows.sparkSession.sparkContext
    return dict(context.environment), list(context._python_includes or ())


def _template(rows: DataFrame, function: ArrowFunction, output: StructType | str) -> _Template:
    """Return the part that later jobs can reuse; reject sessions where PySpark does more."""
    context = rows.sparkSession.sparkContext
    if context.profiler_collector is not None:
        raise Unfit("a profiler is active")
    kind: Any = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf: JavaObject = pandas_udf(function, output, kind)._unwrapped
    job: JavaObject = udf._judf
    first: JavaObject = job.func()
    if first.broadcastVars().size():
        raise Unfit("the function uses broadcast variables")
    jvm = jvm_of(rows.sparkSession)
    names = [col(sql_name(name)) for name in rows.columns]
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
        rest=tuple(job.productElement(index) for index in range(2, job.productArity())),
        name=udf._name,
        returns=udf.returnType,
        columns=_to_seq(context, [_to_java_column(name) for name in names]),
        environment=_environment(rows),
        most_bytes=jvm.PythonUtils.getBroadcastThreshold(context._jsc),
    )


# Read a physical plan of Spark, and copy its nodes.

SHUFFLE: Final = "Exchange"
"""The name of the node of a shuffle."""

_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def executed_plan(session: SparkSession, frame: JavaObject) -> JavaObject:
    """
    Return the physical plan of a JVM frame, without adaptive execution.

    That would hide the shuffle, decide on the number of partitions, and run the shuffle, and wait
    for it, where the rows are asked for as an RDD.
    """
    with with_setting(session, _ADAPTIVE, "false"):
        return frame.queryExecution().executedPlan()


def begin_shuffle(shuffle: JavaObject) -> None:
    """
    Start the job of a shuffle node in the background.

    `submitShuffleJob` of Spark 4 leaves that to another thread.  If the job that reads the shuffle
    is submitted before that thread comes to it, Spark's scheduler fails and ends the SparkContext.
    So the job is submitted here, in this thread.
    Source: ShuffleExchangeExec, DAGScheduler.handleMapStageSubmitted (Spark).
    """
    shuffle.mapOutputStatisticsFuture()


class PlanCopies:
    """
    Copies plan nodes, whose number of arguments depends on Spark's version.

    Source: TreeNode.makeCopy (Spark).
    """

    def __init__(self, jvm: JavaObject) -> None:
        self._new_array = jvm.java.lang.reflect.Array.newInstance
        self._object = jvm.java.lang.Class.forName("java.lang.Object")
        self._map = getattr(jvm.scala.collection.immutable, "Map$Map1")

    def arguments(self, node: JavaObject) -> JavaObject:
        """Return a node's arguments as a JVM array that its `makeCopy` accepts."""
        arguments = self._new_array(self._object, node.productArity())
        node.productIterator().copyToArray(arguments)
        return arguments

    def with_argument(self, node: JavaObject, index: int, value: JavaObject) -> JavaObject:
        """Return a copy of a node with the argument at one position replaced."""
        arguments = self.arguments(node)
        arguments[index] = value
        return node.makeCopy(arguments)

    def with_node(self, plan: JavaObject, node: JavaObject, other: JavaObject) -> JavaObject:
        """Return a copy of a plan with *node* replaced by *other*."""
        return plan.transformUp(self._map(node, other))  # a map is a partial function
