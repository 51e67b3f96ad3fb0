"""
A job of several queries, each with its own sink and delivery; `sink_kills` kills it.

Usage: python -m tests.chaos.sink_job FOLDER PLAN, where PLAN is the JSON of a `Plan`.
"""

import dataclasses
import functools
import json
import sqlite3
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from tests.chaos.request_log import log_requests_if_asked
from tests.chaos.sink_session import open_session
from tests.spark import processors
from tests.spark.delta_stand_in import DeltaStandIn
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import workers_get_by_value

from statelog.checkpoint import coordinator
from statelog.spark import idempotent, transform_with_state, writer_id
from statelog.spark.driver import engine
from statelog.spark.driver.delivery import direct, staged
from statelog.spark.stream.sinks import file_sink

COLUMNS = ("key", "total", "rows")
STARTED = "all queries have started"
STOPPED = "all queries have stopped"


@dataclass(frozen=True)
class Plan:
    """
    What one run of the job does.

    Args:
        queries: Names of sink and delivery, such as "parquet-staged".
        catalog: "in-memory" or "hive".
        tasks: Tasks of a micro-batch.
        stops: For each query the fail point at which it stops and waits for its end, and the hit.
    """

    queries: list[str]
    catalog: str = "in-memory"
    tasks: int = 2
    stops: dict[str, tuple[str, int]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the JSON form."""
        return json.dumps(dataclasses.asdict(self))


class Stops:
    """
    Lets each query stop at a fail point of its own, in the middle of a micro-batch.

    One kill then finds all queries where they were wanted.

    Args:
        folder: The job's.
        wanted: See `Plan`.
    """

    def __init__(self, folder: Path, wanted: dict[str, tuple[str, int]]) -> None:
        self._folder = folder
        self._left = {name: [point, hit] for name, (point, hit) in wanted.items()}
        self._guard = threading.Lock()
        self._waiting = 0

    def __call__(self, point: str) -> None:
        """Take the place of `fail_point`; it is called in the thread of a query."""
        context = SparkContext._active_spark_context
        assert context is not None
        query = self._name_of(context.getLocalProperty("sql.streaming.queryId"))
        with self._guard:
            left = self._left[query]
            if left[0] != point:
                return
            left[1] -= 1
            if left[1] > 0:
                return
            self._waiting += 1
            if self._waiting == len(self._left):
                print(STOPPED, flush=True)
        threading.Event().wait()

    @functools.cache  # noqa: B019 -- there is one object
    def _name_of(self, query_id: str) -> str:
        for name in self._left:
            metadata = self._folder / name / "query" / "metadata"
            if metadata.exists() and query_id in metadata.read_text(encoding="utf-8"):
                return name
        raise AssertionError(f"no query has the id {query_id}")

    def install(self) -> None:
        """Replace `fail_point` in the modules that a micro-batch goes through."""
        for module in (coordinator, engine, staged, direct, file_sink):
            assert hasattr(module, "fail_point")
            module.fail_point = self  # type: ignore[attr-defined]


def transactional(path: str) -> Callable[[DataFrame, int], object]:
    """Return the recipe of a database: rows and batch in one transaction."""
    with sqlite3.connect(path) as database:
        database.execute("create table if not exists totals (key, total, rows)")
        database.execute(
            "create table if not exists batches (writer, batch, primary key (writer, batch))"
        )

    def written(writer: str, batch_id: int) -> bool:
        with sqlite3.connect(path) as database:
            query = "select 1 from batches where writer = ? and batch = ?"
            return database.execute(query, (writer, batch_id)).fetchone() is not None

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [tuple(row) for row in frame.select(*COLUMNS).collect()]
        with sqlite3.connect(path) as database:  # one transaction
            database.executemany("insert into totals values (?, ?, ?)", rows)
            database.execute("insert into batches values (?, ?)", (writer_id(frame), batch_id))

    return idempotent(write, written=written)


def start(spark: SparkSession, folder: Path, name: str, plan: Plan) -> Any:
    """Start a query over all input."""
    sink, delivery = name.split("-")
    stream = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(folder / "input")).groupBy("key")
    out = transform_with_state(frame, Totals(), TOTALS, delivery=delivery, tasks=plan.tasks)
    writer = out.writeStream.option("checkpointLocation", str(folder / name / "query"))
    writer = writer.trigger(availableNow=True)
    place = str(folder / name / "output")
    if sink == "table":
        if plan.catalog == "in-memory":  # which does not know the table of the run before
            writer = writer.option("path", place)
        return writer.partitionBy("key").toTable(f"totals_{delivery}", format="parquet")
    if sink == "sqlite":
        return writer.foreachBatch(transactional(place)).start()
    if sink == "csv":
        writer = writer.partitionBy("key")
    return writer.start(place, format=sink)


def main() -> None:
    """Run to the end of all input, or to the stops."""
    folder, plan = Path(sys.argv[1]), Plan(**json.loads(sys.argv[2]))
    log_requests_if_asked()
    if plan.stops:
        Stops(folder, plan.stops).install()
    spark = open_session(folder, plan.catalog)
    workers_get_by_value(processors.__name__)
    spark.dataSource.register(DeltaStandIn)
    queries = [start(spark, folder, name, plan) for name in plan.queries]
    print(STARTED, flush=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
