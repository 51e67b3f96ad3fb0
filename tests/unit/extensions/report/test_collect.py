"""The figures of a location that the test wrote."""

import json
from collections import Counter
from collections.abc import Iterable
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
from statelog.extensions.report.figures import StoredObjects
from statelog.extensions.report.restart import RestartPart, restart_of
from statelog.extensions.report.skew import largest_of
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, MaterializedHandle, TaskStateSnapshot
from statelog.model.checkpoint import CompletedCheckpoint
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
    assert (3, 2, 70) == (batch.uploads, batch.upload_retries, batch.upload_bytes)
    assert 9 == batch.slowest_upload_ms
    assert {"process": 80} == batch.task_milliseconds
    assert ({"late": 4}, 0) == (batch.extras, later.uploads)
    assert (0, 0) == (three.snapshots, three.snapshot_bytes)
    assert (1, len(SNAPSHOT)) == (three.full_snapshots, three.full_snapshot_bytes)
    assert (4, 4 * CHANGES) == (three.log_handles, three.log_bytes)
    # The phases after the commit are those that the next record has.
    phases = {"plan": 11, "run": 91, "commit": 8, "deliver": 9, "clean_up": 10}
    assert phases == batch.milliseconds
    assert {"plan": 12, "run": 92} == later.milliseconds
    assert ((1, CHANGES), (2, CHANGES)) == figures.older_changes


def counted(objects: Iterable[StoredObjects | RestartPart]) -> dict[str, tuple[int, int]]:
    return {kind.kind: (kind.objects, kind.size_bytes) for kind in objects}


def test_objects_are_counted_by_folder_and_for_a_restart(folder: Path, figures: Figures) -> None:
    data = {"log": (4, size_of(folder, "dstl/*")), "snapshots": (1, len(SNAPSHOT))}
    assert {**data, "commits": (3, size_of(folder, "chk-*/*"))} == counted(figures.stored)
    restart = figures.restart
    assert restart is not None
    assert {**data, "commits": (1, size_of(folder, "chk-4/*"))} == counted(restart.parts)
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
    expected = restart_of(newest, {}, tasks=1, operators=1, speeds=Speeds()).driver_requests
    assert abs(sum(store.requests.values()) - expected) <= 2, (dict(store.requests), expected)


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


def test_the_bill_has_the_puts_of_the_micro_batches_and_all_is_json(figures: Figures) -> None:
    bill = figures.bill
    assert bill is not None
    assert (3 + 2) / 2 == bill.puts_per_batch
    assert sum(kind.size_bytes for kind in figures.stored) == bill.stored_bytes
    assert bill.seconds_per_batch is not None and bill.seconds_per_batch > 0
    as_json = json.loads(msgspec.json.encode(figures.to_json()))
    assert 4 == as_json["newest_id"]
    assert [3, 4] == [checkpoint["checkpoint_id"] for checkpoint in as_json["checkpoints"]]


@pytest.mark.parametrize("seed", range(8))
def test_keys_and_changes_of_each_key_group_are_those_of_the_model(seed: int) -> None:
    store = DictStore()
    history = CostlyHistory(seed, store)
    history.run(6)
    figures = collect(store, "dict://", ReportPlan())
    assert "" == figures.skew_problem
    (groups,) = figures.skew
    model = history.expected[history.checkpoint_id]

    def keys_of_groups(now_ms: int | None) -> Counter[int]:
        """Return how many keys of each key group have state that is not expired at a time."""
        names = [state.name for state in model.schema.states]
        rows = [model.rows(name, now_ms) for name in names if name not in model.schema.deleted]
        return Counter(map(group_of, {key for by_key in rows for key in by_key if by_key[key]}))

    stored, live = keys_of_groups(None), keys_of_groups(history.last_ms - 60_001)
    for group in range(GROUPS):
        # A snapshot leaves out what had expired a minute before it, so there may be fewer keys.
        assert groups.keys[group] <= stored[group]
        assert groups.keys[group] > 0 or not live[group]
    newest = history.coordinator.latest
    assert newest is not None
    assert sum(groups.change_bytes) <= sum(handle.size_bytes for handle in newest.log)
    assert bool(newest.log) == any(groups.change_bytes)


def test_key_groups_are_not_read_if_they_are_not_asked_for() -> None:
    store = DictStore()
    history = CostlyHistory(3, store)
    history.run(3)
    (groups,) = collect(store, "dict://", ReportPlan(with_keys=False)).skew
    assert () == groups.keys
    assert GROUPS == len(groups.change_bytes)


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
    facts = (figures.newest_id, figures.restart, figures.bill, figures.checkpoints)
    assert (None, None, None, ()) == facts
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
    ("location", "shown"),
    [
        ("/data/a b/ü", "/data/a b/ü"),
        ("s3://bucket/jobs", "s3://bucket/jobs"),
        ("sftp://me:secret@host:22/jobs", "sftp://host:22/jobs"),
        ("s3://bucket/jobs?token=secret#secret", "s3://bucket/jobs"),
    ],
)
def test_secrets_of_a_url_are_not_shown(location: str, shown: str) -> None:
    assert shown == shown_location(location)


def test_the_largest_key_group_is_compared_with_the_mean() -> None:
    assert (2, 3.0) == largest_of([1, 1, 6, 0])
    assert largest_of([0, 0]) is None
    assert largest_of([]) is None
