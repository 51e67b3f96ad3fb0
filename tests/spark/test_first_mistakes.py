"""
Mistakes of the first day on Spark: each error says what failed, where, and what to type.

Each row of the table is one mistake: a function that makes it, and a pattern of its error.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, Row
from tests.spark import processors
from tests.spark.processors import INPUT, TOTALS, Totals
from tests.spark.streams import BatchSource, Job, wait, workers_get_by_value

import statelog as sl
from statelog.spark import transform_with_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)


@pytest.fixture
def job(spark: "SparkSession", tmp_path: Path) -> Job:
    job = Job(BatchSource(spark, tmp_path / "in", INPUT), tmp_path, ["key"], Totals(), TOTALS)
    job.source.add([(1, 1), (2, 2)])
    return job


def operator(
    job: Job, processor: object = None, output: str = TOTALS, **settings: Any
) -> DataFrame:
    """Return a stateful operator over the input of *job*."""
    settings = {"stateLocation": str(job.state), **settings}
    grouped = job.source.frame().groupBy("key")
    return transform_with_state(grouped, processor or Totals(), output, **settings)  # type: ignore[arg-type]


class Returning(Totals):
    """Returns a row where it should yield rows."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return Row(key=key[0], total=1, rows=1)


class Numbers(Totals):
    """Yields what is no row."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        yield key[0]


class WrongOutput(Totals):
    """Yields a text where the output has a number."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(key=key[0], total="many", rows=1)


class WrongState(Totals):
    """Writes a text into a number."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.total.update(("many", 1))
        yield Row(key=key[0], total=1, rows=1)


class BareState(Totals):
    """Writes a bare number where a tuple is expected."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.total.update(3)
        yield Row(key=key[0], total=1, rows=1)


class LateState(Totals):
    """Asks for a state variable outside of `init`."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handle.getValueState("total", "n bigint")
        yield Row(key=key[0], total=1, rows=1)


class Timers(Totals):
    """Registers a timer."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(1)
        yield Row(key=key[0], total=1, rows=1)


def second_query(job: Job) -> None:
    job.run()
    job.run(checkpointLocation=str(job.folder / "second"))


def lost_state(job: Job) -> None:
    job.run()
    job.state.rename(job.folder / "gone")
    job.source.add([(1, 1)])
    job.run()


def closed_state(job: Job) -> None:
    job.run()
    with sl.open(job.state) as state:
        pass
    state.get("total", 1)


def unknown_variable(job: Job) -> None:
    job.run()
    with sl.open(job.state) as state:
        state.get("totl", 1)


def unknown_variable_on_spark(job: Job) -> None:
    job.run()
    reader = job.source.spark.read.format("statelog").option("variable", "totl")
    reader.load(str(job.state)).collect()


def wrong_place(job: Job) -> None:
    job.run()
    with sl.open(job.folder / "nowhere") as state:
        state.get("total", 1)


def without_checkpoint(job: Job) -> None:
    operator(job).writeStream.format("parquet").start(str(job.folder / "out"))


def without_sink(job: Job) -> None:
    writer = operator(job).writeStream.option("checkpointLocation", str(job.folder / "query"))
    wait(writer.start())


def batch_frame(job: Job) -> None:
    frame = job.source.spark.createDataFrame([(1, 1)], INPUT)
    transform_with_state(frame.groupBy("key"), Totals(), TOTALS).writeStream.start()


def plain_frame(job: Job) -> None:
    transform_with_state(job.source.frame(), Totals(), TOTALS)  # type: ignore[arg-type]


def misspelled_key(job: Job) -> None:
    transform_with_state(job.source.frame().groupBy("kye"), Totals(), TOTALS)


def session_setting(job: Job) -> None:
    job.source.spark.conf.set("spark.statelog.memoryBugdet", "1g")
    try:
        operator(job)
    finally:
        job.source.spark.conf.unset("spark.statelog.memoryBugdet")


def writer_option(job: Job) -> None:
    writer = operator(job).writeStream.option("checkpointLocation", str(job.folder / "query"))
    writer.option("statelog.retainCheckpoints", 5).foreachBatch(lambda *_: None).start()


MISTAKES: dict[str, tuple[Callable[[Job], object], str]] = {
    "class instead of instance": (
        lambda job: operator(job, Totals),
        r"statefulProcessor is the class Totals; give an instance: Totals\(\.\.\.\)",
    ),
    "no processor": (
        lambda job: operator(job, 3),
        r"statefulProcessor must be a StatefulProcessor or ColumnarProcessor, not 3",
    ),
    "misspelled type in the schema": (
        lambda job: operator(job, output="key bigint, total lnog"),
        r"outputStructType 'key bigint, total lnog' is not a schema: .*LNOG.* such as .customer string, total double",
    ),
    "output of another type": (
        lambda job: job.run(processor=WrongOutput()),
        r"WrongOutput\.handleInputRows failed for key \(1,\) in batch 0: output column 'total' \(int64\) cannot hold 'many' of Row",
    ),
    "state of another type": (
        lambda job: job.run(processor=WrongState()),
        r"WrongState\.handleInputRows failed for key \(1,\) in batch 0: state 'total': field 'total' takes int64, not str 'many'",
    ),
    "state that is no tuple": (
        lambda job: job.run(processor=BareState()),
        r"state 'total': takes a tuple of \(total, rows\), not int 3",
    ),
    "state outside of init": (
        lambda job: job.run(processor=LateState()),
        r"state 'total': state variables are created in init\(\) only: move the call there",
    ),
    "timer without a time mode": (
        lambda job: job.run(processor=Timers()),
        r'this query has None: give timeMode="ProcessingTime" to transform_with_state',
    ),
    "a row returned": (
        lambda job: job.run(processor=Returning()),
        r"it returned Row\(.*\), not an iterator of rows: write `yield` instead of `return`",
    ),
    "a number yielded": (
        lambda job: job.run(processor=Numbers()),
        r"it yields the int 1: `yield Row\(key=\.\.\., total=\.\.\., rows=\.\.\.\)` makes an output row",
    ),
    "no checkpointLocation": (
        without_checkpoint,
        r"a query needs \.option\('checkpointLocation', \.\.\.\)",
    ),
    "no sink": (
        without_sink,
        r"the format parquet needs a path: \.start\(path\) or \.option\('path', \.\.\.\)",
    ),
    "two queries on one location": (
        second_query,
        r"holds the state of query .*, not of this query .*another stateLocation, or adopt=True",
    ),
    "lost state": (
        lost_state,
        r"the query is at batch 1, but .*state holds no checkpoint: .*Set stateLocation to where the state is",
    ),
    "closed state": (closed_state, r"the state of .* is closed; open it again"),
    "unknown variable": (unknown_variable, r"has no state variable 'totl'; it has 'total'"),
    "unknown variable on Spark": (
        unknown_variable_on_spark,
        r"has no state variable 'totl'; it has 'total'",
    ),
    "wrong place": (wrong_place, r"nowhere: no such directory"),
    "wrong delivery": (
        lambda job: operator(job, delivery="stagd"),
        r"""delivery must be "staged" or "direct", not 'stagd'""",
    ),
    "wrong outputMode": (
        lambda job: operator(job, outputMode="Updat"),
        r"""outputMode must be one of "Append", "Update", "Complete", not 'Updat'""",
    ),
    "wrong timeMode": (
        lambda job: operator(job, timeMode="EventTme"),
        r"""timeMode must be one of "None", "ProcessingTime", "EventTime", not 'EventTme'""",
    ),
    "event time without a watermark": (
        lambda job: operator(job, timeMode="EventTime"),
        r"needs a watermark; call withWatermark on the input before groupBy",
    ),
    "unknown argument": (
        lambda job: operator(job, stateLocaton="x"),
        r"has no argument stateLocaton; did you mean 'stateLocation'\?",
    ),
    "snake case": (
        lambda job: operator(job, state_location="x"),
        r"has no argument state_location; did you mean 'stateLocation'\?",
    ),
    "unknown setting of the session": (
        session_setting,
        r"'spark\.statelog\.memoryBugdet': unknown setting 'memoryBugdet'; did you mean 'memoryBudget'\?",
    ),
    "unknown option of the writer": (
        writer_option,
        r"'statelog\.retainCheckpoints': unknown setting .* did you mean 'retainedCheckpoints'\?",
    ),
    "wrong size": (
        lambda job: operator(job, memoryBudget="a lot"),
        r"memoryBudget must be a number of bytes, or text such as '5 mb'",
    ),
    "batch frame": (batch_frame, r"`writeStream` can be called only on streaming"),
    "no groupBy": (
        plain_frame,
        r'takes a grouped frame, such as events\.groupBy\("customer"\), not',
    ),
    "misspelled key": (
        misspelled_key,
        r"`kye` cannot be resolved\. Did you mean one of the following\? \[`key`",
    ),
    "misspelled scheme": (
        lambda job: job.run(stateLocation="s4://bucket/job"),
        r"unknown scheme 's4'; use a path, file://, .* s3://",
    ),
    "half a scheme": (
        lambda job: job.run(stateLocation="s3:/bucket/job"),
        r"'s3:/bucket/job' names no bucket; write s3://bucket/path",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_error_of_a_first_mistake_says_what_to_type(job: Job, name: str) -> None:
    mistake, sentence = MISTAKES[name]
    with pytest.raises(Exception, match=sentence):
        mistake(job)
