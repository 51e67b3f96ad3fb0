"""Two drivers of one query: one that cannot go on is refused, and the rightful one never notices."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.spark import processors
from tests.spark.checkpoint_files import in_order
from tests.spark.processors import INPUT, TOTALS, Totals, TotalsModel
from tests.spark.streams import BatchSource, Job, wait, workers_get_by_value
from tests.support.locations.sequence_entries import claims

workers_get_by_value(processors.__name__)

ROOT = Path(__file__).resolve().parents[2]
BATCHES = [[(1, 10), (2, 20)], [(1, 1), (3, 30)], [(2, 2)], [(1, 5), (4, 4)]]
PATIENCE_SECONDS = 120


def until(job: Job, batches: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(job.delivered) < batches:
        assert time.monotonic() < deadline, f"{len(job.delivered)} of {batches} batches came"
        time.sleep(0.05)


def second_driver(folder: Path, query: Path) -> str:
    """Run the job in a process and a JVM of its own; return what it failed with."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder), str(query)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def main(folder: Path, query: Path) -> None:
    """Be the second driver."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    try:
        job = Job(BatchSource(spark, folder / "in", INPUT), folder, ["key"], Totals(), TOTALS)
        job.run(checkpointLocation=str(query))
        print("it ran")
    except StreamingQueryException as error:
        print(f"refused: {error}")
    finally:
        spark.stop()


def test_a_second_driver_that_cannot_go_on_is_refused_and_the_first_goes_on_committing(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(BatchSource(spark, tmp_path / "in", INPUT), tmp_path, ["key"], Totals(), TOTALS)
    model = TotalsModel()
    job.source.add(BATCHES[0])
    job.run()
    query = job.start(trigger={"processingTime": "100 milliseconds"})
    try:
        stale = tmp_path / "stale"
        shutil.copytree(tmp_path / "query", stale)
        for rows in BATCHES[1:3]:
            job.source.add(rows)
        until(job, 3)
        claimed = claims(job.state)
        said = second_driver(tmp_path, stale)
        assert "refused" in said, said
        assert "statelog rewind" in said
        assert claimed == claims(job.state)
        job.source.add(BATCHES[3])
        until(job, 4)
        query.processAllAvailable()  # Spark's own commit too: else a restart delivers it again
    finally:
        query.stop()
    assert query.exception() is None
    job.source.add([(9, 9)])
    wait(job.start())
    expected = [model.apply(rows) for rows in [*BATCHES, [(9, 9)]]]
    assert expected == [in_order(rows) for rows in job.take()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
