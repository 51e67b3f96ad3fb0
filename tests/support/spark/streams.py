"""Streams whose micro-batches a test writes, and the queries that run over them."""

import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.spark.versions import pandas_operator, row_operator

from statelog.spark import (
    BatchProgress,
    StatefulProcessor,
    disable,
    enable,
    transform_with_state,
    transform_with_state_in_pandas,
)
from statelog.spark.rows.spark_versions import parsed_ddl
from statelog.spark.rows.types import arrow_schema

# Processors and sinks of tests are shipped whole, so that workers need not import the tests.
for package in ("tests.spark", "tests.support.spark"):
    cloudpickle.register_pickle_by_value(importlib.import_module(package))

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ON_ROCKSDB = {PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
"""What Spark's own operator needs."""
WITHOUT_NO_DATA = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""In the time mode ProcessingTime Spark would run batches without data for ever."""
FREQUENT_SNAPSHOTS = {
    "snapshot.min-log-size": 1,
    "snapshot.log-to-snapshot-ratio": 0.01,
    "snapshot.max-log-handles": 2,
}
TIMEOUT_SECONDS = 120

Rows = Sequence[tuple[Any, ...] | Mapping[str, Any]]
"""The rows of one micro-batch."""


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give a session some settings, and those that it had before at the end."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


@contextmanager
def enabled(spark: SparkSession) -> Iterator[None]:
    """Let Spark's own calls run on statelog, with the state next to each query's checkpoint."""
    with configured(spark, {"spark.statelog.baseLocation": "checkpoint"}):
        enable(spark)
        try:
            yield
        finally:
            disable(spark)


class BatchSource:
    """A folder of Parquet files; each is one micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str) -> None:
        self.spark = spark
        self.folder = folder
        self.schema: Any = parsed_ddl(spark, schema)
        self._arrow: pa.Schema = arrow_schema(self.schema)
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, rows: Rows) -> None:
        """Append one micro-batch; no rows make an empty one."""
        names = self._arrow.names
        records = [
            dict(row) if isinstance(row, Mapping) else dict(zip(names, row, strict=True))
            for row in rows
        ]
        self.count += 1
        hidden = self.folder / f".{self.count:05}.parquet"
        pq.write_table(pa.Table.from_pylist(records, schema=self._arrow), hidden)
        os.utime(hidden, (1_600_000_000 + self.count,) * 2)  # Spark takes files in this order
        hidden.rename(self.folder / hidden.name[1:])

    def add_all(self, batches: Iterable[Rows]) -> None:
        for rows in batches:
            self.add(rows)

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder))


@dataclass
class Job:
    """
    One streaming query that is run, stopped and run again.

    Args:
        source: Its input.
        folder: Of its checkpointLocation and its state.
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

    @property
    def query(self) -> Path:
        """The checkpointLocation."""
        return self.folder / "query"

    def stream(self, **changes: Any) -> DataFrame:
        """Return the output of the operator, with changed arguments if wanted."""
        arguments = {"stateLocation": str(self.state), **self.options, **changes}
        keys = arguments.pop("keys", self.keys)
        processor = arguments.pop("processor", self.processor)
        output = arguments.pop("output", self.output)
        transform = arguments.pop("transform", transform_with_state)
        return transform(self.source.frame().groupBy(*keys), processor, output, **arguments)

    def start(
        self, sink: Callable[[DataFrame, int], Any] | None = None, **changes: Any
    ) -> StreamingQuery:
        """Start the query over all batches there are, with changed arguments if wanted."""
        checkpoint = changes.pop("checkpointLocation", str(self.query))
        trigger = changes.pop("trigger", {"availableNow": True})
        stream = self.stream(**{"on_progress": self.progress.append, **changes})
        writer = stream.writeStream.option("checkpointLocation", checkpoint)
        return writer.foreachBatch(sink or self.collect).trigger(**trigger).start()

    def run(self, sink: Callable[[DataFrame, int], Any] | None = None, **changes: Any) -> Any:
        """Run the query over all batches there are, and return it; raises what it failed with."""
        query = self.start(sink, **changes)
        wait(query)
        return query

    def run_each(self, batches: Iterable[Rows], **changes: Any) -> None:
        """Add micro-batches, and run the query over each by itself."""
        for rows in batches:
            self.source.add(rows)
            self.run(**changes)

    def collect(self, frame: DataFrame, batch_id: int) -> None:
        self.delivered.append((batch_id, frame.collect()))

    def take(self) -> list[list[Row]]:
        """Return the rows delivered since the last call, batch by batch."""
        batches = [rows for _, rows in self.delivered]
        self.delivered = []
        return batches

    def take_in_order(self) -> list[list[tuple[Any, ...]]]:
        """Return the rows delivered since the last call, batch by batch, each batch in order."""
        return [in_order(rows) for rows in self.take()]


def in_order(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows), key=repr)


def run_to_end(frame: DataFrame, checkpoint: Path, mode: str | None = None) -> list[list[Row]]:
    """Run a query over all input there is; return the rows of each micro-batch."""
    batches: list[list[Row]] = []
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
    if mode is not None:
        writer = writer.outputMode(mode)
    writer = writer.foreachBatch(lambda rows, _: batches.append(rows.collect()))
    wait(writer.trigger(availableNow=True).start())
    return batches


def run_on_spark(job: Job, time_mode: str = "None", initial: Any = None) -> list[list[Row]]:
    """Run a job's input through Spark's own transformWithState; return rows batch by batch."""
    with configured(job.source.spark, ON_ROCKSDB | WITHOUT_NO_DATA):
        stream = job.source.frame().groupBy(*job.keys)
        pandas = job.options.get("transform") is transform_with_state_in_pandas
        transform = pandas_operator(stream) if pandas else row_operator(stream)
        frame = transform(job.processor, job.output, "Update", time_mode, initial)
        return run_to_end(frame, job.folder / "spark", "Update")


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
        time.sleep(0.05)
    return answer
