"""Published Delta tables: what other writers do to them, and what their log keeps."""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import polars
import pyarrow as pa
import pytest
from tests.unit.operations.published import FOREIGN, DeltaPublished, rows_of_table
from tests.unit.operations.test_publish import checkpoints, pins, tag
from tests.unit.state.reader import histories

from statelog.checkpoint import verify_location
from statelog.errors import CorruptionError, UsageError
from statelog.model import KeyGroupRange
from statelog.operations import publish as publish_module
from statelog.operations.publish_delta import DeltaTable
from statelog.store import open_location

pytestmark = pytest.mark.job


@pytest.fixture
def published(tmp_path: Path) -> DeltaPublished:
    return DeltaPublished("delta", tmp_path)


def test_paths_of_snapshots_lead_to_the_location(published: DeltaPublished) -> None:
    for _ in range(4):
        published.history.micro_batch()
        published.publish()
    paths = {add["path"] for add in published.actions(published.newest())["add"]}
    assert all(path.startswith(("../state/taskowned/", "_statelog/")) for path in paths)
    assert any(path.startswith("../state/") for path in paths)


def test_an_engine_that_vacuums_deletes_nothing(published: DeltaPublished) -> None:
    for _ in range(6):
        published.history.run(1)
        published.publish(retain=3)
    for full in (False, True):
        table = deltalake.DeltaTable(published.folder)
        assert [] == table.vacuum(dry_run=False, full=full)
        assert [] == table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
    deltalake.DeltaTable(published.folder).cleanup_metadata()
    assert published.check() > 0


def test_the_log_has_the_versions_that_are_kept(
    published: DeltaPublished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_module, "_CLEAN_UP_AGE", dt.timedelta(days=-1))
    temporary = published.folder / "tmp" / "_delta_log-0.json-ab"
    temporary.parent.mkdir(parents=True)
    temporary.write_bytes(b"of a process that was killed")
    for at in range(5):
        published.history.run(1)
        if at == 1:
            tag(published, "release", published.history.checkpoint_id)
        report = published.publish(retain=2)
        # A reader that listed the log before the commit reads the version before it.
        assert published.log(published.newest() - 1, "json").exists()
    assert [2, 4, 5] == sorted(report.versions.values())
    assert {"release": report.checkpoints[0]} == published.tags()
    assert set() == published.orphans()
    history = deltalake.DeltaTable(published.folder).history(1)
    assert str(report.checkpoint_id) == history[0]["statelog.checkpoint-id"]
    published.check()


def test_a_change_of_tags_is_a_version_with_the_same_rows(published: DeltaPublished) -> None:
    published.history.run(2)
    first = published.publish()
    tag(published, "release", published.history.checkpoint_id)
    again = published.publish()
    assert () == again.published and first.versions == again.versions
    assert {"release": first.checkpoint_id} == again.tags == published.tags()
    expected = published.expected(first.checkpoint_id, None)
    assert 2 == published.newest()
    assert expected == rows_of_table(published.by_duckdb(2), expected)
    published.history.run(1)
    published.publish(retain=1)
    assert {1, 3} == set(published.snapshots())
    published.check()


def comment(published: DeltaPublished) -> None:
    published.interfere()


def append(published: DeltaPublished) -> None:
    """Add a file, as a program that knows deletion vectors may."""
    add = {"path": "more.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0}
    line = json.dumps({"add": {**add, "dataChange": True}})
    published.log(published.newest() + 1, "json").write_text(line)


def remove_all(published: DeltaPublished) -> None:
    removes = [
        {key: add[key] for key in ("path", "deletionVector") if add[key]} | {"dataChange": True}
        for add in published.actions(published.newest())["add"]
    ]
    lines = [json.dumps({"remove": each}) + "\n" for each in removes]
    published.log(published.newest() + 1, "json").write_text("".join(lines))


def set_property(published: DeltaPublished) -> None:
    table = deltalake.DeltaTable(published.folder)
    table.alter.set_table_description("totals of customers")


def checkpoint_of_the_log(published: DeltaPublished) -> None:
    deltalake.DeltaTable(published.folder).create_checkpoint()


@pytest.mark.parametrize("act", [comment, append, remove_all, set_property, checkpoint_of_the_log])
def test_what_others_commit_is_replaced(
    act: Callable[[DeltaPublished], None], published: DeltaPublished
) -> None:
    publisher = published.publisher(retain=2)
    for at in range(5):
        published.history.run(1)
        publisher.publish()
        act(published)
        published.history.run(1)
        (publisher if at % 2 else published.publisher(retain=2)).publish()
        assert checkpoints(published) == pins(published)
        published.check()
    if act is set_property:
        assert (
            "totals of customers" == deltalake.DeltaTable(published.folder).metadata().description
        )


def test_a_version_without_its_checkpoint_below_a_foreign_one_is_kept(
    published: DeltaPublished,
) -> None:
    published.history.run(2)
    published.publish()
    published.history.run(1)
    published.publish()
    published.log(2, "checkpoint.parquet").unlink()  # as after a kill
    published.log(3, "json").write_bytes(FOREIGN)
    published.history.run(1)
    assert {2, 4} == set(published.publish(retain=2).versions.values())
    published.check()


def test_versions_that_somebody_deleted_are_given_up(published: DeltaPublished) -> None:
    for _ in range(3):
        published.history.run(1)
        published.publish()
    for kind in ("json", "checkpoint.parquet"):
        published.log(2, kind).unlink()
    published.history.run(1)
    report = published.publish()
    assert [1, 3, 4] == sorted(report.versions.values())
    assert checkpoints(published) == pins(published)
    published.check()


def test_a_type_may_change_to_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "FIELDS", {"a": pa.int32()})
    monkeypatch.setattr(histories.History, "ranges", lambda _: iter([KeyGroupRange(0, 5)]))
    monkeypatch.setattr(random.Random, "sample", lambda _, names, count: ["a"])
    published = DeltaPublished("not promoted", tmp_path)
    for kind in (pa.int32(), pa.float64()):
        monkeypatch.setitem(histories.FIELDS, "a", kind)
        published.history.evolve()
        published.history.micro_batch()
        published.publish()
    published.check()


def test_a_table_of_others_is_refused(published: DeltaPublished) -> None:
    published.history.run(1)
    deltalake.write_deltalake(published.folder, pa.table({"a": [1]}))
    with pytest.raises(UsageError, match="publish to another table"):
        published.publish()
    published.folder = published.root / "features"
    published.target = {"delta": published.folder}
    published.publish()
    table = deltalake.DeltaTable(published.folder)
    table.alter.add_feature(
        deltalake.TableFeatures.AppendOnly, allow_protocol_versions_increase=True
    )
    published.history.run(1)
    with pytest.raises(UsageError, match=r"features .*appendOnly.* publish to another table"):
        published.publish()


@pytest.mark.parametrize("above", ["", ".."])
def test_a_table_around_its_location_is_refused(above: str, published: DeltaPublished) -> None:
    published.history.run(1)
    published.target = {"delta": (Path(published.location) / above).resolve()}
    with pytest.raises(UsageError, match="publish to another folder"):
        published.publish()


def test_a_hidden_location_in_the_folder_of_its_table(
    published: DeltaPublished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each path is in the folder of the table, as Polars expects, and a VACUUM leaves it alone."""
    monkeypatch.setattr(published, "folder", published.root / "table")
    published.target = {"delta": published.folder}
    published.location = str(published.folder / "_state")
    published.history = type(published.history)("hidden", open_location(published.location), 2)
    for _ in range(6):
        published.history.run(1)
        published.publish()
    table = deltalake.DeltaTable(published.folder)
    assert [] == table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert any("/_state/taskowned/" in path for path in published.data_files())
    for version, checkpoint_id in published.snapshots().items():
        rows = polars.scan_delta(str(published.folder), version=version).collect().to_arrow()
        expected = published.expected(checkpoint_id, None)
        assert expected == rows_of_table(rows, expected)
    published.check()
    assert all(each.problem == "" for each in verify_location(published.history.store))


@pytest.mark.parametrize(
    "damage",
    [
        b"{",
        b'{"metaData":{"id":1}}',
        b'{"protocol":{"minReaderVersion":3}}',
        b"\xff",
        b"[" * 9999,
        b"",
    ],
)
def test_a_damaged_log_is_reported(damage: bytes, published: DeltaPublished) -> None:
    published.history.run(1)
    published.publish()
    published.history.run(1)
    published.log(published.newest(), "json").write_bytes(damage)
    published.log(1, "checkpoint.parquet").write_bytes(b"PAR1" + damage)
    with pytest.raises(CorruptionError):
        published.publish()


def test_a_damaged_property_is_reported(published: DeltaPublished) -> None:
    published.history.run(1)
    published.publish()
    path = published.log(1, "json")
    checkpoint_id = published.history.checkpoint_id
    text = path.read_text()
    path.write_text(text.replace(f'{{\\"{checkpoint_id}\\":1}}', f'{{\\"{checkpoint_id}\\":-}}'))
    assert text != path.read_text()
    with pytest.raises(CorruptionError, match=r"statelog\.checkpoints"):
        DeltaTable(published.folder).load()


def test_a_stalled_publisher_does_not_take_a_number_that_became_free(
    published: DeltaPublished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another publisher committed that version, and later ones, and deleted it from the log."""
    stalled, other = published.publisher(retain=1), published.publisher(retain=1)
    put = DeltaTable._put
    stalls = False

    def put_late(table: DeltaTable, *versions: Any) -> None:
        nonlocal stalls
        if stalls:
            stalls = False
            for _ in range(3):
                published.history.run(1)
                other.publish()
            stalled_at.append(published.newest())
        put(table, *versions)

    stalled_at: list[int] = []
    monkeypatch.setattr(DeltaTable, "_put", put_late)
    for _ in range(3):
        published.history.run(1)
        stalls = True
        report = stalled.publish()
        assert published.history.checkpoint_id == report.checkpoint_id
        assert {published.history.checkpoint_id} == checkpoints(published) == pins(published)
        assert [published.newest()] == [int(each.stem) for each in published.log_files()]
        published.check()
    assert [3, 6, 9] == stalled_at


@pytest.mark.campaign
def test_two_processes_that_follow_and_are_killed_publish_each_checkpoint_once(
    tmp_path: Path,
) -> None:
    published = DeltaPublished("processes", tmp_path, retained=3)
    published.history.run(1)
    call = [sys.executable, "-m", "statelog", "publish", published.location, "--retain=6"]
    call += [*published.arguments, "--follow", "--interval=0.01", "--json"]
    rng = random.Random("two processes")
    output = (tmp_path / "output").open("a+")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for at in range(40):
            processes = [each for each in processes if each.poll() is None]
            while len(processes) < 2:
                processes.append(subprocess.Popen(call, stdout=output, stderr=output))
            published.history.run(1)
            until = time.monotonic() + 60
            while not checkpoints(published):
                assert time.monotonic() < until, (tmp_path / "output").read_text()
                time.sleep(0.05)
            time.sleep(rng.random() / 2)
            if at % 8 == 7:
                rng.choice(processes).kill()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        output.close()
    published.publish(retain=6)
    lines = (tmp_path / "output").read_text().splitlines()
    reports = [json.loads(line) for line in lines if line.startswith("{")]
    ids = [checkpoint_id for report in reports for checkpoint_id in report["published"]]
    assert len(ids) == len(set(ids)) > 15
    assert checkpoints(published) == pins(published)
    published.check()
