"""What fails says first what, where and what to do; what was committed stays, and a restart is exact."""

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from tests.support.locations.sequence_entries import claims, committed
from tests.support.spark.processors import INPUT, TOTALS, Totals, totals_of
from tests.support.spark.streams import wait

from statelog.errors import CheckpointError, ProcessorError, StoreError, UsageError
from statelog.spark import transform_with_state

BAD = 13
GOOD_ROWS = [[(1, 1), (2, 2)], [(1, 5), (BAD, 7), (3, 1)], [(BAD, 1)]]


class Faulty(Totals):
    """`Totals` with a fault at key 13, or at the start or end of a task, in batch 1."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def init(self, handle):
        super().init(handle)
        self.handle = handle
        self.names = handle.getListState("names", "name string")
        self.raise_if("init")

    def raise_if(self, fault: str) -> None:
        context = TaskContext.get()
        if context is None or self.fault != fault:
            return
        if context.getLocalProperty("streaming.sql.batchId") == "1":
            raise ArithmeticError(f"{fault} went wrong")

    def handleInputRows(self, key, rows, timerValues):
        if key[0] == BAD:
            self.raise_if("rows")
            if self.fault == "sys.exit":
                sys.exit(3)
            if self.fault == "os._exit":
                os._exit(5)
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "timer":
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
            elif self.fault == "state type":
                self.names.appendValue((1.5,))
            elif self.fault == "state range":
                self.total.update((2**63, 0))
                return
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self.raise_if("timer")
        yield from ()

    def close(self):
        self.raise_if("close")


AT_KEY = r"Faulty\.handleInputRows failed for key \(13,\) in batch 1: "
KILLED = "a Python worker ended while Faulty processed batch 1, so its key is unknown: .* Read the"


@pytest.mark.parametrize(
    ("fault", "delivery", "message"),
    [
        ("rows", "staged", AT_KEY + "ArithmeticError: rows went wrong. Nothing of this batch was"),
        ("rows", "direct", AT_KEY + "ArithmeticError: rows went wrong. Nothing of this batch was"),
        ("sys.exit", "staged", AT_KEY + r"it called sys\.exit\(3\), but a processor must not end"),
        ("os._exit", "direct", AT_KEY + r"it called os\._exit\(5\), but a processor must not end"),
        ("killed", "staged", KILLED),
        ("killed", "direct", KILLED),
        ("init", "staged", r"Faulty\.init failed in batch 1: ArithmeticError: init went wrong"),
        ("timer", "staged", r"Faulty\.handleExpiredTimer failed for key \(13,\) in batch 1: .*tim"),
        ("close", "staged", r"Faulty\.close failed in batch 1: ArithmeticError: close went wrong"),
        ("state type", "staged", AT_KEY + ".*state 'names': field 'name' takes string, not flo"),
        ("state range", "staged", r".*state 'total' of key \(13,\) in batch 1 .*int64"),
    ],
)
def test_the_sentence_comes_first_and_a_fix_restarts_exactly(job, fault, delivery, message):
    job.options = {
        "timeMode": "ProcessingTime" if fault == "timer" else "None",
        "delivery": delivery,
    }
    job.source.add_all(GOOD_ROWS)
    query = job.start(processor=Faulty(fault))
    sentence = f"^ProcessorError: {message}"
    with pytest.raises(StreamingQueryException, match=sentence) as raised:
        wait(query)
    with pytest.raises(StreamingQueryException, match=sentence):
        query.processAllAvailable()
    assert re.search(sentence, str(query.exception()).partition("\n\n")[0])
    if fault in ("rows", "sys.exit", "os._exit", "killed"):
        for text in (str(raised.value), str(query.exception())):
            check_parts(text, has_lines=fault != "killed")
    job.run(processor=Faulty("none"), tasks=3)
    assert totals_of(GOOD_ROWS) == job.take_in_order()


def check_parts(text: str, *, has_lines: bool) -> None:
    """Check that statelog's sentence and the user's lines come before Spark's text."""
    statelogs, _, sparks = text.partition("\n\n")
    assert has_lines == (", in handleInputRows\n" in statelogs)
    assert "statelog/spark/" not in statelogs
    assert "FOREACH_BATCH_USER_FUNCTION_ERROR" in sparks or "Python Proxy" in sparks
    assert len(text) < 3500
    # Whoever reads Spark's log or listens to its events has only Spark's text.
    assert f"Return Message: statelog.errors.{statelogs[:60]}" in sparks


def test_a_processor_that_cannot_be_shipped_is_refused_at_once(job):
    kind: Any = Totals
    text: Any = "Totals"
    unpicklable: Any = Totals()
    unpicklable.lock = threading.Lock()
    for frame in (job.source.frame(), job.source.spark.createDataFrame([(1, 1)], INPUT)):
        for processor, message in (
            (kind, r"is the class Totals; pass an instance: Totals\(\.\.\.\)"),
            (text, "or ColumnarProcessor, not a str"),
            (unpicklable, "Totals cannot be pickled.*: attribute 'lock': cannot .* Create such"),
        ):
            with pytest.raises(UsageError, match=message):
                transform_with_state(frame.groupBy("key"), processor, TOTALS)


def test_what_spark_can_ship_is_taken(job):
    processor: Any = Totals()
    processor.module = os  # cloudpickle can ship a module; copy.deepcopy cannot copy one
    job.source.add([(1, 1), (2, 2)])
    job.run(processor=processor)
    assert 2 == len(job.take()[0])


def leave(handle: StatefulProcessorHandle) -> None:
    sys.exit("bye")


def fail(handle: StatefulProcessorHandle) -> None:
    raise KeyError("where is it")


def test_an_init_or_argument_that_fails_is_told_before_the_query_starts(job):
    for init, message in (
        (leave, r"Totals\.init failed: it called sys.exit\('bye'\)"),
        (fail, r"Totals\.init failed: KeyError: 'where is it'"),
    ):
        processor: Any = Totals()
        processor.init = init
        with pytest.raises(ProcessorError, match=message):
            job.start(processor=processor)
    for arguments, message in (
        ({"output": "key bigint, total lnog"}, "is not a schema: .*LNOG.* such as .customer str"),
        ({"stateLocation": "s3:/bucket/job"}, "does not contain a bucket; use s3://bucket/"),
    ):
        with pytest.raises(UsageError, match=message):
            job.start(**arguments)


class Misspelt(Totals):
    """`Totals` with a column that the output does not have."""

    def handleInputRows(self, key, rows, timerValues):
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(key=row.key, totl=row.total, rows=None)


class Forgetful(Totals):
    def handleInputRows(self, key, rows, timerValues):
        for row in super().handleInputRows(key, rows, timerValues):
            Row(key=row.key, total=row.total, rows=row.rows)


def test_output_that_is_lost_is_warned_of_once(job, caplog):
    job.source.add_all([[(1, 1), (3, 2)], [(2, 2)]])
    job.run(processor=Misspelt())
    assert [2, 1] == [len(rows) for rows in job.take()]
    job.stream(processor=Forgetful())
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (misspelt,) = [warning for warning in warnings if "no output row of Misspelt" in warning]
    assert misspelt.startswith("no output row of Misspelt in batch 0 sets the columns 'total': ")
    assert misspelt.endswith("'totl' (did you mean 'total'?)")
    (forgetful,) = [warning for warning in warnings if "Forgetful" in warning]
    assert forgetful.startswith("Forgetful.handleInputRows has no `yield` and returns None, so no ")


class Wider(Totals):
    def init(self, handle):
        self.total = handle.getValueState("total", "total double, rows bigint")


def test_state_that_does_not_fit_the_query_is_refused_and_stays(job, tmp_path):
    batches = [[(1, 1), (2, 2)], [(2, 1)]]
    job.source.add(batches[0])
    job.run()
    job.source.add(batches[1])
    elsewhere, newest, before = str(tmp_path / "q"), committed(job.state)[-1], claims(job.state)
    for changes, message in (
        ({"operator": "other"}, "belongs to operator 'transform_with_state', not 'other'"),
        ({"processor": Wider()}, "state 'total': field 'total' is int64 there, but double here"),
        ({"keys": ["key", "amount"]}, "its key is .*, but the query's key is"),
        ({"maxParallelism": 64}, "128 key groups, but the query requests 64"),
        ({"checkpointLocation": elsewhere}, "contains the state of query .*, not of this query"),
        ({"checkpoint": "empty"}, "checkpoint='empty' was requested, but .* contains checkpoint 1"),
        ({"checkpoint": 17}, "checkpoint 17 does not exist"),
        ({"checkpoint": newest, "maxParallelism": 64}, "128 key groups, but the query requests 64"),
        ({"checkpoint": newest, "timeMode": "ProcessingTime", "operator": "x"}, "belongs to oper"),
    ):
        with pytest.raises((CheckpointError, StreamingQueryException), match=message):
            job.run(**changes)
        assert before == claims(job.state), changes
    job.run()
    assert totals_of(batches) == job.take_in_order()


def test_a_lost_state_location_is_noticed(job, tmp_path):
    job.source.add([(1, 1)])
    job.run()
    for _ in range(2):  # at the start, with new rows or without
        with pytest.raises(CheckpointError, match=r"at batch 1, but .* its state is missing"):
            job.start(stateLocation=str(tmp_path / "nothing"))
        job.source.add([(1, 1)])


def test_an_adopted_state_fences_the_query_that_had_it(job, tmp_path):
    batches = [[(1, 1), (2, 2)], [(1, 10)], [(2, 20)]]
    job.source.add_all(batches[:2])
    successor = replace(job, folder=tmp_path / "successor", delivered=[])
    successor.options = {"stateLocation": str(job.state), "adopt": True}

    def hand_over(frame: Any, batch_id: int) -> None:
        job.collect(frame, batch_id)
        if batch_id == 1:
            successor.run()

    with pytest.raises(StreamingQueryException, match=r"FencedError: .* is fenced"):
        job.run(hand_over, delivery="direct")
    with pytest.raises(CheckpointError, match="contains the state of query"):
        job.run()
    job.source.add(batches[2])
    successor.run(tasks=3)
    assert totals_of(batches[:1]) == job.take_in_order()[:1]
    # The successor reads the source from its beginning, onto the state of the first batch.
    assert totals_of([batches[0], *batches])[1:] == successor.take_in_order()


def test_a_place_that_cannot_be_written_is_one_clear_error(job, tmp_path):
    (tmp_path / "file").write_text("no folder")
    job.source.add([(1, 1)])
    with pytest.raises((StoreError, StreamingQueryException), match="file") as raised:
        job.run(stateLocation=str(tmp_path / "file" / "state"))
    assert "StoreError" in type(raised.value).__name__ + str(raised.value)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with little room; only root may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("inline_bytes", [0, 1024 * 1024], ids=["files", "inline"])
def test_a_full_disk_loses_no_commit(job, small_disk, inline_bytes):
    batches = [[(key, 1) for key in range(size)] for size in (50, 9000, 50)]
    job.options = {
        "stateLocation": str(small_disk / "state"),
        "stream.data-inline-threshold": inline_bytes,
    }
    job.source.add(batches[0])
    job.run()
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    job.source.add(batches[1])
    no_space = r"(StoreError|UploadFailedError): .*No space left"
    with pytest.raises(StreamingQueryException, match=no_space):
        job.run()
    filler.unlink()
    job.source.add(batches[2])
    job.run(tasks=3)
    assert totals_of(batches) == job.take_in_order()
