"""Columns that a processor does not read are not read, shuffled or sent; results are as with all."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.streams import BatchSource, Job

from statelog.errors import UsageError
from statelog.spark import ColumnarProcessor

WIDE = "name string, at timestamp, `a.b` string, key bigint, amount bigint, note string"
TOTALS = "key bigint, total bigint, columns string"


class Totals(StatefulProcessor):
    """Adds up amounts; the proof finds `amount`, and `a.b` where its name is a constant."""

    def init(self, handle):
        self.total = handle.getValueState("total", "total bigint")

    def handleInputRows(self, key, rows, timerValues):
        (total,) = self.total.get() or (0,)
        columns = set()
        for row in rows:
            total += row.amount
            columns.add(row["a.b"])
        self.total.update((total,))
        yield Row(key=key[0], total=total, columns=",".join(sorted(columns)))


class Names(Totals):
    """Yields the columns that its rows have, so that all of them may matter."""

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            yield Row(key=key[0], total=row.amount, columns=",".join(row.__fields__))


class Count(Totals):
    def handleInputRows(self, key, rows, timerValues):
        (total,) = self.total.get() or (0,)
        total += sum(1 for _ in rows)
        self.total.update((total,))
        yield Row(key=key[0], total=total, columns="")


class Columns(ColumnarProcessor):
    """Yields the columns that a task gets."""

    def init(self, handle):
        pass

    def process(self, keys, rows, times):
        names = ",".join(rows.column_names)
        yield {"key": keys["key"], "total": [0] * len(keys), "columns": [names] * len(keys)}


@pytest.fixture
def job(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", WIDE)
    for batch in range(3):
        source.add([("n", None, f"x{n}", n % 3, n + batch, "y") for n in range(9)])
    return Job(source, tmp_path, ["key"], Totals(), TOTALS)


def rows_of(job: Job, **changes: Any) -> list[list[Row]]:
    job.run(**changes)
    return [sorted(batch) for batch in job.take()]


def afresh(folder: Path) -> dict[str, str]:
    """Return settings with which a query begins from nothing."""
    return {"checkpointLocation": str(folder / "q"), "stateLocation": str(folder / "s")}


def columns_read(job: Job, folder: Path, **changes: Any) -> str:
    """Run the job once more and return the columns that Spark reads from the files."""
    text = job.run(**afresh(folder), **changes)._jsq.explainInternal(False)
    return text.split("ReadSchema: struct<")[1].split(">\n")[0]


def test_only_the_columns_that_are_read_come_from_the_files(job, tmp_path):
    assert columns_read(job, tmp_path / "1") == "a.b:string,key:bigint,amount:bigint"
    assert "note:string" in columns_read(job, tmp_path / "2", inputColumns="all")


@pytest.mark.parametrize(
    ("processor", "is_computed"), [(Totals(), True), (Count(), False), (Names(), True)]
)
def test_results_are_those_with_all_columns(job, tmp_path, processor, is_computed):
    job.keys, job.processor = [F.col("key") % 2] if is_computed else ["key"], processor
    rows = rows_of(job, tasks=2)
    assert rows == rows_of(job, tasks=2, inputColumns="all", **afresh(tmp_path / "all"))
    assert len(rows) == 3
    assert all(rows)


def test_keys_are_kept_and_other_columns_can_be_named(job):
    rows = rows_of(job, processor=Names(), inputColumns=["amount", "a.b"])
    assert {row.columns for row in rows[0]} == {"a.b,key,amount"}
    with pytest.raises(UsageError, match="inputColumns names amuont"):
        job.start(inputColumns=["amuont"])


def test_a_columnar_processor_gets_the_columns_that_it_or_the_setting_names(job, tmp_path):
    class Amounts(Columns):
        columns = ("amount",)

    assert columns_read(job, tmp_path / "0", processor=Amounts()) == "key:bigint,amount:bigint"
    assert {row.columns for row in job.take()[0]} == {"key,amount"}
    for number, (processor, setting, columns) in enumerate(
        (
            (Columns(), {"inputColumns": ["amount"]}, "key,amount"),
            (Columns(), {}, "name,at,a.b,key,amount,note"),
            (Amounts(), {"inputColumns": ["note"]}, "key,note"),
        ),
        start=1,
    ):
        rows = rows_of(job, processor=processor, **setting, **afresh(tmp_path / str(number)))
        assert {row.columns for row in rows[0]} == {columns}
