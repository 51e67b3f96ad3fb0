"""A job that writes to a sink."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.checkpoint_files import newest, remove
from tests.support.spark.processors import INPUT, TOTALS, Totals, TotalsModel
from tests.support.spark.streams import BatchSource, in_order, wait

from statelog.spark import transform_with_state

COLUMNS = ("key", "total", "rows")
BATCHES = [[(1, 10), (2, 20)], [(1, 1), (3, 30)], [(2, 2)], [(1, 5), (4, 4)]]


class SinkJob:
    """A query with a sink, which a test runs again and again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.out = folder / "out"
        self.source = BatchSource(spark, folder / "in", INPUT)
        self.model = TotalsModel()
        self.delivered: list[tuple[Any, ...]] = []
        """The rows that the sink must have got, as the model has them."""

    @property
    def expected(self) -> list[tuple[Any, ...]]:
        return in_order(self.delivered)

    def add(self, batches: int = 1) -> None:
        for _ in range(batches):
            rows = BATCHES[self.source.count % len(BATCHES)]
            self.source.add(rows)
            self.delivered += self.model.apply(rows)

    def writer(self, name: str = "query", **settings: Any) -> Any:
        grouped = self.source.frame().groupBy("key")
        out = transform_with_state(grouped, Totals(), TOTALS, tasks=2, **settings)
        writer = out.writeStream.option("checkpointLocation", str(self.folder / name))
        return writer.trigger(availableNow=True)

    def run(self, source: str, name: str = "query", **settings: Any) -> None:
        wait(self.writer(name, **settings).start(str(self.out), format=source))

    def forget_commit(self, name: str = "query") -> None:
        """Let Spark run the last micro-batch again, as after a crash."""
        commits = self.folder / name / "commits"
        remove(commits, newest(commits))

    def rows(self, source: str, **options: str) -> list[tuple[Any, ...]]:
        reader = self.spark.read.schema(TOTALS).options(**options)
        return rows_of(reader.format(source).load(str(self.out)))

    def table(self, name: str) -> list[tuple[Any, ...]]:
        return rows_of(self.spark.table(name))

    def location_of(self, table: str) -> Path:
        """Return the folder of a table."""
        facts = self.spark.sql(f"describe extended {table}")
        (location,) = facts.where("col_name = 'Location'").collect()
        return Path(location.data_type.removeprefix("file:"))


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return in_order(frame.select(*COLUMNS).collect())
