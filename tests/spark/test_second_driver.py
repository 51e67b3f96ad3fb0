"""Two drivers of one query: one that cannot go on is refused, and the rightful one never notices."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.house.sources import ROOT
from tests.support.locations.sequence_entries import claims
from tests.support.spark.processors import totals_job, totals_of
from tests.support.spark.streams import until

BATCHES = [[(1, 10), (2, 20)], [(1, 1), (3, 30)], [(2, 2)], [(1, 5), (4, 4)]]
PATIENCE_SECONDS = 120


def second_driver(folder: Path, query: Path) -> str:
    """Run the job in a process and a JVM of its own; return what it failed with."""
    driver = subprocess.run(
        [sys.executable, __file__, str(folder), str(query)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert 0 == driver.returncode, driver.stderr
    return driver.stdout


def main(folder: Path, query: Path) -> None:
    """Be the second driver."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    try:
        job = totals_job(spark, folder)
        job.run(checkpointLocation=str(query))
        print("it ran")
    except StreamingQueryException as error:
        print(f"refused: {error}")
    finally:
        spark.stop()


def test_a_second_driver_that_cannot_go_on_is_refused_and_the_first_goes_on_committing(
    job, tmp_path
):
    job.source.add(BATCHES[0])
    job.run()
    query = job.start(trigger={"processingTime": "100 milliseconds"})
    try:
        stale = tmp_path / "stale"
        shutil.copytree(job.query, stale)
        job.source.add_all(BATCHES[1:3])
        until(lambda: len(job.delivered) == 3, "batch 3")
        claimed = claims(job.state)
        message = second_driver(tmp_path, stale)
        assert "refused" in message, message
        assert "statelog rewind" in message
        assert claimed == claims(job.state)
        job.source.add(BATCHES[3])
        until(lambda: len(job.delivered) == 4, "batch 4")
        query.processAllAvailable()  # Spark's own commit too: else a restart delivers it again
    finally:
        query.stop()
    assert query.exception() is None
    job.source.add([(9, 9)])
    job.run()
    assert totals_of([*BATCHES, [(9, 9)]]) == job.take_in_order()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
