"""State read back through Spark: of random runs against dictionaries, of real data against SQL."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col, expr
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.spark.source_job import read, summaries
from tests.spark.streams import BatchSource, Job, wait, workers_get_by_value

from statelog.spark import transform_with_state

workers_get_by_value(__name__)

ROOT = Path(__file__).resolve().parents[2]
RETAIL = Path(os.environ.get("STATELOG_ONLINE_RETAIL", ROOT / "../shared/data/online-retail"))
INPUT = "key bigint, kind string, name string, n bigint"
SHOP = (
    "InvoiceNo string, StockCode string, Description string, Quantity bigint, InvoiceDate timestamp, "
    "UnitPrice decimal(12,3), CustomerID string, Country string"
)
Model = dict[str, dict[int, Any]]


class Steps(StatefulProcessor):
    """Does to its state what each row says."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n bigint")
        self.items = handle.getListState("items", "n bigint")
        self.counts = handle.getMapState("counts", "name string", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            match row.kind:
                case "set":
                    self.value.update((row.n,))
                case "clear":
                    self.value.clear()
                    self.items.clear()
                    self.counts.clear()
                case "append":
                    self.items.appendValue((row.n,))
                case "put":
                    self.counts.updateValue((row.name,), (row.n,))
                case _:
                    self.counts.removeKey((row.name,))
        yield Row(key=key[0])

    def close(self) -> None:
        pass


def done(model: Model, rows: list[tuple[int, str, str, int]]) -> Model:
    """Return the model after rows, as dictionaries of plain values."""
    after: Model = {
        "value": dict(model["value"]),
        "items": {key: list(one) for key, one in model["items"].items()},
        "counts": {key: dict(one) for key, one in model["counts"].items()},
    }
    for key, kind, name, n in rows:
        match kind:
            case "set":
                after["value"][key] = n
            case "clear":
                for one in after.values():
                    one.pop(key, None)
            case "append":
                after["items"].setdefault(key, []).append(n)
            case "put":
                after["counts"].setdefault(key, {})[name] = n
            case _:
                after["counts"].get(key, {}).pop(name, None)
    after["counts"] = {key: one for key, one in after["counts"].items() if one}
    return after


def read_back(spark: SparkSession, location: Path, checkpoint_id: int) -> Model:
    """Return the state that Spark reads, in the form of the model."""

    def of(name: str, **options: Any) -> list[Any]:
        found = read(spark, location, variable=name, checkpoint=checkpoint_id, **options)
        return found.collect()

    counts = of("counts", flattenCollectionTypes="false")
    items: dict[int, list[int]] = {}
    for row in sorted(of("items"), key=lambda one: one.position):
        items.setdefault(row.key.key, []).append(row.value.n)
    return {
        "value": {row.key.key: row.value.n for row in of("value")},
        "items": items,
        "counts": {
            row.key.key: {name.name: one.n for name, one in row.value.items()} for row in counts
        },
    }


@pytest.mark.parametrize("seed", range(2))
def test_state_read_back_is_that_of_dictionaries(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(f"read back {seed}")
    source = BatchSource(spark, tmp_path / "in", INPUT)
    models: list[Model] = []
    model: Model = {"value": {}, "items": {}, "counts": {}}
    for _ in range(5):
        rows = [
            (
                rng.randrange(6),
                rng.choices(("set", "append", "put", "remove", "clear"), (4, 4, 4, 2, 1))[0],
                rng.choice("pqr"),
                rng.randrange(1000),
            )
            for _ in range(rng.randrange(1, 25))
        ]
        # The rows of a key in one micro-batch have no order on Spark, so each key has one.
        rows = list({row[0]: row for row in rows}.values())
        source.add(rows)
        model = done(model, rows)
        models.append(model)
    run = Job(
        source,
        tmp_path,
        ["key"],
        Steps(),
        "key bigint",
        {"maxParallelism": 4, "retainedCheckpoints": 9},
    )
    run.run()
    ids = [one.checkpoint_id for one in summaries(run.state) if one.is_retained]
    assert len(ids) == 5
    state: dict[int, Any] = {}
    for checkpoint_id, wanted in zip(ids, models, strict=True):
        assert read_back(spark, run.state, checkpoint_id) == wanted
    feed = read(spark, run.state, view="changes", since=ids[0]).collect()
    first = read_back(spark, run.state, ids[0])
    keys = {*first["value"], *first["items"], *first["counts"]}
    state = {key: {name: first[name].get(key) for name in first} for key in keys}
    for row in sorted(feed, key=lambda one: one.checkpoint_id):
        after = row.after
        state[row.key.key] = {
            "value": None if after.value is None else after.value.n,
            "items": None if after["items"] is None else [one.n for one in after["items"]],
            "counts": None
            if after.counts is None
            else {one.key.name: one.value.n for one in after.counts},
        }
    last = models[-1]
    for name in last:
        assert last[name] == {key: one[name] for key, one in state.items() if one[name] is not None}


class CustomerTotals(StatefulProcessor):
    """Counts order lines and adds up what they cost, in thousandths, by customer."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "lines bigint, cost bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        lines, cost = self.total.get() or (0, 0)
        for row in rows:
            lines, cost = lines + 1, cost + row.cost
        self.total.update((lines, cost))
        yield Row(customer=key[0])

    def close(self) -> None:
        pass


@pytest.mark.skipif(not RETAIL.is_dir(), reason="the data online-retail is not there")
def test_totals_of_the_shop_are_those_of_the_batch_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    days = sorted(RETAIL.glob("*.csv"))[:9]
    source = tmp_path / "in"
    source.mkdir()

    def orders(frame: Any) -> Any:
        cost = expr("cast(UnitPrice * 1000 as bigint) * Quantity as cost")
        return frame.where("CustomerID is not null").select(
            col("CustomerID").alias("customer"), cost
        )

    frame = orders(spark.readStream.schema(SHOP).option("header", True).csv(str(source)))
    state = tmp_path / "state"
    out = transform_with_state(
        frame.groupBy("customer"),
        CustomerTotals(),
        "customer string",
        "Update",
        "None",
        stateLocation=str(state),
        retainedCheckpoints=9,
    )
    writer = out.writeStream.foreachBatch(lambda *_: None).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "query"))
    for third in range(3):
        for day in days[3 * third : 3 * third + 3]:
            (source / day.name).write_bytes(day.read_bytes())
        wait(writer.start())
    ids = [one.checkpoint_id for one in summaries(state) if one.is_retained]
    assert len(ids) == 3
    for third, checkpoint_id in enumerate(ids):
        upto = [str(day) for day in days[: 3 * third + 3]]
        lines = orders(spark.read.schema(SHOP).option("header", True).csv(upto))
        wanted = lines.groupBy("customer").agg(expr("count(*)"), expr("sum(cost)")).collect()
        found = read(spark, state, checkpoint=checkpoint_id).select(
            "key.customer", "value.lines", "value.cost"
        )
        assert sorted(map(tuple, wanted)) == sorted(map(tuple, found.collect()))
        assert len(wanted) > 200
