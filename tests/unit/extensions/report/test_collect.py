"""The figures of a location that the test wrote."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.support.locations.checkpoints import (
    coordinator,
    log_in_file,
    run_checkpoint,
    small_checkpoint,
    started,
)
from tests.support.locations.costly_history import ALL, SNAPSHOT, CostlyHistory, record, small_job
from tests.support.locations.histories import GROUPS, group_of
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint.clean_up import BATCH_COMMITS
from statelog.extensions.report import Figures, ReportPlan, Speeds, collect
from statelog.extensions.report.bill import GETS_PER_BATCH, LISTS_PER_BATCH
from statelog.extensions.report.collect import shown_location
from statelog.extensions.report.restart import restart_of
from statelog.extensions.report.skew import largest_of
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, MaterializedHandle, TaskStateSnapshot
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.state.schema import TIMERS_NAME
from statelog.store import open_store

CHANGES = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8
"""Bytes of changes of each checkpoint of the small job, of key groups 0 to 7."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job")
    small_job(path)
    return path


@pytest.fixture(scope="module")
def figures(folder: Path) -> Figures:
    return collect(open_store(str(folder)), str(folder), ReportPlan(with_keys=False))


def size_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def test_each_stored_checkpoint_has_its_figures(figures: Figures) -> None:
    # 1 and 2 are not retained: their metadata is deleted, their files are needed by the log.
    assert [3, 4] == [checkpoint.checkpoint_id for checkpoint in figures.checkpoints]
    two, three = figures.checkpoints
    batch, later = figures.batches
    assert ("retained", 2, 2) == (two.state, two.batch_id, batch.tasks)
    assert (20, 2, 2, 102) == (batch.rows, batch.keys, batch.output_rows, two.state_entries)
    assert (1002, 7, 3) == (batch.delta_bytes, batch.output_bytes, two.objects)
    assert (1, len(SNAPSHOT)) == (two.snapshots, two.snapshot_bytes)
    assert (2, 1) == (two.task_retries, two.put_retries)
    assert (3, 2, 70, 9) == (
        batch.uploads,
        batch.upload_retries,
        batch.upload_bytes,
        batch.slowest_upload_ms,
    )
    assert {"process": 80} == batch.task_milliseconds
    assert ({"late": 4}, 0) == (batch.extras, later.uploads)
    assert (0, 0) == (three.snapshots, three.snapshot_bytes)
    assert (1, len(SNAPSHOT)) == (three.full_snapshots, three.full_snapshot_bytes)
    assert (4, 4 * CHANGES) == (three.log_handles, three.log_bytes)


def test_the_phases_after_the_commit_are_those_the_next_record_has(figures: Figures) -> None:
    two, three = figures.batches
    assert {"plan": 11, "run": 91, "commit": 8, "deliver": 9, "clean_up": 10} == two.milliseconds
    assert {"plan": 12, "run": 92} == three.milliseconds


def test_older_checkpoints_are_known_by_their_changes(figures: Figures) -> None:
    assert ((1, CHANGES), (2, CHANGES)) == figures.older_changes


def test_objects_are_counted_by_folder(folder: Path, figures: Figures) -> None:
    sizes = {kind.kind: (kind.objects, kind.size_bytes) for kind in figures.stored}
    assert {
        "commits": (3, size_of(folder, "chk-*/*")),
        "log": (4, size_of(folder, "dstl/*")),
        "snapshots": (1, len(SNAPSHOT)),
    } == sizes


def test_a_restart_counts_the_objects_of_each_task(folder: Path, figures: Figures) -> None:
    restart = figures.restart
    assert restart is not None
    parts = {part.kind: (part.objects, part.size_bytes) for part in restart.parts}
    assert {
        "snapshots": (1, len(SNAPSHOT)),
        "log": (4, size_of(folder, "dstl/*")),
        "commits": (1, size_of(folder, "chk-4/*")),
    } == parts
    assert (2, 4) == (restart.tasks, restart.change_sets)
    # Key groups 0 to 3: commit and four files.  4 to 7: commit, snapshot, and the file after it.
    assert 5 + 3 == restart.task_requests
    assert 5 == restart.slowest_requests
    assert size_of(folder, "dstl/*") + size_of(folder, "chk-4/*") == restart.slowest_bytes


def test_the_time_of_a_restart_follows_from_the_speeds(folder: Path) -> None:
    speeds = Speeds(latency_ms=100, read_mb_s=0.001, restore_mb_s=0.002)
    plan = ReportPlan(speeds=speeds, with_keys=False)
    restart = collect(open_store(str(folder)), str(folder), plan).restart
    assert restart is not None
    kilobytes = restart.slowest_bytes / 1000
    waits = 0.1 * (restart.driver_requests + restart.slowest_requests)
    assert restart.seconds == pytest.approx(waits + kilobytes * 1.5)


@pytest.mark.parametrize("retained", [1, 2, 7])
def test_the_driver_makes_the_requests_that_a_restart_counts(retained: int) -> None:
    store = DictStore()
    run = started(store, retained=retained)
    for batch_id in range(9):
        properties = record(batch_id).to_properties()
        small_checkpoint(run, run.next_checkpoint_id, properties=properties)
        run.clean_up()
    newest = run.latest
    assert isinstance(newest, CompletedCheckpoint)
    store.requests = Counter()
    next_run = coordinator(store, "b", retained=retained)
    next_run.claim()
    next_run.restore()
    counted = restart_of(newest, {}, tasks=1, operators=1, speeds=Speeds()).driver_requests
    made = sum(store.requests.values())
    assert abs(made - counted) <= 2, (dict(store.requests), counted)


def test_a_micro_batch_makes_the_requests_that_the_bill_counts() -> None:
    store = DictStore()
    run = started(store, retained=3)
    batches = 2 * BATCH_COMMITS
    for number in range(3 * BATCH_COMMITS + 1):
        if number == BATCH_COMMITS + 1:  # from now on each batch has something to delete
            store.requests = Counter()
        checkpoint_id = run.next_checkpoint_id
        log = log_in_file(store, ALL, [[(1, b"x")]], checkpoint_id)
        path = f"taskowned/{checkpoint_id}"
        store.put(path, SNAPSHOT)
        handle = FileStateHandle(path, len(SNAPSHOT), checksum([SNAPSHOT]))
        snapshot = MaterializedHandle(ALL, checkpoint_id, handle)
        run_checkpoint(run, checkpoint_id, [TaskStateSnapshot(ALL, log, snapshot)])
        if number % BATCH_COMMITS == 0:
            run.clean_up()
    assert {
        "put": 2 * batches,  # the log file and the snapshot of the test
        "put_if_absent": batches,
        "list": batches * LISTS_PER_BATCH,
    } == {name: number for name, number in store.requests.items() if name != "delete"}
    assert 0 == GETS_PER_BATCH


def test_the_bill_has_the_puts_of_the_micro_batches(figures: Figures) -> None:
    bill = figures.bill
    assert bill is not None
    assert (3 + 2) / 2 == bill.puts_per_batch
    assert sum(kind.size_bytes for kind in figures.stored) == bill.stored_bytes
    assert bill.seconds_per_batch is not None and bill.seconds_per_batch > 0


def test_the_figures_are_json(figures: Figures) -> None:
    text = msgspec.json.encode(figures.to_json())
    figures_read = json.loads(text)
    assert 4 == figures_read["newest_id"]
    assert [3, 4] == [item["checkpoint_id"] for item in figures_read["checkpoints"]]


@pytest.mark.parametrize("seed", range(8))
def test_keys_and_changes_of_each_key_group_are_those_of_the_model(seed: int) -> None:
    store = DictStore()
    history = CostlyHistory(seed, store)
    history.run(6)
    figures = collect(store, "dict://", ReportPlan())
    assert "" == figures.skew_problem
    (counted,) = figures.skew
    model = history.expected[history.checkpoint_id]
    keys = {
        key
        for name in (variable.name for variable in model.schema.states)
        for key, rows in model.rows(name, None).items()
        if rows and (name == TIMERS_NAME or name not in model.schema.deleted)
    }
    expected = Counter(group_of(key) for key in keys)
    # A snapshot leaves out what had expired a minute before it, so there may be fewer keys.
    for group in range(GROUPS):
        assert counted.keys[group] <= expected[group]
    live = [
        group_of(key)
        for name in (variable.name for variable in model.schema.states)
        for key, rows in model.rows(name, history.last_ms - 60_001).items()
        if rows
    ]
    assert set(live) <= {group for group in range(GROUPS) if counted.keys[group]}
    newest = history.coordinator.latest
    assert newest is not None
    assert sum(counted.change_bytes) <= sum(handle.size_bytes for handle in newest.log)
    assert bool(newest.log) == any(counted.change_bytes)


def test_key_groups_are_not_read_if_they_are_not_asked_for() -> None:
    store = DictStore()
    history = CostlyHistory(3, store)
    history.run(3)
    (counted,) = collect(store, "dict://", ReportPlan(with_keys=False)).skew
    assert () == counted.keys
    assert GROUPS == len(counted.change_bytes)


def test_damage_is_a_finding_and_no_error(tmp_path: Path) -> None:
    store = small_job(tmp_path)
    path = tmp_path / "chk-3" / "_metadata"
    path.write_bytes(path.read_bytes()[:-9])
    figures = collect(store, str(tmp_path), ReportPlan(with_keys=False))
    assert figures.is_damaged
    assert ["damaged", "retained"] == [checkpoint.state for checkpoint in figures.checkpoints]
    assert "damage" == figures.findings[0].level
    assert 4 == figures.newest_id


def test_a_missing_log_file_is_a_finding_and_no_error(tmp_path: Path) -> None:
    store = small_job(tmp_path)
    next(iter(sorted((tmp_path / "dstl").iterdir()))).unlink()
    figures = collect(store, str(tmp_path), ReportPlan(with_keys=False))
    assert "missing" in figures.skew_problem
    assert () == figures.skew
    assert any("not counted" in finding.text for finding in figures.findings)


def test_a_claimed_location_without_checkpoint_has_no_figures(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    coordinator(store).claim()
    figures = collect(store, str(tmp_path), ReportPlan())
    assert (None, None, None, ()) == (
        figures.newest_id,
        figures.restart,
        figures.bill,
        figures.checkpoints,
    )
    assert ["commits"] == [kind.kind for kind in figures.stored]


def test_checkpoints_that_no_query_made_have_sizes_only(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    run = started(store)
    small_checkpoint(run, run.next_checkpoint_id, properties={"mine": 1})
    figures = collect(store, str(tmp_path), ReportPlan())
    (checkpoint,) = figures.checkpoints
    assert (None, None, 1) == (checkpoint.figures, checkpoint.state_entries, checkpoint.objects)
    assert ((), "") == (figures.skew, figures.skew_problem)
    assert figures.restart is not None and 1 == figures.restart.tasks


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/data/a b/ü", "/data/a b/ü"),
        ("s3://bucket/jobs", "s3://bucket/jobs"),
        ("sftp://me:secret@host:22/jobs", "sftp://host:22/jobs"),
        ("s3://bucket/jobs?token=secret#secret", "s3://bucket/jobs"),
    ],
)
def test_secrets_of_a_url_are_not_shown(given: str, shown: str) -> None:
    assert shown == shown_location(given)


def test_the_largest_key_group_is_compared_with_the_mean() -> None:
    assert (2, 3.0) == largest_of([1, 1, 6, 0])
    assert largest_of([0, 0]) is None
    assert largest_of([]) is None
