"""The sentence that says what failed, where, and what to do comes first in every error of a query."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from tests.support.spark.processors import INPUT, TOTALS, Totals
from tests.support.spark.streams import Job, wait

from statelog.errors import ProcessorError, UsageError
from statelog.spark import transform_with_state

BAD = 13


class Faulty(Totals):
    """`Totals` with a fault at key 13."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if key[0] == BAD:
            if self.fault == "error":
                raise ArithmeticError("it does not add up")
            if self.fault == "sys.exit":
                sys.exit(3)
            if self.fault == "os._exit":
                os._exit(5)
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
        yield from super().handleInputRows(key, rows, timerValues)


@pytest.fixture
def job(job: Job) -> Job:
    """A job whose first micro-batch has the key of the faults."""
    job.source.add([(1, 1), (BAD, 2)])
    return job


AT_KEY = r"ProcessorError: Faulty\.handleInputRows failed for key \(13,\) in batch 0: "


@pytest.mark.parametrize("delivery", ["staged", "direct"])
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("error", AT_KEY + "ArithmeticError: it does not add up. Nothing of this batch was comm"),
        (
            "sys.exit",
            AT_KEY + r"it called sys\.exit\(3\), but a processor must not end its process",
        ),
        ("os._exit", AT_KEY + r"it called os\._exit\(5\), but a processor must not end its proces"),
        (
            "killed",
            r"ProcessorError: a Python worker ended while Faulty processed batch 0, so its key is "
            r"unknown: .* Read the logs of the worker",
        ),
    ],
)
def test_the_sentence_comes_first(job: Job, delivery: str, fault: str, sentence: str) -> None:
    query = job.start(processor=Faulty(fault), delivery=delivery)
    with pytest.raises(StreamingQueryException, match="^" + sentence) as raised:
        wait(query)
    with pytest.raises(StreamingQueryException, match="^" + sentence):
        query.processAllAvailable()
    for text in (str(raised.value), str(query.exception())):
        statelogs, _, sparks = text.partition("\n\n")
        assert statelogs.startswith("ProcessorError: ")
        assert fault == "killed" or ", in handleInputRows\n" in statelogs  # the user's lines
        assert "statelog/spark/" not in statelogs  # and no others
        assert "FOREACH_BATCH_USER_FUNCTION_ERROR" in sparks or "Python Proxy" in sparks
        assert len(text) < 3500
    # Whoever reads Spark's log or listens to its events has only Spark's text.
    assert f"Return Message: statelog.errors.{statelogs[:60]}" in sparks
    job.run()
    assert [(1, 1, 1), (BAD, 2, 1)] == job.take_in_order()[-1]


@pytest.mark.parametrize("flavour", ["stream", "batch"])
def test_a_processor_that_cannot_be_shipped_is_refused_at_once(job: Job, flavour: str) -> None:
    frame = job.source.frame()
    if flavour == "batch":
        frame = job.source.spark.createDataFrame([(1, 1)], INPUT)
    grouped = frame.groupBy("key")
    kind: Any = Totals
    with pytest.raises(
        UsageError, match=r"is the class Totals; pass an instance: Totals\(\.\.\.\)"
    ):
        transform_with_state(grouped, kind, TOTALS)
    with pytest.raises(UsageError, match="or ColumnarProcessor, not a str"):
        transform_with_state(grouped, "Totals", TOTALS)  # type: ignore[arg-type]
    unpicklable: Any = Totals()
    unpicklable.lock = threading.Lock()
    message = r"Totals cannot be pickled.*: attribute 'lock': cannot .* Create such objects in init"
    with pytest.raises(UsageError, match=message):
        transform_with_state(grouped, unpicklable, TOTALS)


def test_what_spark_can_ship_is_taken(job: Job) -> None:
    processor: Any = Totals()
    processor.module = os  # cloudpickle can ship a module; copy.deepcopy cannot copy one
    job.run(processor=processor)
    assert 2 == len(job.take()[0])


def leave(handle: StatefulProcessorHandle) -> None:
    sys.exit("bye")


def fail(handle: StatefulProcessorHandle) -> None:
    raise KeyError("where is it")


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (leave, r"Totals\.init failed: it called sys.exit\('bye'\)"),
        (fail, r"Totals\.init failed: KeyError: 'where is it'"),
    ],
)
def test_an_init_that_fails_is_told_before_the_query_starts(
    job: Job, init: Callable[[StatefulProcessorHandle], None], message: str
) -> None:
    processor = Totals()
    processor.init = init  # type: ignore[method-assign]
    with pytest.raises(ProcessorError, match=message):
        job.start(processor=processor)


def test_the_error_of_an_argument_says_what_to_type(job: Job) -> None:
    with pytest.raises(UsageError, match=r"is not a schema: .*LNOG.* such as .customer string, "):
        job.start(output="key bigint, total lnog")
    with pytest.raises(
        UsageError, match=r"'s3:/bucket/job' does not contain a bucket; use s3://bucket/"
    ):
        job.start(stateLocation="s3:/bucket/job")


class Misspelt(Totals):
    """`Totals` with a column that the output does not have."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(key=row.key, totl=row.total, rows=None)


class Forgetful(Totals):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in super().handleInputRows(key, rows, timerValues):
            Row(key=row.key, total=row.total, rows=row.rows)


def test_output_that_is_lost_is_warned_of_once(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.source.add([(2, 2)])
    job.run(processor=Misspelt())
    assert [2, 1] == [len(rows) for rows in job.take()]
    grouped = job.source.spark.createDataFrame([(1, 1)], INPUT).groupBy("key")
    transform_with_state(grouped, Forgetful(), TOTALS)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (misspelt,) = [warning for warning in warnings if "no output row of Misspelt" in warning]
    assert misspelt.startswith("no output row of Misspelt in batch 0 sets the columns 'total': ")
    assert misspelt.endswith("'totl' (did you mean 'total'?)")
    (forgetful,) = [warning for warning in warnings if "Forgetful" in warning]
    assert forgetful.startswith("Forgetful.handleInputRows has no `yield` and returns None, so no ")


def test_a_batch_frame_shows_the_processors_lines(spark: SparkSession) -> None:
    grouped = spark.createDataFrame([(BAD, 1)], INPUT).groupBy("key")
    with pytest.raises(PythonException, match=r"Faulty\.handleInputRows failed for key") as raised:
        transform_with_state(grouped, Faulty("error"), TOTALS).collect()
    assert 'raise ArithmeticError("it does not add up")' in str(raised.value)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_changelog_file_that_is_not_there_says_what_to_do(job: Job, damage: str) -> None:
    job.run(**{"stream.data-inline-threshold": 0})
    files = [path for path in (job.state / "dstl").rglob("*") if path.is_file()]
    assert files
    for path in files:
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:40])
    job.source.add([(1, 1)])
    message = rf"(?s)^Checkpoint(Damaged)?Error: .*statelog verify file://{job.state}.*checkpoint="
    with pytest.raises(StreamingQueryException, match=message) as raised:
        job.run()
    assert files[0].name in str(raised.value).partition("\n\n")[0]
