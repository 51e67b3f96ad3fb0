"""A sink that stores each micro-batch once, and records each delivery of it."""

import hashlib
import json
import logging
import os
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from statelog.spark.rows.spark_versions import arrow_of
from statelog.spark.rows.types import arrow_schema

DELIVERIES = "_deliveries.jsonl"


def log_everything() -> None:
    """Log what statelog does, which the campaigns read."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)


class BatchFiles:
    """
    A sink with one file per micro-batch.

    A batch that is delivered twice is stored once.  Every delivery is also logged in
    `_deliveries.jsonl`, to find out whether a batch was delivered twice, and with the same rows.
    """

    def __init__(self, folder: Path, order: str = "customer") -> None:
        self._folder = folder
        self._order = order

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = arrow_of(frame, arrow_schema(frame.schema)).sort_by(self._order).combine_chunks()
        folder = self._folder / f"batch={batch_id}"
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".rows.{os.getpid()}"
        pq.write_table(rows, temporary)
        os.replace(temporary, folder / "rows.parquet")
        digest = hashlib.sha256(repr(rows.to_pylist()).encode()).hexdigest()
        line = {"batch": batch_id, "rows": rows.num_rows, "digest": digest}
        with open(self._folder / DELIVERIES, "a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
