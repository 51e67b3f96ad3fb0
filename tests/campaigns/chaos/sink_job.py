"""
A job of several queries, each with its own sink and delivery; `sink_kills` kills it.

Usage: python -m tests.campaigns.chaos.sink_job FOLDER PLAN, where PLAN is the JSON of a `Plan`.
"""

import contextlib
import dataclasses
import functools
import json
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests.campaigns.chaos.request_log import log_requests_if_asked
from tests.campaigns.chaos.sink_places import (
    TRANSACTIONAL,
    catalog_of,
    connection_of,
    table_of,
    topic_of,
)
from tests.campaigns.chaos.sink_session import open_session
from tests.support.spark.delta_stand_in import DeltaStandIn
from tests.support.spark.processors import INPUT, TOTALS, Totals

from statelog.checkpoint import coordinator
from statelog.extensions.sinks import database, iceberg, kafka
from statelog.spark import (
    DatabaseSink,
    ExactlyOnceSink,
    IcebergSink,
    KafkaSink,
    exactly_once,
    transform_with_state,
)
from statelog.spark.driver import delivery as deliveries
from statelog.spark.driver import engine
from statelog.spark.stream.sinks import exactly_once_sink, file_sink

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
        servers: Addresses by sink.
    """

    queries: list[str]
    catalog: str = "in-memory"
    tasks: int = 2
    stops: dict[str, tuple[str, int]] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Stops:
    """
    Lets each query stop at a fail point of its own, in the middle of a micro-batch.

    One kill then finds all queries where they were wanted.
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
        sinks = (file_sink, exactly_once_sink, database, iceberg, kafka)
        for module in (coordinator, engine, deliveries, *sinks):
            assert hasattr(module, "fail_point")
            module.fail_point = self  # type: ignore[attr-defined]


def target_sink(sink: str, folder: Path, name: str, servers: dict[str, str]) -> ExactlyOnceSink:
    """Return the sink of a query that is written to by `exactly_once`; make its target."""
    if sink == "kafka":
        return KafkaSink(topic_of(name), {"bootstrap.servers": servers[sink]})
    if sink == "iceberg":
        properties = catalog_of(folder)
        with load_catalog("chaos", **properties) as catalog:
            catalog.create_namespace_if_not_exists("chaos")
        return IcebergSink(table_of(name), catalog="chaos", catalog_options=properties)
    connect = connection_of(sink, folder / name / "output", servers)
    with contextlib.closing(connect()) as connection:
        connection.cursor().execute(
            f"create table if not exists {table_of(name, sink)} (key bigint, total bigint, rows bigint)"
        )
        connection.commit()
    return DatabaseSink(connect, table_of(name, sink))


def start(spark: SparkSession, folder: Path, name: str, plan: Plan) -> Any:
    """Start a query over all input."""
    sink, delivery = name.split("-")
    stream = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(folder / "input")).groupBy("key")
    out = transform_with_state(frame, Totals(), TOTALS, delivery=delivery, tasks=plan.tasks)
    if sink == "kafka":
        out = out.selectExpr("string(key) AS key", "to_json(struct(*)) AS value")
    writer = out.writeStream.option("checkpointLocation", str(folder / name / "query"))
    writer = writer.trigger(availableNow=True)
    place = str(folder / name / "output")
    if sink == "table":
        if plan.catalog == "in-memory":  # which does not know the table of the run before
            writer = writer.option("path", place)
        return writer.partitionBy("key").toTable(f"totals_{delivery}", format="parquet")
    if sink in TRANSACTIONAL:
        target = target_sink(sink, folder, name, plan.servers)
        return writer.foreachBatch(exactly_once(target)).start()
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
    spark.dataSource.register(DeltaStandIn)
    queries = [start(spark, folder, name, plan) for name in plan.queries]
    print(STARTED, flush=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
