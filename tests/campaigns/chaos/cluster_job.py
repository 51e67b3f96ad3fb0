"""
The job of `test_cluster_kills.py`: one query over all files, on a cluster, with its state on S3.

Run as a program with one argument, JSON: `master`, `folder`, `state`, `options` of the store, `tasks`,
`delivery`.  It writes the rows of each micro-batch to `folder/delivered/<batch>.json`, and the time
of each micro-batch to `folder/times.json` at its end.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from statelog.demo.java import prepare_environment

prepare_environment()

from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from tests.support.spark.processors import INPUT, TOTALS, Totals  # noqa: E402

from statelog.spark import BatchProgress, transform_with_state  # noqa: E402


def main(asked: dict[str, Any]) -> None:
    folder = Path(asked["folder"])
    spark = (
        SparkSession.builder.master(asked["master"])
        .appName("statelog cluster kills")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.task.maxFailures", "1000")  # a killed executor counts as a failed task
        .config("spark.stage.maxConsecutiveAttempts", "1000")
        .config("spark.excludeOnFailure.enabled", "false")
        .config("spark.speculation", "true")
        .config("spark.speculation.minTaskRuntime", "2s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
    progress: list[BatchProgress] = []
    totals = transform_with_state(
        reader.json(str(folder / "in")).groupBy("key"),
        Totals(),
        TOTALS,
        stateLocation=asked["state"],
        storageOptions=asked["options"],
        tasks=asked["tasks"],
        delivery=asked["delivery"],
        on_progress=progress.append,
    )

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(map(list, frame.collect()))
        written = folder / "delivered" / f"{batch_id}.json"
        temporary = written.with_suffix(".tmp")
        temporary.write_text(json.dumps(rows))
        temporary.replace(written)

    (folder / "delivered").mkdir(exist_ok=True)
    writer = totals.writeStream.foreachBatch(write).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "query")).start()
    query.awaitTermination()
    times = [batch["durationMs"]["triggerExecution"] for batch in query.recentProgress]
    caught_up = [dict(report.catch_up) for report in progress]
    (folder / "times.json").write_text(json.dumps({"ms": times, "catch_up": caught_up}))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
