"""The state of `applyInPandasWithState` becomes the initial state of a processor, as migration.md says."""

import shutil
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from tests.support.spark.streams import run_to_end
from tests.support.spark.versions import needs

import statelog
from statelog.spark import StatefulProcessor, transform_with_state

pytestmark = needs((4, 0), "the reader of Spark's state")

INPUT = "customer string, amount double"
STATE = "n long, amount double"
OUTPUT = f"customer string, {STATE}"


class Totals(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", STATE)

    def handleInitialState(self, key, initialState, timerValues):
        self.total.update((initialState.n, initialState.amount))

    def handleInputRows(self, key, rows, timerValues):
        n, amount = self.total.get() or (0, 0.0)
        for row in rows:
            n, amount = n + 1, amount + row.amount
        self.total.update((n, amount))
        yield Row(customer=key[0], n=n, amount=amount)


def update(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    n, amount = state.get if state.exists else (0, 0.0)
    for frame in frames:
        n, amount = n + len(frame), amount + float(frame.amount.sum())
    state.update((n, amount))
    yield pd.DataFrame({"customer": [key[0]], "n": [n], "amount": [amount]})


def test_a_query_with_a_group_state_continues(spark, tmp_path):
    def add(name: str, rows: list[tuple[str, float]]) -> None:
        frame = spark.createDataFrame(rows, INPUT).coalesce(1)
        frame.write.parquet(str(tmp_path / "in" / name))

    add("first", [("a", 1.0), ("b", 2.0), ("a", 3.0)])
    events = spark.readStream.schema(INPUT).parquet(str(tmp_path / "in" / "*"))
    old = events.groupBy("customer").applyInPandasWithState(
        update, OUTPUT, STATE, "update", GroupStateTimeout.NoTimeout
    )
    run_to_end(old, tmp_path / "old", "update")
    old_state = spark.read.format("statestore").load(str(tmp_path / "old"))
    initial = old_state.selectExpr("key.*", "value.groupState.*")
    without_state = shutil.ignore_patterns("state")
    shutil.copytree(tmp_path / "old", tmp_path / "new", ignore=without_state)
    add("second", [("a", 10.0), ("c", 2.0)])
    out = transform_with_state(
        events.groupBy("customer"),
        Totals(),
        OUTPUT,
        "Update",
        "None",
        initialState=initial.groupBy("customer"),
        checkpoint="empty",
        stateLocation=str(tmp_path / "state"),
    )
    run_to_end(out, tmp_path / "new", "update")
    with statelog.open(tmp_path / "state") as state:
        rows = state.table("total").drop_columns("key_group").to_pylist()
    assert {("a", 3, 14.0), ("b", 1, 2.0), ("c", 1, 2.0)} == {tuple(row.values()) for row in rows}
