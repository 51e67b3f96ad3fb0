"""Queries on a Connect session; what they deliver is in files, because the sink runs in the server."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.processors import INPUT, TOTALS, Totals
from tests.support.spark.streams import BatchSource, Job, in_order, wait


class Deliveries:
    """A sink with one file for each micro-batch; a batch that comes again has to be the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = json.dumps(sorted(frame.toArrow().to_pylist(), key=repr), default=str)
        os.makedirs(self.folder, exist_ok=True)
        path = f"{self.folder}/{batch_id:05}.json"
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                assert file.read() == rows, f"batch {batch_id} was delivered with other rows"
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(rows)
        os.replace(f"{path}.new", path)

    def batches(self) -> list[list[dict[str, Any]]]:
        """Return the rows of the micro-batches that have any, in their order."""
        files = sorted(Path(self.folder).glob("*.json"))
        return [rows for file in files if (rows := json.loads(file.read_text()))]

    def in_order(self) -> list[list[tuple[Any, ...]]]:
        """Return the values of the rows, each micro-batch in order."""
        return [in_order(row.values() for row in rows) for rows in self.batches()]


@dataclass
class ConnectJob(Job):
    """
    A job on a Connect session.

    Args:
        steps: The steps after the operator.
        checkpoint: The checkpointLocation, if it is not in the job's folder.
    """

    steps: Callable[[DataFrame], DataFrame] = lambda frame: frame
    checkpoint: str = ""

    @property
    def sink(self) -> Deliveries:
        return Deliveries(self.folder / "out")

    def stream(self, **changes: Any) -> DataFrame:
        """Return the output of the operator with the steps behind it."""
        return self.steps(super().stream(**changes))

    def start(self, sink: Any = None, trigger: Any = None, **changes: Any) -> Any:
        writer = self.stream(**changes).writeStream
        return (
            writer.foreachBatch(sink or self.sink)
            .option("checkpointLocation", self.checkpoint or str(self.query))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )


def connect_job(session: SparkSession, folder: Path, processor: Any = None) -> ConnectJob:
    """Return a job of two tasks that adds up amounts by key."""
    source = BatchSource(session, folder / "in", INPUT)
    return ConnectJob(source, folder, ["key"], processor or Totals(), TOTALS, {"tasks": 2})


def deliver(frame: DataFrame, folder: Path, mode: str = "update") -> Deliveries:
    """Run a query over all input there is, and return its sink; all it writes is in *folder*."""
    sink = Deliveries(folder / "out")
    writer = frame.writeStream.outputMode(mode).foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(folder / "query"))
    wait(writer.trigger(availableNow=True).start())
    return sink
