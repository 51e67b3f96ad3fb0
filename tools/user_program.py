"""
A program as a user would write it, for `tools/try_package.py`: two runs of one streaming query.

`user_program.py <folder>` prints one line of JSON: the totals of all rows, and where the tasks found
statelog.  It is type-checked against the installed package too, so it has its types.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import statelog as sl
from statelog.spark import BatchProgress, transform_with_state

OUTPUT = "customer string, total long, package string"


class Total(StatefulProcessor):
    """The running total of a customer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.total = handle.getValueState("total", "amount long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Add the rows of one customer."""
        import statelog

        amount = (self.total.get() or (0,))[0] + sum(row.amount for row in rows)
        self.total.update((amount,))
        yield Row(customer=key[0], total=amount, package=str(statelog.__file__))

    def close(self) -> None:
        """Do nothing."""


def run(spark: SparkSession, folder: Path, found: dict[str, Row]) -> list[BatchProgress]:
    """Run the query over all input there is."""
    progress: list[BatchProgress] = []

    def keep(frame: DataFrame, batch_id: int) -> None:
        found.update((row.customer, row) for row in frame.collect())

    rows = spark.readStream.schema("customer string, amount long").json(str(folder / "in"))
    out = transform_with_state(
        rows.groupBy("customer"),
        Total(),
        OUTPUT,
        "Update",
        "None",
        stateLocation=str(folder / "state"),
        tasks=2,
        on_progress=progress.append,
    )
    query = (
        out.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "query"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(180):
        raise SystemExit("the query hangs")
    return progress


def main(folder: Path) -> None:
    """Run the query twice, with new input in between, and print what came of it."""
    spark = SparkSession.builder.appName("a user of statelog").getOrCreate()
    (folder / "in").mkdir(parents=True)
    found: dict[str, Row] = {}
    batches = 0
    for number in range(2):
        lines = [json.dumps({"customer": f"c{n % 5}", "amount": n}) for n in range(100)]
        (folder / "in" / f"{number}.json").write_text("\n".join(lines))
        batches += len(run(spark, folder, found))
    spark.stop()
    said = {
        "statelog": sl.__version__,
        "batches": batches,
        "totals": {customer: row.total for customer, row in sorted(found.items())},
        "packages": sorted({str(row.package) for row in found.values()}),
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
