"""What fails says what, where and what to do; what was committed stays, and a restart is exact."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from tests.support.spark.processors import Totals, totals_of
from tests.support.spark.streams import Job

from statelog.errors import CheckpointError, StoreError

BAD = 13
GOOD_ROWS = [[(1, 1), (2, 2)], [(1, 5), (BAD, 7), (3, 1)], [(BAD, 1)]]


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
            if self.fault == "timer":
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
            elif self.fault == "state type":
                self.names.appendValue((1.5,))
            elif self.fault == "state range":
                self.total.update((2**63, 0))
                return
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
        ("timer", r"Faulty\.handleExpiredTimer failed for key \(13,\) in batch 1: .*timer went"),
        ("close", r"Faulty\.close failed in batch 1: ArithmeticError: close went wrong"),
        (
            "state type",
            r"key \(13,\) in batch 1: state 'names': field 'name' takes string, not flo",
        ),
        ("state range", r"state 'total' of key \(13,\) in batch 1 .*int64"),
    ],
)
def test_a_fault_is_named_and_a_fix_restarts_exactly(job: Job, fault: str, message: str) -> None:
    job.options = {"timeMode": "ProcessingTime"}
    job.source.add_all(GOOD_ROWS)
    with pytest.raises(StreamingQueryException, match=message) as raised:
        job.run(processor=Faulty(fault))
    assert "ProcessorError" in str(raised.value)
    job.run(processor=Faulty("none"), tasks=3)
    assert totals_of(GOOD_ROWS) == job.take_in_order()


class Wider(Totals):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total double, rows bigint")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operator": "other"}, "belongs to operator 'transform_with_state', not 'other'"),
        ({"processor": Wider()}, "state 'total': field 'total' is int64 there, but double here"),
        ({"keys": ["key", "amount"]}, "its key is .*, but the query's key is"),
        ({"maxParallelism": 64}, "128 key groups, but the query requests 64"),
        ({"checkpointLocation": "elsewhere"}, "contains the state of query .*, not of this query"),
        ({"checkpoint": "empty"}, "checkpoint='empty' was requested, but .* contains checkpoint 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_state_that_does_not_fit_the_query_is_refused_and_stays(
    job: Job, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    batches = [[(1, 1), (2, 2)], [(2, 1)]]
    job.source.add(batches[0])
    job.run()
    job.source.add(batches[1])
    if "checkpointLocation" in changes:
        changes = {"checkpointLocation": str(tmp_path / "elsewhere")}
    with pytest.raises((CheckpointError, StreamingQueryException), match=message):
        job.run(**changes)
    job.run()
    assert totals_of(batches) == job.take_in_order()


def test_a_lost_state_location_is_noticed(job: Job, tmp_path: Path) -> None:
    job.source.add([(1, 1)])
    job.run()
    for _ in range(2):  # at the start, with new rows or without
        with pytest.raises(CheckpointError, match=r"at batch 1, but .* its state is missing"):
            job.start(stateLocation=str(tmp_path / "nothing"))
        job.source.add([(1, 1)])


def test_an_adopted_state_fences_the_query_that_had_it(job: Job, tmp_path: Path) -> None:
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
def test_a_full_disk_loses_no_commit(job: Job, small_disk: Path, inline_bytes: int) -> None:
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
    assert totals_of(batches) == job.take_in_order()
