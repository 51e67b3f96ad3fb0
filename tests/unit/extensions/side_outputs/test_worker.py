"""
Rows of side outputs are committed with their micro-batch: each once, and those of failed calls never.

The model of a job that leaves failed calls out is the same job without the calls, as in
`bad_records.test_worker`; its side outputs have to be the same too, also over kills.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from tests.support.jobs.emitting_processors import (
    Emits,
    EmitsFrames,
    EmitsModel,
    EmitsModelOfFrames,
    Late,
    in_batches,
    late_job,
    rows_of,
)
from tests.support.jobs.poisoned_keys import (
    LETTERS,
    SKIP,
    Batch,
    Initial,
    failed_in,
    first_timer,
    fresh,
    histories,
    letters_of,
    output_of,
    state_of,
)
from tests.support.jobs.recorded_job import RecordedJob, added_by
from tests.support.jobs.recorded_processors import steps_job
from tests.support.jobs.task_query import INITIAL, NUMBERS, Query, arrow_input, of_initial

import statelog as sl
from statelog.checkpoint.attachments import Addition
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.verify import verify_location
from statelog.errors import CheckpointError, ProcessorError, UsageError
from statelog.extensions.bad_records import worker as bad_records
from statelog.extensions.bad_records.dead_letters import BAD_RECORDS, failures_of
from statelog.extensions.bad_records.policy import ErrorPolicy
from statelog.extensions.bad_records.stored import SCHEMA as LETTERS_SCHEMA
from statelog.extensions.recordings.format import decode_file
from statelog.extensions.recordings.step import steps_of
from statelog.extensions.side_outputs import worker as side_output
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import declared_by
from statelog.spark.rows.formats import SparkRowFormat
from statelog.spark.rows.types import from_ipc
from statelog.spark.worker import output_parts
from statelog.spark.worker.protocol import TaskAck

pytestmark = pytest.mark.job


def emitted_by(ack: TaskAck) -> tuple[Addition, ...]:
    return added_by(ack, "side_outputs")


@pytest.fixture(autouse=True, scope="module")
def few_calls_together() -> Iterator[None]:
    """Repeat the calls of few keys together, so that those of a history are several groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bad_records, "_TOGETHER", 2)
        yield


def forgetful(kind: Any) -> Any:
    """Return a processor whose `init` deletes a variable of all keys and asks for it again."""

    class Forgetful(kind):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            handle.deleteIfExists("total")
            super().init(handle)

    return Forgetful


@pytest.mark.campaign
@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize("input_bytes", [1 << 30, 4000])
@settings(max_examples=16, deadline=None)
@given(
    history=histories,
    tasks=st.integers(1, 3),
    inline_bytes=st.sampled_from([0, 1 << 20]),
    kills=st.sets(st.integers(0, 4)),
    policy=st.sampled_from([LETTERS, SKIP]),
    forgets=st.booleans(),
)
def test_a_job_that_leaves_keys_out_is_the_job_without_them(
    history: list[Batch], tasks: int, inline_bytes: int, kills: set[int], policy: ErrorPolicy,
    forgets: bool, input_bytes: int, in_pandas: bool, tmp_path_factory: Any,
) -> None:  # fmt: skip
    """Its output, state, timers and side outputs, also over kills."""
    folder = tmp_path_factory.getbasetemp() / f"sides-{input_bytes}-{in_pandas}"
    kinds = (EmitsFrames, EmitsModelOfFrames) if in_pandas else (Emits, EmitsModel)
    kind, model = map(forgetful, kinds) if forgets else kinds

    def job_of(location: str, processor: Any, errors: ErrorPolicy | None) -> RecordedJob:
        return steps_job(
            location, processor, pandas=in_pandas, tasks=tasks, input_bytes=input_bytes,
            errors=errors, inline_bytes=inline_bytes,
        )  # fmt: skip

    job = job_of(fresh(folder / "job"), kind(), policy)
    clean = job_of(fresh(folder / "clean"), model(), None)
    now, letters = 1000, 0
    for number, (elapsed, rows) in enumerate(history):
        now += elapsed
        if number in kills:
            job.run_killed(rows, now)
            job = job_of(job.location, kind(), policy)
        failed = failed_in(rows)
        acks = job.run(rows, now)
        expected = clean.run([row for row in rows if row[0] not in failed], now)
        assert output_of(clean, expected) == output_of(job, acks)
        assert state_of(clean) == state_of(job)
        for name in ("operations", "timers"):
            assert in_batches(clean.location, name) == in_batches(job.location, name), name
        due_ms = [ack.changes.next_due_ms for ack in acks]
        assert min(due_ms) <= first_timer(job)
        if input_bytes > 4000:  # an input in parts may report the time of a timer that was deleted
            assert min(due_ms) == first_timer(job)
            assert due_ms == [ack.changes.next_due_ms for ack in expected]
        assert sum(failures_of(ack).keys for ack in acks) >= len(failed)
        letters += sum(failures_of(ack).letters.count for ack in acks)
    assert in_batches(job.location, "operations") == [
        (number, *row)
        for number, (_, rows) in enumerate(history)
        for row in sorted(row for row in rows if row[0] not in failed_in(rows))
    ]
    stored = letters_of(job)
    assert letters == len(stored)
    if policy is SKIP:
        assert letters == 0
        return
    of_timers = [letter for letter in stored if letter["timers"]]
    assert {"handleExpiredTimer"} >= {letter["method"] for letter in of_timers}
    of_rows = [letter for letter in stored if not letter["timers"]]
    assert sorted((letter["batch_id"], letter["key"][2:-2]) for letter in of_rows) == sorted(
        (number, key) for number, (_, rows) in enumerate(history) for key in failed_in(rows)
    )


# ----------------------------------------------------------------------------------- single calls


def test_rows_and_tuples_are_taken_and_what_a_row_leaves_out_is_null(tmp_path: Path) -> None:
    job = late_job(tmp_path)
    job.run([("a", "row", 1), ("b", "order", 2), ("c", "tuple", 3), ("d", "short", 4)])
    with sl.open(str(tmp_path)) as state:
        table = state.side_output("late")
    assert ["checkpoint_id", "batch_id", "k", "at"] == table.column_names
    assert pa.timestamp("us", "UTC") == table.schema.field("at").type
    rows = sorted((row["k"], row["at"] and row["at"].timestamp()) for row in table.to_pylist())
    assert [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", None)] == rows


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("null", r"'k' is NOT NULL"),
        ("type", r"column 'at' .* cannot store 'a text'"),
        ("name", r"does not have the column key; its columns are k, at"),
        ("dict", r"takes emit\(Row\(k=..., at=...\)\), or a tuple of 2 values; got the dict"),
        ("long", r"or a tuple of 2 values; got the tuple"),
    ],
)
def test_an_unfit_row_fails_the_call_that_emits_it(op: str, said: str, tmp_path: Path) -> None:
    rows = [("a", "row", 1), ("b", "row", 1), ("b", op, 2)]
    job = late_job(tmp_path / "fails")
    with pytest.raises(ProcessorError, match=rf"handleInputRows failed for key \('b',\).*{said}"):
        job.run(rows)
    job = late_job(tmp_path / "letters", errors=LETTERS)
    job.run(rows)
    assert ["a"] == [row[2] for row in rows_of(job.location, "late")]
    with sl.open(job.location) as state:
        letters = state.dead_letters()
    assert ['["b"]'] == letters["key"].to_pylist()
    assert LETTERS_SCHEMA == letters.schema


class AtOtherTimes(Late):
    """Emits in `init` or `close`, or declares too late."""

    def __init__(self, when: str) -> None:
        self.when = when

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle
        if self.when == "init":
            self.late.emit(Row(k="a"))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if self.when == "later":
            self.handle.sideOutput("later", "k string")
        return iter(())

    def close(self) -> None:
        if self.when == "close" and type(self.late) is side_output.TaskSideOutput:
            self.late.emit(Row(k="a"))


def test_rows_are_emitted_while_rows_are_handled(tmp_path: Path) -> None:
    with pytest.raises(ProcessorError, match=r"init failed: .*not in init\(\) or close"):
        late_job(tmp_path / "init", AtOtherTimes("init"))
    for when, said in (("close", "close failed.*not in init"), ("later", "declared only in init")):
        job = late_job(tmp_path / when, AtOtherTimes(when))
        with pytest.raises(ProcessorError, match=said):
            job.run([("a", "row", 1)])


@pytest.mark.parametrize(
    ("name", "schema", "said"),
    [
        ("", "k string", "letters, digits"),
        ("a/b", "k string", "letters, digits"),
        ("other", "Batch_Id long", "with distinct names other than checkpoint_id or batch_id"),
        ("other", "checkpoint_id long", "with distinct names other than checkpoint_id or batch_id"),
        ("other", "k string, k string", "with distinct names"),
        ("late", "k string", "declares the side output 'late' twice"),
    ],
)
def test_wrong_declarations_are_rejected(name: str, schema: str, said: str, tmp_path: Path) -> None:
    class Wrong(Late):
        def init(self, handle: Any) -> None:
            super().init(handle)
            handle.sideOutput(name, schema)

    with pytest.raises(ProcessorError, match=said):
        late_job(tmp_path, Wrong())


def test_many_rows_are_written_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Many(Late):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for row in rows:
                for number in range(row.n):
                    self.late.emit((f"{key[0]}-{number:06}", None))
            return iter(())

    monkeypatch.setattr(output_parts, "_HELD_BYTES", 100_000)
    job = late_job(tmp_path, Many())
    (ack,) = job.run([("a", "row", 60_000), ("b", "row", 10)])
    emitted = emitted_by(ack)
    assert 60_010 == sum(addition.count for addition in emitted)
    # A key has 60,000 rows, and few of them are held.
    assert 16_384 >= max(addition.count for addition in emitted)
    rows = rows_of(job.location, "late")
    assert 60_010 == len(rows) == len(set(rows))
    with sl.open(job.location) as state:
        (late,) = state.side_outputs()
    assert (60_010, len(emitted)) == (late.rows, late.objects)


def test_a_damaged_or_deleted_object_is_reported(tmp_path: Path) -> None:
    job = late_job(tmp_path)
    job.run([("a", "row", 1)])
    assert job.base is not None
    (entry,) = BatchRecord.of(job.base).attachments
    data = bytes(job.store.get(entry.path))
    job.store.put(entry.path, data[:-9] + b"x" + data[-8:])
    with sl.open(job.location) as state, pytest.raises(sl.CorruptionError, match="checksum"):
        state.side_output("late")
    (result,) = [finding for finding in verify_location(job.store) if finding.problem]
    assert (entry.path, "side output", False) == (result.path, result.kind, result.blocks_restore)
    job.store.delete([entry.path])
    with sl.open(job.location) as state, pytest.raises(CheckpointError, match="no longer exist"):
        state.side_output("late")


def test_a_forgotten_key_leaves_its_rows_out(tmp_path: Path) -> None:
    job = late_job(tmp_path)
    job.run([("a", "row", 1), ("b", "row", 2)])
    report = sl.forget(job.location, "a", apply=False)
    (trace,) = [trace for trace in report.traces if trace.kind == "output"]
    assert trace.leaves.startswith("after the age of its newest row (retention)")
    sl.forget(job.location, "a", now=True, apply=True)
    assert ["b"] == [row[2] for row in rows_of(job.location, "late")]
    assert () == sl.forget(job.location, "a", now=True, apply=False).traces
    with sl.open(job.location) as state:
        assert [1] == [side_output.rows for side_output in state.side_outputs()]


def test_a_column_whose_type_changed_is_read_since_the_change(tmp_path: Path) -> None:
    class Numbers(Late):
        schema = "k long"

        def item(self, key: str, op: str, n: int) -> Any:
            return (n,)

    late_job(tmp_path).run([("a", "row", 1)])
    job = late_job(tmp_path, Numbers())
    before = job.base
    job.run([("a", "row", 7)])
    assert before is not None
    with pytest.raises(UsageError, match="rows of different types"):
        rows_of(job.location, "late")
    since = rows_of(job.location, "late", since=before.checkpoint_id)
    assert [7] == [row[2] for row in since]


def test_a_copy_has_the_rows_and_a_fork_begins_without(tmp_path: Path) -> None:
    job = late_job(tmp_path / "state")
    job.run([("a", "row", 1), ("b", "row", 2)])
    sl.copy(job.location, tmp_path / "copy")
    assert rows_of(job.location, "late") == rows_of(str(tmp_path / "copy"), "late")
    sl.fork(job.location, tmp_path / "fork", state_only=True)
    assert [] == rows_of(str(tmp_path / "fork"), "late")
    fork = late_job(tmp_path / "fork")
    fork.run([("c", "row", 3)])
    assert ["c"] == [row[2] for row in rows_of(fork.location, "late")]
    assert 2 == len(rows_of(job.location, "late"))


class InitialEmits(Initial):
    """`Initial`, which emits each value before it is added."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.values = handle.sideOutput("values", "key long, n long, value double")

    def add(self, value: float, n: int) -> None:
        self.values.emit((self.key, n, value))
        super().add(value, n)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        (self.key,) = key
        super().handleInitialState(key, initialState, timerValues)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (self.key,) = key
        yield from super().handleInputRows(key, rows, timerValues)


@pytest.mark.parametrize("input_bytes", [sys.maxsize, 20_000])
def test_failed_initial_state_takes_its_rows_along(tmp_path: Path, input_bytes: int) -> None:
    """Rows that fail leave the initial state of their key, and what it emitted."""
    raises, misfits, with_bad_rows = {3, 4, 50}, {5, 7, 51}, {6: -1.0, 8: -2.0, 90: -1.0, 4: -1.0}
    bad_initial = raises | misfits
    failed = bad_initial | set(with_bad_rows)
    initial = [(number, value) for number in range(60) for value in (1.0, 2.0)]
    initial += [(number, -1.0) for number in raises] + [(number, -2.0) for number in misfits]
    rows = [(number, value) for number in range(0, 100, 2) for value in (3.0, 4.0)]
    rows += [(7, 5.0), *with_bad_rows.items()]
    expected: dict[tuple[int], tuple[int, float]] = {}
    for number in set(range(100)) - bad_initial:
        n, total = (200, 3.0) if number < 60 else (0, 0.0)
        if number % 2 == 0 and number not in with_bad_rows:
            n, total = n + 2, total + 7.0
        if n:
            expected[(number,)] = n, total
    declared = declared_by(InitialEmits(), "op", NUMBERS, parse_ddl, time_mode="none")
    query = Query(
        tmp_path, InitialEmits(), SparkRowFormat(), input_bytes,
        output="key long, n long, total double", key=NUMBERS,
        extras={BAD_RECORDS: LETTERS, **declared.extras},
        initial=INITIAL,
    )  # fmt: skip
    columns = "key long, value double"
    batches = of_initial(True, arrow_input(initial, columns, 1))
    batches += of_initial(False, arrow_input(rows, columns, 1))
    output = query.run(batches)
    tables = query.tables().values()
    assert expected == {key: cell for group in tables for key, cell in group[0].items()}
    assert set(range(0, 100, 2)) - failed == {row["key"] for row in output}
    (ack,) = query.acks
    files = [rows.file for rows in emitted_by(ack)]
    emitted = [from_ipc(query.store.get(file.path)).to_pylist() for file in files if file]
    assert sorted(
        [(number, 100, value) for number, value in initial if number not in bad_initial]
        + [(number, 1, value) for number, value in rows if number not in failed]
    ) == sorted(tuple(row.values())[2:] for part in emitted for row in part)
    failures = failures_of(ack)
    assert (len(failed), len(failed)) == (failures.keys, failures.letters.count)
    assert failures.letters.file is not None
    letters = {
        step.key[0]: step
        for task in decode_file(query.store.get(failures.letters.file.path))
        for step in steps_of(task)
    }
    assert failed == set(letters)
    for number, step in letters.items():
        is_initial = number in bad_initial
        method = "handleInitialState" if is_initial else "handleInputRows"
        assert (method, 3 if is_initial else 0) == (step.failure.method, step.initial.num_rows)  # type: ignore[union-attr]
        letter_rows = [(row["key"], row["value"]) for row in step.input.to_pylist()]
        assert [row for row in rows if row[0] == number] == letter_rows
        has_before = not is_initial and number < 60
        (before,) = step.before.column("total").to_pylist()
        assert before == ({"n": 200, "total": 3.0} if has_before else None)
