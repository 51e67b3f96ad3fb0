"""A job that writes to a sink."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.processors import INPUT, TOTALS, Totals, TotalsModel
from tests.spark.streams import BatchSource, wait

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
        self.expected: list[tuple[Any, ...]] = []
        self._added = 0

    def add(self, batches: int = 1) -> None:
        for _ in range(batches):
            rows = BATCHES[self._added % len(BATCHES)]
            self._added += 1
            self.source.add(rows)
            self.expected += self.model.apply(rows)

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
        last = max((path for path in commits.glob("[0-9]*")), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)

    def rows(self, source: str, schema: str = TOTALS) -> list[tuple[Any, ...]]:
        frame = self.spark.read.schema(schema).format(source).load(str(self.out))
        return sorted(map(tuple, frame.select(*COLUMNS).collect()))
