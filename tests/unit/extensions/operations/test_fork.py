"""Forks of a location, without Spark: both go on, nothing is copied, and every step is repeated."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.support.locations.forked_query import (
    commit_in,
    forked,
    forked_until,
    location,
    sweep,
    values,
)
from tests.support.locations.rewound_query import Query

import statelog
from statelog.checkpoint import verify_location
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.query_files import StoredQuery, entries_digest, files_upto
from statelog.checkpoint.restore import find_checkpoint
from statelog.errors import CheckpointError, UsageError
from statelog.extensions.operations import savepoints
from statelog.store import PATHS, LocationStore, ObjectStore, open_store
from statelog.store.parents import ParentReference


def run_on(query: Query) -> None:
    """Run batches 5 to 9 of the query, which delete what its retained checkpoints do not need."""
    query.run(5, 9)
    query.driver.clean_up()


def files_of(fork: statelog.Fork) -> StoredQuery:
    """Return the checkpointLocation that a fork wrote."""
    assert fork.query is not None
    return StoredQuery(open_store(fork.query.checkpoint_location))


def check_sound(store: ObjectStore) -> None:
    assert not [finding for finding in verify_location(store) if finding.problem]


def test_a_sweep_of_the_parent_deletes_nothing_that_the_fork_needs(query: Query) -> None:
    fork = forked(query, checkpoint=4)
    store = location(query)
    assert (fork.checkpoint_id, fork.batch_id) == (4, 3)
    assert values(store) == [b"0", b"1", b"2", b"3"]
    run_on(query)
    sweep(query.state)
    assert values(location(query, "state"))[-1] == b"9"
    assert values(store) == [b"0", b"1", b"2", b"3"]
    commit_in(query, b"other", base=4)
    assert values(store) == [b"0", b"1", b"2", b"3", b"other"]
    check_sound(store)
    assert 1 == len(list(store.list("dstl"))), "nothing was copied"


def test_a_fork_without_objects_of_its_parent_releases_it(query: Query) -> None:
    fork = forked(query)
    store = location(query)
    assert sweep(store).released == ()
    commit_in(query, b"5", is_independent=True)
    assert sweep(store, dry_run=True).released == (fork.fork_id,)
    assert query.tags() == [fork.fork_id]
    assert sweep(store).released == (fork.fork_id,)
    assert query.tags() == []
    assert sweep(store).released == ()
    assert values(store) == [b"5"]


def test_the_new_query_begins_where_the_micro_batch_ended(query: Query) -> None:
    fork = forked(query, checkpoint=4)
    assert fork.query is not None
    new = files_of(fork)
    assert new.query_id() == fork.query.query_id != query.stored.query_id()
    assert (new.numbers("offsets"), new.numbers("commits")) == ([2, 3], [2, 3])
    for name in ("offsets/2", "offsets/3", "commits/3", "sources/1/0"):
        assert new.read(name) == query.stored.read(name)
    assert list(new.names("sources/0")) == ["3.compact"]
    assert files_upto(new, "0", 3) == files_upto(query.stored, "0", 3)
    record = BatchRecord.of(find_checkpoint(location(query)))
    assert record.query_id == fork.query.query_id
    [log] = record.source_logs or []
    assert record.went_back_to is None
    assert entries_digest(new, log.folder, log.after, log.upto) == log.digest


@pytest.mark.parametrize("step", ["referred", "pinned", "query-written", "claimed"])
def test_an_interrupted_fork_continues_while_the_query_runs(query: Query, step: str) -> None:
    forked_until(query, step)
    run_on(query)
    for folder in ("offsets", "commits"):  # as Spark does after some micro-batches
        for batch in range(5):
            (query.folder / folder / str(batch)).unlink()
    fork = forked(query)
    store = location(query)
    is_pinned = step != "referred"
    assert fork.batch_id == (4 if is_pinned else 9)
    assert values(store) == [b"%d" % batch for batch in range(fork.batch_id + 1)]
    assert files_of(fork).numbers("commits") == [fork.batch_id - 1, fork.batch_id]
    assert query.tags() == [fork.fork_id]
    check_sound(store)
    # The reference of the call that had written nothing else.
    assert len(sweep(store).released) == (0 if is_pinned else 1)
    (reference,) = store.list(PATHS.parents)
    assert reference.path == PATHS.parent(fork.fork_id)
    assert sweep(store).released == ()


def test_a_fork_of_a_newer_checkpoint_does_not_continue_an_unfinished_one(query: Query) -> None:
    forked_until(query, "referred", checkpoint=4)
    forked_until(query, "pinned", checkpoint=4)
    with pytest.raises(UsageError, match="but not finished") as rejected:
        forked(query, checkpoint=5)
    [tag] = statelog.tags(query.root / "state")
    assert f"{tag.name} --kind fork" in str(rejected.value)
    statelog.untag(query.root / "state", tag.name, kind="fork", apply=True)
    assert forked(query, checkpoint=5).checkpoint_id == 5  # it had written nothing else


def test_the_claim_of_a_given_up_fork_rejects_a_different_checkpoint(query: Query) -> None:
    state = query.root / "state"
    forked_until(query, "claimed", checkpoint=4, state_only=True)
    [tag] = statelog.tags(state)
    statelog.untag(state, tag.name, kind="fork", apply=True)
    # The claim names checkpoint 4 as the next entry, so no other checkpoint can be the first.
    with pytest.raises(UsageError, match="fork into an empty location"):
        forked(query, state_only=True, checkpoint=5)
    assert statelog.tags(state) == [], "the parent would keep the checkpoint for ever"
    assert [info.path for info in location(query).list("parents")] == [PATHS.parent(tag.name)]
    fork = forked(query, state_only=True, checkpoint=4)
    assert (fork.fork_id, fork.checkpoint_id) == (tag.name, 4)


def test_a_fork_that_was_made_is_not_made_again_with_other_arguments(query: Query) -> None:
    fork = forked(query, checkpoint=5)
    assert forked(query) == fork
    elsewhere = {"new_checkpoint_location": query.root / "elsewhere"}
    for options in ({"checkpoint": 4}, {"state_only": True}, elsewhere):
        with pytest.raises(UsageError, match="already contains state"):
            forked(query, **options)
    commit_in(query, b"other")
    with pytest.raises(UsageError, match="already contains state"):
        forked(query)


def test_a_reference_to_a_deleted_parent_is_released(query: Query) -> None:
    forked(query, copy=True)
    path = PATHS.parent(forked(query, "other").fork_id)
    store = location(query)
    store.put(path, bytes(location(query, "other").get(path)))
    shutil.rmtree(query.root / "state")
    assert [PATHS.parent(fork_id) for fork_id in sweep(store).released] == [path]
    assert not list(store.list(PATHS.parents))


def test_a_copied_fork_does_not_need_its_parent(query: Query) -> None:
    assert forked(query, copy=True).query is not None
    assert query.tags() == []
    shutil.rmtree(query.root / "state")
    store = location(query)
    assert values(store) == [b"0", b"1", b"2", b"3", b"4"]
    check_sound(store)
    assert not list(store.list("parents"))
    commit_in(query, b"5")
    assert not sweep(store).deleted
    assert values(store)[-1] == b"5"


def test_a_tag_is_forked_without_the_files_of_the_query(query: Query) -> None:
    state = query.root / "state"
    statelog.tag(state, "before", checkpoint=4, comment="release 7")
    run_on(query)
    shutil.rmtree(query.folder)
    fork = forked(query, checkpoint="before")
    assert fork.batch_id == 3
    assert values(location(query)) == [b"0", b"1", b"2", b"3"]
    assert files_of(fork).numbers("offsets") == [2, 3]
    statelog.untag(state, "before", apply=True)
    assert values(location(query)) == [b"0", b"1", b"2", b"3"]  # the fork has a tag of its own


def test_a_forged_reference_leads_nowhere(query: Query, tmp_path: Path) -> None:
    fork = forked(query)
    secret = tmp_path / "secret"
    (secret / "chk-5").mkdir(parents=True)
    (secret / "chk-5" / "_metadata").write_bytes(b"not yours")
    path = tmp_path / "new" / "parents" / fork.fork_id
    path.write_bytes(ParentReference(location=str(secret), checkpoint_id=5).encoded())
    with pytest.raises(CheckpointError, match="does not contain a tag of this fork") as raised:
        values(location(query))
    assert raised.value.reason == "parent"
    path.unlink()
    with pytest.raises(CheckpointError, match="does not contain parents/"):
        values(location(query))
    with pytest.raises(UsageError):
        location(query).get("parent/../secret/chk-5/_metadata")


def test_wrong_calls_of_fork_are_rejected(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    root = query.root
    with pytest.raises(CheckpointError, match="does not exist"):
        forked(query, checkpoint=99)
    with pytest.raises(UsageError, match=r"must be an id, a tag of .*; got 'x'"):
        forked(query, checkpoint="x")
    with pytest.raises(UsageError, match="ends with /statelog"):
        statelog.fork(root / "state", root / "other")
    commit = query.folder / "commits" / "4"
    commit.rename(query.folder / "commits" / "moved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(savepoints, "pause", lambda seconds: None)
        with pytest.raises(CheckpointError, match="not finished") as raised:
            forked(query)
    assert raised.value.reason == "in_progress"
    (query.folder / "commits" / "moved").rename(commit)
    (root / "used" / "offsets").mkdir(parents=True)
    (root / "used" / "offsets" / "0").write_text("v1\n{}\n0")
    with pytest.raises(UsageError, match="a different query"):
        statelog.fork(root / "state", root / "n", new_checkpoint_location=root / "used")
    (query.folder / "metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(CheckpointError, match="is the checkpointLocation of query another"):
        forked(query, "third")
    assert forked(query, "fourth", state_only=True).query is None
    assert BatchRecord.of(find_checkpoint(location(query, "fourth"))).query_id == "q"
    assert not os.path.exists(root / "fourth" / "offsets")


def test_the_commands_tag_and_fork(call, query: Query) -> None:
    root, comment = query.root, "before [bold]7[/bold]"
    state, new = str(root / "state"), str(root / "q2" / "statelog")
    assert "does not have tags" in call("tag", state)
    assert "Checkpoint 4" in call("tag", state, "v1", "--checkpoint", "4", "--comment", comment)
    said = call("fork", state, new, "--checkpoint", "v1")
    assert f"stateLocation       file://{new}" in said
    assert f"checkpointLocation  file://{root}/q2\n" in said
    said = call("tag", state)
    assert comment in said
    assert new in said
    of_fork, tag = call.lines("tag", state)
    assert ("fork", 4) == (of_fork["kind"], of_fork["checkpoint_id"])
    assert ("tag", 4) == (tag["kind"], tag["checkpoint_id"])
    assert tag["facts"]["comment"] == comment
    assert "This was a dry run" in call("tag", state, "v1", "--remove")
    (removed,) = call.lines("tag", state, "v1", "--remove", "--apply")
    assert ("v1", False) == (removed["name"], removed["dry_run"])
    assert "Nothing to remove: " in call("tag", state, "v1", "--remove", "--apply")
    (removed,) = call.lines("tag", state, "v1", "--remove", "--apply")
    assert removed["checkpoint_id"] is None
    call("tag", state, of_fork["name"], "--kind", "other", "--remove", status=2)
    call("tag", state, of_fork["name"], "--kind", "fork", "--remove", "--apply")
    call("verify", new, status=1)  # released, so it can no longer be read
    call("fork", state, str(root / "x"), status=2)
    call("fork", state, str(root / "q3" / "statelog"), "--json")


def test_a_secret_in_the_url_is_not_stored(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocationStore, "url", property(lambda store: "sftp://***@host/totals"))
    with pytest.raises(UsageError, match="contains a secret"):
        forked(query, checkpoint_location=query.folder)


@pytest.mark.parametrize("verb", ["tag", "fork"])
def test_tag_and_fork_wait_until_the_query_has_committed_the_batch(
    query: Query, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, waits = query.folder / "commits" / "4", []
    content = commit.read_text()
    commit.unlink()

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            query.put("commits/4", content)

    monkeypatch.setattr(savepoints, "pause", pause)
    if verb == "fork":
        assert forked(query).batch_id == 4
    else:
        assert statelog.tag(query.root / "state", "v1").checkpoint_id == 5
    assert len(waits) == 3


def test_a_commit_during_the_wait_is_tagged(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    (query.folder / "commits" / "4").unlink()

    def pause(seconds: float) -> None:
        batch = query.driver.next_checkpoint_id - 1
        query.run(batch, batch + 2)
        query.state.delete([PATHS.metadata(5)])

    monkeypatch.setattr(savepoints, "pause", pause)
    assert statelog.tag(query.root / "state", "v1").checkpoint_id == 8
