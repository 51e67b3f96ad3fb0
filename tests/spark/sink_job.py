"""
A job of several queries, each with its own kind of sink; `sink_kills` kills it.

Usage: python sink_job.py FOLDER TASKS SINK-DELIVERY...
"""

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.spark import processors
from tests.spark.delta_stand_in import DeltaStandIn
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import workers_get_by_value

from statelog.spark import idempotent, transform_with_state, writer_id

COLUMNS = ("key", "total", "rows")


def session(folder: Path) -> SparkSession:
    """Start Spark for one run."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("sinks")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.streaming.fileSink.log.cleanupDelay", "0")
        .config("spark.sql.streaming.minBatchesToRetain", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def transactional(path: str) -> Callable[[DataFrame, int], object]:
    """Return the recipe of a database: rows and batch in one transaction."""
    with sqlite3.connect(path) as database:
        database.execute("create table if not exists totals (key, total, rows)")
        database.execute(
            "create table if not exists batches (writer, batch, primary key (writer, batch))"
        )

    def written(writer: str, batch_id: int) -> bool:
        with sqlite3.connect(path) as database:
            found = database.execute(
                "select 1 from batches where writer = ? and batch = ?", (writer, batch_id)
            )
            return found.fetchone() is not None

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [tuple(row) for row in frame.select(*COLUMNS).collect()]
        with sqlite3.connect(path) as database:
            database.executemany("insert into totals values (?, ?, ?)", rows)
            database.execute("insert into batches values (?, ?)", (writer_id(frame), batch_id))

    return idempotent(write, written=written)


def start(spark: SparkSession, folder: Path, sink: str, delivery: str, tasks: int) -> Any:
    """Start a query over all input."""
    stream = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(folder / "input")).groupBy("key")
    out = transform_with_state(frame, Totals(), TOTALS, delivery=delivery, tasks=tasks)
    writer = out.writeStream.option("checkpointLocation", str(folder / "query"))
    writer = writer.trigger(availableNow=True)
    place = str(folder / "output")
    if sink == "table":
        writer = writer.option("path", place).partitionBy("key")
        return writer.toTable(f"totals_{delivery}", format="parquet")
    if sink == "sqlite":
        return writer.foreachBatch(transactional(place)).start()
    if sink == "csv":
        return writer.partitionBy("key").start(place, format="csv")
    return writer.start(place, format=sink)


def read(spark: SparkSession, folder: Path, sink: str, delivery: str) -> list[tuple[Any, ...]]:
    """Return the rows that the sink has."""
    place = str(folder / "output")
    if sink == "sqlite":
        with sqlite3.connect(place) as database:
            return database.execute("select key, total, rows from totals").fetchall()
    if sink == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(place).to_pyarrow_table().to_pylist()
        return [tuple(row[name] for name in COLUMNS) for row in rows]
    if sink == "table":
        frame = spark.table(f"totals_{delivery}")
    elif sink == "csv":
        frame = spark.read.schema("total bigint, rows bigint, key bigint").csv(place)
    else:
        frame = spark.read.format(sink).schema(TOTALS).load(place)
    return [tuple(row) for row in frame.select(*COLUMNS).collect()]


def main() -> None:
    """Run to the end of all input, then write down the rows of each sink."""
    folder, tasks = Path(sys.argv[1]), int(sys.argv[2])
    sinks = [(folder / name, *name.split("-")) for name in sys.argv[3:]]
    spark = session(folder)
    workers_get_by_value(processors.__name__)
    if any(sink == "delta" for _, sink, _ in sinks):
        spark.dataSource.register(DeltaStandIn)
    queries = [start(spark, place, sink, delivery, tasks) for place, sink, delivery in sinks]
    print("started", flush=True)
    for query in queries:
        query.awaitTermination()
    for place, sink, delivery in sinks:
        rows = sorted(read(spark, place, sink, delivery))
        (place / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main()
