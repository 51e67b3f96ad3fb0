"""Streams whose micro-batches a test writes down, and the queries that run over them."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.versions import pandas_operator, row_operator

from statelog.spark import (
    BatchProgress,
    StatefulProcessor,
    transform_with_state,
    transform_with_state_in_pandas,
)
from statelog.spark.rows.spark_versions import parsed_ddl
from statelog.spark.rows.types import arrow_schema

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TIMEOUT_SECONDS = 120


def workers_get_by_value(module: str) -> None:
    """Ship a test module's processors whole, so that workers need not find the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[module])


class BatchSource:
    """A folder of Parquet files; each is one micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str) -> None:
        self.spark = spark
        self.folder = folder
        self.schema: Any = parsed_ddl(spark, schema)
        self._arrow: pa.Schema = arrow_schema(self.schema)
        self._count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, rows: Sequence[tuple[Any, ...] | Mapping[str, Any]]) -> None:
        """Append one micro-batch; no rows make an empty one."""
        names = self._arrow.names
        records = [
            dict(row) if isinstance(row, Mapping) else dict(zip(names, row, strict=True))
            for row in rows
        ]
        self._count += 1
        hidden = self.folder / f".{self._count:05}.parquet"
        pq.write_table(pa.Table.from_pylist(records, schema=self._arrow), hidden)
        os.utime(hidden, (1_600_000_000 + self._count,) * 2)  # Spark takes files in this order
        hidden.rename(self.folder / hidden.name[1:])

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder))


@dataclass
class Job:
    """
    One streaming query that is run, stopped and run again.

    Args:
        source: Its input.
        folder: Where checkpointLocation and state lie.
        keys: What to group by.
        processor: The processor.
        output: DDL of the output.
        options: More arguments of `transform_with_state`.
    """

    source: BatchSource
    folder: Path
    keys: Sequence[Any]
    processor: StatefulProcessor
    output: str
    options: dict[str, Any] = field(default_factory=dict)
    delivered: list[tuple[int, list[Row]]] = field(default_factory=list)
    progress: list[BatchProgress] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(
        self, sink: Callable[[DataFrame, int], Any] | None = None, **changes: Any
    ) -> StreamingQuery:
        """Start the query over all batches there are, with changed arguments if wanted."""
        arguments = {
            "on_progress": self.progress.append,
            "stateLocation": str(self.state),
            **self.options,
            **changes,
        }
        checkpoint = arguments.pop("checkpointLocation", str(self.folder / "query"))
        processor = arguments.pop("processor", self.processor)
        keys = arguments.pop("keys", self.keys)
        output = arguments.pop("output", self.output)
        trigger = arguments.pop("trigger", {"availableNow": True})
        transform = arguments.pop("transform", transform_with_state)
        stream = transform(self.source.frame().groupBy(*keys), processor, output, **arguments)
        writer = stream.writeStream.option("checkpointLocation", checkpoint)
        return writer.foreachBatch(sink or self.collect).trigger(**trigger).start()

    def run(self, sink: Callable[[DataFrame, int], Any] | None = None, **changes: Any) -> None:
        """Run the query over all batches there are; raises what it failed with."""
        wait(self.start(sink, **changes))

    def collect(self, frame: DataFrame, batch_id: int) -> None:
        self.delivered.append((batch_id, frame.collect()))

    def take(self) -> list[list[Row]]:
        """Return the rows delivered since the last call, batch by batch."""
        batches = [rows for _, rows in self.delivered]
        self.delivered = []
        return batches


def run_on_spark(job: Job, time_mode: str = "None", initial: Any = None) -> list[list[Row]]:
    """Run a job's input through Spark's own transformWithState; return rows batch by batch."""
    batches: list[list[Row]] = []
    spark = job.source.spark
    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # In the time mode ProcessingTime Spark would run batches without data for ever.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        stream = job.source.frame().groupBy(*job.keys)
        pandas = job.options.get("transform") is transform_with_state_in_pandas
        transform = pandas_operator(stream) if pandas else row_operator(stream)
        frame = transform(job.processor, job.output, "Update", time_mode, initial)
        query = (
            frame.writeStream.outputMode("Update")
            .option("checkpointLocation", str(job.folder / "spark"))
            .foreachBatch(lambda batch, _: batches.append(batch.collect()))
            .trigger(availableNow=True)
            .start()
        )
        wait(query)
    finally:
        for name in settings:
            spark.conf.unset(name)
    return batches


def wait(query: StreamingQuery) -> None:
    """Wait for a query's end; raises what it failed with."""
    try:
        assert query.awaitTermination(TIMEOUT_SECONDS), "the query hangs"
    finally:
        query.stop()


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds, and return what it returned."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.1)
    return answer
