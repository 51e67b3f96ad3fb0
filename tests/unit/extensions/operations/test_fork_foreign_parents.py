"""Stored places are claims: a fork opens, reads and releases a parent only if both sides agree."""

import pickle
import shutil
from pathlib import Path
from unittest import mock

import pytest
from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import put_named_tag
from tests.support.locations.forked_query import commit_in, forked, location, sweep, values
from tests.support.locations.rewound_query import Query

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.retained import list_tags
from statelog.errors import CheckpointError, CorruptionError, InvalidOptionsError
from statelog.extensions.operations import savepoints
from statelog.store import location_store, open_existing_store
from statelog.store.parents import ParentReference, may_follow, named_parents

ALL_CHANGES = [b"0", b"1", b"2", b"3", b"4"]
"""The changes of the query, which its fork reads in the parent."""


def forge(query: Query, fork_id: str, place: str, name: str = "new") -> None:
    path = query.root / name / "parents" / fork_id
    path.write_bytes(ParentReference(location=place, checkpoint_id=5).encoded())


FOREIGN = [
    "ftp://127.0.0.1:1/x", "webhdfs://127.0.0.1:1/x", "local::ftp://127.0.0.1:1/x",
    "simplecache::ftp://127.0.0.1:1/x", "zip://x::file:///x", "http://127.0.0.1:1/x",
    "s3://bucket/x", "memory://x", "nonsense",
]  # fmt: skip


@pytest.mark.parametrize("place", FOREIGN[:-1])
def test_no_connection_is_made_to_a_foreign_place(
    query: Query, place: str, monkeypatch: pytest.MonkeyPatch, call
) -> None:
    fork = forked(query)
    forge(query, fork.fork_id, place)
    new = str(query.root / "new")
    store = location(query)
    watched = []
    for name in ("open_store", "_open_existing"):
        watched.append(mock.Mock(wraps=getattr(location_store, name)))
        monkeypatch.setattr(location_store, name, watched[-1])
    with pytest.raises(CheckpointError, match="pass it with --parent URL") as raised:
        values(store)
    assert raised.value.reason == "parent"
    for words in (["verify", new], ["copy", new, f"{new}-copy"]):
        assert place in call(*words, status=1)
    call("gc", "--apply", new)
    opened = {str(call.args[0]) for function in watched for call in function.call_args_list}
    assert new in opened
    assert opened <= {new, f"{new}-copy"}


@pytest.mark.parametrize("named", ["option", "environment"])
def test_a_named_place_is_opened(query: Query, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = forked(query)
    forge(query, fork.fork_id, "sftp://host/state")
    opened: list[str] = []

    def fake(url: str, **options: object) -> object:
        opened.append(url)
        return location_store.open_store(str(query.root / "state"))

    new = str(query.root / "new")
    if named == "environment":
        monkeypatch.setenv("STATELOG_PARENTS", "s3a://other/x, sftp://host/state/")
        store = open_existing_store(new)
    else:
        store = open_existing_store(new, options={"parents": "sftp://host/state"})
    store = pickle.loads(pickle.dumps(store))
    monkeypatch.delenv("STATELOG_PARENTS", raising=False)
    monkeypatch.setattr(location_store, "_open_existing", fake)
    assert values(store) == ALL_CHANGES
    assert set(opened) == {"sftp://host/state"}


SAME = [
    ("file:///a", "/b"), ("file:///a", "local:///b"), ("s3://b/x", "s3a://b/y"),
    ("sftp://host/x", "sftp://host/y"), ("memory://x", "memory://y"),
]  # fmt: skip
DIFFERENT = [
    ("s3://b/x", "s3://c/y"), ("s3://b/x", "gs://b/y"), ("s3://b/x", "file:///b"),
    ("s3://b/x", "s3://b/y::ftp://host"), ("az://c/x", "abfss://c@account/y"),
    ("sftp://host/x", "sftp://host:23/y"), ("sftp://host/x", "sftp://host@other/y"),
    ("hdfs://n/x", "webhdfs://n/y"), ("hdfs://n/x", ""),
]  # fmt: skip


@pytest.mark.parametrize(("location", "parent"), [*SAME, *DIFFERENT])
def test_the_same_bucket_or_host_is_followed(location: str, parent: str) -> None:
    assert may_follow(location, parent, ()) is ((location, parent) in SAME)
    assert may_follow(location, parent or "x", named_parents({"parents": [parent or "x"]}))
    with pytest.raises(InvalidOptionsError, match="parents"):
        named_parents({"parents": 7})


def test_a_copied_location_is_not_taken_for_the_fork(query: Query, call) -> None:
    fork = forked(query)
    root = query.root
    shutil.copytree(root / "new", root / "moved")
    with pytest.raises(CheckpointError, match="moved or copied, specify its parent") as raised:
        values(location(query, "moved"))
    assert raised.value.reason == "parent"
    assert fork.parent in str(raised.value)
    moved = str(root / "moved")
    call("verify", moved, status=1)
    call("verify", "--parent", fork.parent, moved)
    call("verify", moved, "--parent", str(root / "state"))
    call("verify", moved, status=1)
    named = open_existing_store(moved, options={"parents": fork.parent})
    assert values(named) == ALL_CHANGES
    (root / "alias").symlink_to(root / "new")  # a fork that is reached by a link is the fork
    assert values(location(query, "alias")) == ALL_CHANGES


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_moved_tree_of_forks_is_read_by_the_new_place_of_the_parent(
    query: Query, tmp_path: Path, is_copy: bool, call
) -> None:
    """Also if the old place still exists, and may change."""
    fork = forked(query)
    root, other = query.root, tmp_path / "other place"
    for name in ("state", "new"):
        (shutil.copytree if is_copy else shutil.move)(root / name, other / name)
    moved, parent = str(other / "new"), str(other / "state")
    assert "--parent" in call("verify", moved, status=1)
    call("verify", "--parent", str(tmp_path / "nowhere"), moved, status=1)
    second = [parent, str(other / "no")] if is_copy else [fork.parent, parent]
    for parents in ([parent], second):
        named = open_existing_store(moved, options={"parents": parents})
        assert values(named) == ALL_CHANGES
    (other / "state").rename(other / "again")
    call("verify", moved, "--parent", str(other / "again"))


def test_a_tag_of_a_victim_is_not_deleted(query: Query, call) -> None:
    victim, attacker = forked(query, "victim"), forked(query, "new")
    commit_in(query, b"5", is_independent=True)
    forge(query, victim.fork_id, victim.parent)
    for options in ([], ["--apply"], ["--apply", "--parent", victim.parent]):
        said = call("gc", str(query.root / "new"), *options, "--min-age", "0s")
        assert f"pins a checkpoint for the fork {victim.location}" in said
        assert victim.fork_id in query.tags()
        assert (attacker.fork_id in query.tags()) is ("--apply" not in options)
    assert values(location(query, "victim")) == ALL_CHANGES


def test_every_object_outside_is_printed(query: Query, call) -> None:
    fork = forked(query)
    commit_in(query, b"5", is_independent=True)
    new = str(query.root / "new")
    [tag] = list_tags(location(query, "state"))
    said = call("gc", new)
    assert f"would delete {tag.path} in {fork.parent}, the parent of this fork" in said
    assert "--apply makes the changes" in said
    outside = {"path": tag.path, "location": fork.parent}
    assert {**outside, "action": "would-delete"} in call.lines("gc", new)
    assert query.tags() == [fork.fork_id]
    *lines, last = call.lines("gc", new, "--apply")
    assert {**outside, "action": "deleted"} in lines
    assert last["summary"]["released"] == [fork.fork_id]
    assert query.tags() == []


def test_unknown_objects_below_parents_are_not_deleted(query: Query) -> None:
    forked(query)
    commit_in(query, b"5", is_independent=True)
    folder = query.root / "new" / "parents"
    (folder / "x").mkdir()
    (folder / "x" / "y").write_bytes(b"?")
    (folder / "tag").write_bytes(b"?")
    sweep(location(query))
    assert sorted(path.name for path in folder.iterdir()) == ["tag", "x"]


def test_a_fork_of_a_named_store_works(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local folders are taken for buckets: only the caller's name allows the parent."""
    monkeypatch.setattr(location_store, "may_follow", lambda _, parent, named: parent in named)
    root = query.root
    fork = forked(query)
    assert forked(query) == fork
    assert forked(query, "whole", copy=True).parent == fork.parent
    with pytest.raises(CheckpointError, match="--parent URL"):
        values(location(query))
    named = open_existing_store(str(root / "new"), options={"parents": fork.parent})
    assert values(named) == ALL_CHANGES
    assert query.tags() == [fork.fork_id]


HOSTILE = [
    "../offsets/1", "/etc/passwd", "offsets/%2e%2e/1", "offsets\\1", "offsets/1\x00", "a" * 1025,
    "statelog/chk-7/_metadata", "metadata", "state/0/0/1.delta", "offsets/1/2",
    "sources/0", "sources/../../x/y", "offsets/x", "",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_tag_writes_only_the_position_of_sources(call, query: Query, name: str) -> None:
    root = query.root
    put_named_tag(query.state, "forged", 5, files={"offsets/4": b"v1", name: b"evil"})
    with pytest.raises(CorruptionError):
        forked(query, checkpoint="forged")
    words = [str(root / "state"), str(root / "q2" / "statelog"), "--checkpoint", "forged"]
    call("fork", *words, status=1)
    for folder in (root / "new-query", root / "q2"):
        written = [path for path in folder.rglob("*") if path.is_file()]
        assert [] == [path for path in written if "statelog" not in path.parts]
    for claim in ("owner", "chk-7"):
        assert not (root / "q2" / "statelog" / claim).exists()


@pytest.mark.parametrize("name", HOSTILE[:6])
def test_the_names_of_attachments_are_checked(name: str) -> None:
    numbers = dict.fromkeys(("oldest", "newest", "size", "count", "at_ms"), 1)
    entry = {"kind": "recording", "path": "recordings/x", **numbers}
    properties = one_operator().to_properties()
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
