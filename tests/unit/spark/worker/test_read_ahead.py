"""A task reads its rows while its state is brought forward."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from statelog.spark.worker.read_ahead import read_during

PATIENCE_S = 30


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"number": [number]})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [one["number"][0].as_py() for one in batches]


def cost(_batch: pa.RecordBatch) -> int:
    return 10


class Input:
    """Batches, of which some are awaited."""

    def __init__(self, count: int, signal_at: int = -1) -> None:
        self.read = 0
        self.reached = threading.Event()
        self._count = count
        self._signal_at = signal_at

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._count):
            self.read += 1
            if number == self._signal_at:
                self.reached.set()
            yield batch(number)


def test_batches_are_read_during_the_work_and_all_are_there_in_order() -> None:
    source = Input(5, signal_at=2)

    def work() -> str:
        assert source.reached.wait(PATIENCE_S)  # would fail, were nothing read meanwhile
        return "done"

    done, batches = read_during(work, source, cost, 1000)
    assert done == "done"
    assert source.read >= 3
    assert numbers(batches) == [0, 1, 2, 3, 4]


def test_no_more_is_read_than_the_bound() -> None:
    source = Input(50, signal_at=3)

    def work() -> int:
        assert source.reached.wait(PATIENCE_S)
        threading.Event().wait(0.05)
        return source.read

    read, batches = read_during(work, source, cost, 35)
    assert read == 4
    assert numbers(batches) == list(range(50))


def test_an_input_that_ends_before_the_work() -> None:
    ended = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield batch(0)
        ended.set()

    done, batches = read_during(lambda: ended.wait(PATIENCE_S), source(), cost, 1000)
    assert done
    assert numbers(batches) == [0]


def test_what_fails_is_raised_after_the_work_has_ended() -> None:
    released, worked = threading.Event(), []

    def work() -> None:
        assert released.wait(PATIENCE_S)
        worked.append(True)

    def source() -> Iterator[pa.RecordBatch]:
        released.set()
        raise ConnectionError("the executor is gone")
        yield

    with pytest.raises(ConnectionError, match="gone"):
        read_during(work, source(), cost, 1000)
    assert worked == [True]

    def fail() -> None:
        raise OSError("no state")

    with pytest.raises(OSError, match="no state"):
        read_during(fail, Input(3), cost, 1000)
