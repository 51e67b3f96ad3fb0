"""Small rows of side outputs share an object, rows are dropped by their age, and objects are bounded."""

import datetime as dt
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType
from tests.support.jobs.emitting_processors import late_job, rows_of
from tests.support.jobs.recorded_job import RecordedJob

import statelog as sl
from statelog.checkpoint.attachments import Attachment, of_kinds
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.edit import edit_session
from statelog.errors import UsageError
from statelog.extensions.side_outputs import driver as side_outputs
from statelog.extensions.side_outputs.stored import SIDE_OUTPUT
from statelog.spark.query.declared_state import DriverHandle
from statelog.spark.query.settings import QuerySettings

pytestmark = pytest.mark.job

MINUTE = 60_000


def entries_of(job: RecordedJob) -> tuple[Attachment, ...]:
    assert job.base is not None
    return of_kinds(BatchRecord.of(job.base).attachments, SIDE_OUTPUT)


def objects_in(job: RecordedJob) -> set[str]:
    return {info.path for info in job.store.list() if info.path.startswith("output/")}


def test_small_rows_of_many_micro_batches_are_in_one_object(tmp_path: Path) -> None:
    job = late_job(tmp_path, retained=2)
    for number in range(12):
        job.run([(f"k{number}", "row", number)] if number % 3 else [], number)
    (entry,) = entries_of(job)
    assert 8 == entry.count == len(rows_of(job.location, "late"))
    assert entry.is_fresh
    job.run([], 13)
    assert [False] == [attachment.is_fresh for attachment in entries_of(job)]
    assert 8 == len(rows_of(job.location, "late"))
    # The objects that it took the place of are deleted with the checkpoints that name them.
    collect_garbage(job.store, min_age=dt.timedelta(0), apply=True, now=dt.datetime.now(dt.UTC))
    assert {entry.path} == objects_in(job)


def test_the_driver_holds_few_bytes_of_rows_however_well_they_compress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_outputs, "_TAIL_MEMORY", 20_000)
    job = late_job(tmp_path)
    for _ in range(4):
        job.run([("a" * 100, "row", 1)] * 100)
    assert [100] * 4 == [attachment.count for attachment in entries_of(job)]
    assert max(attachment.size for attachment in entries_of(job)) < 4_000
    assert 400 == len(rows_of(job.location, "late"))


def test_rows_are_dropped_by_their_age_also_out_of_an_object_that_grows(tmp_path: Path) -> None:
    age = QuerySettings(retention=dt.timedelta(minutes=10))
    job = late_job(tmp_path, settings=age)
    for minute in range(25):
        job.run([(f"k{minute:02}", "row", 1)], minute * MINUTE)
    keys = [row[2] for row in rows_of(job.location, "late")]
    assert [f"k{minute:02}" for minute in range(15, 25)] == keys
    job.run([], 35 * MINUTE)
    assert () == entries_of(job)
    with sl.open(job.location) as state:
        assert () == state.side_outputs()
        assert 0 == state.side_output("late").num_rows


def test_an_edit_keeps_what_is_to_be_delivered(tmp_path: Path) -> None:
    job = late_job(tmp_path)
    job.run([("a", "row", 1)])
    base, before = job.base, entries_of(job)
    assert base is not None
    with edit_session(job.store, "test") as session:
        session.claim(base)
        after = session.commit([])
    assert before == BatchRecord.of(after).attachments
    assert before[0].is_fresh


def test_a_schema_that_cannot_be_parsed_is_named() -> None:
    def parse(ddl: str) -> StructType:
        raise AnalysisException(f"{ddl} is not DDL")

    message = "side output 'late': 'n lnog' is not a schema: n lnog is not DDL"
    with pytest.raises(UsageError, match=message):
        DriverHandle(parse, has_ttl=False).sideOutput("late", "n lnog")
