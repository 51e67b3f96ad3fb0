"""A job with two side outputs, as a program that a test kills; its arguments are a folder and a threshold of bytes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from tests.spark import processors
from tests.spark.killed_jobs import session
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, workers_get_by_value

from statelog.spark import transform_with_state

workers_get_by_value(processors.__name__)
workers_get_by_value(__name__)


class Sides(Totals):
    """`Totals`, which emits amounts that seven divides, and the first row of each key."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.sevens = handle.sideOutput("sevens", "key long, amount long")
        self.first = handle.sideOutput("first", "key long NOT NULL")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if not self.total.exists():
            self.first.emit((key[0],))

        def seen() -> Iterator[Row]:
            for row in rows:
                if row.amount % 7 == 0:
                    self.sevens.emit(Row(key=key[0], amount=row.amount))
                yield row

        yield from super().handleInputRows(key, seen(), timerValues)


def expected(batches: list[list[tuple[int, int]]]) -> dict[str, list[list[tuple[int, ...]]]]:
    """Return the rows of each side output, by micro-batch, in order."""
    sevens = [sorted(row for row in rows if row[1] % 7 == 0) for rows in batches]
    seen: set[int] = set()
    first = []
    for rows in batches:
        keys = {key for key, _ in rows}
        first.append(sorted((key,) for key in keys - seen))
        seen |= keys
    return {"sevens": sevens, "first": first}


def writer_of(folder: Path, name: str) -> Callable[[DataFrame, int], None]:
    """Return a sink that adds each delivery of a micro-batch to a file of it."""

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(list(row) for row in frame.collect())
        with (folder / "out" / f"{name}-{batch_id}").open("a") as file:
            file.write(json.dumps(rows) + "\n")

    return write


def run(spark: SparkSession, folder: Path, inline_bytes: int, **options: Any) -> None:
    (folder / "out").mkdir(exist_ok=True)
    stream = transform_with_state(
        BatchSource(spark, folder / "in", INPUT).frame().groupBy("key"),
        Sides(),
        TOTALS,
        stateLocation=str(folder / "state"),
        tasks=2,
        **{"stream.data-inline-threshold": inline_bytes},
        **options,
    )
    writer = stream.writeStream.option("checkpointLocation", str(folder / "query"))
    writer = writer.sideOutput("sevens", writer_of(folder, "sevens"))
    writer = writer.sideOutput("first", writer_of(folder, "first"))
    query = writer.foreachBatch(writer_of(folder, "main")).trigger(availableNow=True).start()
    query.awaitTermination()


def main(folder: Path, inline_bytes: int) -> None:
    run(session(), folder, inline_bytes, delivery=os.environ.get("DELIVERY", "staged"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
