"""
Tests for the contract of an `exactly_once` sink: subclass, add a fixture, run pytest.

::

    class TestMySink(SinkContract):
        @pytest.fixture
        def sink(self, tmp_path):
            return MySink(tmp_path)         # an empty target

        def stored(self, sink):
            return my_rows_by_another_client()      # keys and values

The same tests run on all sinks of statelog.  The rows have the columns `key` and `value`, strings.

A *driver* in these tests writes as `exactly_once` does: it looks at the target when it starts, and
then writes each micro-batch after the record that it knows.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pytest

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, FencedError, UnavailableError
from statelog.spark.stream.sinks.exactly_once_sink import ExactlyOnce, ExactlyOnceSink, SinkBatch

WRITER: Final = "4f7c2a3e-0000-4000-8000-00000000000a"
OTHER: Final = "4f7c2a3e-0000-4000-8000-00000000000b"
LOCATION: Final = "5d0c9c3be1d34a46"
OTHER_LOCATION: Final = "77b1f0a2c4e84d90"
_ROUNDS: Final = 4
_LARGE: Final = 25_000


class Killed(BaseException):
    """A simulated crash of a driver, which `except Exception` does not catch."""


class SinkContract:
    """
    Tests for an `ExactlyOnceSink`.

    A subclass has a fixture `sink`, a sink of an empty target, and the method `stored`.
    """

    def stored(self, sink: ExactlyOnceSink) -> Sequence[tuple[str, str]]:
        """Read the key and value of every row in the target, without using the sink."""
        pytest.fail(f"{type(self).__name__} lacks the method stored, which reads the target")

    def another(self, sink: ExactlyOnceSink) -> ExactlyOnceSink:
        """Return a second sink for the same target, in the way a second driver would create it."""
        copy: ExactlyOnceSink = pickle.loads(pickle.dumps(sink))
        return copy

    def killed_before_commit(self, sink: ExactlyOnceSink) -> AbstractContextManager[object] | None:
        """
        Return a context in which `write` raises `Killed` after the rows and before the commit.

        None if that cannot be simulated; the tests that need it are skipped.
        """
        return None

    def last(self, sink: ExactlyOnceSink, writer: str = WRITER) -> DeliveredBatch | None:
        """Return the newest record of a writer."""
        return sink.last_committed(writer)

    # --- one driver -------------------------------------------------------------------------------

    def test_it_is_a_sink(self, sink: ExactlyOnceSink) -> None:
        assert isinstance(sink, ExactlyOnceSink)

    def test_an_empty_target_has_no_batch(self, sink: ExactlyOnceSink) -> None:
        assert self.last(sink) is None
        assert self.last(sink) is None
        assert [] == list(self.stored(sink))

    def test_the_first_batch_has_the_number_0(self, sink: ExactlyOnceSink) -> None:
        sink.write(batch(0))
        assert batch(0).batch == self.last(sink)
        self.check(sink, 0)

    def test_batches_follow_each_other_with_gaps(self, sink: ExactlyOnceSink) -> None:
        for number in (3, 4, 9, 10, 200):
            self.write(sink, batch(number))
            assert batch(number).batch == self.last(sink)
        self.check(sink, 3, 4, 9, 10, 200)

    def test_a_batch_that_is_written_again_is_written_once(self, sink: ExactlyOnceSink) -> None:
        self.write(sink, batch(0))
        self.write(sink, batch(1))
        for number, after in ((1, batch(0)), (0, None), (1, None), (1, batch(0))):
            again = batch(number, "again", after=after)
            with self.another_of(sink) as other:
                for client in (sink, other):
                    self.refuses(client, again)
        with self.another_of(sink) as later:
            assert batch(1).batch == self.last(later)
            self.check(later, 0, 1)
            self.write(later, batch(2))
            self.check(later, 0, 1, 2)

    def test_many_rows(self, sink: ExactlyOnceSink) -> None:
        numbers = [f"{number:06}" for number in range(_LARGE)]
        sink.write(replace(batch(7), rows=pa.table({"key": numbers, "value": numbers})))
        assert [(number, number) for number in numbers] == sorted(self.stored(sink))
        assert batch(7).batch == self.last(sink)

    def test_texts_come_back(self, sink: ExactlyOnceSink) -> None:
        texts = ["", " ", "ünïcode ✓", "quote ' \" `", "%s ? :1 $1", "line\nline", "\\N", "NULL"]
        keys = [f"key {number}" for number in range(len(texts))]
        sink.write(replace(batch(0), rows=pa.table({"key": keys, "value": texts})))
        assert list(zip(keys, texts, strict=True)) == sorted(self.stored(sink))

    def test_after_close_it_opens_again(self, sink: ExactlyOnceSink) -> None:
        sink.close()
        self.write(sink, batch(0))
        for number in (1, 2):
            sink.close()
            sink.close()
            assert batch(number - 1).batch == self.last(sink)
            self.write(sink, batch(number))
        self.check(sink, 0, 1, 2)

    # --- several ----------------------------------------------------------------------------------

    def test_each_writer_has_a_record(self, sink: ExactlyOnceSink) -> None:
        self.write(sink, batch(5, "five"))
        assert self.last(sink, OTHER) is None
        self.write(sink, batch(2, "two", OTHER))
        self.write(sink, batch(6, "six"))
        assert batch(6).batch == self.last(sink)
        assert batch(2).batch == self.last(sink, OTHER)
        self.refuses(sink, batch(6, "again"))
        self.refuses(sink, batch(2, "again", OTHER))
        self.write(sink, batch(3, "three", OTHER))
        self.check(sink, 5, 6, 2, 3, texts=("five", "six", "two", "three"))

    def test_a_driver_that_was_replaced_writes_nothing(self, sink: ExactlyOnceSink) -> None:
        self.write(sink, batch(0))
        with self.another_of(sink) as driver:
            assert batch(0).batch == self.last(sink)
            self.write(driver, batch(1))
            self.refuses(sink, batch(1, "zombie", after=batch(0)))
            self.check(driver, 0, 1)
        with self.another_of(sink) as later:
            self.write(later, batch(2))
            self.refuses(sink, batch(1, "zombie", after=batch(0)))
            self.check(later, 0, 1, 2)

    def test_a_race_of_drivers_writes_each_batch_once(self, sink: ExactlyOnceSink) -> None:
        drivers = [self.another(sink) for _ in range(4)]
        for number in range(_ROUNDS):
            self.race([(driver, batch(number)) for driver in drivers])
            assert batch(number).batch == self.last(sink)
        self.check(sink, *range(_ROUNDS))
        for driver in drivers:
            driver.close()

    def race(self, writes: Sequence[tuple[ExactlyOnceSink, SinkBatch]]) -> None:
        """Run drivers that read the target at the same time, each until it gets an error."""
        start = threading.Barrier(len(writes))

        def run(sink: ExactlyOnceSink, rows: SinkBatch) -> None:
            driver = ExactlyOnce(sink)
            driver.close()  # as at the end of the run before
            with contextlib.suppress(Exception):
                driver.has(rows.writer, rows.batch)
            start.wait(60)
            for _ in range(20):
                try:
                    return deliver(driver, rows)
                except (FencedError, CheckpointError):
                    return None
                except UnavailableError:
                    continue

        with concurrent.futures.ThreadPoolExecutor(len(writes)) as pool:
            runs = [pool.submit(run, sink, rows) for sink, rows in writes]
            for running in runs:
                running.result()

    # --- histories --------------------------------------------------------------------------------

    def test_a_record_names_location_timeline_and_plan(self, sink: ExactlyOnceSink) -> None:
        histories = [
            DeliveredBatch(LOCATION, 0, 4, "c0ffee"),
            DeliveredBatch(LOCATION, 17, 2, "beef"),
            DeliveredBatch(OTHER_LOCATION, 3, 3),
        ]
        for history in histories:
            with self.another_of(sink) as driver:
                self.write(driver, replace(batch(0), batch=history))
            assert history == self.last(sink)

    def test_a_query_that_was_rewound_goes_on(self, sink: ExactlyOnceSink) -> None:
        """Rewind to batch 1, and compute batches 2 to 4 again with different rows."""
        courses = [(0, (0, 1, 2, 3, 4)), (9, (2, 3, 4, 5)), (30, (2, 3))]
        texts = []
        for timeline, numbers in courses:
            driver = ExactlyOnce(self.another(sink))
            for number in numbers:
                texts.append(f"timeline {timeline}")
                for _ in range(2):
                    deliver(driver, batch(number, texts[-1], timeline=timeline))
            driver.close()
            assert batch(numbers[-1], timeline=timeline).batch == self.last(sink)
        self.check(sink, *(number for _, numbers in courses for number in numbers), texts=texts)

    def test_a_batch_from_before_a_rewind_is_delivered_again_once(
        self, sink: ExactlyOnceSink
    ) -> None:
        early = batch(1, run_timeline=9)
        for is_delivered in (False, True):
            driver = ExactlyOnce(self.another(sink))
            assert is_delivered == driver.has(WRITER, early.batch)
            deliver(driver, early)
            assert batch(1, timeline=9).batch == self.last(sink)
            driver.close()
        self.check(sink, 1)

    @pytest.mark.parametrize("has_looked", [True, False])
    @pytest.mark.parametrize("number", [1, 2, 3, 4])
    def test_a_driver_that_slept_during_a_rewind_writes_nothing(
        self, sink: ExactlyOnceSink, number: int, has_looked: bool
    ) -> None:
        self.write(sink, batch(0))
        zombie = ExactlyOnce(self.another(sink))
        if has_looked:
            assert not zombie.has(WRITER, batch(number).batch)
        driver = ExactlyOnce(self.another(sink))
        for late in (1, 2):
            deliver(driver, batch(late, timeline=5))
        with pytest.raises((FencedError, CheckpointError)):
            deliver(zombie, batch(number, "zombie"))
        zombie.close()
        assert batch(2, timeline=5).batch == self.last(sink)
        self.check(sink, 0, 1, 2)
        driver.close()

    def test_a_driver_meets_one_that_woke_before_it(self, sink: ExactlyOnceSink) -> None:
        """Check that the target rejects a batch that a rewind has discarded."""
        self.write(sink, batch(0))
        driver = ExactlyOnce(self.another(sink))
        assert not driver.has(WRITER, batch(1, timeline=5).batch)
        zombie = ExactlyOnce(self.another(sink))
        with contextlib.suppress(FencedError):
            deliver(zombie, batch(1, "zombie"))
        zombie.close()
        is_written = batch(1).batch == self.last(sink)
        if is_written:
            with pytest.raises(FencedError):
                deliver(driver, batch(1, timeline=5))
            self.check(sink, 0, 1, texts=("rows", "zombie"))
        driver.close()

    def test_a_race_with_a_driver_from_before_a_rewind(self, sink: ExactlyOnceSink) -> None:
        """Check that the target rejects the slower of two drivers that race."""
        self.write(sink, batch(0))
        for number in range(1, _ROUNDS + 1):
            earlier = self.last(sink)
            assert earlier is not None
            timelines = (earlier.timeline, number * 10)
            clients = [self.another(sink), self.another(sink)]
            rows = [batch(number, f"in {timeline}", timeline=timeline) for timeline in timelines]
            self.race(list(zip(clients, rows, strict=True)))
            for client in clients:
                client.close()
            last = self.last(sink)
            assert last in [row.batch for row in rows]
        rows_of_keys = [key for key, _ in self.stored(sink)]
        assert 3 * (_ROUNDS + 1) == len(rows_of_keys), "three rows of each batch"

    @pytest.mark.parametrize(
        ("number", "location", "plan"),
        [
            (3, OTHER_LOCATION, "aa"),
            (2, OTHER_LOCATION, "aa"),
            (3, LOCATION, "bb"),
            (2, LOCATION, "aa"),
        ],
    )
    def test_another_history_under_the_same_or_an_earlier_number_is_a_gap(
        self, sink: ExactlyOnceSink, number: int, location: str, plan: str
    ) -> None:
        self.write(sink, batch(3, plan="aa"))
        driver = ExactlyOnce(self.another(sink))
        with pytest.raises(CheckpointError) as caught:
            deliver(driver, batch(number, "other", location=location, plan=plan))
        assert ("gap", number) == (caught.value.reason, caught.value.batch_id)
        driver.close()
        self.check(sink, 3)

    def test_a_new_location_goes_on_with_later_numbers(self, sink: ExactlyOnceSink) -> None:
        self.write(sink, batch(3, timeline=7))
        driver = ExactlyOnce(self.another(sink))
        for _ in range(2):
            deliver(driver, batch(4, location=OTHER_LOCATION, timeline=7))
        driver.close()
        self.check(sink, 3, 4)

    # --- faults -----------------------------------------------------------------------------------

    def test_what_was_not_committed_is_not_seen(self, sink: ExactlyOnceSink) -> None:
        self.write(sink, batch(0))
        self._die_before_commit(sink, batch(1, "never", after=batch(0)))
        with self.another_of(sink) as after:
            assert batch(0).batch == self.last(after)
            self.check(after, 0)
            self.write(after, batch(1))
            self.check(after, 0, 1)

    @pytest.mark.parametrize("fault", ["before", "between", "after", "lost answer", "late error"])
    def test_each_row_is_written_once_after(self, sink: ExactlyOnceSink, fault: str) -> None:
        """Fail in each batch, and check that a new driver can write that batch again."""
        for number in range(_ROUNDS):
            driver = self.another(sink)
            if fault == "between":
                after = batch(number - 1) if number else None
                self._die_before_commit(driver, batch(number, after=after))
            else:
                with contextlib.suppress(Killed):
                    deliver(ExactlyOnce(Faulty(driver, fault)), batch(number))
                driver.close()
            with self.another_of(sink) as final:
                for _ in range(2):
                    deliver(ExactlyOnce(final), batch(number))
                assert batch(number).batch == self.last(final)
        self.check(sink, *range(_ROUNDS))

    def _die_before_commit(self, sink: ExactlyOnceSink, rows: SinkBatch) -> None:
        block = self.killed_before_commit(sink)
        if block is None:
            pytest.skip("killed_before_commit is not implemented for this sink")
        with block, pytest.raises(Killed):
            sink.write(rows)
        sink.close()  # as the system closes the connections of a process that died

    @contextlib.contextmanager
    def another_of(self, sink: ExactlyOnceSink) -> Iterator[ExactlyOnceSink]:
        """Yield a second sink for the same target, and close it at the end."""
        with contextlib.closing(self.another(sink)) as other:
            yield other

    def write(self, sink: ExactlyOnceSink, rows: SinkBatch) -> None:
        """Write a micro-batch that continues from the target's record."""
        sink.write(replace(rows, after=self.last(sink, rows.writer)))

    def refuses(self, sink: ExactlyOnceSink, rows: SinkBatch) -> None:
        """Check that the sink rejects a micro-batch that does not continue from the record."""
        before = self.last(sink, rows.writer)
        with pytest.raises((FencedError, UnavailableError)):
            sink.write(rows)
        assert before == self.last(sink, rows.writer)

    def check(
        self, sink: ExactlyOnceSink, *numbers: int, texts: Sequence[str] | None = None
    ) -> None:
        """Check that the target contains the rows of these batches exactly once."""
        pairs = zip(numbers, texts or ["rows"] * len(numbers), strict=True)
        expected = [row for number, text in pairs for row in key_and_value(batch(number, text))]
        assert sorted(expected) == sorted(self.stored(sink))


class Faulty:
    """
    A sink whose `write` can fail before or after the rows are written.

    Args:
        sink: The sink.
        fault: "before" and "after": the driver dies; "lost answer" and "late error": the write is
            done, and an error that may pass, or any other, is raised.
    """

    def __init__(self, sink: ExactlyOnceSink, fault: str) -> None:
        self._sink = sink
        self._fault = fault
        self.last_committed: Callable[[str], DeliveredBatch | None] = sink.last_committed
        self.close: Callable[[], None] = sink.close

    def write(self, rows: SinkBatch) -> None:
        """Write the rows, and raise the error of the fault."""
        if self._fault == "before":
            raise Killed
        self._sink.write(rows)
        if self._fault == "after":
            raise Killed
        if self._fault == "lost answer":
            raise UnavailableError("the answer was lost")
        raise RuntimeError("the client has a bug")


def batch(
    number: int,
    text: str = "rows",
    writer: str = WRITER,
    *,
    timeline: int = 0,
    run_timeline: int = 0,
    location: str = LOCATION,
    plan: str = "",
    after: SinkBatch | None = None,
) -> SinkBatch:
    """Return a micro-batch of three rows, two of them equal, that follows a previous one."""
    keys = [f"{number}/a", f"{number}/a", f"{number}/b"]
    rows = pa.table({"key": keys, "value": [f"{text} {number}"] * 3})
    delivered = DeliveredBatch(location, timeline, number, plan, run_timeline)
    return SinkBatch(writer, delivered, rows, None if after is None else after.batch.recorded)


def key_and_value(rows: SinkBatch) -> Iterator[tuple[str, str]]:
    """Return the key and value of each row."""
    columns = (rows.rows.column(name).to_pylist() for name in ("key", "value"))
    return zip(*columns, strict=True)


def deliver(function: ExactlyOnce, rows: SinkBatch) -> None:
    """Write a micro-batch in the same way as `exactly_once`."""
    if not function.has(rows.writer, rows.batch):
        function.write(rows)
