"""A job changes its state between starts; what it reads then is what Spark's Avro state reads."""

import itertools
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.streams import (
    FREQUENT_SNAPSHOTS,
    BatchSource,
    Job,
    configured,
    run_on_spark,
)

from statelog.errors import CheckpointError, ProcessorError, UsageError
from statelog.runtime.clock import wall_clock_ms

INPUT = "key bigint, number bigint"
SEEN = "key bigint, seen string"
HOUR_MS = 3_600_000


class Evolving(StatefulProcessor):
    """Keeps the last number in states of the given fields, and yields what they held before."""

    def __init__(self, fields: str, values: dict[str, Any]) -> None:
        self.fields = fields
        self.values = values

    def init(self, handle):
        self.value = handle.getValueState("value", self.fields)
        self.list = handle.getListState("list", self.fields)
        self.map = handle.getMapState("map", "name string", self.fields)

    def handleInputRows(self, key, rows, timerValues):
        seen = [self.value.get(), list(self.list.get()), self.map.getValue(("a",))]
        # A Row's own text names its fields; the values are what must agree.
        text = repr([seen[0], seen[1], None if seen[2] is None else tuple(seen[2])])
        numbers = [row.number for row in rows]
        names = [field.split(":")[0].split()[0] for field in split_fields(self.fields)]
        value = tuple(self.values[name](sum(numbers)) for name in names)
        self.value.update(value)
        self.list.appendValue(value)
        self.map.updateValue(("a",), value)
        yield Row(key=key[0], seen=text)


def split_fields(ddl: str) -> list[str]:
    """Split DDL at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in ddl:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


STEPS: list[tuple[str, dict[str, Any]]] = [
    (
        "small int, real float, part struct<a: int, b: string>, gone string",
        {"small": int, "real": float, "part": lambda n: (n, f"b{n}"), "gone": str},
    ),
    (  # moved, added, widened, and after dropState removed; inside of the struct too
        "part struct<b: string, c: boolean, a: bigint>, new string, small bigint, real double",
        {
            "small": lambda n: n + 2**40,
            "real": float,
            "part": lambda n: (f"b{n}", True, n + 2**40),
            "new": str,
        },
    ),
]


@pytest.fixture
def job(spark, tmp_path):
    """A job whose processor is chosen by each run."""
    source = BatchSource(spark, tmp_path / "in", INPUT)
    return Job(source, tmp_path, ["key"], Evolving(*STEPS[0]), SEEN)


def test_states_evolve_as_on_spark(spark, job):
    ours, theirs = [], []
    with configured(spark, {"spark.sql.streaming.stateStore.encodingFormat": "avro"}):
        for tasks, step in zip((1, 3), STEPS, strict=True):
            job.source.add_all([[(key, 1 + key) for key in range(6)], [(0, 9)]])
            job.processor = Evolving(*step)
            if tasks > 1:
                with pytest.raises(CheckpointError, match=r"'value\.gone', .*'map\.gone'"):
                    job.run()
            job.run(tasks=tasks, **FREQUENT_SNAPSHOTS, dropState="value.gone, list.gone, map.gone")
            ours += job.take()
            theirs += [rows for rows in run_on_spark(job) if rows]
    assert [sorted(batch) for batch in theirs] == [sorted(batch) for batch in ours]
    assert any(progress.snapshots for progress in job.progress)


class Life(StatefulProcessor):
    """Does to its state what the step says; yields what it holds."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.worked = False

    def init(self, handle):
        if self.step == "misuse":
            handle.getValueState("count", "n bigint").update((1,))
        ttl = HOUR_MS if self.step == "ttl" else None
        self.count = handle.getValueState("count", "n bigint", ttl)
        self.other = None
        if self.step in ("first", "again"):
            self.other = handle.getListState("other", "n bigint")
        elif self.step == "another":
            self.other = handle.getListState("other", "n string")
        else:
            handle.deleteIfExists("other")
        self.most = handle.getReducingState("most", "n bigint", max)
        self.mean = handle.getAggregatingState("mean", "sum bigint, n bigint", Mean())

    def handleInputRows(self, key, rows, timerValues):
        self.worked = True
        for row in rows:
            self.count.update(((self.count.get() or (0,))[0] + 1,))
            self.most.add((row.number,))
            self.mean.add(row.number)
            if self.other is not None:
                self.other.appendValue(("x" if self.step == "another" else row.number,))
        others = [] if self.other is None else [other for (other,) in self.other.get()]
        yield Row(
            key=key[0], seen=repr([self.count.get(), others, self.most.get(), self.mean.get()])
        )

    def close(self):
        if self.step == "late" and self.worked:  # not on the driver, which tries init and close
            self.count.update((0,))


class Mean:
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, first: Any, second: Any) -> Any:
        return first[0] + second[0], first[1] + second[1]


def test_variables_come_and_go_with_their_time_to_live(job):
    job.options["timeMode"] = "ProcessingTime"
    numbers = itertools.count(1)

    def run(step: str) -> str:
        job.source.add([(1, next(numbers))])
        job.run(processor=Life(step), tasks=2)
        (row,) = job.take()[-1]
        return str(row.seen)

    assert "[(1,), [1], (1,), 1.0]" == run("first")
    assert "[(2,), [1, 2], (2,), 1.5]" == run("again")
    assert "[(3,), [], (3,), 2.0]" == run("ttl")  # and `other` deleted
    assert "[(4,), ['x'], (4,), 2.5]" == run("another")  # for ever again; `other` of another type
    before = sorted(path.name for path in job.state.rglob("*"))
    with pytest.raises(CheckpointError, match="'other': field 'n' is string there, but int64"):
        job.run(processor=Life("again"))
    with pytest.raises(ProcessorError, match=r"Life\.init.*'count' belongs to a key") as caught:
        job.run(processor=Life("misuse"))
    assert isinstance(caught.value.__cause__, UsageError)
    assert before == sorted(path.name for path in job.state.rglob("*"))
    with pytest.raises(Exception, match=r"Life\.close failed.*belongs to a key"):
        run("late")
    assert "[(6,), [], (6,), 3.5]" == run("plain")  # with the row of `late`, which did not commit


class Total(StatefulProcessor):
    """Adds numbers in a field of a variable."""

    def __init__(self, variable: str, field: str) -> None:
        self.variable = variable
        self.field = field

    def init(self, handle):
        self.total = handle.getValueState(self.variable, f"{self.field} bigint, note string")

    def handleInputRows(self, key, rows, timerValues):
        old, note = self.total.get() or (None, None)
        total = (old or 0) + sum(row.number for row in rows)
        self.total.update((total, "noted"))
        yield Row(key=key[0], seen=f"{total} {note}")


@pytest.mark.parametrize(
    ("renamed", "name"),
    [(Total("total", "paid"), "total.spent"), (Total("sums", "spent"), "total")],
    ids=["field", "variable"],
)
def test_a_renamed_field_or_variable_does_not_begin_empty(job, renamed, name):
    """Nothing is lost until dropState has the old name."""
    job.processor = Total("total", "spent")
    job.source.add([(1, 1)])
    job.run()
    job.source.add([(1, 10)])
    for settings in ({}, {"dropState": ["note"]}):
        message = f"does not declare: '{name}'.*dropState='{name}'"
        with pytest.raises(CheckpointError, match=message):
            job.run(processor=renamed, **settings)
    job.run()
    assert ["1 None", "11 noted"] == [row.seen for batch in job.take() for row in batch]

    job.source.add([(1, 100)])
    job.run(processor=renamed, dropState=[name])
    job.source.add([(1, 1000)])
    job.run(processor=renamed)  # the setting is not needed again
    note = "noted" if renamed.variable == "total" else "None"
    assert [f"100 {note}", "1100 noted"] == [row.seen for batch in job.take() for row in batch]
    new = f"{renamed.variable}.{renamed.field}"
    with pytest.raises(CheckpointError, match=f"does not declare: '{new.removesuffix('.spent')}'"):
        job.run()


class Expiring(StatefulProcessor):
    """Puts a value if it has a time to live, and yields whether there was one."""

    def __init__(self, ttl_ms: int | None) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle):
        self.value = handle.getValueState("value", "n bigint", self.ttl_ms)

    def handleInputRows(self, key, rows, timerValues):
        seen = self.value.exists()
        if self.ttl_ms is not None:
            self.value.update((7,))
        yield Row(key=key[0], seen=str(seen))


def test_a_repeated_batch_sees_the_state_of_its_first_attempt(job, monkeypatch):
    """The time to live was removed: what had expired is decided by the time of the batch."""
    job.options = {"timeMode": "ProcessingTime", "delivery": "direct", "noDataBatches": False}
    job.processor = Expiring(HOUR_MS)
    job.source.add([(1, 1)])
    job.run()
    attempts: list[str] = []

    def failing(frame: Any, _: int) -> None:
        attempts.extend(row.seen for row in frame.collect())
        raise ValueError("the driver is killed here")

    job.source.add([(1, 2)])
    with pytest.raises(Exception, match="killed here"):
        job.run(failing, processor=Expiring(None))
    later = wall_clock_ms() + 2 * HOUR_MS
    monkeypatch.setattr("statelog.spark.driver.state_location.wall_clock_ms", lambda: later)
    job.source.add([(1, 3)])
    job.run(processor=Expiring(None))
    seen = [row.seen for batch in job.take() for row in batch]
    assert (["True"], ["False", "True", "True"]) == (attempts, seen)
