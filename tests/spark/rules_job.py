"""A job with a broadcast table that changes at each read, as a program that a test kills; its argument is a folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from tests.spark import processors
from tests.spark.killed_jobs import session
from tests.spark.processors import INPUT, Totals
from tests.spark.streams import BatchSource, workers_get_by_value

from statelog.spark import transform_with_state

workers_get_by_value(processors.__name__)
workers_get_by_value(__name__)


class Rated(Totals):
    """Yields the factor of its rules."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.rules = handle.broadcast("rules")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(key=row.key, total=row.total, factor=self.rules.rows[0].factor)


def run(spark: SparkSession, folder: Path, **options: Any) -> None:
    """Run the job over all micro-batches there are; the factor is the number of reads of the rules."""

    def rules() -> list[Row]:
        file = folder / "reads"
        count = int(file.read_text() if file.exists() else 0) + 1
        file.write_text(str(count))
        return [Row(factor=count)]

    def write(frame: DataFrame, batch_id: int) -> None:
        factors = sorted({row.factor for row in frame.collect()})
        (folder / "out" / str(batch_id)).write_text(json.dumps(factors))

    (folder / "out").mkdir(exist_ok=True)
    stream = transform_with_state(
        BatchSource(spark, folder / "in", INPUT).frame().groupBy("key"),
        Rated(),
        "key long, total long, factor long",
        stateLocation=str(folder / "state"),
        tasks=2,
        broadcast={"rules": rules},
        **options,
    )
    writer = stream.writeStream.option("checkpointLocation", str(folder / "query"))
    writer.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()


def main(folder: Path) -> None:
    run(session(), folder, delivery=os.environ.get("DELIVERY", "staged"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
