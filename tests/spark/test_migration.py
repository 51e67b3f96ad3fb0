"""The examples of docs/how-to/migration.md: a query moves from Spark to statelog, and back."""

import datetime as dt
import re
import shutil
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.house.sources import ROOT
from tests.support.spark.streams import (
    ON_ROCKSDB,
    PROVIDER,
    WITHOUT_NO_DATA,
    BatchSource,
    configured,
    wait,
)
from tests.support.spark.versions import row_operator
from tests.support.values.schema_texts import TEXTS

from statelog.errors import UsageError
from statelog.spark import spark_state, with_initial_state
from statelog.spark.query.ddl import parse_ddl

OUTPUT = "customer string, n bigint, total double, items string, by_day string, fired boolean"
HOUR = 3_600_000


class Totals(StatefulProcessor):
    """Value, list and map state, some with a time to live, and a timer for each key."""

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n bigint, total double")
        self.seen = handle.getValueState(
            "seen", "at timestamp, last struct<item:string,n:int>", HOUR
        )
        self.items = handle.getListState("items", "item string, n int")
        self.recent = handle.getListState("recent", "item string", HOUR)
        self.by_day = handle.getMapState("by_day", "day date", "n int, tags array<string>")
        self.gone = handle.getValueState("gone", "n int", 1)

    def handleInputRows(self, key, rows, timerValues):
        n, total = self.total.get() or (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.amount
            self.items.appendValue((row.item, n))
            self.recent.appendValue((row.item,))
            (count, tags) = self.by_day.getValue((row.day,)) or (0, [])
            self.by_day.updateValue((row.day,), (count + 1, [*tags, row.item]))
            self.seen.update((row.at, (row.item, n)))
        self.total.update((n, total))
        self.gone.update((n,))
        if not list(self.handle.listTimers()):
            now = timerValues.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now + (1 if key[0] == "due" else HOUR))
        yield self.show(key, fired=False)

    def show(self, key: Any, fired: bool) -> Row:
        n, total = self.total.get()
        seen = self.seen.get()
        parts = [list(map(tuple, self.items.get())), [i for (i,) in self.recent.get()]]
        days = {str(day): tuple(value) for (day,), value in self.by_day.iterator()}
        by_day = f"{sorted(days.items())} {seen[0]} {tuple(dict_of(seen[1]).values())}"
        return Row(customer=key[0], n=n, total=total, items=str(parts), by_day=by_day, fired=fired)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.show(key, fired=True)


def dict_of(struct: Any) -> dict[str, Any]:
    return struct.asDict() if isinstance(struct, Row) else dict(struct)


def example(number: int = 0) -> str:
    text = (ROOT / "docs" / "how-to" / "migration.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    code: str = blocks[number]
    return code.replace(".start()", ".trigger(availableNow=True).start()")


def test_the_example(spark, tmp_path):
    schema = "customer string, item string, amount double, day date, at timestamp"
    source = BatchSource(spark, tmp_path / "input", schema)

    def order(customer: str, item: str, amount: float) -> tuple[Any, ...]:
        noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
        return customer, item, amount, dt.date(2024, 7, int(amount)), noon

    source.add(
        [order("a", "pen", 1), order("b", "ink", 2), order("a", "cap", 3), order("due", "x", 4)]
    )
    delivered: list[Row] = []

    def sink(frame: DataFrame, batch_id: int) -> None:
        delivered.extend(frame.collect())

    old = str(tmp_path / "old-checkpoint")
    with configured(spark, ON_ROCKSDB | WITHOUT_NO_DATA):
        stream = source.frame().groupBy("customer")
        frame = row_operator(stream)(Totals(), OUTPUT, "Update", "ProcessingTime")
        writer = frame.writeStream.outputMode("update").option("checkpointLocation", old)
        wait(writer.foreachBatch(sink).trigger(availableNow=True).start())
    before = {row.customer: row for row in delivered}
    assert before.keys() == {"a", "b", "due"}
    delivered.clear()

    source.add([order("a", "hat", 1), order("c", "bag", 5)])
    names: dict[str, Any] = {
        "base": str(tmp_path),
        "spark": spark,
        "events": source.frame(),
        "Totals": Totals,
        "OUTPUT": OUTPUT,
        "sink": sink,
    }
    code = example()
    exec(code, names)
    wait(names["query"])
    after = {(row.customer, row.fired): row for row in delivered}
    # b is not touched; what was due fires with the state it had; a goes on where it was.
    assert after.keys() == {("a", False), ("c", False), ("due", True)}
    assert after["due", True] == Row(**{**before["due"].asDict(), "fired": True})
    a = after["a", False]
    assert (a.n, a.total) == (3, 5.0)
    assert a.items == "[[('pen', 1), ('cap', 2), ('hat', 3)], ['pen', 'cap', 'hat']]"
    assert "('2024-07-01', (2, ['pen', 'hat'])), ('2024-07-03', (1, ['cap']))" in a.by_day
    delivered.clear()

    shutil.rmtree(old)  # neither line of the migration is needed, or looked at, any more
    source.add([order("b", "cup", 2)])
    plain = re.sub(r"    (initialState|checkpoint)=.*\n", "", code).replace(
        "with_initial_state(Totals())", "Totals()"
    )
    exec(re.sub(r"shutil\.copytree.*", "", plain), names)
    wait(names["query"])
    (b,) = delivered
    assert (b.n, b.total, b.items) == (2, 4.0, "[[('ink', 1), ('cup', 2)], ['ink', 'cup']]")
    delivered.clear()

    try:
        with configured(spark, WITHOUT_NO_DATA):
            source.add([order("b", "pin", 1), order("c", "bag", 2)])
            exec(example(2), names)
            wait(names["query"])
            assert names["offsets"] == ('{"logOffset":2}',)
            b, c = sorted(delivered)
            assert (b.n, b.total) == (3, 5.0)
            assert b.items == "[[('ink', 1), ('cup', 2), ('pin', 3)], ['ink', 'cup', 'pin']]"
            assert (c.n, c.total) == (2, 7.0)
    finally:
        spark.conf.unset(PROVIDER)  # the example sets it


def test_what_is_no_state_of_spark_is_refused(spark, tmp_path):
    # Here because there is a session: no JVM is needed to read these, see ddl.py.
    for text in TEXTS:
        assert parse_ddl(text) == spark._parse_ddl(text), text
    with pytest.raises(Exception, match="is not a transformWithState; found: none"):
        spark_state(spark, str(tmp_path))
    processor = with_initial_state(Totals())
    row = Row(statelog_state={"other": {"n": 1}}, statelog_timers=None)
    from statelog.testing import ProcessorTester

    with pytest.raises(Exception, match="the variable 'other', which init") as raised:
        ProcessorTester(processor, initialStateRow=[("a", row)], timeMode="ProcessingTime")
    assert isinstance(raised.value.__cause__, UsageError)
