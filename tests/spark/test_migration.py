"""A query moves from Spark to statelog and back, as docs/how-to/migration.md shows, and continues exactly."""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from tests.house.sources import ROOT
from tests.support.spark.processors import Totals, totals_job
from tests.support.spark.streams import (
    ON_ROCKSDB,
    PROVIDER,
    WITHOUT_NO_DATA,
    BatchSource,
    Job,
    configured,
    run_to_end,
    wait,
)
from tests.support.spark.versions import needs, row_operator
from tests.support.values.schema_texts import TEXTS

import statelog
from statelog.errors import CheckpointError, UsageError
from statelog.spark import (
    StatefulProcessor,
    spark_checkpoint,
    spark_state,
    to_spark,
    transform_with_state,
    transform_with_state_in_pandas,
    with_initial_state,
)
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.rows.spark_versions import SPARK

HOUR = 3_600_000
SCHEMA = "customer string, item string, n int, at timestamp"
OUTPUT = "customer string, shown string, fired boolean"
START = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
"""In an hour that many zones have twice."""


TAGS = [None, 2**60 + 1] if SPARK > (4, 1) else [7]
"""Elements of an array in list state; before 4.2 arrays with nulls are floats in frames."""


class Everything(StatefulProcessor):
    """All kinds of state, of many types, with and without a time to live; processing-time timers."""

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n bigint, amount decimal(20,4), none string")
        self.seen = handle.getValueState(
            "seen", "at timestamp, last struct<item:string,n:int,at:timestamp>", HOUR
        )
        self.items = handle.getListState("items", "item string, tags array<bigint>, raw binary")
        self.recent = handle.getListState("recent", "item string, at timestamp", HOUR)
        self.by_day = handle.getMapState(
            "by_day", "day date, n int", "counts map<string,bigint>, ats array<timestamp>"
        )
        self.fresh = handle.getMapState("fresh", "item string", "n int", HOUR)
        self.gone = handle.getValueState("gone", "n int", 1)

    def take(self, key: Any, rows: Any, timers: Any) -> None:
        n, amount, _ = self.total.get() or (0, Decimal(0), None)
        for row in rows:
            n, amount = n + 1, amount + Decimal(row.n) / 8
            at = row.at if isinstance(row.at, datetime) else row.at.to_pydatetime()
            self.items.appendValue((row.item, [n, *TAGS] if row.n else [], bytes([n, 0])))
            self.recent.appendValue((row.item, at))
            day = (date(2024, 7, 1 + int(row.n) % 9), int(row.n) % 2)
            counts, ats = self.by_day.getValue(day) or ({}, [])
            counts = {**dict(counts), row.item: dict(counts).get(row.item, 0) + 2**60}
            self.by_day.updateValue(day, (counts if row.n else {}, [*ats, at]))
            self.fresh.updateValue((row.item,), (int(row.n),))
            self.seen.update((at, (row.item, int(row.n), at)))
        self.total.update((n, amount, None))
        self.gone.update((n,))
        if not list(self.handle.listTimers()):
            now = timers.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now + (1 if key[0].startswith("due") else HOUR))

    def show(self) -> str:
        days = {tuple(day): plain(value) for day, value in self.by_day.iterator()}
        contents = [
            plain(self.total.get()),
            plain(self.seen.get()),
            [plain(item) for item in self.items.get()],
            [plain(item) for item in self.recent.get()],
            sorted(days.items()),
            sorted(plain(entry) for entry in self.fresh.iterator()),
            len(list(self.handle.listTimers())),
        ]
        return repr(contents)

    def handleInputRows(self, key, rows, timerValues):
        self.take(key, rows, timerValues)
        yield Row(customer=key[0], shown=self.show(), fired=False)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(customer=key[0], shown=self.show(), fired=True)


class EverythingInPandas(Everything):
    """The same for frames."""

    def handleInputRows(self, key, rows, timerValues):
        self.take(key, (row for frame in rows for row in frame.itertuples()), timerValues)
        yield pd.DataFrame({"customer": [key[0]], "shown": [self.show()], "fired": [False]})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield pd.DataFrame({"customer": [key[0]], "shown": [self.show()], "fired": [True]})


def plain(value: Any) -> Any:
    """Return a value of state by its content, whatever classes it has."""
    if isinstance(value, dict):
        return {plain(key): plain(part) for key, part in sorted(value.items())}
    if isinstance(value, list | tuple | np.ndarray):  # a Row is a tuple
        return tuple(plain(part) for part in value)
    if hasattr(value, "to_pydatetime"):  # of list state on Spark 4.0
        value = value.to_pydatetime().replace(tzinfo=None)
    if isinstance(value, np.integer):
        value = value.item()
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def order(customer: str, item: str, n: int) -> tuple[Any, ...]:
    return customer, item, n, START + timedelta(minutes=20 * n, microseconds=n)


BEFORE = [
    [order("a", "pen", 1), order("b", "ink", 0), order("due", "x", 4), order("later", "y", 5)],
    [order("a", "cap", 3), order("due-2", "z", 7)],
]
AFTER = [[order("a", "hat", 1), order("c", "bag", 5)], [order("b", "cup", 2), order("due", "x", 4)]]


def batch_time(checkpoint: Path, batch: int) -> int:
    """Return the processing time of a micro-batch."""
    line = (checkpoint / "offsets" / str(batch)).read_text().split("\n")[1]
    time: int = json.loads(line)["batchTimestampMs"]
    return time


class SparksQuery:
    """A query on Spark's own operator over all input there is."""

    def __init__(self, source: BatchSource, checkpoint: Path, time_mode: str, *, pandas: bool):
        self.source, self.checkpoint = source, checkpoint
        self.time_mode, self.pandas = time_mode, pandas

    def run(
        self,
        processor: StatefulProcessor,
        output: str,
        keys: Sequence[str],
        initial: DataFrame | None = None,
        stream: DataFrame | None = None,
    ) -> list[list[Row]]:
        # In the time mode ProcessingTime Spark would run batches without data for ever.
        no_data = dict.fromkeys(WITHOUT_NO_DATA, str(self.time_mode == "EventTime").lower())
        with configured(self.source.spark, ON_ROCKSDB | no_data):
            grouped = (stream or self.source.frame()).groupBy(*keys)
            operator = grouped.transformWithStateInPandas if self.pandas else row_operator(grouped)
            state = None if initial is None else initial.groupBy(*keys)
            frame = operator(processor, output, "Update", self.time_mode, state)
            return [sorted(rows) for rows in run_to_end(frame, self.checkpoint, "update")]


def on_statelog(source: BatchSource, folder: Path, *, pandas: bool, **options: Any) -> Job:
    processor: StatefulProcessor = EverythingInPandas() if pandas else Everything()
    transform = transform_with_state_in_pandas if pandas else transform_with_state
    job = Job(source, folder, ["customer"], processor, OUTPUT)
    job.options = {
        "timeMode": "ProcessingTime",
        "noDataBatches": False,
        "transform": transform,
        **options,
    }
    return job


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_spark_continues_after_statelog(spark, tmp_path, pandas):
    whole = BatchSource(spark, tmp_path / "whole", SCHEMA)
    source = BatchSource(spark, tmp_path / "input", SCHEMA)
    whole.add_all([*BEFORE, *AFTER])
    processor: StatefulProcessor = EverythingInPandas() if pandas else Everything()
    reference = SparksQuery(whole, tmp_path / "reference", "ProcessingTime", pandas=pandas)
    expected = reference.run(processor, OUTPUT, ["customer"])
    source.add_all(BEFORE)
    job = on_statelog(source, tmp_path, pandas=pandas)
    job.run()
    assert [sorted(rows) for rows in job.take()] == expected[:2]

    frame = to_spark(spark, job.state, str(tmp_path / "export"))
    new = tmp_path / "new"
    (offset,) = spark_checkpoint(spark, str(tmp_path / "query"), job.state, str(new))
    assert offset == '{"logOffset":1}'
    gone = frame.select("statelog_state.gone").distinct().collect()
    assert gone == [Row(gone=None)]
    times = [batch_time(tmp_path / "query", batch) for batch in (0, 1)]
    later = frame.where("customer = 'later'").select("statelog_expiry.seen", "statelog_timers")
    assert later.collect() == [Row(seen=times[0] + HOUR, statelog_timers=[times[0] + HOUR])]
    source.add_all(AFTER)
    moved = SparksQuery(source, new, "ProcessingTime", pandas=pandas)
    first, *rest = moved.run(with_initial_state(processor), OUTPUT, ["customer"], frame)
    assert first == []
    assert rest == expected[2:]
    # The time to live restarts at the last micro-batch of the old query, which wrote "a" too.
    stored = spark.read.format("statestore").option("stateVarName", "seen").load(str(new))
    expiry = stored.select("key.customer", "value.ttlExpirationMs")
    assert dict(expiry.collect())["later"] == times[1] + HOUR
    # Neither the wrapper nor the exported state is needed any more.
    shutil.rmtree(tmp_path / "export")
    shutil.rmtree(job.state)
    for source_of_rows in (whole, source):
        source_of_rows.add([order("later", "pen", 1), order("c", "bag", 6)])
    again = reference.run(processor, OUTPUT, ["customer"])
    assert again == moved.run(processor, OUTPUT, ["customer"])
    assert [row.customer for row in again[0]] == ["c", "due", "later"]


def example(number: int = 0) -> str:
    text = (ROOT / "docs" / "how-to" / "migration.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    code: str = blocks[number]
    return code.replace(".start()", ".trigger(availableNow=True).start()")


def test_the_example(spark, tmp_path):
    source, whole = (BatchSource(spark, tmp_path / name, SCHEMA) for name in ("input", "whole"))
    batches = [
        [order("a", "pen", 1), order("b", "ink", 0), order("a", "cap", 3), order("due", "x", 4)],
        [order("a", "hat", 1), order("c", "bag", 5)],
        [order("b", "cup", 2)],
        [order("b", "pin", 1), order("c", "bag", 2)],
    ]
    whole.add_all(batches)
    reference = SparksQuery(whole, tmp_path / "reference", "ProcessingTime", pandas=False)
    expected = reference.run(Everything(), OUTPUT, ["customer"])
    assert [("due", True)] == [(row.customer, row.fired) for row in expected[1] if row.fired]
    source.add(batches[0])
    old = SparksQuery(source, tmp_path / "old-checkpoint", "ProcessingTime", pandas=False)
    assert expected[:1] == old.run(Everything(), OUTPUT, ["customer"])
    names: dict[str, Any] = {
        "base": str(tmp_path),
        "spark": spark,
        "events": source.frame(),
        "Totals": Everything,
        "OUTPUT": OUTPUT,
    }

    def run(code: str, batch: int) -> None:
        """Run code of the page over one more batch, and check what is delivered."""
        source.add(batches[batch])
        delivered: list[Row] = []
        names["sink"] = lambda frame, _: delivered.extend(frame.collect())
        exec(code, names)
        wait(names["query"])
        assert expected[batch] == sorted(delivered)

    run(example(), 1)
    shutil.rmtree(tmp_path / "old-checkpoint")  # what the migration needs is not looked at any more
    plain = re.sub(r"    (initialState|checkpoint)=.*\n|shutil\.copytree.*", "", example())
    run(plain.replace("with_initial_state(Totals())", "Totals()"), 2)
    try:
        with configured(spark, WITHOUT_NO_DATA):
            run(example(2), 3)
    finally:
        spark.conf.unset(PROVIDER)  # the example sets it
    assert names["offsets"] == ('{"logOffset":2}',)


class Windows(StatefulProcessor):
    """Counts rows until the watermark passes the end of their hour."""

    def init(self, handle):
        self.handle = handle
        self.counts = handle.getMapState("counts", "ends bigint", "n int")

    def handleInputRows(self, key, rows, timerValues):
        total = 0
        for row in rows:
            ends = (int(row.at.timestamp() * 1000) // HOUR + 1) * HOUR
            (n,) = self.counts.getValue((ends,)) or (0,)
            self.counts.updateValue((ends,), (n + 1,))
            self.handle.registerTimer(ends)
            total += 1
        yield Row(key=key[0], ends=-1, n=total)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        ends = expiredTimerInfo.getExpiryTimeInMs()
        (n,) = self.counts.getValue((ends,))
        self.counts.removeKey((ends,))
        yield Row(key=key[0], ends=ends, n=n)


def at(key: str, minutes: int) -> tuple[str, datetime]:
    return key, START + timedelta(minutes=minutes)


def test_event_time_timers_and_late_rows(spark, tmp_path):
    before = [[at("a", 0), at("b", 10)], [at("a", 70), at("b", 80), at("c", 75)]]
    # The first row is late: the watermark is past it when the query is stopped.
    after = [[at("a", 5), at("a", 85), at("c", 90)], [at("b", 200)], [at("d", 300)]]
    schema, output = "key string, at timestamp", "key string, ends bigint, n int"
    whole = BatchSource(spark, tmp_path / "whole", schema)
    source = BatchSource(spark, tmp_path / "input", schema)
    processor = Windows()

    def watermarked(of: BatchSource) -> DataFrame:
        return of.frame().withWatermark("at", "10 minutes")

    reference = SparksQuery(whole, tmp_path / "reference", "EventTime", pandas=False)
    for source_of_rows in (whole, source):
        source_of_rows.add_all(before)
    expected = reference.run(processor, output, ["key"], stream=watermarked(whole))
    stream = transform_with_state(
        watermarked(source).groupBy("key"),
        processor,
        output,
        timeMode="EventTime",
        stateLocation=str(tmp_path / "state"),
    )
    delivered = run_to_end(stream, tmp_path / "query")
    assert [sorted(rows) for rows in delivered if rows] == [rows for rows in expected if rows]

    frame = to_spark(spark, tmp_path / "state", str(tmp_path / "export"))
    spark_checkpoint(spark, str(tmp_path / "query"), tmp_path / "state", str(tmp_path / "new"))
    for source_of_rows in (whole, source):
        source_of_rows.add_all(after)
    expected = reference.run(processor, output, ["key"], stream=watermarked(whole))
    moved = SparksQuery(source, tmp_path / "new", "EventTime", pandas=False)
    delivered = moved.run(
        with_initial_state(processor), output, ["key"], frame, stream=watermarked(source)
    )
    assert delivered[0] == []
    assert [rows for rows in delivered if rows] == [rows for rows in expected if rows]
    ends = [row for rows in expected for row in rows if row.ends > 0]
    assert len(ends) == 5, "timers of before and after fired"


def test_a_state_that_cannot_be_moved_is_refused(spark, tmp_path):
    job = totals_job(spark, tmp_path)
    old, target, new = (str(tmp_path / name) for name in ("query", "target", "new"))
    state = job.state
    with pytest.raises(UsageError, match="state"):
        to_spark(spark, state, target)
    job.source.add([(1, 10), (2, 20)])
    job.run()
    with pytest.raises(UsageError, match="the state other does not exist; the checkpoint contains"):
        to_spark(spark, state, target, variables=["other"])
    assert to_spark(spark, state, target, variables=["total"]).count() == 2
    for call in (
        lambda: to_spark(spark, state, str(tmp_path / "more"), checkpoint=7),
        lambda: spark_checkpoint(spark, old, state, new, checkpoint=7),
    ):
        with pytest.raises(CheckpointError) as raised:
            call()
        assert raised.value.reason == "not_found"
    for call, message in (
        (lambda: to_spark(spark, state, target), "is not empty"),
        (lambda: spark_checkpoint(spark, old, state, target), "is not empty"),
        (lambda: spark_checkpoint(spark, str(tmp_path / "in"), state, new), r"query \(none\), but"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
    compacting = configured(spark, {"spark.sql.streaming.fileSource.log.compactInterval": "2"})
    with compacting, pytest.raises(UsageError, match="is less than 3"):
        spark_checkpoint(spark, old, state, new)
    assert not (tmp_path / "new").exists()


def test_exported_state_begins_with_other_key_groups(spark, tmp_path):
    job = totals_job(spark, tmp_path / "old", maxParallelism=8)
    job.source.add([(key, key) for key in range(50)])
    job.run()
    frame = to_spark(spark, job.state, str(tmp_path / "export"))
    assert frame.count() == 50
    options: dict[str, Any] = {"maxParallelism": 300, "initialState": frame.groupBy("key")}
    new = totals_job(spark, tmp_path / "new", with_initial_state(Totals()), **options)
    new.source.add([(key, 100) for key in range(50)])
    new.run()
    (rows,) = new.take()
    assert sorted(rows) == [Row(key=key, total=key + 100, rows=2) for key in range(50)]


def test_what_is_no_state_of_spark_is_refused(spark, tmp_path):
    # Here because there is a session: no JVM is needed to read these, see ddl.py.
    for text in TEXTS:
        assert parse_ddl(text) == spark._parse_ddl(text), text
    with pytest.raises(
        Exception, match="is not a transformWithState operator; the operators there are: none"
    ):
        spark_state(spark, str(tmp_path))
    processor = with_initial_state(Everything())
    row = Row(statelog_state={"other": {"n": 1}}, statelog_timers=None)
    from statelog.testing import ProcessorTester

    with pytest.raises(Exception, match="the variable 'other', which init") as raised:
        ProcessorTester(processor, initialStateRow=[("a", row)], timeMode="ProcessingTime")
    assert isinstance(raised.value.__cause__, UsageError)


GROUP_INPUT = "customer string, amount double"
GROUP_STATE = "n long, amount double"
GROUP_OUTPUT = f"customer string, {GROUP_STATE}"


class CountAndSum(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", GROUP_STATE)

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


@needs((4, 0), "the reader of Spark's state")
def test_a_query_with_a_group_state_continues(spark, tmp_path):
    def add(name: str, rows: list[tuple[str, float]]) -> None:
        frame = spark.createDataFrame(rows, GROUP_INPUT).coalesce(1)
        frame.write.parquet(str(tmp_path / "in" / name))

    add("first", [("a", 1.0), ("b", 2.0), ("a", 3.0)])
    events = spark.readStream.schema(GROUP_INPUT).parquet(str(tmp_path / "in" / "*"))
    old = events.groupBy("customer").applyInPandasWithState(
        update, GROUP_OUTPUT, GROUP_STATE, "update", GroupStateTimeout.NoTimeout
    )
    run_to_end(old, tmp_path / "old", "update")
    old_state = spark.read.format("statestore").load(str(tmp_path / "old"))
    initial = old_state.selectExpr("key.*", "value.groupState.*")
    without_state = shutil.ignore_patterns("state")
    shutil.copytree(tmp_path / "old", tmp_path / "new", ignore=without_state)
    add("second", [("a", 10.0), ("c", 2.0)])
    out = transform_with_state(
        events.groupBy("customer"),
        CountAndSum(),
        GROUP_OUTPUT,
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
