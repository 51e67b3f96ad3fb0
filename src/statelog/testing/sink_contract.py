"""
The contract of a sink for `exactly_once`, as tests: subclass, add a fixture, and run pytest.

::

    class TestMySink(SinkContract):
        @pytest.fixture
        def sink(self, tmp_path):
            return MySink(tmp_path)         # an empty target

        def stored(self, sink):
            return my_rows_by_another_client()      # keys and values

The same tests run on all sinks of statelog.  The rows have the columns `key` and `value`, strings.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

import pyarrow as pa
import pytest

from statelog.errors import FencedError, UnavailableError
from statelog.spark.stream.sinks.exactly_once_sink import ExactlyOnce, ExactlyOnceSink, SinkBatch

WRITER: Final = "4f7c2a3e-0000-4000-8000-00000000000a"
OTHER: Final = "4f7c2a3e-0000-4000-8000-00000000000b"
_ROUNDS: Final = 4
_LARGE: Final = 25_000


class Killed(BaseException):
    """The death of a driver, simulated; it passes `except Exception`."""


class SinkContract:
    """
    Tests of an `ExactlyOnceSink`.

    A subclass has a fixture `sink`, a sink of an empty target, and the method `stored`.
    """

    def stored(self, sink: ExactlyOnceSink) -> Sequence[tuple[str, str]]:
        """Return key and value of every row of the target, read with a client that is not the sink."""
        pytest.fail(f"{type(self).__name__} lacks the method stored, which reads the target")

    def another(self, sink: ExactlyOnceSink) -> ExactlyOnceSink:
        """Return a second sink of the same target, as another driver has it."""
        copy: ExactlyOnceSink = pickle.loads(pickle.dumps(sink))
        return copy

    def killed_before_commit(self, sink: ExactlyOnceSink) -> AbstractContextManager[object] | None:
        """
        Return a block in which `write` raises `Killed` between the rows and the commit.

        None if that cannot be simulated; the tests that need it are skipped.
        """
        return None

    # --- one driver -------------------------------------------------------------------------------

    def test_it_is_a_sink(self, sink: ExactlyOnceSink) -> None:
        assert isinstance(sink, ExactlyOnceSink)

    def test_an_empty_target_has_no_batch(self, sink: ExactlyOnceSink) -> None:
        assert sink.last_committed(WRITER) is None
        assert sink.last_committed(WRITER) is None
        assert [] == list(self.stored(sink))

    def test_the_first_batch_has_the_number_0(self, sink: ExactlyOnceSink) -> None:
        sink.write(batch(0))
        assert 0 == sink.last_committed(WRITER)
        self.check(sink, 0)

    def test_batches_follow_each_other_with_gaps(self, sink: ExactlyOnceSink) -> None:
        for number in (3, 4, 9, 10, 200):
            sink.write(batch(number))
            assert number == sink.last_committed(WRITER)
        self.check(sink, 3, 4, 9, 10, 200)

    def test_a_batch_that_is_written_again_is_written_once(self, sink: ExactlyOnceSink) -> None:
        sink.write(batch(0))
        sink.write(batch(1))
        for number in (1, 0, 1):
            other = self.another(sink)
            for client in (sink, other):
                write_or_raise(client, batch(number, "again"))
            other.close()
        later = self.another(sink)
        assert 1 == later.last_committed(WRITER)
        self.check(later, 0, 1)
        later.write(batch(2))
        self.check(later, 0, 1, 2)
        later.close()

    def test_many_rows(self, sink: ExactlyOnceSink) -> None:
        numbers = [f"{number:06}" for number in range(_LARGE)]
        sink.write(SinkBatch(WRITER, 7, pa.table({"key": numbers, "value": numbers})))
        assert [(number, number) for number in numbers] == sorted(self.stored(sink))
        assert 7 == sink.last_committed(WRITER)

    def test_texts_come_back(self, sink: ExactlyOnceSink) -> None:
        texts = ["", " ", "ünïcode ✓", "quote ' \" `", "%s ? :1 $1", "line\nline", "\\N", "NULL"]
        keys = [f"key {number}" for number in range(len(texts))]
        sink.write(SinkBatch(WRITER, 0, pa.table({"key": keys, "value": texts})))
        assert list(zip(keys, texts, strict=True)) == sorted(self.stored(sink))

    def test_after_close_it_opens_again(self, sink: ExactlyOnceSink) -> None:
        sink.close()
        sink.write(batch(0))
        for number in (1, 2):
            sink.close()
            sink.close()
            assert number - 1 == sink.last_committed(WRITER)
            sink.write(batch(number))
        self.check(sink, 0, 1, 2)

    # --- several ----------------------------------------------------------------------------------

    def test_writers_have_numbers_of_their_own(self, sink: ExactlyOnceSink) -> None:
        sink.write(batch(5, "five"))
        assert sink.last_committed(OTHER) is None
        sink.write(batch(2, "two", OTHER))
        sink.write(batch(6, "six"))
        assert (6, 2) == (sink.last_committed(WRITER), sink.last_committed(OTHER))
        write_or_raise(sink, batch(6, "again"))
        write_or_raise(sink, batch(2, "again", OTHER))
        sink.write(batch(3, "three", OTHER))
        self.check(sink, 5, 6, 2, 3, texts=("five", "six", "two", "three"))

    def test_a_query_that_was_rewound_is_another_writer(self, sink: ExactlyOnceSink) -> None:
        sink.write(batch(5))
        rewound = f"{WRITER}-rewound-1"
        assert sink.last_committed(rewound) is None
        sink.write(batch(4, "rewound", rewound))
        assert (5, 4) == (sink.last_committed(WRITER), sink.last_committed(rewound))
        self.check(sink, 5, 4, texts=("rows", "rewound"))

    def test_a_driver_that_was_replaced_writes_nothing(self, sink: ExactlyOnceSink) -> None:
        sink.write(batch(0))
        zombie, driver = sink, self.another(sink)
        assert 0 == zombie.last_committed(WRITER)
        assert 0 == driver.last_committed(WRITER)
        driver.write(batch(1))
        write_or_raise(zombie, batch(1, "zombie"))
        self.check(driver, 0, 1)
        later = self.another(sink)
        assert 1 == later.last_committed(WRITER)
        later.write(batch(2))
        write_or_raise(zombie, batch(1, "zombie"))
        self.check(later, 0, 1, 2)
        driver.close()
        later.close()

    def test_a_race_of_drivers_writes_each_batch_once(self, sink: ExactlyOnceSink) -> None:
        drivers = [self.another(sink) for _ in range(4)]
        for number in range(_ROUNDS):
            start = threading.Barrier(len(drivers))

            def run(driver: ExactlyOnceSink, start: threading.Barrier, number: int) -> None:
                rows = batch(number)
                with contextlib.suppress(Exception):
                    driver.last_committed(WRITER)
                start.wait(60)
                for _ in range(20):
                    if write_or_raise(driver, rows):
                        return

            with concurrent.futures.ThreadPoolExecutor(len(drivers)) as pool:
                runs = [pool.submit(run, driver, start, number) for driver in drivers]
                for running in runs:
                    running.result()
            assert number == sink.last_committed(WRITER)
        self.check(sink, *range(_ROUNDS))
        for driver in drivers:
            driver.close()

    # --- faults -----------------------------------------------------------------------------------

    def test_what_was_not_committed_is_not_seen(self, sink: ExactlyOnceSink) -> None:
        sink.write(batch(0))
        self._die_before_commit(sink, batch(1, "never"))
        after = self.another(sink)
        assert 0 == after.last_committed(WRITER)
        self.check(after, 0)
        after.write(batch(1))
        self.check(after, 0, 1)
        after.close()

    @pytest.mark.parametrize("fault", ["before", "between", "after", "lost answer", "late error"])
    def test_each_row_is_written_once_after(self, sink: ExactlyOnceSink, fault: str) -> None:
        """A driver dies, or an answer is lost, at each batch; a new driver gets the batch again."""
        for number in range(_ROUNDS):
            driver = self.another(sink)
            if fault == "between":
                self._die_before_commit(driver, batch(number))
            else:
                with contextlib.suppress(Killed):
                    deliver(ExactlyOnce(Faulty(driver, fault)), batch(number))
                driver.close()
            final = self.another(sink)
            for _ in range(2):
                deliver(ExactlyOnce(final), batch(number))
            assert number == final.last_committed(WRITER)
            final.close()
        self.check(sink, *range(_ROUNDS))

    def _die_before_commit(self, sink: ExactlyOnceSink, rows: SinkBatch) -> None:
        block = self.killed_before_commit(sink)
        if block is None:
            pytest.skip("killed_before_commit is not implemented for this sink")
        with block, pytest.raises(Killed):
            sink.write(rows)
        sink.close()  # as the system closes the connections of a process that died

    def check(
        self, sink: ExactlyOnceSink, *numbers: int, texts: Sequence[str] | None = None
    ) -> None:
        """Check that the target has the rows of these batches, each once."""
        pairs = zip(numbers, texts or ["rows"] * len(numbers), strict=True)
        expected = [row for number, text in pairs for row in key_and_value(batch(number, text))]
        assert sorted(expected) == sorted(self.stored(sink))


class Faulty:
    """
    A sink whose calls of `write` fail around the write.

    Args:
        sink: The sink.
        fault: "before" and "after": the driver dies; "lost answer" and "late error": the write is
            done, and an error that may pass, or any other, is raised.
    """

    def __init__(self, sink: ExactlyOnceSink, fault: str) -> None:
        self._sink = sink
        self._fault = fault
        self.last_committed: Callable[[str], int | None] = sink.last_committed
        self.close: Callable[[], None] = sink.close

    def write(self, rows: SinkBatch) -> None:
        """Write the rows, and raise the fault."""
        if self._fault == "before":
            raise Killed
        self._sink.write(rows)
        if self._fault == "after":
            raise Killed
        if self._fault == "lost answer":
            raise UnavailableError("the answer was lost")
        raise RuntimeError("the client has a bug")


def batch(number: int, text: str = "rows", writer: str = WRITER) -> SinkBatch:
    """Return a micro-batch of three rows; two are equal."""
    keys = [f"{number}/a", f"{number}/a", f"{number}/b"]
    values = [f"{text} {number}"] * 3
    return SinkBatch(writer, number, pa.table({"key": keys, "value": values}))


def key_and_value(rows: SinkBatch) -> Iterator[tuple[str, str]]:
    """Return key and value of each row."""
    columns = (rows.rows.column(name).to_pylist() for name in ("key", "value"))
    return zip(*columns, strict=True)


def deliver(function: ExactlyOnce, rows: SinkBatch) -> None:
    """Write a micro-batch as `exactly_once` does."""
    if not function.has(rows.writer, rows.batch_id):
        function.write(rows)


def write_or_raise(sink: ExactlyOnceSink, rows: SinkBatch) -> bool:
    """Write a micro-batch; return whether the sink took it without an error."""
    try:
        sink.write(rows)
    except FencedError:
        return True  # the driver ends here
    except Exception:
        return False
    return True
