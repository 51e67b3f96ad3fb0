"""
Every call of a micro-batch sees one version of a broadcast table, which its checkpoint names.

A micro-batch that a restart repeats sees the version that it saw before; a replay too.
"""

import datetime as dt
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from tests.support.jobs.poisoned_keys import LETTERS, fresh
from tests.support.jobs.rated_job import OUTPUT, ROWS, Rated, RatedJob
from tests.support.jobs.recorded_job import RecordedJob
from tests.support.jobs.recorded_processors import COLUMNS

import statelog as sl
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import collect_garbage
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    InvalidOptionsError,
    ProcessorError,
    UsageError,
)
from statelog.extensions.broadcasts.tables import Broadcast, BroadcastTable, version_of
from statelog.extensions.testing.replay import recorded_steps, replay
from statelog.spark.query.record import Record
from statelog.spark.query.settings import SETTINGS, QuerySettings
from statelog.testing import ProcessorTester

pytestmark = pytest.mark.job

PARSE = SETTINGS["broadcast"].kind.parse
RULES = "op string, factor long"


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["commit", "kill", "kill", "restart"])),
        min_size=1,
        max_size=10,
    )
)
def test_a_repeated_batch_sees_its_version(
    steps: list[tuple[int, str]], tmp_path_factory: Any
) -> None:
    """The model: the first attempt of a micro-batch decides its version; others see the newest."""
    location = fresh(tmp_path_factory.getbasetemp() / "rated")
    run, decided = RatedJob(location), dict[int, int]()
    for factor, step in steps:
        batch_id = run.job.batch_id + 1
        run.factor = factor
        expected = decided.setdefault(batch_id, factor)
        if step == "kill":
            run.job.run_killed(ROWS)
            run = RatedJob(location, factor, repeated=batch_id)
            continue
        assert {expected} == run.run(ROWS)
        if step == "restart":
            run = RatedJob(location, factor)
    history = list(decided.values())[: run.job.batch_id + 1]
    with sl.open(location) as state:
        for checkpoint in state.checkpoints():
            if checkpoint.is_retained:
                (version,) = state.broadcasts(checkpoint.checkpoint_id)
                table = state.broadcast("rules", checkpoint.checkpoint_id)
                assert version.since <= version.checkpoint_id == checkpoint.checkpoint_id
                reader = state.reader(checkpoint.checkpoint_id)
                factor = history[BatchRecord.of(reader.checkpoint).batch_id]
                assert {factor} == set(table["factor"].to_pylist())


def test_a_version_is_stored_once_and_deleted_with_its_last_checkpoint(tmp_path: Path) -> None:
    run = RatedJob(str(tmp_path), options={"retained": 2})

    def objects_after(days: int) -> set[str]:
        now = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
        collect_garbage(run.job.store, min_age=dt.timedelta(0), apply=True, now=now)
        return run.objects()

    for factor in (1, 1, 1, 2, 2, 2, 2):
        run.factor = factor
        assert {factor} == run.run(ROWS)
    (entry,) = run.versions
    assert 2 == entry.count
    assert {entry.path} == objects_after(days=0)
    # What an attempt stored that did not commit is kept for its repetition, for some days.
    run.factor = 3
    run.job.run_killed(ROWS)
    assert 2 == len(objects_after(days=6))
    assert {entry.path} == objects_after(days=8)


def test_a_repeated_micro_batch_sees_the_newest_version_if_it_is_to(tmp_path: Path) -> None:
    newest = {"repeated": "newest"}
    run = RatedJob(str(tmp_path), source=newest)
    run.run(ROWS)
    run.factor = 2
    run.job.run_killed(ROWS)
    assert {3} == RatedJob(str(tmp_path), 3, repeated=1, source=newest).run(ROWS)


def test_a_source_is_read_again_when_it_is_due(tmp_path: Path) -> None:
    run = RatedJob(str(tmp_path), source={"every": "10 min"})
    for clock_s, factor, seen in ((0, 1, 1), (599, 2, 1), (600, 2, 2)):
        run.clock_s, run.factor = clock_s, factor
        assert {seen} == run.run(ROWS)


def test_a_foreign_object_of_the_name_does_not_take_the_place_of_a_version(tmp_path: Path) -> None:
    run = RatedJob(str(tmp_path))
    run.run(ROWS)
    base = run.job.base
    assert base is not None
    run.job.store.put(f"broadcasts/rules-{base.checkpoint_id}-1", b"of another history")
    run.factor = 5
    assert {5} == run.run(ROWS)


# --------------------------------------------------------------------------------- replay


def test_a_replay_sees_the_version_of_then(tmp_path: Path) -> None:
    run = RatedJob(str(tmp_path / "state"), options={"errors": LETTERS, "retained": 1})
    run.job.record = Record(share=1.0)
    for factor in (2, 0, 3, 3):
        run.factor = factor
        run.run([("a", "add", 5)])
    assert 3 == len(run.versions)  # of three micro-batches that can be replayed
    steps = replay(run.location, "a", processor=Rated())
    assert [(), (), (), ()] == [step.differences for step in steps]
    assert [[10], [], [15], [15]] == [
        [row.value for row in step.found.output] if step.found else [] for step in steps
    ]
    assert [False, True, False, False] == [step.error is not None for step in steps]


def test_a_step_without_its_version_is_left_out(tmp_path: Path) -> None:
    run = RatedJob(str(tmp_path))
    run.job.record = Record(share=1.0)
    run.run([("a", "add", 5)])
    run.factor = 2
    run.run([("a", "add", 5)])
    first, _ = run.versions
    run.job.store.delete([first.path])
    unreadable: list[Any] = []
    (step,) = recorded_steps(run.job.store, "a", unreadable=unreadable)
    assert 1 == step.task.batch_id
    assert "no longer exists" in unreadable[0].problem
    with sl.open(run.location) as state:
        assert [2, 2] == state.broadcast("rules")["factor"].to_pylist()


def test_versions_are_dropped_with_the_recordings_that_saw_them(tmp_path: Path) -> None:
    run = RatedJob(str(tmp_path))
    run.job.record = Record(share=1.0)
    settings = QuerySettings(broadcast=run.job.settings.broadcast, record=Record(checkpoints=2))
    run.job.attach(settings)
    for factor in (1, 2, 3, 4, 4, 4):
        run.factor = factor
        run.run([("a", "add", 1)])
    assert [4] == [entry.newest for entry in run.versions]


# --------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (lambda: 1 / 0, "the function of the broadcast table 'rules' failed: ZeroDivisionError"),
        (lambda: 7, "must be a pyarrow table"),
        (lambda: [7], "its rows cannot be combined into one table"),
        (lambda: {"n": pa.nulls(9 << 20, pa.int16())}, "is 19 MiB; at most 16 MiB"),
    ],
)
def test_an_unreadable_source_fails_the_micro_batch(table: Any, said: str, tmp_path: Path) -> None:
    settings = QuerySettings(broadcast={"rules": Broadcast(table)})
    job = RecordedJob(str(tmp_path), Rated(), COLUMNS, OUTPUT, None, "none", settings=settings)
    with pytest.raises(UsageError, match=said):
        job.run(ROWS)
    assert job.base is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PARSE(["rules"], "broadcast"), "broadcast must be a mapping .*, not a list"),
        (lambda: PARSE({"a/b": list}, "broadcast"), "letters, digits"),
        (lambda: Broadcast(pa.table({"n": [1]})), "To pass a table, use `lambda: table`"),
        (lambda: Broadcast(list, repeated="never"), "'same' or 'newest'"),
        (lambda: Broadcast(list, every="often"), "every"),
    ],
)
def test_wrong_settings_are_rejected(make: Any, said: str) -> None:
    with pytest.raises((InvalidOptionsError, UsageError), match=said):
        make()


def test_a_damaged_version_fails_the_task_and_reads(tmp_path: Path) -> None:
    run = RatedJob(str(tmp_path))
    run.run(ROWS)
    (entry,) = run.versions
    data = bytes(run.job.store.get(entry.path))
    run.job.store.put(entry.path, data[:-9] + b"x" + data[-8:])
    with sl.open(run.location) as state, pytest.raises(CorruptionError, match="broadcast table"):
        state.broadcast("rules")
    with (
        sl.open(run.location) as state,
        pytest.raises(UsageError, match="its broadcast tables are rules"),
    ):
        state.broadcast("prices")
    run.job.store.delete([entry.path])
    with sl.open(run.location) as state, pytest.raises(CheckpointError, match="no longer exists"):
        state.broadcast("rules")


# --------------------------------------------------------------------------------- the table


def test_a_table_is_rows_and_an_index_of_them() -> None:
    columns = ("op", "kind", "factor")
    values = [("a", 1, None), ("a", 2, 5), ("b", 1, 7)]
    dicts = [dict(zip(columns, row, strict=True)) for row in values]
    rows = [Row(**row) for row in dicts]
    forms: list[Any] = [rows, dicts, pd.DataFrame(dicts[1:]), pa.Table.from_pylist(dicts)]
    tables = [version_of("rules", form) for form in forms]
    table = tables[0]
    assert 2 == len({version.version for version in tables})
    assert tuple(rows) == table.rows
    assert 3 == len(table)
    assert {"a": tuple(rows[:2]), "b": (rows[2],)} == dict(table.by("op"))
    assert (rows[1],) == table.by("op", "kind")["a", 2]
    assert table.by("op") is table.by("op")
    with pytest.raises(TypeError):
        table.by("op")["c"] = ()  # type: ignore[index]
    with pytest.raises(UsageError, match="the column price; its columns are op, kind"):
        table.by("price")
    with pytest.raises(UsageError, match="none named"):
        table.by()
    assert isinstance(table, BroadcastTable)


def test_a_tester_has_broadcast_tables() -> None:
    rules = [Row(op="add", factor=3)]
    tester = ProcessorTester(Rated(), keySchema="k string", broadcast={"rules": rules})
    (row,) = tester.test("a", [Row(op="add", n=2)])
    assert 6 == row.value
    tester.setBroadcast("rules", [{"op": "add", "factor": 4}], RULES)
    assert [8] == [row.value for row in tester.test("a", [Row(op="add", n=2)])]
    with pytest.raises(UsageError, match="does not match its schema"):
        tester.setBroadcast("rules", [{"op": "add", "factor": "many"}], RULES)
    tester.setBroadcast("rules", [], RULES)
    with pytest.raises(ProcessorError, match="KeyError"):
        tester.test("a", [Row(op="add", n=2)])
