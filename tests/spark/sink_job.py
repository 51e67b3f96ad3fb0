"""
A job that writes running totals to one kind of sink; `sink_kills` kills it.

Usage: python sink_job.py FOLDER SINK DELIVERY TASKS
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
SINKS = ("parquet", "json", "csv", "table", "delta", "sqlite")


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
    spark.dataSource.register(DeltaStandIn)
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


def run(spark: SparkSession, folder: Path, sink: str, delivery: str, tasks: int) -> None:
    """Run the query over all input."""
    workers_get_by_value(processors.__name__)
    stream = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(folder / "input")).groupBy("key")
    out = transform_with_state(frame, Totals(), TOTALS, delivery=delivery, tasks=tasks)
    writer = out.writeStream.option("checkpointLocation", str(folder / "query"))
    writer = writer.trigger(availableNow=True)
    place = str(folder / "output")
    if sink == "table":
        query = writer.option("path", place).partitionBy("key").toTable("totals", format="parquet")
    elif sink == "sqlite":
        query = writer.foreachBatch(transactional(place)).start()
    elif sink == "csv":
        query = writer.partitionBy("key").start(place, format="csv")
    else:
        query = writer.start(place, format=sink)
    query.awaitTermination()


def read(spark: SparkSession, folder: Path, sink: str) -> list[tuple[Any, ...]]:
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
        frame = spark.table("totals")
    elif sink == "csv":
        frame = spark.read.schema("total bigint, rows bigint, key bigint").csv(place)
    else:
        frame = spark.read.format(sink).schema(TOTALS).load(place)
    return [tuple(row) for row in frame.select(*COLUMNS).collect()]


def main() -> None:
    """Run to the end of the input, then write down the rows of the sink."""
    folder, sink, delivery, tasks = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    spark = session(folder)
    print("started", flush=True)
    run(spark, folder, sink, delivery, tasks)
    rows = sorted(read(spark, folder, sink))
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main()
