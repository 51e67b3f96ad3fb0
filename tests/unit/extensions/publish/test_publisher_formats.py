"""Published tables: what is special of Iceberg and of Delta, and what other writers do to them."""

import random
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from tests.support.locations import histories
from tests.support.locations.checkpoints import put_named_tag
from tests.support.locations.published_tables import (
    KINDS,
    TABLE,
    DeltaPublished,
    IcebergPublished,
    checkpoints,
)

from statelog.checkpoint.retained import TagKind, delete_tag
from statelog.checkpoint.tags import find_tag
from statelog.cli.main import run
from statelog.errors import StoreError, UsageError
from statelog.extensions.publish.iceberg import IcebergTable
from statelog.extensions.publish.publisher import open_table
from statelog.extensions.publish.table import CHECKPOINT, Replacement
from statelog.model import KeyGroupRange

pytestmark = pytest.mark.job


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_others_commit_are_replaced(kind: str, tmp_path: Path) -> None:
    published = KINDS[kind]("others", tmp_path)
    publisher = published.publisher(retain=2)
    for number in range(5):
        published.history.run(1)
        publisher.publish()
        published.interfere()
        published.history.run(1)
        (publisher if number % 2 else published.publisher(retain=2)).publish()
        published.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_may_change_its_type(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "FIELDS", {"a": pa.int32()})
    monkeypatch.setattr(histories.History, "ranges", lambda _: iter([KeyGroupRange(0, 5)]))
    monkeypatch.setattr(random.Random, "sample", lambda _, names, count: ["a"])
    published = KINDS[kind]("not promoted", tmp_path)
    for column in (pa.int32(), pa.float64()):
        monkeypatch.setitem(histories.FIELDS, "a", column)
        published.history.evolve()
        published.history.micro_batch()
        published.publish()
    published.check()


def test_tags_of_the_location_are_tags_of_an_iceberg_table(tmp_path: Path) -> None:
    published = IcebergPublished("iceberg tags", tmp_path)

    def tags() -> dict[str, int]:
        snapshots, refs = published.snapshots(), published.table().metadata.refs
        return {name: snapshots[ref.snapshot_id] for name, ref in refs.items() if name != "main"}

    published.history.run(3)
    first = published.publish().checkpoint_id
    table = published.table()
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "mine").commit()
    published.history.run(1)
    put_named_tag(published.history.store, "release", published.history.checkpoint_id)
    published.history.run(1)
    report = published.publish(retain=1)
    assert {"release": report.checkpoints[-2], "mine": first} == tags()
    published.history.run(1)
    assert [first, report.checkpoints[-2]] == sorted(published.publish(retain=1).checkpoints)[:2]
    delete_tag(published.history.store, find_tag(published.history.store, "release", TagKind.TAG))
    published.publish(retain=1)
    assert {"mine": first} == tags()
    assert {first, published.history.checkpoint_id} == checkpoints(published)
    published.check()


DURATION = {"total": pa.duration("us")}
SAME_PATH = {"a": pa.struct([("b", pa.int64())]), "a.b": pa.int64()}


@pytest.mark.parametrize(
    ("kind", "columns"), [("iceberg", DURATION), ("iceberg", SAME_PATH), ("delta", DURATION)]
)
def test_columns_that_a_table_cannot_have_are_rejected(
    kind: str, columns: dict[str, pa.DataType], tmp_path: Path
) -> None:
    if kind == "iceberg":
        table: Any = IcebergTable(TABLE, IcebergPublished("columns", tmp_path).options)
    else:
        table = open_table(None, DeltaPublished("columns", tmp_path).folder)
    schema = pa.schema(list(columns.items()))
    rows = Replacement(schema, True, None, lambda: iter(()), {}, {CHECKPOINT: "1"})
    with pytest.raises(UsageError, match="--variable"):
        table.replace(rows, {}, 1)


def test_a_vacuum_of_another_engine_deletes_no_retained_version(tmp_path: Path) -> None:
    published = DeltaPublished("vacuum", tmp_path)
    for _ in range(6):
        published.history.run(1)
        published.publish(retain=3)
    assert set() == published.orphans()
    deltalake.DeltaTable(published.folder).vacuum(dry_run=False, full=True)
    deltalake.DeltaTable(published.folder).cleanup_metadata()
    assert published.check() > 0


def test_a_table_of_others_and_one_around_its_location_are_refused(tmp_path: Path) -> None:
    published = DeltaPublished("others", tmp_path)
    published.history.run(1)
    deltalake.write_deltalake(published.folder, pa.table({"a": [1]}))
    with pytest.raises(UsageError, match="publish to a different table"):
        published.publish()
    for folder in (Path(published.location), Path(published.location).parent):
        published.target = {"delta": folder.resolve()}
        with pytest.raises(UsageError, match="publish to a different folder"):
            published.publish()


@pytest.mark.parametrize("damage", [b"{", b"\xff", b"[" * 9999])
def test_a_damaged_log_is_reported(damage: bytes, tmp_path: Path) -> None:
    published = DeltaPublished("damaged", tmp_path)
    published.history.run(1)
    published.publish()
    published.history.run(1)
    (published.folder / "_delta_log" / f"{0:020}.json").write_bytes(damage)
    with pytest.raises(StoreError, match="cannot load the table"):
        published.publish()


def test_calls_without_one_table_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"CATALOG\.NAMESPACE\.TABLE"):
        IcebergTable("catalog.table")
    published = DeltaPublished("refused", tmp_path)
    published.history.run(1)
    for more in ([], ["--iceberg", TABLE, "--delta", "x"]):
        assert 2 == run(["publish", published.location, *more])
        assert "one table" in capsys.readouterr().err
    call = ["publish", published.location, *published.arguments]
    assert 2 == run([*call, "--catalog-option", "type=sql"])
    assert "apply only to Iceberg tables" in capsys.readouterr().err
