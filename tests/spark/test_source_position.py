"""A checkpointLocation that lost files, or is older than the state, never passes for a whole one."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.support.locations.sequence_entries import claims, committed
from tests.support.spark.checkpoint_files import (
    AnySize,
    AnySizeInTime,
    forget_newest_batch,
    remove,
    replace,
)
from tests.support.spark.processors import INPUT, totals_job, totals_of
from tests.support.spark.streams import BatchSource, Job, configured

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries
from statelog.checkpoint.query_files import entries_digest, read_offsets
from statelog.core.source_position import position_of
from statelog.spark.driver.batch_times import BatchTimes, QueryTimes
from statelog.spark.jvm.files import checkpoint_files
from statelog.store import open_location

MODES: dict[str, tuple[dict[str, Any], bool]] = {
    "log kept": ({}, False),
    "log lost": ({}, True),
    "batches without data, log lost": ({"noDataBatches": True}, True),
    "processing time, log lost": ({"timeMode": "ProcessingTime"}, True),
    "event time, direct": ({"timeMode": "EventTime", "delivery": "direct"}, False),
}
"""Settings of the query, and whether the log of its source is lost with the batch."""
BATCHES = [[(1, 10), (2, 20)], [(1, 1), (3, 30)], [(2, 2)], [(1, 5), (4, 4)], [(4, 1)]]
REMEDY = r"statelog rewind .*/query --state-location .*/state. lists.*checkpointLocation and adopt="


def a_job(spark: SparkSession, folder: Path, options: dict[str, Any]) -> Job:
    kind = AnySizeInTime if options.get("timeMode") == "EventTime" else AnySize
    return totals_job(spark, folder, kind=kind, **options)


def record_of(job: Job) -> BatchRecord:
    newest_entry = Entries(open_location(str(job.state))).newest()
    assert newest_entry is not None
    return BatchRecord.of(newest_entry)


def refused(job: Job, message: str, **changes: Any) -> None:
    """Run the job and check that it is refused, with nothing changed and nothing delivered."""
    before = claims(job.state), committed(job.state)
    delivered = len(job.delivered)
    with pytest.raises(StreamingQueryException, match=message) as raised:
        job.run(**changes)
    assert re.search(REMEDY, str(raised.value), re.DOTALL)
    assert before == (claims(job.state), committed(job.state))
    assert delivered == len(job.delivered)


@pytest.mark.parametrize(("options", "is_log_lost"), MODES.values(), ids=MODES)
def test_a_batch_that_is_planned_anew_is_refused_and_with_its_files_back_goes_on(
    spark, tmp_path, options, is_log_lost
):
    job = a_job(spark, tmp_path, options)
    job.run_each(BATCHES[:3])
    query = tmp_path / "query"
    shutil.copytree(query, tmp_path / "whole")
    forget_newest_batch(query, sources=is_log_lost)
    job.source.add(BATCHES[3])
    refused(job, r"planned batch \d+ again: it covers different input")
    replace(query, tmp_path / "whole")
    job.run(delivery="staged")
    assert totals_of(BATCHES[:4]) == [rows for rows in job.take_in_order() if rows]


def test_a_batch_planned_again_as_before_is_accepted(spark, tmp_path):
    job = a_job(spark, tmp_path, {})
    job.run_each(BATCHES[:2])
    forget_newest_batch(job.query, sources=True)
    job.run()
    job.source.add(BATCHES[2])
    job.run()
    expected = totals_of(BATCHES[:3])
    assert [*expected[:2], *expected[1:]] == job.take_in_order()


@pytest.mark.parametrize("copied_after", [1, 2], ids=["two behind", "one behind"])
def test_an_older_backup_is_refused(spark, tmp_path, copied_after):
    job = a_job(spark, tmp_path, {})
    job.run_each(BATCHES[:copied_after])
    shutil.copytree(job.query, tmp_path / "backup")
    job.run_each(BATCHES[copied_after:3])
    replace(job.query, tmp_path / "backup")
    job.source.add(BATCHES[3])
    message = "planned batch 2 again" if copied_after == 2 else "is at batch 1, .* after batch 2"
    refused(job, message)


def test_a_batch_after_a_foreign_plan_is_refused(spark, tmp_path):
    """The batch was planned again, and finished, by a run on a copy of the state."""
    job = a_job(spark, tmp_path, {})
    job.run_each(BATCHES[:1])
    shutil.copytree(job.state, tmp_path / "copy")
    job.run_each(BATCHES[1:2])
    forget_newest_batch(job.query, sources=True)
    job.source.add(BATCHES[2])
    job.run(stateLocation=str(tmp_path / "copy"))
    job.source.add(BATCHES[3])
    refused(job, "planned batch 1 again")


def test_positions_are_those_of_sparks_objects(spark, tmp_path):
    """Records of earlier versions have digests of what the JVM said."""

    class Mixed(AnySize):
        def frame(self) -> Any:
            other = self.spark.readStream.schema(self.schema).parquet(str(tmp_path / "other"))
            rate = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
            numbers = rate.load().selectExpr("value AS key", "1L AS amount").where("false")
            return super().frame().unionAll(other).unionAll(numbers)

    BatchSource(spark, tmp_path / "other", INPUT)
    job = totals_job(spark, tmp_path, kind=Mixed, noDataBatches=True)
    files = checkpoint_files(spark, str(job.query))
    before: list[str | None] = []
    for rows in BATCHES[:2]:
        job.source.add(rows)
        log: Any = job.run()._jsq.streamingQuery().offsetLog()  # type: ignore[attr-defined]
        batch_id = record_of(job).batch_id
        theirs = log.get(batch_id).get().offsets()
        options = [theirs.apply(place) for place in range(theirs.size())]
        texts = [option.get().json() if option.isDefined() else None for option in options]
        ours = read_offsets(files, batch_id)
        assert ours is not None and texts == list(ours.offsets or ())
        assert 4 == ours.sources
        record = record_of(job)
        assert position_of(texts[:3]) == record.position
        assert position_of(before) == record.position_before
        assert ["0", "1", "2"] == record.source_folders
        before = texts[:3]
        unaided = QueryTimes(files, has_no_data_source=True).with_positions(
            BatchTimes(), batch_id, ours, None
        )
        assert record.position == unaided.position


def test_positions_name_files_of_compact_entries(spark, tmp_path):
    with configured(spark, {"spark.sql.streaming.fileSource.log.compactInterval": "3"}):
        job = a_job(spark, tmp_path, {})
        batches = [[(batch, batch + 1), (0, 1)] for batch in range(7)]
        digests = set()
        for batch, rows in enumerate(batches):
            job.run_each([rows])
            (log,) = record_of(job).source_logs or []
            assert (0, "0", batch - 1, batch) == (log.source, log.folder, log.after, log.upto)
            assert log.digest
            digests.add(log.digest)
        assert totals_of(batches) == job.take_in_order()
        assert 7 == len(digests)
        assert (job.query / "sources" / "0" / "5.compact").exists()
        # An entry of the source's log that no micro-batch came of: the next batch covers two.
        forget_newest_batch(job.query)
        shutil.rmtree(job.state / f"chk-{committed(job.state)[-1]}")
        job.source.add([(9, 9)])
        job.run()
        (log,) = record_of(job).source_logs or []
        assert (5, 7) == (log.after, log.upto)


def test_two_uses_of_one_source_share_its_log(spark, tmp_path):
    class Twice(AnySize):
        def frame(self) -> Any:
            frame = super().frame()
            other = self.spark.readStream.schema(self.schema).parquet(str(tmp_path / "other"))
            return frame.unionAll(frame).unionAll(other)

    BatchSource(spark, tmp_path / "other", INPUT).add([(7, 7)])
    job = totals_job(spark, tmp_path, kind=Twice)
    job.source.add(BATCHES[0])
    job.run()
    logs = record_of(job).source_logs or []
    assert [(0, "0"), (1, "0"), (2, "1")] == [(log.source, log.folder) for log in logs]
    assert logs[0].digest == logs[1].digest != logs[2].digest
    forget_newest_batch(job.query, sources=True)
    remove(job.query / "sources" / "1", 0)
    BatchSource(spark, tmp_path / "other", INPUT).add([(7, 8)])  # over the first, and younger
    os.utime(tmp_path / "other" / "00001.parquet", (1_600_000_002, 1_600_000_002))
    refused(job, "planned batch 0 again")


def test_a_hadoop_location_is_read_through_spark(spark, tmp_path):
    mounted = "fs.viewfs.mounttable.statelog.link./q"
    (tmp_path / "mounted").mkdir()
    hadoop: Any = spark.sparkContext._jsc
    hadoop.hadoopConfiguration().set(mounted, (tmp_path / "mounted").as_uri())
    try:
        job = a_job(spark, tmp_path, {})
        location = "viewfs://statelog/q/query"
        job.run_each(BATCHES[:2], checkpointLocation=location)
        (log,) = record_of(job).source_logs or []
        assert (0, 1) == (log.after, log.upto)
        files = checkpoint_files(spark, location)
        local = checkpoint_files(spark, (tmp_path / "mounted" / "query").as_uri())
        assert log.digest == entries_digest(local, "0", 0, 1) == entries_digest(files, "0", 0, 1)
        assert local.read("offsets/1", 7) == files.read("offsets/1", 7)
        assert files.read("offsets/9") is None is local.read("offsets/9")
        assert {"0", "1"} <= set(files.names("offsets"))
        assert [] == list(files.names("nothing")) == list(local.names("nothing"))
        job.source.add(BATCHES[2])
        forget_newest_batch(tmp_path / "mounted" / "query", sources=True)
        message = "again.*rewind viewfs://statelog/q/query"
        with pytest.raises(StreamingQueryException, match=message):
            job.run(checkpointLocation=location)
    finally:
        hadoop.hadoopConfiguration().unset(mounted)
