"""Several inputs in one stream: the rows of each, typed, by key and event time."""

import datetime as dt

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.streams import BatchSource, run_to_end

from statelog.errors import UsageError
from statelog.spark import tagged_union, transform_with_state

ORDERS = "id bigint, at timestamp, amount double, `a.b` string"
PAYMENTS = "id bigint, at timestamp, paid bigint"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Collect(StatefulProcessor):
    """Appends what comes from each input, in the order of event time."""

    def init(self, handle):
        self.seen = handle.getListState("seen", "what string")

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda row: row.at):
            if row.input == "order":
                self.seen.appendValue((f"{row.order['amount']}/{row.order['a.b']}/{row.payment}",))
            else:
                self.seen.appendValue((f"{row.payment['paid']}/{row.order}",))
        yield Row(id=key[0], seen=" ".join(what for (what,) in self.seen.get()))


def test_rows_of_both_inputs_reach_one_key(spark, tmp_path):
    orders = BatchSource(spark, tmp_path / "orders", ORDERS)
    payments = BatchSource(spark, tmp_path / "payments", PAYMENTS)
    orders.add([(1, NOON, 2.5, "x"), (2, NOON, 3.5, None)])
    payments.add([(1, NOON + dt.timedelta(seconds=1), 7)])
    orders.add([])
    # In time: the watermark is the lower one.
    payments.add([(2, NOON - dt.timedelta(minutes=9), 8)])
    inputs = {
        "order": orders.frame().withWatermark("at", "10 minutes"),
        "payment": payments.frame().withWatermark("at", "10 minutes"),
    }
    united = tagged_union(inputs, ["id"], event_time="at")
    assert united.columns == ["input", "id", "at", "order", "payment"]
    frame = transform_with_state(
        united.groupBy("id"),
        Collect(),
        "id bigint, seen string",
        timeMode="EventTime",
        stateLocation=str(tmp_path / "state"),
    )
    delivered = run_to_end(frame, tmp_path / "query")
    assert [sorted(rows) for rows in delivered[:2]] == [
        [Row(id=1, seen="2.5/x/None 7/None"), Row(id=2, seen="3.5/None/None")],
        [Row(id=2, seen="3.5/None/None 8/None")],
    ]


def test_inputs_that_do_not_fit_are_rejected(spark):
    frames = {
        "order": spark.createDataFrame([], ORDERS),
        "payment": spark.createDataFrame([], PAYMENTS),
        "other": spark.createDataFrame([], "id string, n int"),
        "keys": spark.createDataFrame([], "id bigint"),
    }
    for names, keys, message in (
        ([], ["id"], "requires at least one input"),
        (["order"], [], "requires the key columns"),
        (["input"], ["id"], "an input cannot be named 'input'"),
        (["id"], ["id"], "an input cannot be named 'id'"),
        (["order", "payment"], ["id", "amount"], "'payment' does not have the column amount"),
        (["order", "other"], ["id"], "'id' differs: bigint in 'order', string in 'other'"),
        (["order", "other"], ["at"], "'other' does not have the column at"),
        (["keys"], ["id"], "'keys' contains only its keys"),
    ):
        inputs = {name: frames.get(name, frames["order"]) for name in names}
        with pytest.raises(UsageError, match=message):
            tagged_union(inputs, keys)
