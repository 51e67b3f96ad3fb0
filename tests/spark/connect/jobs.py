"""Queries on a Connect session; what they deliver is in files, because the sink runs in the server."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from tests.spark.streams import TIMEOUT_SECONDS, BatchSource, workers_get_by_value

from statelog.spark import StatefulProcessor, transform_with_state

workers_get_by_value(__name__)
workers_get_by_value("tests.spark.streams")


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


@dataclass
class ConnectJob:
    """
    One streaming query on a Connect session, which is run and run again.

    Args:
        source: Its input.
        folder: Where checkpointLocation, state and deliveries are.
        keys: What to group by.
        processor: The processor.
        output: DDL of the output.
        options: More arguments of `transform_with_state`.
        steps: The steps after the operator.
        checkpoint: The checkpointLocation, if it is not in *folder*.
    """

    source: BatchSource
    folder: Path
    keys: Sequence[Any]
    processor: StatefulProcessor
    output: str
    options: dict[str, Any] = field(default_factory=dict)
    steps: Callable[[DataFrame], DataFrame] = lambda frame: frame

    checkpoint: str = ""

    @property
    def sink(self) -> Deliveries:
        return Deliveries(self.folder / "out")

    def stream(self, **changes: Any) -> DataFrame:
        """Return the output of the operator with the steps behind it."""
        arguments = {"stateLocation": str(self.folder / "state"), **self.options, **changes}
        transform = arguments.pop("transform", transform_with_state)
        processor = arguments.pop("processor", self.processor)
        frame = transform(
            self.source.frame().groupBy(*self.keys), processor, self.output, **arguments
        )
        return self.steps(frame)

    def start(self, sink: Any = None, trigger: Any = None, **changes: Any) -> Any:
        writer = self.stream(**changes).writeStream
        return (
            writer.foreachBatch(sink or self.sink)
            .option("checkpointLocation", self.checkpoint or str(self.folder / "query"))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def run(self, **changes: Any) -> Any:
        """Run the query over all batches there are; raises what it failed with."""
        query = self.start(**changes)
        try:
            assert query.awaitTermination(TIMEOUT_SECONDS), "the query hangs"
        finally:
            query.stop()
        return query
