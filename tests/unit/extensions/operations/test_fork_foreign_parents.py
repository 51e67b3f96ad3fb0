"""Stored places are claims: a fork opens, reads and releases a parent only if both sides agree."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import log_in_file, run_checkpoint
from tests.support.locations.forked_query import forked, go_on, location, record_of, sweep, values
from tests.support.locations.rewound_query import Query

import statelog
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import Tag, TagKind, list_tags
from statelog.checkpoint.tags import put_tag
from statelog.cli.main import run
from statelog.errors import CheckpointError, CorruptionError, InvalidOptionsError
from statelog.extensions.operations import savepoints
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot
from statelog.store import location_store, open_existing_store
from statelog.store.fork_parents import ParentReference, may_follow, named_parents


@pytest.fixture
def query(tmp_path: Path) -> Query:
    query = Query(tmp_path, retained=2)
    query.run(0, 4)
    query.driver.clean_up()
    return query


def forge(query: Query, fork_id: str, place: str, name: str = "new") -> None:
    path = query.folder.parent / name / "parents" / fork_id
    path.write_bytes(ParentReference(location=place, checkpoint_id=5).encoded())


def independent(query: Query, name: str = "new") -> None:
    """Commit a checkpoint of the fork that needs nothing of its parent."""
    heir, store = go_on(query, name), location(query, name)
    store.put("taskowned/s", b"state")
    groups = KeyGroupRange(0, 7)
    snapshot = MaterializedHandle(groups, 5, FileStateHandle("taskowned/s", 5))
    done = TaskStateSnapshot(groups, log_in_file(store, groups, [[(1, b"5")]]), snapshot)
    run_checkpoint(heir, heir.next_checkpoint_id, [done], properties=record_of(query, 5, name))
    heir.clean_up()


FOREIGN = [
    "ftp://127.0.0.1:1/x",
    "webhdfs://127.0.0.1:1/x",
    "local::ftp://127.0.0.1:1/x",
    "simplecache::ftp://127.0.0.1:1/x",
    "zip://x::file:///x",
    "http://127.0.0.1:1/x",
    "s3://bucket/x",
    "memory://x",
    "nonsense",
]


@pytest.mark.parametrize("place", FOREIGN[:-1])
def test_no_connection_is_made_to_a_foreign_place(
    query: Query, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = forked(query)
    forge(query, made.fork_id, place)
    new = str(query.folder.parent / "new")
    store = location(query)
    opened: list[str] = []
    for name in ("open_store", "_open_existing"):
        real = getattr(location_store, name)

        def watch(url: object, real: object = real, **options: object) -> object:
            opened.append(str(url))
            return real(url, **options)  # type: ignore[operator]

        monkeypatch.setattr(location_store, name, watch)
    with pytest.raises(CheckpointError, match="name it, by --parent URL") as raised:
        values(store)
    assert raised.value.reason == "parent"
    for verb in (["verify", new], ["copy", new, f"{new}-copy"], ["gc", "--apply", new]):
        run(verb)
    assert place in capsys.readouterr().err
    assert new in opened
    assert set(opened) <= {new, f"{new}-copy"}


@pytest.mark.parametrize("named", ["option", "environment"])
def test_a_place_that_the_caller_named_is_opened(
    query: Query, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = forked(query)
    forge(query, made.fork_id, "sftp://host/state")
    opened: list[str] = []

    def fake(url: str, **options: object) -> object:
        opened.append(url)
        return location_store.open_store(str(query.folder.parent / "state"))

    new = str(query.folder.parent / "new")
    if named == "environment":
        monkeypatch.setenv("STATELOG_PARENTS", "s3a://other/x, sftp://host/state/")
        store = open_existing_store(new)
    else:
        store = open_existing_store(new, options={"parents": "sftp://host/state"})
    store = pickle.loads(pickle.dumps(store))
    monkeypatch.delenv("STATELOG_PARENTS", raising=False)
    monkeypatch.setattr(location_store, "_open_existing", fake)
    assert values(store) == [b"0", b"1", b"2", b"3", b"4"]
    assert set(opened) == {"sftp://host/state"}


@pytest.mark.parametrize(
    ("own", "parent", "same"),
    [
        ("file:///a", "/b", True),
        ("file:///a", "local:///b", True),
        ("s3://b/x", "s3a://b/y", True),
        ("s3://b/x", "s3://c/y", False),
        ("s3://b/x", "gs://b/y", False),
        ("s3://b/x", "file:///b", False),
        ("s3://b/x", "s3://b/y::ftp://host", False),
        ("az://c/x", "abfss://c@account/y", False),
        ("sftp://host/x", "sftp://host/y", True),
        ("sftp://host/x", "sftp://host:23/y", False),
        ("sftp://host/x", "sftp://host@other/y", False),
        ("memory://x", "memory://y", True),
        ("hdfs://n/x", "webhdfs://n/y", False),
        ("hdfs://n/x", "", False),
    ],
)
def test_the_same_bucket_or_host_is_followed(own: str, parent: str, same: bool) -> None:
    assert may_follow(own, parent, ()) is same
    assert may_follow(own, parent or "x", named_parents({"parents": [parent or "x"]}))


def test_names_of_another_type_are_rejected() -> None:
    with pytest.raises(InvalidOptionsError, match="parents"):
        named_parents({"parents": 7})


def test_a_copied_location_is_not_taken_for_the_fork(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    made = forked(query)
    root = query.folder.parent
    shutil.copytree(root / "new", root / "moved")
    with pytest.raises(CheckpointError, match="moved or copied, name its parent") as raised:
        values(location(query, "moved"))
    assert raised.value.reason == "parent"
    assert made.parent in str(raised.value)
    assert run(["verify", str(root / "moved")]) == 1
    assert run(["verify", "--parent", made.parent, str(root / "moved")]) == 0
    assert run(["verify", str(root / "moved"), "--parent", str(root / "state")]) == 0
    assert run(["verify", str(root / "moved")]) == 1
    named = open_existing_store(str(root / "moved"), options={"parents": made.parent})
    assert values(named) == [b"0", b"1", b"2", b"3", b"4"]
    (root / "alias").symlink_to(root / "new")  # a fork that is reached by a link is the fork
    assert values(location(query, "alias")) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_moved_tree_of_forks_is_read_by_the_new_place_of_the_parent(
    query: Query, tmp_path: Path, is_copy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the old place still exists, and may change."""
    made = forked(query)
    root, other = query.folder.parent, tmp_path / "other place"
    for name in ("state", "new"):
        (shutil.copytree if is_copy else shutil.move)(root / name, other / name)
    moved, parent = str(other / "new"), str(other / "state")
    assert run(["verify", moved]) == 1
    assert "--parent" in capsys.readouterr().err
    assert run(["verify", "--parent", str(tmp_path / "nowhere"), moved]) == 1
    for parents in (
        [parent],
        [made.parent, parent] if not is_copy else [parent, str(other / "no")],
    ):
        named = open_existing_store(moved, options={"parents": parents})
        assert values(named) == [b"0", b"1", b"2", b"3", b"4"]
    (other / "state").rename(other / "again")
    assert run(["verify", moved, "--parent", str(other / "again")]) == 0


def test_a_tag_of_a_victim_is_not_deleted(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    root = query.folder.parent
    victim, attacker = forked(query, "victim"), forked(query, "new")
    independent(query)
    forge(query, victim.fork_id, victim.parent)
    new = str(root / "new")
    for arguments in (
        ["gc", new],
        ["gc", new, "--apply"],
        ["gc", new, "--apply", "--parent", victim.parent],
    ):
        assert run([*arguments, "--min-age", "0s"]) == 0
        shown = capsys.readouterr().out
        assert f"keeps a checkpoint for the fork {victim.location}" in shown
        tags = {one.name for one in statelog.tags(root / "state")}
        assert victim.fork_id in tags
        assert (attacker.fork_id in tags) is ("--apply" not in arguments)
    assert values(location(query, "victim")) == [b"0", b"1", b"2", b"3", b"4"]


def test_every_object_outside_is_printed(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    made = forked(query)
    independent(query)
    new = str(query.folder.parent / "new")
    [tag] = [one for one in list_tags(location(query, "state")) if one.name == made.fork_id]
    assert run(["gc", new]) == 0
    shown = capsys.readouterr().out
    assert f"would delete {tag.path} in {made.parent}, the parent of this fork" in shown
    assert "--apply makes the changes" in shown
    assert run(["gc", new, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"path": tag.path, "location": made.parent, "action": "would-delete"} in lines
    assert statelog.tags(query.folder.parent / "state")
    assert run(["gc", new, "--json", "--apply"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"path": tag.path, "location": made.parent, "action": "deleted"} in lines
    assert lines[-1]["summary"]["released"] == [made.fork_id]
    assert statelog.tags(query.folder.parent / "state") == []


def test_an_object_below_parents_that_is_no_reference_is_left(query: Query) -> None:
    forked(query)
    independent(query)
    folder = query.folder.parent / "new" / "parents"
    (folder / "x").mkdir()
    (folder / "x" / "y").write_bytes(b"?")
    (folder / "tag").write_bytes(b"?")
    sweep(location(query))
    assert sorted(path.name for path in folder.iterdir()) == ["tag", "x"]


def test_a_fork_of_another_store_works_for_its_caller(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local folders are taken for buckets: only the caller's name allows the parent."""
    monkeypatch.setattr(
        location_store, "may_follow", lambda own, parent, named: bool(named) and parent in named
    )
    root = query.folder.parent
    made = forked(query)
    assert forked(query) == made
    assert forked(query, "whole", copy=True).parent == made.parent
    with pytest.raises(CheckpointError, match="--parent URL"):
        values(location(query))
    named = open_existing_store(str(root / "new"), options={"parents": made.parent})
    assert values(named) == [b"0", b"1", b"2", b"3", b"4"]
    assert [one.name for one in statelog.tags(root / "state")] == [made.fork_id]
    assert made.fork_id in {one.name for one in statelog.tags(root / "state")}


HOSTILE = [
    "../offsets/1", "/etc/passwd", "offsets/%2e%2e/1", "offsets\\1", "offsets/1\x00", "a" * 1025,
    "statelog/chk-7/_metadata", "metadata", "state/0/0/1.delta", "offsets/1/2",
    "sources/0", "sources/../../x/y", "offsets/x", "",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_tag_writes_only_the_position_of_sources(query: Query, name: str) -> None:
    root = query.folder.parent
    tag = Tag(kind=TagKind.TAG, name="forged", checkpoint_id=5)
    put_tag(query.state, tag, clock_ms=lambda: 0, files={"offsets/4": b"v1", name: b"evil"})
    with pytest.raises(CorruptionError):
        forked(query, checkpoint="forged")
    assert (
        run(["fork", str(root / "state"), str(root / "q2" / "statelog"), "--checkpoint", "forged"])
        == 1
    )
    for folder in (root / "new-query", root / "q2"):
        written = [path for path in folder.rglob("*") if path.is_file()]
        assert [] == [path for path in written if "statelog" not in path.parts]
    for claim in ("owner", "chk-7"):
        assert not (root / "q2" / "statelog" / claim).exists()


@pytest.mark.parametrize("name", HOSTILE[:6])
def test_the_names_of_attachments_are_checked(query: Query, name: str) -> None:
    properties = dict(find_checkpoint(query.state).properties)
    entry = {
        "kind": "recording",
        "oldest": 4,
        "newest": 4,
        "path": "recordings/x",
        "size": 1,
        "count": 1,
        "at_ms": 0,
    }
    assert BatchRecord.of_properties({**properties, "attachments": [entry]}, 4).attachments
    with pytest.raises(CorruptionError):
        BatchRecord.of_properties({**properties, "attachments": [{**entry, "path": name}]}, 4)


@pytest.mark.parametrize("place", FOREIGN[:-1])
def test_no_connection_is_made_to_a_recorded_checkpoint_location(
    query: Query, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(savepoints, "open_query_files", lambda url, **options: opened.append(url))
    store = location(query, "state")
    with pytest.raises(CheckpointError, match="--checkpoint-location") as raised:
        savepoints.query_store(store, None, place, None)
    assert (opened, raised.value.reason) == ([], "not_found")
    savepoints.query_store(store, place, place, None)
    savepoints.query_store(store, None, f"file:{query.folder}", None)
    assert opened == [place, f"file:{query.folder}"]
