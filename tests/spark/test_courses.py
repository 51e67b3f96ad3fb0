"""Random courses of a query whose history changes, over the sinks that Spark writes: files and Delta."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.campaigns.histories.courses import run_course
from tests.campaigns.histories.targets import COLUMNS, FilesTarget, delta_target, rows_of_plan
from tests.support.project import evidence
from tests.support.spark.delta_stand_in import DeltaStandIn

from statelog.core.delivered_batch import DeliveredBatch
from statelog.spark.jvm.frames import frame_of_arrow
from statelog.spark.query.delivery import set_batch
from statelog.spark.stream.sinks.file_sink import LOG

deltalake = pytest.importorskip("deltalake")

MANY = int(os.environ.get("STATELOG_HISTORY_COURSES_ON_SPARK", "20"))
_QUERY_ID = "sql.streaming.queryId"


def run(spark: SparkSession, seed: int, folder: Path, steps: int) -> Counter[str]:
    """Run a course whose frames, log of files and reader are Spark's."""
    from pyspark.sql.types import StringType, StructField, StructType

    context = spark.sparkContext
    schema = StructType([StructField(name, StringType()) for name in COLUMNS.names])

    def make_frame(writer: str, batch: DeliveredBatch) -> Any:
        context.setLocalProperty(_QUERY_ID, writer)
        rows = rows_of_plan(batch.plan, f"{writer} {batch.batch_id}")
        frame = frame_of_arrow(spark, rows, schema).coalesce(1)
        set_batch(frame, batch)
        return frame

    def stored(path: Path) -> list[str]:
        if not deltalake.DeltaTable.is_deltatable(str(path)):
            return []
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
        return [row["key"] for batch in query.execute("select key from t") for row in _rows(batch)]

    folder.mkdir()
    spark.dataSource.register(DeltaStandIn)
    targets = {
        "files on Spark": FilesTarget(folder / "files", make_frame, spark, logged_rows),
        "Delta on Spark": delta_target(folder / "delta", make_frame, stored),
    }
    try:
        counts = run_course(seed, folder, targets, steps=steps)
        for path in (folder / "files").iterdir():
            read = spark.read.parquet(str(path)).collect()
            assert Counter(logged_rows(path)) == Counter((row["key"], row["value"]) for row in read)
        return counts
    finally:
        for name in (_QUERY_ID, "statelog.batch"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def logged_rows(folder: Path) -> list[tuple[str, str]]:
    """Return the rows of the files that Spark's log names: its newest compaction, and the entries after it."""
    log = folder / LOG
    names = [path.name for path in log.glob("[0-9]*")] if log.exists() else []
    compacted = max((int(name.partition(".")[0]) for name in names if "." in name), default=-1)
    rows: list[tuple[str, str]] = []
    for name in names:
        if int(name.partition(".")[0]) < compacted + ("." not in name):
            continue
        for line in (log / name).read_text().splitlines()[1:]:
            table = pq.read_table(unquote(urlparse(json.loads(line)["path"]).path))
            rows += [(row["key"], row["value"]) for row in table.to_pylist()]
    return rows


def _rows(batch: Any) -> list[dict[str, Any]]:
    return pa.record_batch(batch).to_pylist()


def test_each_row_is_written_once_or_refused(spark, tmp_path):
    run(spark, 1000, tmp_path / "course", steps=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_courses_on_spark(spark, tmp_path):
    totals: Counter[str] = Counter()
    seeds = range(1000, 1000 + MANY)
    with evidence.campaign(
        "histories", "files and Delta on Spark", seeds=seeds, spark=True
    ) as record:
        for seed in seeds:
            totals += run(spark, seed, tmp_path / f"course {seed}", steps=12)
            record.runs += 1
        record.counts.update(totals)
    for needed in ("rewound", "asleep", "woken and refused", "files on Spark: gap"):
        assert totals[needed], f"no course has: {needed}"
