"""A job whose input has poison rows, as a program that a test kills; its argument is a folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.spark import processors
from tests.spark.killed_jobs import session
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, workers_get_by_value

from statelog.spark import transform_with_state

POISON = -1
workers_get_by_value(processors.__name__)


def run(spark: SparkSession, folder: Path, *, is_corrected: bool) -> None:
    """Run the job over all micro-batches there are; each writes its output as a file."""

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [list(row) for row in frame.collect()]
        hidden = folder / "out" / f".{batch_id}"
        hidden.write_text(json.dumps(rows), encoding="utf-8")
        os.replace(hidden, folder / "out" / str(batch_id))

    (folder / "out").mkdir(exist_ok=True)
    stream = transform_with_state(
        BatchSource(spark, folder / "in", INPUT).frame().groupBy("key"),
        Totals(None if is_corrected else POISON),
        TOTALS,
        stateLocation=str(folder / "state"),
        onError="dead-letter",
        tasks=2,
        **{"stream.data-inline-threshold": 0},
    )
    writer = stream.writeStream.option("checkpointLocation", str(folder / "query"))
    query = writer.foreachBatch(write).trigger(availableNow=True).start()
    query.awaitTermination()


def main(folder: Path) -> None:
    run(session(), folder, is_corrected=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
