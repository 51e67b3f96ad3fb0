"""The Spark session of a benchmark, and what is read of its processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.harness.results import ROOT
from pyspark.sql import SparkSession

from statelog.demo.java import prepare_environment

_STATE = "org.apache.spark.sql.execution.streaming.state."
ROCKSDB = f"{_STATE}RocksDBStateStoreProvider"
HEAP = f"{_STATE}HDFSBackedStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CORES = 2
"""Cores of a session, unless a benchmark asks for another master."""

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
    PROVIDER: ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "20000",
}


@contextmanager
def session(
    *, master: str = f"local[{CORES}]", settings: Mapping[str, str] | None = None
) -> Iterator[tuple[SparkSession, Path]]:
    """Yield a session, and a folder that is deleted with it."""
    prepare_environment()
    # Workers import the processors of a benchmark by name, as they import a job's package.
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    work = Path(tempfile.mkdtemp(prefix="statelog-bench-"))
    builder = SparkSession.builder.master(master).appName("statelog bench")
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    try:
        yield made, work
    finally:
        made.stop()
        shutil.rmtree(work, ignore_errors=True)
