"""
With `onError="freeze"` a key that failed stays as it was: nothing of it is handled until it is unfrozen.

The model of such a job is the same job without the rows of a key from its failure on, and with a processor
that does nothing for its timers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.jobs.poisoned_keys import (
    Batch,
    Poisoned,
    PoisonedFrames,
    failed_in,
    first_timer,
    fresh,
    histories,
    letters_of,
    output_of,
    state_of,
)
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import OUTPUT, steps_job

import statelog as sl
from statelog.checkpoint.audit import read_audit_log
from statelog.errors import ProcessorError, UsageError
from statelog.extensions.bad_records.dead_letters import failures_of
from statelog.extensions.bad_records.policy import ErrorPolicy, MaxErrors
from statelog.extensions.recordings.location import forget_key
from statelog.extensions.testing.replay import replay
from statelog.spark.query.record import Record

pytestmark = pytest.mark.job

FREEZE = ErrorPolicy(keeps_letters=True, most=MaxErrors(1000), freezes=True)


class Model(Poisoned):
    """Does nothing for the timers of frozen keys, and freezes the keys whose timers fail."""

    def __init__(self) -> None:
        self.frozen: set[str] = set()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        if self.bad_timer(expiredTimerInfo.getExpiryTimeInMs()):
            self.frozen.add(key[0])
        if key[0] not in self.frozen:
            yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)


class ModelOfFrames(Model, PoisonedFrames):
    """The same over frames."""


@pytest.mark.campaign
@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("input_bytes", [1 << 30, 4000])
@settings(max_examples=15, deadline=None)
@given(history=histories, tasks=st.integers(1, 3))
def test_a_frozen_key_is_as_it_was_before_its_failure(
    history: list[Batch], tasks: int, input_bytes: int, in_pandas: bool, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"freeze-{input_bytes}-{in_pandas}"
    kind, model = (PoisonedFrames(), ModelOfFrames()) if in_pandas else (Poisoned(), Model())
    options = {"pandas": in_pandas, "tasks": tasks, "input_bytes": input_bytes}
    job = steps_job(fresh(folder / "job"), kind, errors=FREEZE, **options)
    clean = steps_job(fresh(folder / "clean"), model, **options)
    now, withheld = 1000, []
    for number, (elapsed, rows) in enumerate(history, 1):
        now += elapsed
        model.frozen |= failed_in(rows)
        withheld += [(number, *row) for row in rows if row[0] in model.frozen]
        others = [row for row in rows if row[0] not in model.frozen]
        acks, expected = job.run(rows, now), clean.run(others, now)
        assert output_of(clean, expected) == output_of(job, acks)
        state = state_of(job)
        assert len(model.frozen) == len(state.pop("$frozen"))
        assert state_of(clean) == state
        due_ms = [ack.changes.next_due_ms for ack in acks]
        assert min(due_ms) <= first_timer(job)
        if input_bytes > 4000:  # an input in parts may report the time of a timer that was deleted
            assert min(due_ms) == first_timer(job)
            assert due_ms == [ack.changes.next_due_ms for ack in expected]
    with sl.open(job.location) as state:
        rows = state.dead_letter_rows().to_pylist()
    assert sorted(row[1:] for row in withheld) == sorted(tuple(row.values()) for row in rows)
    assert {(row[0], row[1]) for row in withheld} == {
        (letter["checkpoint_id"], letter["key"][2:-2])
        for letter in letters_of(job)
        if not letter["timers"]
    }


class Journal(StatefulProcessor):
    """Keeps the numbers of a key in their order; a negative one is poison unless the fault is corrected."""

    def __init__(self, corrected: bool = False) -> None:
        self.corrected = corrected

    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.items.appendValue((row.n,))
            if row.n < 0 and not self.corrected:
                raise ValueError(f"{row.n} is negative")
            yield Row(k=key[0], what="item", n=row.n)


def journal(
    folder: Path, processor: Journal | None = None, *, errors: ErrorPolicy | None = FREEZE,
    record: Record | None = None,
) -> RecordedJob:  # fmt: skip
    return RecordedJob(
        str(folder / "job"), processor or Journal(), "k string, n long", OUTPUT, record, "none",
        errors=errors,
    )  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> RecordedJob:
    return journal(tmp_path)


BATCHES = [
    [("k1", 1), ("k2", 2), ("k3", 3)],
    [("k1", 4), ("k1", -5), ("k1", 6), ("k2", 7)],
    [("k1", 8), ("k3", -9), ("k2", 10)],
    [("k1", 11), ("k3", 12)],
]


def test_rows_of_a_frozen_key_are_handled_in_order_after_a_correction(
    job: RecordedJob, tmp_path: Path
) -> None:
    whole = journal(tmp_path / "whole", Journal(corrected=True))
    for rows in BATCHES:
        job.run(rows)
        whole.run(rows)
    with sl.open(job.location) as state:
        marks = {row["key.k"]: row for row in state.table("$frozen").to_pylist()}
        assert {"k1": 2, "k3": 3} == {
            key: row["value.since_checkpoint"] for key, row in marks.items()
        }
        assert "ValueError: -5 is negative" == marks["k1"]["value.error"]
        rows = [tuple(row.values()) for row in state.dead_letter_rows().to_pylist()]
    letters = letters_of(job)
    assert [
        (2, '["k1"]', "ValueError", "-5 is negative"),
        (3, '["k1"]', "statelog.FrozenKey", "frozen since checkpoint 2: ValueError: -5 is negative"),
        (3, '["k3"]', "ValueError", "-9 is negative"),
        (4, '["k1"]', "statelog.FrozenKey", "frozen since checkpoint 2: ValueError: -5 is negative"),
        (4, '["k3"]', "statelog.FrozenKey", "frozen since checkpoint 3: ValueError: -9 is negative"),
    ] == sorted(
        (letter["checkpoint_id"], letter["key"], letter["error"], letter["message"]) for letter in letters
    )  # fmt: skip

    report = sl.unfreeze(job.location)
    assert (2, None) == (report.counts.changed, report.checkpoint_id)
    sl.unfreeze(job.location, apply=True)
    with sl.open(job.location) as state:
        assert 0 == state.table("$frozen").num_rows
    corrected = journal(tmp_path, Journal(corrected=True))
    assert 0 == sum(failures_of(ack).letters.count for ack in corrected.run(rows))
    for job in (corrected, whole):
        job.run([("k1", 13), ("k2", 14)])
    assert state_of(whole) == state_of(corrected)


def test_single_keys_are_unfrozen(job: RecordedJob, tmp_path: Path) -> None:
    job.run([("k1", -1), ("k2", -2), ("k3", 3)])
    assert 1 == sl.unfreeze(job.location, ["k1", "k3"]).counts.changed
    assert () == read_audit_log(job.store).lines
    report = sl.unfreeze(job.location, ["k1", ("k3",)], apply=True)
    (line,) = read_audit_log(job.store).lines
    assert line.begin is not None
    assert ("unfreeze", "done") == (line.begin.operation, line.outcome)
    assert (1, 1) == (report.counts.changed, report.counts.unchanged)
    assert 0 == sl.unfreeze(job.location, ["k1"], apply=True).counts.changed
    (ack,) = journal(tmp_path).run([("k1", 5), ("k2", 6), ("k3", 7)])
    assert (0, 1) == (failures_of(ack).keys, failures_of(ack).letters.count)
    with sl.open(job.location) as state:
        assert [{"n": 5}] == state.get("items", "k1")
        assert [] == state.get("items", "k2")
    with pytest.raises(UsageError, match="a key requires a value for each of"):
        sl.unfreeze(job.location, [("k1", 2)])


def test_a_kill_before_the_commit_freezes_nothing(job: RecordedJob, tmp_path: Path) -> None:
    job.run(BATCHES[0])
    job.run_killed(BATCHES[1])
    (ack,) = journal(tmp_path, Journal(corrected=True)).run(BATCHES[1])
    assert (0, 0) == (failures_of(ack).keys, failures_of(ack).letters.count)


def test_frozen_keys_do_not_count_as_failures(job: RecordedJob) -> None:
    for number in range(2):
        rows = [(f"k{key}", -1) for key in range(number * 600, number * 600 + 600)]
        assert 600 == sum(failures_of(ack).keys for ack in job.run(rows))
    (ack,) = job.run([(f"k{key}", 1) for key in range(1200)])
    assert (0, 1200) == (failures_of(ack).keys, failures_of(ack).letters.count)
    with pytest.raises(ProcessorError, match="more than maxErrors"):
        job.run([(f"other {key}", -1) for key in range(1001)])


@pytest.mark.parametrize("text", ["no UTF-8: \ud800", "long " * 1000, ""])
def test_any_text_of_an_error_is_stored(tmp_path: Path, text: str) -> None:
    class Fails(Journal):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            raise ValueError(text)
            yield

    job = journal(tmp_path, Fails())
    for _ in range(2):
        job.run([("k1", 1)])
    with sl.open(job.location) as state:
        mark = state.get("$frozen", "k1")
        assert mark["error"].startswith("ValueError")  # type: ignore[index, call-overload]
    assert 2 == len(letters_of(job))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_replay_does_not_show_the_marks(tmp_path: Path, rate: float) -> None:
    job = journal(tmp_path, record=Record(share=rate) if rate else None)
    for rows in BATCHES:
        job.run(rows)
    steps = replay(job.location, "k1", processor=Journal())
    failures = [step for step in steps if step.recorded.failure is not None]
    errors = [step.recorded.failure.error for step in failures]  # type: ignore[union-attr]
    assert ["ValueError", "statelog.FrozenKey", "statelog.FrozenKey"] == errors
    assert () == failures[0].differences
    for step in steps:
        assert "$frozen" not in step.before
        assert not any("$frozen" in difference.what for difference in step.differences)
    corrected = replay(job.location, "k1", processor=Journal(corrected=True))
    assert all(step.error is None for step in corrected)


def test_a_forgotten_key_is_no_longer_frozen(job: RecordedJob) -> None:
    job.run([("k1", -1), ("k2", -2)])
    sl.forget(job.location, "k1", now=True, apply=True)
    assert ['["k2"]'] == [letter["key"] for letter in letters_of(job)]
    with sl.open(job.location) as state:
        assert ["k2"] == [row["key.k"] for row in state.table("$frozen").to_pylist()]
    assert ((), ()) == (forget_key(job.store, "k1").rewritten, forget_key(job.store, "k1").deleted)
