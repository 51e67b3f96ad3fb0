"""What fails says what, where and what to do; what was committed stays, and a restart is exact."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from tests.spark import processors
from tests.spark.processors import INPUT, TOTALS, SlowTotals, Totals, TotalsModel
from tests.spark.streams import BatchSource, Job, workers_get_by_value

from statelog.core.task_count import TaskBounds
from statelog.errors import CheckpointError, FencedError, ProcessorError, StoreError
from statelog.model import KeyGroupRange
from statelog.spark import transform_with_state
from statelog.spark.driver.engine import MicroBatchEngine
from statelog.spark.query.keyed_frame import grouping_of, keyed_frame
from statelog.spark.query.query import Query
from statelog.spark.query.settings import QuerySettings
from statelog.store.location import normalize_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

workers_get_by_value(__name__)
workers_get_by_value(processors.__name__)

BAD = 13
GOOD_ROWS = [[(1, 1), (2, 2)], [(1, 5), (BAD, 7), (3, 1)], [(BAD, 1)]]


@pytest.fixture
def job(spark: "SparkSession", tmp_path: Path) -> Job:
    return Job(BatchSource(spark, tmp_path / "in", INPUT), tmp_path, ["key"], Totals(), TOTALS)


def in_order(batch: list[Any]) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, batch), key=repr)


class Faulty(Totals):
    """`Totals` with a fault at key 13, or at the start or end of a task, in batch 1."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def init(self, handle: StatefulProcessorHandle) -> None:
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

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if key[0] == BAD:
            self.raise_if("input")
            if self.fault == "timer":
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
            elif self.fault == "state type":
                self.names.appendValue((1.5,))
            elif self.fault == "state width":
                self.total.update((1, 2, 3))
            elif self.fault == "state range":
                self.total.update((2**63, 0))
                return
            elif self.fault == "no row":
                yield {"key": 1}  # type: ignore[misc]
            elif self.fault == "output type":
                yield Row(key=key[0], total="many", rows=1)
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        self.raise_if("timer")
        yield from ()

    def close(self) -> None:
        self.raise_if("close")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("init", r"Faulty\.init failed in batch 1: ArithmeticError: init went wrong"),
        ("input", r"Faulty\.handleInputRows failed for key \(13,\) in batch 1: Arith.*input went"),
        ("timer", r"Faulty\.handleExpiredTimer failed for key \(13,\) in batch 1: .*timer went"),
        ("close", r"Faulty\.close failed in batch 1: ArithmeticError: close went wrong"),
        (
            "state type",
            r"key \(13,\) in batch 1: state 'names': field 'name' takes string, not flo",
        ),
        ("state width", r"key \(13,\) in batch 1: state 'total': 3 values for the 2 fields"),
        ("state range", r"state 'total' of key \(13,\) in batch 1 .*int64"),
        ("no row", r"key \(13,\) in batch 1: it yields the dict .*`yield Row\(\*\*values\)`"),
        (
            "output type",
            r"key \(13,\) in batch 1: output column 'total' .int64. .*'many'.* of Row\(key=13",
        ),
    ],
)
def test_a_fault_of_the_processor_is_named_and_after_the_fix_the_restart_is_exact(
    job: Job, fault: str, message: str
) -> None:
    model = TotalsModel()
    job.options = {"timeMode": "ProcessingTime"}
    for rows in GOOD_ROWS:
        job.source.add(rows)
    with pytest.raises(StreamingQueryException, match=message) as raised:
        job.run(processor=Faulty(fault))
    assert "ProcessorError" in str(raised.value)
    job.run(processor=Faulty("none"), tasks=3)
    assert [model.apply(rows) for rows in GOOD_ROWS] == [in_order(rows) for rows in job.take()]


def test_an_init_that_fails_is_told_before_the_query_starts(job: Job) -> None:
    class Unable(Totals):
        def init(self, handle: StatefulProcessorHandle) -> None:
            raise KeyError("where is it")

    with pytest.raises(ProcessorError, match=r"Unable\.init failed: KeyError: 'where is it'"):
        job.start(processor=Unable())


@pytest.mark.parametrize("key_type", ["a array<int>", "a struct<m: map<string, int>>"])
def test_a_state_that_cannot_be_kept_is_refused_before_the_query_starts(
    job: Job, key_type: str
) -> None:
    class Unable(Totals):
        def init(self, handle: StatefulProcessorHandle) -> None:
            handle.getMapState("m", key_type, "v int")

    with pytest.raises(
        ProcessorError, match=r"state 'm': the field '.*' of its map key has the type"
    ):
        job.start(processor=Unable())


class Wider(Totals):
    """`Totals` with another type."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total double, rows bigint")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operator": "other"}, "belongs to operator 'transform_with_state', not 'other'"),
        ({"processor": Wider()}, "state 'total': field 'total' is int64 there, double here"),
        ({"keys": ["key", "amount"]}, "its key is .*, the query's is"),
        ({"maxParallelism": 64}, "128 key groups, the query asks for 64"),
        ({"checkpointLocation": "elsewhere"}, "holds the state of query .*, not of this query"),
        ({"checkpoint": "empty"}, "checkpoint='empty' was asked for, but .* holds checkpoint 1"),
        ({"checkpoint": 17}, "checkpoint 17 does not exist"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_state_that_does_not_fit_the_query_is_refused_and_stays(
    job: Job, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    model = TotalsModel()
    batches = [[(1, 1), (2, 2)], [(2, 1)]]
    job.source.add(batches[0])
    job.run()
    job.source.add(batches[1])
    if "checkpointLocation" in changes:
        changes = {"checkpointLocation": str(tmp_path / "elsewhere")}
    with pytest.raises((CheckpointError, StreamingQueryException), match=message):
        job.run(**changes)
    job.run()
    assert [model.apply(rows) for rows in batches] == [in_order(rows) for rows in job.take()]


def test_a_lost_state_location_is_noticed(job: Job, tmp_path: Path) -> None:
    job.source.add([(1, 1)])
    job.run()
    for _ in range(2):  # at the start, with new rows or without
        with pytest.raises(CheckpointError, match=r"at batch 1, but .* its state is missing"):
            job.start(stateLocation=str(tmp_path / "nothing"))
        job.source.add([(1, 1)])


def test_a_second_query_on_the_state_of_a_running_one_is_refused_and_the_first_goes_on(
    job: Job, tmp_path: Path
) -> None:
    model = TotalsModel()
    batches = [[(1, 1)], [(key, 1) for key in range(20)], [(1, 1)]]
    for rows in batches:
        job.source.add(rows)
    other = Job(job.source, tmp_path / "other", ["key"], Totals(), TOTALS)

    def meddle(frame: Any, batch_id: int) -> None:
        job.collect(frame, batch_id)
        if batch_id == 0:
            with pytest.raises(CheckpointError, match="holds the state of query"):
                other.start(stateLocation=str(job.state))

    job.run(meddle, processor=SlowTotals())
    assert [model.apply(rows) for rows in batches] == [in_order(rows) for rows in job.take()]
    assert [] == other.delivered


def test_an_adopted_state_fences_the_query_that_had_it_and_nothing_is_mixed(
    job: Job, tmp_path: Path
) -> None:
    model = TotalsModel()
    batches = [[(1, 1), (2, 2)], [(1, 10)], [(2, 20)]]
    for rows in batches[:2]:
        job.source.add(rows)
    heir = Job(job.source, tmp_path / "heir", ["key"], Totals(), TOTALS)
    heir.options = {"stateLocation": str(job.state), "adopt": True}

    def hand_over(frame: Any, batch_id: int) -> None:
        job.collect(frame, batch_id)
        if batch_id == 1:
            heir.run()

    with pytest.raises(StreamingQueryException, match=r"FencedError: .* is fenced"):
        job.run(hand_over, delivery="direct")
    with pytest.raises(CheckpointError, match="holds the state of query"):
        job.run()
    job.source.add(batches[2])
    heir.run(tasks=3)
    first = [model.apply(batches[0])]
    assert first == [in_order(rows) for rows in job.take()[:1]]
    assert [model.apply(rows) for rows in batches] == [in_order(rows) for rows in heir.take()]


def test_a_second_run_of_a_query_fences_the_first_and_nothing_is_mixed(
    job: Job, spark: "SparkSession"
) -> None:
    """Spark forbids two runs of one query in one process, so the engines are called by hand."""
    stream = transform_with_state(job.source.frame().groupBy("key"), Totals(), TOTALS)
    settings = QuerySettings(tasks=(2, 2))
    query = Query(stream._operators, settings, normalize_url(str(job.state)), TaskBounds(2, 2))
    model = TotalsModel()
    batches = [[(1, 1), (2, 2)], [(1, 10)], [(2, 20)]]
    frames = [
        keyed_frame(
            grouping_of(spark.createDataFrame(rows, INPUT).groupBy("key")), KeyGroupRange(0, 127)
        ).frame
        for rows in batches
    ]
    fenced, second = (MicroBatchEngine(query, job.collect) for _ in range(2))
    fenced(frames[0], 0)
    second.open()
    second(frames[0], 0)
    with pytest.raises(
        FencedError,
        match=r"another owner has the location: chk-2/_metadata, claimed by 'query-.*' at ",
    ):
        fenced(frames[1], 1)
    with pytest.raises(FencedError):
        fenced(frames[1], 1)
    second(frames[1], 1)
    second(frames[2], 2)
    expected = [model.apply(rows) for rows in batches]
    assert [0, 0, 1, 2] == [batch_id for batch_id, _ in job.delivered]
    assert [expected[0], *expected] == [in_order(rows) for rows in job.take()]


def test_a_place_that_cannot_be_written_is_one_clear_error(job: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    job.source.add([(1, 1)])
    with pytest.raises((StoreError, StreamingQueryException), match="file") as raised:
        job.run(stateLocation=str(tmp_path / "file" / "state"))
    assert "StoreError" in type(raised.value).__name__ + str(raised.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
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
def test_a_full_disk_is_one_clear_error_and_nothing_committed_is_lost(
    job: Job, small_disk: Path, inline_bytes: int
) -> None:
    model = TotalsModel()
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
    with pytest.raises(
        StreamingQueryException, match=r"(StoreError|UploadFailedError): .*No space left"
    ):
        job.run()
    filler.unlink()
    job.source.add(batches[2])
    job.run(tasks=3)
    assert [model.apply(rows) for rows in batches] == [in_order(rows) for rows in job.take()]
