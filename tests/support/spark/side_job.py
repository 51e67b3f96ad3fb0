"""A job with two side outputs, as a program that a test kills; its arguments are a folder and a threshold of bytes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from tests.house.sources import ROOT
from tests.support.spark.processors import INPUT, TOTALS, Totals
from tests.support.spark.streams import BatchSource

from statelog.demo.java import prepare_environment
from statelog.demo.process import kill_session, start_program
from statelog.runtime.fail_points import VARIABLE
from statelog.spark import transform_with_state


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


def run(spark: SparkSession, folder: Path, inline_bytes: int, delivery: str) -> None:
    (folder / "out").mkdir(exist_ok=True)
    stream = transform_with_state(
        BatchSource(spark, folder / "in", INPUT).frame().groupBy("key"), Sides(), TOTALS,
        stateLocation=str(folder / "state"), tasks=2, delivery=delivery,
        **{"stream.data-inline-threshold": inline_bytes},
    )  # fmt: skip
    writer = stream.writeStream.option("checkpointLocation", str(folder / "query"))
    for name in ("sevens", "first"):
        writer = writer.sideOutput(name, writer_of(folder, name))
    query = writer.foreachBatch(writer_of(folder, "main")).trigger(availableNow=True).start()
    query.awaitTermination()


def run_killed(folder: Path, inline_bytes: int, fail_points: str, delivery: str) -> int:
    """Run the job as a process that dies at a fail point; return its exit status."""
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", VARIABLE: fail_points,
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
    }  # fmt: skip
    command = [sys.executable, __file__, str(folder), str(inline_bytes), delivery]
    process = start_program(command, log=folder / "log", environment=environment)
    try:
        return process.wait(180)
    finally:
        kill_session(process)


def main(folder: str, inline_bytes: str, delivery: str) -> None:
    prepare_environment()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    run(spark, Path(folder), int(inline_bytes), delivery)


if __name__ == "__main__":
    main(*sys.argv[1:])
