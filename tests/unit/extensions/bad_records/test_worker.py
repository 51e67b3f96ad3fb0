"""
A key that fails leaves no trace, and every other key is exact.

The model of a job that leaves failed calls out is the same job without the calls: without the rows of the
keys that fail, and with a processor that does nothing for the timers that fail.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.poisoned_keys import (
    KEYS,
    LETTERS,
    POISON,
    SKIP,
    Batch,
    Initial,
    Model,
    ModelOfFrames,
    Poisoned,
    PoisonedFrames,
    failed_in,
    first_timer,
    fresh,
    histories,
    letters_of,
    of_initial,
    output_of,
    state_of,
)
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import COLUMNS, OUTPUT, Steps
from tests.support.jobs.task_query import NUMBERS, Query

import statelog as sl
from statelog.checkpoint import collect_garbage
from statelog.checkpoint.attachments import Attachment, of_kinds
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import InvariantError, ProcessorError, StoreError, UsageError
from statelog.extensions.bad_records import dead_letters
from statelog.extensions.bad_records.dead_letters import BAD_RECORDS, failures_of, is_bad_record
from statelog.extensions.broadcasts.driver import kept_broadcasts
from statelog.extensions.broadcasts.stored import BROADCAST
from statelog.extensions.recordings.format import DEAD_LETTERS, decode_file
from statelog.extensions.recordings.location import (
    StoredRecording,
    forget_key,
    list_recordings,
    read_recording,
)
from statelog.extensions.recordings.step import steps_of
from statelog.extensions.testing.replay import replay
from statelog.format.recording_file import unpack_recording
from statelog.spark.query.error_policy import ErrorPolicy, MaxErrors
from statelog.spark.query.record import Record
from statelog.spark.query.settings import QuerySettings
from statelog.spark.rows.formats import SparkRowFormat
from statelog.spark.rows.layout import InitialLayout, InputLayout
from statelog.spark.worker.protocol import NEVER_MS

pytestmark = pytest.mark.job


def misfits_twice(batch: Batch) -> bool:
    """Return whether state and a row of one call do not fit."""
    keys = [
        {key for key, op, _ in batch[1] if op in ops}
        for ops in (("misfit", "value"), ("misrow", "norow"))
    ]
    return bool(keys[0] & keys[1])


# ----------------------------------------------------------------------------------- the model


@pytest.mark.campaign
@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("input_bytes", [1 << 30, 4000])
@settings(max_examples=12, deadline=None)
@given(history=histories, tasks=st.integers(1, 3), policy=st.sampled_from([LETTERS, SKIP]))
def test_a_job_that_leaves_keys_out_is_the_job_without_them(
    history: list[Batch],
    tasks: int,
    policy: ErrorPolicy,
    input_bytes: int,
    in_pandas: bool,
    tmp_path_factory: Any,
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"model-{input_bytes}-{in_pandas}"
    kind, model = (PoisonedFrames, ModelOfFrames) if in_pandas else (Poisoned, Model)
    job, clean = (
        RecordedJob(
            fresh(folder / name), processor, COLUMNS, OUTPUT, None, pandas=in_pandas, tasks=tasks,
            input_bytes=input_bytes, errors=errors,
        )
        for name, processor, errors in (("job", kind(), policy), ("clean", model(), None))
    )  # fmt: skip
    now, letters = 1000, 0
    for elapsed, rows in history:
        now += elapsed
        failed = failed_in(rows)
        acks = job.run(rows, now)
        expected = clean.run([row for row in rows if row[0] not in failed], now)
        assert output_of(clean, expected) == output_of(job, acks)
        assert state_of(clean) == state_of(job)
        assert min(ack.changes.next_due_ms for ack in acks) <= first_timer(job)
        if input_bytes > 4000:  # an input in parts may report the time of a timer that was deleted
            assert min(ack.changes.next_due_ms for ack in acks) == first_timer(job)
            assert [ack.changes.next_due_ms for ack in expected] == [
                ack.changes.next_due_ms for ack in acks
            ]
        assert sum(failures_of(ack).keys for ack in acks) >= len(failed)
        letters += sum(failures_of(ack).letters.count for ack in acks)
        if policy is SKIP:
            assert 0 == letters
    found = letters_of(job)
    assert letters == len(found)
    if policy is LETTERS:
        rows_failed = sorted(
            (number + 1, key) for number, (_, rows) in enumerate(history) for key in failed_in(rows)
        )
        assert rows_failed == sorted(
            (each["checkpoint_id"], each["key"][2:-2]) for each in found if not each["timers"]
        )
        assert all(each["method"] == "handleExpiredTimer" for each in found if each["timers"])


@pytest.mark.campaign
@pytest.mark.parametrize("in_pandas", [False, True])
@settings(max_examples=10, deadline=None)
@given(history=histories, tasks=st.integers(1, 2), rate=st.sampled_from([0.0, 1.0]))
@example(history=[(1, [("k0", "add", 0), ("k0", "misrow", 0)])], tasks=1, rate=0.0)
@example(history=[(1, [("k0", "norow", 0)])], tasks=1, rate=0.0)
@example(history=[(1, [("k0", "timer", 0), ("k0", "misfit", 0)])], tasks=1, rate=0.0)
@example(history=[(1, [("k0", "timer", 1)]), (100, [("k0", "fail", 0)])], tasks=1, rate=1.0)
def test_a_dead_letter_fails_again_as_it_failed(
    history: list[Batch], tasks: int, rate: float, in_pandas: bool, tmp_path_factory: Any
) -> None:
    """With the setting `record` too: what is recorded of other keys is what they saw."""
    assume(not any(map(misfits_twice, history)))  # which of the two is noticed first is not told
    folder = tmp_path_factory.getbasetemp() / f"again-{in_pandas}"
    kind = PoisonedFrames if in_pandas else Poisoned
    job = RecordedJob(
        fresh(folder), kind(), COLUMNS, OUTPUT, Record(share=rate) if rate else None,
        pandas=in_pandas, tasks=tasks, errors=LETTERS,
    )  # fmt: skip
    now, failures = 1000, 0
    for elapsed, rows in history:
        now += elapsed
        failures += sum(failures_of(ack).letters.count for ack in job.run(rows, now))
    steps = [
        step
        for stored in list_recordings(job.store)
        for task in read_recording(job.store, stored)
        for step in steps_of(task)
    ]
    assert failures == sum(step.failure is not None for step in steps)
    for key in {step.key for step in steps}:
        for step in replay(str(folder), key, processor=kind()):
            assert () == step.differences, step.recorded.failure
            assert (step.error is None) == (step.recorded.failure is None)


def test_each_timer_of_a_key_fails_for_itself_and_fires_once(tmp_path: Path) -> None:
    """The state of the first does not fit, and the second raises."""
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    job.run([("k1", "timer", 1), ("k1", "timer", 3)], 1320)
    (ack,) = job.run([], 1700)
    assert NEVER_MS == ack.changes.next_due_ms
    assert [1420, 1620] == sorted(time for each in letters_of(job) for time in each["timers"])
    with sl.open(job.location) as state:
        assert 0 == state.table("$timers").num_rows


def test_rows_of_other_calls_are_kept_where_some_do_not_fit(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    acks = job.run(
        [(key, op, 1) for key in KEYS for op in ("add", "yield")] + [("k2", "misrow", 1)]
    )
    rows = output_of(job, acks)
    assert 5 == len(rows)
    assert not any("'k2'" in row for row in rows)
    (letter,) = letters_of(job)
    assert ('["k2"]', "handleInputRows", 3) == (
        letter["key"],
        letter["method"],
        letter["row_count"],
    )
    assert letter["error"].startswith("pyarrow.")
    assert '[{"k":"k2","op":"add","n":1},{"k":"k2","op":"yield","n":1},' in letter["rows"]
    with sl.open(str(tmp_path)) as state:
        assert [1, 1, 1] == state.dead_letter_rows().column("n").to_pylist()


# ------------------------------------------------------------------------------ poison and resend


class Sums(StatefulProcessor):
    """Sums by key in state of each kind; a negative number is poison unless the fault is corrected."""

    def __init__(self, corrected: bool = False) -> None:
        self.corrected = corrected

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, rows long")
        self.tens = handle.getMapState("tens", "k long", "rows long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            total, count = self.total.get() or (0, 0)
            self.total.update((total + row.n, count + 1))
            (tens,) = self.tens.getValue((row.n // 10,)) or (0,)
            self.tens.updateValue((row.n // 10,), (tens + 1,))
            if row.n < 0 and not self.corrected:
                raise ValueError(f"{row.n} is negative")
        yield Row(k=key[0], what="total", n=self.total.get()[0])


@pytest.mark.campaign
@pytest.mark.parametrize("input_bytes", [1 << 30, 200_000])
def test_one_poison_row_in_a_thousand_then_a_kill_then_a_resend(
    tmp_path: Path, input_bytes: int
) -> None:
    def job_of(folder: str, *, corrected: bool) -> RecordedJob:
        return RecordedJob(
            str(tmp_path / folder), Sums(corrected), "k string, n long", OUTPUT, None, "none",
            tasks=2, errors=LETTERS, input_bytes=input_bytes,
        )  # fmt: skip

    rng = random.Random(7)
    batches = [
        [
            (f"k{rng.randrange(1500)}", rng.randrange(1, 99) * (-1 if at % 1000 == 500 else 1))
            for at in range(6000)
        ]
        for _ in range(4)
    ]
    job, whole, without = (
        job_of("poison", corrected=False),
        job_of("whole", corrected=True),
        job_of("without", corrected=False),
    )
    failed_keys = 0
    for number, rows in enumerate(batches):
        failed = {key for key, n in rows if n < 0}
        failed_keys += len(failed)
        if number == 2:  # a kill after the tasks, before the commit; then a new driver and worker

            def killed(*arguments: Any) -> None:
                raise KeyboardInterrupt

            job.commit = killed  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                job.run(rows)
            job = job_of("poison", corrected=False)
        acks = job.run(rows)
        expected = without.run([row for row in rows if row[0] not in failed])
        assert output_of(without, expected) == output_of(job, acks)
        assert len(failed) == sum(failures_of(ack).keys for ack in acks) > 0
        whole.run(rows)
    assert state_of(without) == state_of(job) != state_of(whole)
    assert failed_keys == len(letters_of(job))

    corrected = job_of("poison", corrected=True)
    with sl.open(corrected.location) as state:
        rows = [tuple(row.values()) for row in state.dead_letter_rows().to_pylist()]
        assert {row[0] for row in rows} == {each["key"][2:-2] for each in letters_of(job)}
    last = corrected.base
    assert last is not None
    acks = corrected.run(rows)
    assert 0 == sum(failures_of(ack).keys for ack in acks)
    assert state_of(whole) == state_of(corrected)
    with sl.open(corrected.location) as state:  # nothing failed after the last checkpoint
        assert 0 == state.dead_letters(since=last.checkpoint_id).num_rows


def test_a_timer_that_failed_is_registered_again_by_an_edit(tmp_path: Path) -> None:
    class Rings(Steps):
        corrected = False

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)
            if not self.corrected:
                raise KeyError("lost")

    class Corrected(Rings):
        corrected = True

    jobs = [
        RecordedJob(
            str(tmp_path / name),
            processor(),
            COLUMNS,
            OUTPUT,
            None,
            "processingtime",
            errors=LETTERS,
        )
        for name, processor in (("bad", Rings), ("good", Corrected))
    ]
    for job in jobs:
        job.run([("k1", "timer", 1), ("k2", "add", 1)], 1000)
        job.run([], 1150)
    (letter,) = letters_of(jobs[0])
    assert [1100] == letter["timers"]
    sl.edit(jobs[0].location, set={"$timers": {("k1",): letter["timers"]}}, apply=True)
    assert [letter] == letters_of(jobs[0])
    again = RecordedJob(
        jobs[0].location, Corrected(), COLUMNS, OUTPUT, None, "processingtime", errors=LETTERS
    )
    again.run([], 1150)
    assert state_of(jobs[1]) == state_of(again)


# ------------------------------------------------------------------------ what is not of the rows


class Raises(Steps):
    """Raises what it is given, for key k1."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        if key[0] == "k1":
            raise self.error
        return super().handleInputRows(key, rows, timerValues)


def caused_by(error: BaseException) -> Exception:
    failure = ValueError("a bad record, it seems")
    failure.__cause__ = error
    return failure


@pytest.mark.parametrize(
    "error",
    [
        StoreError("the store is away"),
        caused_by(StoreError("the store is away")),
        InvariantError("a bug of statelog"),
        MemoryError(),
        caused_by(MemoryError()),
        SystemExit(3),
    ],
    ids=repr,
)
def test_what_says_nothing_of_the_rows_fails_the_micro_batch(
    tmp_path: Path, error: BaseException
) -> None:
    job = RecordedJob(str(tmp_path), Raises(error), COLUMNS, OUTPUT, None, errors=LETTERS)
    with pytest.raises(ProcessorError, match="handleInputRows failed for key") as raised:
        job.run([("k1", "add", 1), ("k2", "add", 1)])
    assert error is raised.value.__cause__
    assert job.base is None


def test_an_interrupt_is_passed_on(tmp_path: Path) -> None:
    job = RecordedJob(
        str(tmp_path), Raises(KeyboardInterrupt()), COLUMNS, OUTPUT, None, errors=LETTERS
    )
    with pytest.raises(KeyboardInterrupt):
        job.run([("k1", "add", 1)])


def test_errors_of_a_processor_and_of_what_it_gives_statelog_are_bad_records() -> None:
    class NoText(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    for error in (ValueError(), UsageError("too wide"), RecursionError(), NoText()):
        assert is_bad_record(error)
    for other in (KeyboardInterrupt(), SystemExit(), GeneratorExit()):
        assert not is_bad_record(other)
    loop = ValueError("its own cause")
    loop.__cause__ = loop
    assert is_bad_record(loop)


def test_an_error_of_reading_the_rows_of_a_key_fails_the_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statelog.spark.worker.large_input import HugeKeyInput

    def broken(self: HugeKeyInput, *arguments: Any) -> Iterator[Any]:
        raise ValueError("the local disk lost a piece")
        yield

    job = RecordedJob(
        str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS, input_bytes=4000
    )
    monkeypatch.setattr(HugeKeyInput, "rows_of", broken)
    with pytest.raises(ProcessorError, match="the local disk lost a piece"):
        job.run([("k1", "add", 1)] * 500)


@pytest.mark.parametrize("op", POISON)
def test_a_key_with_more_rows_than_memory_is_a_dead_letter(tmp_path: Path, op: str) -> None:
    job = RecordedJob(
        str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS, input_bytes=4000
    )
    rows = [("huge", "append", number) for number in range(400)] + [("huge", op, 1)]
    (ack,) = job.run([*rows, ("k1", "add", 3)])
    assert 1 == failures_of(ack).keys
    (letter,) = letters_of(job)
    assert 401 == letter["row_count"]
    with sl.open(str(tmp_path)) as state:
        assert rows == [tuple(row.values()) for row in state.dead_letter_rows().to_pylist()]
        assert [] == state.get("items", "huge")
        assert {"n": 3, "text": "t3"} == state.get("total", "k1")


# ------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("most", "failing", "fits"),
    [
        (MaxErrors(3), 3, True),
        (MaxErrors(3), 4, False),
        (MaxErrors(0, 0.25), 20, True),
        (MaxErrors(0, 0.25), 21, False),
    ],
)
def test_too_many_failed_keys_fail_the_micro_batch(
    tmp_path: Path, most: MaxErrors, failing: int, fits: bool
) -> None:
    job = RecordedJob(
        str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=replace(LETTERS, most=most)
    )
    rows = [(f"key {number}", "fail" if number < failing else "add", 1) for number in range(80)]
    if fits:
        assert failing == sum(failures_of(ack).keys for ack in job.run(rows))
        assert failing == len(letters_of(job))
        return
    with pytest.raises(
        ProcessorError, match=r"more than maxErrors \([.\d]+\) allows; the first"
    ) as raised:
        job.run(rows)
    assert "ArithmeticError: cannot do 1" in raised.value.message
    assert job.base is None
    assert [] == list(job.store.list("recordings"))


def test_a_share_allows_a_few_keys_in_any_case(tmp_path: Path) -> None:
    policy = replace(LETTERS, most=MaxErrors(0, 0.01))
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=policy)
    assert (
        10 == failures_of(job.run([(f"key {number}", "fail", 1) for number in range(10)])[0]).keys
    )


def test_more_rows_than_dead_letters_may_have_fail_the_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_BYTES_MAX", 2_000)
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    rows = [("k1", "append", number) for number in range(200)]
    with pytest.raises(ProcessorError, match="which dead letters may have"):
        job.run([*rows, ("k1", "fail", 1)])
    skipping = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=SKIP)
    assert 1 == failures_of(skipping.run([*rows, ("k1", "fail", 1)])[0]).keys


def test_dead_letters_that_cannot_be_written_fail_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statelog.spark.worker.output_parts import OutputFiles

    def full(self: OutputFiles, path_of: Any, data: bytes) -> Any:
        raise StoreError("the store is full")

    monkeypatch.setattr(OutputFiles, "write", full)
    job = RecordedJob(
        str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS, inline_bytes=10
    )
    with pytest.raises(StoreError, match="the store is full"):
        job.run([("k1", "fail", 1)])
    inline = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    with pytest.raises(StoreError, match="the store is full"):
        inline.run([("k1", "fail", 1)])
    assert inline.base is None


# ------------------------------------------------------------------------------- initial state


@pytest.mark.parametrize("input_bytes", [sys.maxsize, 20_000])
def test_initial_state_that_fails_takes_the_rows_of_its_key_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, input_bytes: int
) -> None:
    raises, misfits, with_bad_rows = {3, 4, 50}, {5, 7, 51}, {6: -1.0, 8: -2.0, 90: -1.0, 4: -1.0}
    initial = [(number, value) for number in range(60) for value in (1.0, 2.0)]
    initial += [(number, -1.0) for number in raises] + [(number, -2.0) for number in misfits]
    rows = [(number, value) for number in range(0, 100, 2) for value in (3.0, 4.0)]
    rows += [(7, 5.0), *with_bad_rows.items()]
    expected: dict[tuple[int], tuple[int, float]] = {}
    for number in range(100):
        is_bad = number in raises | misfits
        n, total = (200, 3.0) if number < 60 and not is_bad else (0, 0.0)
        if number % 2 == 0 and not is_bad and number not in with_bad_rows:
            n, total = n + 2, total + 7.0
        if n:
            expected[(number,)] = n, total
    layout = InitialLayout(InputLayout((1,), 1), ("key", "value"), ("key", "value"))
    query = Query(
        tmp_path, Initial(), SparkRowFormat(), input_bytes, output="key long, n long, total double",
        key=NUMBERS, initial=layout, extras={BAD_RECORDS: LETTERS},
    )  # fmt: skip
    output = query.run([*of_initial(True, initial), *of_initial(False, rows)], monkeypatch)
    found = {key: cell for group in query.tables().values() for key, cell in group[0].items()}
    assert expected == found
    with_rows = set(range(0, 100, 2)) - raises - misfits - set(with_bad_rows)
    assert with_rows == {row["key"] for row in output}
    (ack,) = query.acks
    bad = raises | misfits | set(with_bad_rows)
    assert (len(bad), len(bad)) == (failures_of(ack).keys, failures_of(ack).letters.count)
    assert failures_of(ack).letters.file is not None
    letters = {
        step.key[0]: step
        for task in decode_file(query.store.get(failures_of(ack).letters.file.path))
        for step in steps_of(task)
    }
    assert bad == set(letters)
    for number, step in letters.items():
        is_initial = number in raises | misfits
        method = "handleInitialState" if is_initial else "handleInputRows"
        assert method == step.failure.method  # type: ignore[union-attr]
        assert (3 if is_initial else 0) == step.initial.num_rows
        assert [row for row in rows if row[0] == number] == [
            (row["key"], row["value"]) for row in step.input.to_pylist()
        ]
        before = step.before.column("total").to_pylist()[0]
        has_before = not is_initial and number < 60
        assert before == ({"n": 200, "total": 3.0} if has_before else None)


# -------------------------------------------------------------------------- forget and retention


def test_a_forgotten_key_is_in_no_dead_letter(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    job.run([("k1", "fail", 7), ("k2", "fail", 8)])
    assert 1 == len(forget_key(job.store, "k1").rewritten)
    assert ['["k2"]'] == [each["key"] for each in letters_of(job)]
    assert not any(b"cannot do 7" in unpacked(job, each) for each in list_recordings(job.store))
    forget_key(job.store, "k2")
    assert [] == letters_of(job)
    assert ((), ()) == (forget_key(job.store, "k2").rewritten, forget_key(job.store, "k1").deleted)


def unpacked(job: RecordedJob, stored: StoredRecording) -> bytes:
    return bytes(unpack_recording(job.store.get(stored.path)))


def test_dead_letters_are_kept_by_age_and_not_by_the_number_of_recordings(tmp_path: Path) -> None:
    job = RecordedJob(
        str(tmp_path), Poisoned(), COLUMNS, OUTPUT, Record(share=1.0, checkpoints=1), retained=1, errors=LETTERS,
        settings=QuerySettings(
            record=Record(share=1.0, checkpoints=1),
            retention=dt.timedelta(seconds=10),
            max_errors=MaxErrors(),
        ),
    )  # fmt: skip
    for number in range(5):
        job.run([("k1", "fail", number), ("k2", "add", 1)], 1_000_000 + number * 4000)
    assert [3, 4, 5] == [each["checkpoint_id"] for each in letters_of(job)]
    assert [5, 3, 4, 5] == [each.checkpoint_id for each in list_recordings(job.store)]
    assert 4 == len([*job.store.list("recordings")])
    with sl.open(job.location) as state:
        assert [5] == state.dead_letters(since=4)["checkpoint_id"].to_pylist()
    report = collect_garbage(
        job.store, min_age=dt.timedelta(hours=1), apply=True,
        now=dt.datetime.now(dt.UTC) + dt.timedelta(days=30),
    )  # fmt: skip
    assert () == tuple(report.deleted)


def test_a_bound_on_the_files_drops_the_oldest_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("statelog.extensions.bad_records.driver.LETTER_FILES_MAX", 2)
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    for number in range(3):
        job.run([("k1", "fail", number), ("k2", "fail", number)], number * 86_400_000)
    assert [2, 2, 3, 3] == [each["checkpoint_id"] for each in letters_of(job)]
    assert "2 dead letters of checkpoint 1 and before are dropped" in caplog.text


# ------------------------------------------------------------------ several micro-batches in one file


def files_of(job: RecordedJob) -> list[tuple[int, int, int]]:
    """Return oldest and newest checkpoint, and number of dead letters, of each file that is named."""
    assert job.base is not None
    return [
        (each.oldest, each.newest, each.count)
        for each in of_kinds(BatchRecord.of(job.base).attachments, DEAD_LETTERS)
    ]


def failing(job: RecordedJob, number: int, now_ms: int = 0) -> None:
    job.run([("k1", "fail", number), ("k2", "add", 1)], now_ms)


def test_small_dead_letters_of_many_micro_batches_are_one_file(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS, retained=1)
    for number in range(60):
        if number % 3 == 2:
            job.run([("k2", "add", 1)])
        else:
            failing(job, number)
    assert [(1, 59, 40)] == files_of(job)
    expected = [number + 1 for number in range(60) if number % 3 != 2]
    assert expected == [each["checkpoint_id"] for each in letters_of(job)]
    with sl.open(job.location) as state:
        later = state.dead_letters(since=50)["checkpoint_id"].to_pylist()
        assert [each for each in expected if each > 50] == later
        sent = state.dead_letter_rows(since=50)["n"].to_pylist()
        assert [each - 1 for each in later] == sent
    assert 1 == len([*job.store.list("recordings")])
    assert 1 == len(forget_key(job.store, "k1").rewritten)
    assert [] == letters_of(job)


def test_a_restart_begins_another_file_and_an_uncommitted_one_is_not_joined(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    failing(job, 1)
    failing(job, 2)
    complete, job.coordinator.complete = job.coordinator.complete, None  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        failing(job, 3)
    job.coordinator.complete = complete  # type: ignore[method-assign]
    again = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    failing(again, 3)
    failing(again, 4)
    assert [2, 2] == [count for _, _, count in files_of(again)]
    assert ["cannot do 1", "cannot do 2", "cannot do 3", "cannot do 4"] == [
        each["message"] for each in letters_of(again)
    ]


def test_a_commit_that_is_tried_again_has_each_dead_letter_once(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    failing(job, 1)
    acks = job.run([("k1", "fail", 2)])
    assert job.base is not None
    for _ in range(2):  # the first is not committed
        (entry,) = job.attached(acks, 3, 0)
        assert (1, 3, 3) == (entry.oldest, entry.newest, entry.count)


def test_a_file_has_dead_letters_of_about_the_same_age(tmp_path: Path) -> None:
    job = RecordedJob(
        str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS,
        settings=QuerySettings(retention=dt.timedelta(seconds=80), max_errors=MaxErrors()),
    )  # fmt: skip
    for number in range(30):
        failing(job, number, number * 4000)
        assert len(files_of(job)) <= 9
        ages = [number + 1 - each["checkpoint_id"] for each in letters_of(job)]
        assert [*range(min(number, 19), -1, -1)] == ages[-20:]
        assert max(ages) * 4 <= 80 + 10


def test_dead_letters_stay_in_order_where_some_are_large(tmp_path: Path) -> None:
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    for number in range(12):
        job.inline_bytes = 10 if number in (3, 4, 8) else 1 << 20
        failing(job, number)
    assert [(1, 3), (4, 4), (5, 5), (6, 8), (9, 9), (10, 12)] == [
        (oldest, newest) for oldest, newest, _ in files_of(job)
    ]
    assert [*range(12)] == [int(each["message"].split()[-1]) for each in letters_of(job)]


def test_a_full_file_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statelog.extensions.bad_records.driver.TAIL_BYTES", 40_000)
    job = RecordedJob(str(tmp_path), Poisoned(), COLUMNS, OUTPUT, None, errors=LETTERS)
    for number in range(10):
        failing(job, number)
    files = files_of(job)
    assert 10 == sum(count for _, _, count in files)
    assert 1 < len(files) < 10
    assert [*range(10)] == [int(each["message"].split()[-1]) for each in letters_of(job)]


def test_versions_of_broadcast_tables_are_kept_for_all_dead_letters_of_a_file() -> None:
    def version(checkpoint: int, name: str = "rules") -> Attachment:
        return Attachment(
            kind=BROADCAST, name=name, oldest=checkpoint, newest=checkpoint,
            path=f"{name}-{checkpoint}", size=1, crc=1, count=1, at_ms=1,
        )  # fmt: skip

    def letters(oldest: int, newest: int) -> Attachment:
        return Attachment(
            kind=DEAD_LETTERS, oldest=oldest, newest=newest, path="p", size=1, count=1, at_ms=1
        )

    before = [version(at) for at in (1, 3, 5, 7, 9)]
    chosen = [version(11)]
    for oldest, newest, kept in [(4, 7, [3, 5, 7]), (4, 4, [3]), (5, 5, [5]), (6, 6, [5])]:
        found = kept_broadcasts(before, chosen, [letters(oldest, newest)])
        assert [*kept, 11] == [each.newest for each in found]
