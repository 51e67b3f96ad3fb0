"""
A key that fails leaves no trace, and every other key is exact.

The model of a job that leaves failed calls out is the same job without the calls: without the rows of the
keys that fail, and with a processor that does nothing for the timers that fail.
"""

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.support.jobs.poisoned_keys import (
    LETTERS,
    POISON,
    SKIP,
    Batch,
    Poisoned,
    PoisonedFrames,
    fresh,
    histories,
    letters_of,
    state_of,
)
from tests.support.jobs.recorded_job import RecordedJob, steps_recorded_by
from tests.support.jobs.recorded_processors import Steps, steps_job

import statelog as sl
from statelog.checkpoint import collect_garbage
from statelog.checkpoint.attachments import Attachment, of_kinds
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import InvariantError, ProcessorError, StoreError, UsageError
from statelog.extensions.bad_records import dead_letters
from statelog.extensions.bad_records.dead_letters import failures_of, is_bad_record
from statelog.extensions.bad_records.policy import ErrorPolicy, MaxErrors
from statelog.extensions.broadcasts.driver import kept_broadcasts
from statelog.extensions.broadcasts.stored import BROADCAST
from statelog.extensions.recordings.format import DEAD_LETTERS
from statelog.extensions.recordings.location import forget_key, list_recordings
from statelog.extensions.testing.replay import replay
from statelog.format.sealed_file import unseal
from statelog.spark.query.record import Record
from statelog.spark.query.settings import QuerySettings

pytestmark = pytest.mark.job


def poisoned(folder: Path, errors: ErrorPolicy = LETTERS, **options: Any) -> RecordedJob:
    return steps_job(folder, Poisoned(), errors=errors, **options)


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
    kind = PoisonedFrames if in_pandas else Poisoned
    job = steps_job(
        fresh(tmp_path_factory.getbasetemp() / f"again-{in_pandas}"), kind(),
        Record(share=rate) if rate else None, pandas=in_pandas, tasks=tasks, errors=LETTERS,
    )  # fmt: skip
    now, failures = 1000, 0
    for elapsed, rows in history:
        now += elapsed
        failures += sum(failures_of(ack).letters.count for ack in job.run(rows, now))
    steps = steps_recorded_by(job)
    assert failures == sum(step.failure is not None for step in steps)
    for key in {step.key for step in steps}:
        for step in replay(job.location, key, processor=kind()):
            assert () == step.differences, step.recorded.failure
            assert (step.error is None) == (step.recorded.failure is None)


def test_a_timer_that_failed_is_registered_again_by_an_edit(tmp_path: Path) -> None:
    class Rings(Steps):
        corrected = False

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)
            if not self.corrected:
                raise KeyError("lost")

    class Corrected(Rings):
        corrected = True

    bad = steps_job(tmp_path / "bad", Rings(), errors=LETTERS)
    good = steps_job(tmp_path / "good", Corrected(), errors=LETTERS)
    for job in (bad, good):
        job.run([("k1", "timer", 1), ("k2", "add", 1)], 1000)
        job.run([], 1150)
    (letter,) = letters_of(bad)
    assert [1100] == letter["timers"]
    sl.edit(bad.location, set={"$timers": {("k1",): letter["timers"]}}, apply=True)
    assert [letter] == letters_of(bad)
    again = steps_job(bad.location, Corrected(), errors=LETTERS)
    again.run([], 1150)
    assert state_of(good) == state_of(again)


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


NOT_OF_THE_ROWS = [
    StoreError("the store is away"), caused_by(StoreError("the store is away")),
    InvariantError("a bug of statelog"), MemoryError(), caused_by(MemoryError()), SystemExit(3),
]  # fmt: skip


@pytest.mark.parametrize("error", NOT_OF_THE_ROWS, ids=repr)
def test_errors_that_are_not_of_rows_fail_the_batch(tmp_path: Path, error: BaseException) -> None:
    job = steps_job(tmp_path, Raises(error), errors=LETTERS)
    with pytest.raises(ProcessorError, match="handleInputRows failed for key") as raised:
        job.run([("k1", "add", 1), ("k2", "add", 1)])
    assert error is raised.value.__cause__
    assert job.base is None


def test_an_interrupt_is_passed_on(tmp_path: Path) -> None:
    job = steps_job(tmp_path, Raises(KeyboardInterrupt()), errors=LETTERS)
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

    job = poisoned(tmp_path, input_bytes=4000)
    monkeypatch.setattr(HugeKeyInput, "rows_of", broken)
    with pytest.raises(ProcessorError, match="the local disk lost a piece"):
        job.run([("k1", "add", 1)] * 500)


@pytest.mark.parametrize("op", POISON)
def test_a_key_with_more_rows_than_memory_is_a_dead_letter(tmp_path: Path, op: str) -> None:
    job = poisoned(tmp_path, input_bytes=4000)
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
    ("most", "allowed"),
    [(MaxErrors(3), 3), (MaxErrors(0, 0.25), 20), (MaxErrors(0, 0.01), 10)],
    ids=["a number", "a share", "a share allows ten keys in any case"],
)
def test_a_batch_fails_if_too_many_keys_fail(tmp_path: Path, most: MaxErrors, allowed: int) -> None:
    def rows_of(failing: int) -> list[tuple[str, str, int]]:
        return [(f"key {number}", "fail" if number < failing else "add", 1) for number in range(80)]

    job = poisoned(tmp_path, replace(LETTERS, most=most))
    with pytest.raises(ProcessorError, match=r"more than maxErrors \([.\d]+\) allows") as raised:
        job.run(rows_of(allowed + 1))
    assert "ArithmeticError: cannot do 1" in raised.value.message
    assert job.base is None
    assert [] == list(job.store.list("recordings"))
    assert allowed == sum(failures_of(ack).keys for ack in job.run(rows_of(allowed)))
    assert allowed == len(letters_of(job))


def test_letters_beyond_their_bound_fail_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_BYTES_MAX", 2_000)
    job = poisoned(tmp_path)
    rows = [("k1", "append", number) for number in range(200)]
    with pytest.raises(ProcessorError, match="exceed the dead-letter limit of"):
        job.run([*rows, ("k1", "fail", 1)])
    skipping = poisoned(tmp_path, SKIP)
    assert 1 == failures_of(skipping.run([*rows, ("k1", "fail", 1)])[0]).keys


def test_unwritable_letters_fail_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statelog.spark.worker.output_parts import OutputFiles

    def full(self: OutputFiles, path_of: Any, data: bytes) -> Any:
        raise StoreError("the store is full")

    monkeypatch.setattr(OutputFiles, "write", full)
    for inline_bytes in (10, 1 << 20):
        job = poisoned(tmp_path, inline_bytes=inline_bytes)
        with pytest.raises(StoreError, match="the store is full"):
            job.run([("k1", "fail", 1)])
        assert job.base is None


# -------------------------------------------------------------------------- forget and retention


def test_a_forgotten_key_is_in_no_dead_letter(tmp_path: Path) -> None:
    job = poisoned(tmp_path)
    job.run([("k1", "fail", 7), ("k2", "fail", 8)])
    assert 1 == len(forget_key(job.store, "k1").rewritten)
    assert ['["k2"]'] == [letter["key"] for letter in letters_of(job)]
    for recording in list_recordings(job.store):
        assert b"cannot do 7" not in bytes(unseal(job.store.get(recording.path)))
    forget_key(job.store, "k2")
    assert [] == letters_of(job)
    assert ((), ()) == (forget_key(job.store, "k2").rewritten, forget_key(job.store, "k1").deleted)


def test_dead_letters_are_retained_by_age(tmp_path: Path) -> None:
    record, retention = Record(share=1.0, checkpoints=1), dt.timedelta(seconds=10)
    settings = QuerySettings(record=record, retention=retention)
    job = poisoned(tmp_path, record=record, retained=1, settings=settings)
    for number in range(5):
        job.run([("k1", "fail", number), ("k2", "add", 1)], 1_000_000 + number * 4000)
    assert [3, 4, 5] == [letter["checkpoint_id"] for letter in letters_of(job)]
    assert [5, 3, 4, 5] == [recording.checkpoint_id for recording in list_recordings(job.store)]
    assert 4 == len([*job.store.list("recordings")])
    with sl.open(job.location) as state:
        assert [5] == state.dead_letters(since=4)["checkpoint_id"].to_pylist()
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=30)
    report = collect_garbage(job.store, min_age=dt.timedelta(hours=1), apply=True, now=later)
    assert () == tuple(report.deleted)


# ------------------------------------------------------------------ several micro-batches in one file


def files_of(job: RecordedJob) -> list[tuple[int, int, int]]:
    """Return oldest and newest checkpoint, and number of dead letters, of each file that is named."""
    assert job.base is not None
    files = of_kinds(BatchRecord.of(job.base).attachments, DEAD_LETTERS)
    return [(file.oldest, file.newest, file.count) for file in files]


def failing(job: RecordedJob, number: int) -> None:
    job.run([("k1", "fail", number), ("k2", "add", 1)])


def failures_stored_in(job: RecordedJob) -> list[int]:
    """Return the numbers that `failing` was called with."""
    return [int(letter["message"].split()[-1]) for letter in letters_of(job)]


def test_small_dead_letters_of_many_micro_batches_are_one_file(tmp_path: Path) -> None:
    job = poisoned(tmp_path, retained=1)
    for number in range(60):
        if number % 3 == 2:
            job.run([("k2", "add", 1)])
        else:
            failing(job, number)
    assert [(1, 59, 40)] == files_of(job)
    expected = [number + 1 for number in range(60) if number % 3 != 2]
    assert expected == [letter["checkpoint_id"] for letter in letters_of(job)]
    with sl.open(job.location) as state:
        later = state.dead_letters(since=50)["checkpoint_id"].to_pylist()
        assert [checkpoint_id for checkpoint_id in expected if checkpoint_id > 50] == later
        numbers = state.dead_letter_rows(since=50)["n"].to_pylist()
        assert [checkpoint_id - 1 for checkpoint_id in later] == numbers
    assert 1 == len([*job.store.list("recordings")])
    assert 1 == len(forget_key(job.store, "k1").rewritten)
    assert [] == letters_of(job)


def test_dead_letters_stay_in_order_where_some_are_large(tmp_path: Path) -> None:
    job = poisoned(tmp_path)
    for number in range(12):
        job.inline_bytes = 10 if number in (3, 4, 8) else 1 << 20
        failing(job, number)
    ranges = [(oldest, newest) for oldest, newest, _ in files_of(job)]
    assert [(1, 3), (4, 4), (5, 5), (6, 8), (9, 9), (10, 12)] == ranges
    assert [*range(12)] == failures_stored_in(job)


def test_broadcast_versions_are_retained_for_all_dead_letters_of_a_file() -> None:
    def attachment(kind: str, name: str, oldest: int, newest: int) -> Attachment:
        return Attachment(
            kind=kind, name=name, oldest=oldest, newest=newest, path=f"{name}-{newest}", size=1,
            crc=1, count=1, at_ms=1,
        )  # fmt: skip

    before = [attachment(BROADCAST, "rules", number, number) for number in (1, 3, 5, 7, 9)]
    chosen = [attachment(BROADCAST, "rules", 11, 11)]
    for oldest, newest, retained in [(4, 7, [3, 5, 7]), (4, 4, [3]), (5, 5, [5]), (6, 6, [5])]:
        letters = attachment(DEAD_LETTERS, "", oldest, newest)
        versions = kept_broadcasts(before, chosen, [letters])
        assert [*retained, 11] == [version.newest for version in versions]
