"""Forks of a location, without Spark: both go on, nothing is copied, and every step is repeated."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import log_in_file, run_checkpoint
from tests.support.locations.forked_query import forked, go_on, location, record_of, sweep, values
from tests.support.locations.rewound_query import Query

import statelog
from statelog.checkpoint import verify_location
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.query_files import entries_digest
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.stored_query import StoredQuery, files_upto
from statelog.cli.main import run
from statelog.errors import CheckpointError, UsageError
from statelog.extensions.operations import fork, savepoints
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot
from statelog.store import PATHS, LocationStore, open_store
from statelog.store.fork_parents import ParentReference

ALL = KeyGroupRange(0, 7)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    query = Query(tmp_path, retained=2)
    query.run(0, 4)
    query.driver.clean_up()
    return query


def test_parent_and_fork_go_on_and_a_sweep_of_the_parent_breaks_nothing(query: Query) -> None:
    made = forked(query, checkpoint=4)
    assert (made.checkpoint_id, made.batch_id) == (4, 3)
    assert values(location(query)) == [b"0", b"1", b"2", b"3"]
    query.run(5, 9)
    query.driver.clean_up()
    sweep(query.state)  # type: ignore[arg-type]
    assert values(location(query, "state"))[-1] == b"9"
    assert values(location(query)) == [b"0", b"1", b"2", b"3"]
    heir = go_on(query)
    log = log_in_file(location(query), ALL, [[(1, b"other")]])
    run_checkpoint(
        heir, heir.next_checkpoint_id, [TaskStateSnapshot(ALL, log)], properties=record_of(query, 4)
    )
    heir.clean_up()
    assert values(location(query)) == [b"0", b"1", b"2", b"3", b"other"]
    assert not [one for one in verify_location(location(query)) if one.problem]
    own = {info.path for info in location(query).list()}
    assert not [path for path in own if path.startswith(("dstl", "taskowned", "parent/"))][1:]


def test_a_fork_that_needs_nothing_more_releases_its_parent(query: Query) -> None:
    made = forked(query)
    heir = go_on(query)
    store = location(query)
    assert sweep(store).released == ()
    store.put("taskowned/s", b"state")
    snapshot = MaterializedHandle(ALL, 5, FileStateHandle("taskowned/s", 5))
    done = TaskStateSnapshot(ALL, log_in_file(store, ALL, [[(1, b"5")]]), snapshot)
    run_checkpoint(heir, heir.next_checkpoint_id, [done], properties=record_of(query, 5))
    heir.clean_up()
    assert sweep(store, dry_run=True).released == (made.fork_id,)
    assert statelog.tags(query.folder.parent / "state")
    assert sweep(store).released == (made.fork_id,)
    assert statelog.tags(query.folder.parent / "state") == []
    assert sweep(store).released == ()
    assert values(store) == [b"5"]


def test_the_checkpoint_location_of_the_parent_is_opened_once(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    open_files = savepoints.open_query_files

    def counted(place, *, options=None):  # type: ignore[no-untyped-def]
        opened.append(place)
        return open_files(place, options=options)

    monkeypatch.setattr(savepoints, "open_query_files", counted)
    forked(query, checkpoint=4)
    assert opened == [str(query.folder)]


def test_the_new_query_begins_where_the_micro_batch_ended(query: Query) -> None:
    made = forked(query, checkpoint=4)
    assert made.query is not None
    new = StoredQuery(open_store(made.query.checkpoint_location))
    assert new.query_id() == made.query.query_id != query.stored.query_id()
    assert (new.numbers("offsets"), new.numbers("commits")) == ([2, 3], [2, 3])
    for name in ("offsets/2", "offsets/3", "commits/3", "sources/1/0"):
        assert new.read(name) == query.stored.read(name)
    assert list(new.names("sources/0")) == ["3.compact"]
    assert files_upto(new, "0", 3) == files_upto(query.stored, "0", 3)
    record = BatchRecord.of(find_checkpoint(location(query)))
    assert record.query_id == made.query.query_id
    [log] = record.source_logs or []
    assert record.went_back_to is None
    assert entries_digest(new, log.folder, log.after, log.upto) == log.digest


STEPS = ["referred", "pinned", "query-written", "claimed"]


@pytest.mark.parametrize("step", STEPS)
def test_a_fork_that_ended_at_any_step_is_repeated(
    query: Query, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def killed(name: str) -> None:
        if name == f"fork-{step}":
            raise KilledError

    monkeypatch.setattr(fork, "fail_point", killed)
    with pytest.raises(KilledError):
        forked(query)
    monkeypatch.undo()
    made = forked(query)
    assert values(location(query)) == [b"0", b"1", b"2", b"3", b"4"]
    assert made.fork_id in {one.name for one in statelog.tags(query.folder.parent / "state")}
    assert forked(query) == made


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_fork_goes_on_although_the_query_does(
    query: Query, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def killed(name: str) -> None:
        if name == f"fork-{step}":
            raise KilledError

    monkeypatch.setattr(fork, "fail_point", killed)
    with pytest.raises(KilledError):
        forked(query)
    monkeypatch.undo()
    query.run(5, 9)
    query.driver.clean_up()
    for folder in ("offsets", "commits"):  # as Spark does after some micro-batches
        for batch in range(5):
            (query.folder / folder / str(batch)).unlink()
    made = forked(query)
    is_pinned = step != "referred"
    assert made.batch_id == (4 if is_pinned else 9)
    assert values(location(query)) == [b"%d" % batch for batch in range(made.batch_id + 1)]
    assert made.query is not None
    new = StoredQuery(open_store(made.query.checkpoint_location))
    assert new.numbers("commits") == [made.batch_id - 1, made.batch_id]
    assert [one.name for one in statelog.tags(query.folder.parent / "state")] == [made.fork_id]
    assert not [one for one in verify_location(location(query)) if one.problem]
    # The reference of the call that had written nothing else.
    assert len(sweep(location(query)).released) == (0 if is_pinned else 1)
    assert [info.path for info in location(query).list(PATHS.parents)] == [
        PATHS.parent(made.fork_id)
    ]
    assert sweep(location(query)).released == ()


def test_a_fork_of_another_checkpoint_does_not_go_on_with_a_begun_one(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_at(step: str) -> None:
        def killed(name: str) -> None:
            if name == step:
                raise KeyboardInterrupt

        monkeypatch.setattr(fork, "fail_point", killed)
        with pytest.raises(KeyboardInterrupt):
            forked(query, checkpoint=4)
        monkeypatch.undo()

    killed_at("fork-referred")
    killed_at("fork-pinned")
    with pytest.raises(UsageError, match="and not finished") as refused:
        forked(query, checkpoint=5)
    [tag] = statelog.tags(query.folder.parent / "state")
    assert f"{tag.name} --kind fork" in str(refused.value)
    statelog.untag(query.folder.parent / "state", tag.name, kind="fork", apply=True)
    assert forked(query, checkpoint=5).checkpoint_id == 5  # it had written nothing else


def test_a_location_that_a_given_up_fork_claimed_is_refused_before_anything_is_put(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = query.folder.parent

    def killed(reached: str) -> None:
        if reached == "fork-claimed":
            raise KeyboardInterrupt

    monkeypatch.setattr(fork, "fail_point", killed)
    with pytest.raises(KeyboardInterrupt):
        statelog.fork(root / "state", root / "new", state_only=True, checkpoint=4)
    monkeypatch.undo()
    [tag] = statelog.tags(root / "state")
    statelog.untag(root / "state", tag.name, kind="fork", apply=True)
    # The claim names checkpoint 4 as the next entry, so no other checkpoint can be the first.
    with pytest.raises(UsageError, match="fork into an empty location"):
        statelog.fork(root / "state", root / "new", state_only=True, checkpoint=5)
    assert statelog.tags(root / "state") == [], "the parent would keep the checkpoint for ever"
    assert [info.path for info in location(query).list("parents")] == [PATHS.parent(tag.name)]
    made = statelog.fork(root / "state", root / "new", state_only=True, checkpoint=4)
    assert (made.fork_id, made.checkpoint_id) == (tag.name, 4)


def test_a_fork_that_was_made_is_not_made_again_with_other_arguments(query: Query) -> None:
    root = query.folder.parent
    made = forked(query, checkpoint=5)
    assert forked(query) == made
    with pytest.raises(UsageError, match="holds state already"):
        forked(query, checkpoint=4)
    with pytest.raises(UsageError, match="holds state already"):
        statelog.fork(root / "state", root / "new", state_only=True)
    with pytest.raises(UsageError, match="holds state already"):
        statelog.fork(root / "state", root / "new", new_checkpoint_location=root / "elsewhere")
    heir = go_on(query)
    log = log_in_file(location(query), ALL, [[(1, b"other")]])
    run_checkpoint(
        heir, heir.next_checkpoint_id, [TaskStateSnapshot(ALL, log)], properties=record_of(query, 5)
    )
    with pytest.raises(UsageError, match="holds state already"):
        forked(query)


def test_a_fork_whose_parent_is_gone_is_released(query: Query) -> None:
    forked(query, copy=True)
    made = forked(query, "other")
    store = location(query)
    reference = bytes(location(query, "other").get(PATHS.parent(made.fork_id)))
    store.put(PATHS.parent(made.fork_id), reference)
    shutil.rmtree(query.folder.parent / "state")
    assert sweep(store).released == (made.fork_id,)
    assert not list(store.list(PATHS.parents))


@pytest.mark.parametrize("step", [None, "copied", "claimed"])
def test_a_copied_fork_does_not_need_its_parent(
    query: Query, step: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def killed(name: str) -> None:
        if name == f"fork-{step}":
            raise KilledError

    if step is not None:
        monkeypatch.setattr(fork, "fail_point", killed)
        with pytest.raises(KilledError):
            forked(query, copy=True)
        monkeypatch.undo()
    made = forked(query, copy=True)
    assert statelog.tags(query.folder.parent / "state") == []
    shutil.rmtree(query.folder.parent / "state")
    store = location(query)
    assert values(store) == [b"0", b"1", b"2", b"3", b"4"]
    assert not [one for one in verify_location(store) if one.problem]
    assert not list(store.list("parents"))
    heir = go_on(query)
    log = log_in_file(store, ALL, [[(1, b"5")]])
    run_checkpoint(
        heir, heir.next_checkpoint_id, [TaskStateSnapshot(ALL, log)], properties=record_of(query, 5)
    )
    heir.clean_up()
    assert not sweep(store).deleted
    assert values(store)[-1] == b"5"
    assert made.query is not None


def test_a_tag_is_forked_without_the_files_of_the_query(query: Query) -> None:
    root = query.folder.parent
    statelog.tag(root / "state", "before", checkpoint=4, comment="release 7")
    query.run(5, 9)
    query.driver.clean_up()
    shutil.rmtree(query.folder)
    made = forked(query, checkpoint="before")
    assert made.batch_id == 3
    assert values(location(query)) == [b"0", b"1", b"2", b"3"]
    assert made.query is not None
    assert StoredQuery(open_store(made.query.checkpoint_location)).numbers("offsets") == [2, 3]
    statelog.untag(root / "state", "before", apply=True)
    assert values(location(query)) == [b"0", b"1", b"2", b"3"]  # the fork has a tag of its own


def test_a_fork_of_a_fork_reads_through_both(query: Query) -> None:
    first = forked(query)
    assert first.query is not None
    statelog.fork(
        first.location,
        query.folder.parent / "second",
        new_checkpoint_location=query.folder.parent / "second-query",
    )
    query.run(5, 9)
    query.driver.clean_up()
    sweep(location(query, "state"))
    sweep(location(query))
    assert values(location(query, "second")) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_forged_reference_leads_nowhere(query: Query, tmp_path: Path) -> None:
    made = forked(query)
    secret = tmp_path / "secret"
    (secret / "chk-5").mkdir(parents=True)
    (secret / "chk-5" / "_metadata").write_bytes(b"not yours")
    path = tmp_path / "new" / "parents" / made.fork_id
    path.write_bytes(ParentReference(location=str(secret), checkpoint_id=5).encoded())
    with pytest.raises(CheckpointError, match="has no tag of this fork") as raised:
        values(location(query))
    assert raised.value.reason == "parent"
    path.unlink()
    with pytest.raises(CheckpointError, match="no object parents/"):
        values(location(query))
    with pytest.raises(UsageError):
        location(query).get("parent/../secret/chk-5/_metadata")


def test_what_a_fork_refuses(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    root = query.folder.parent
    with pytest.raises(CheckpointError, match="does not exist"):
        forked(query, checkpoint=99)
    with pytest.raises(UsageError, match="'x', which is no id, no tag"):
        forked(query, checkpoint="x")
    with pytest.raises(UsageError, match="ends with /statelog"):
        statelog.fork(root / "state", root / "other")
    (query.folder / "commits" / "4").rename(query.folder / "commits" / "kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(savepoints, "pause", lambda seconds: None)
        with pytest.raises(CheckpointError, match="not finished") as raised:
            forked(query)
    assert raised.value.reason == "in_progress"
    (query.folder / "commits" / "kept").rename(query.folder / "commits" / "4")
    (root / "used" / "offsets").mkdir(parents=True)
    (root / "used" / "offsets" / "0").write_text("v1\n{}\n0")
    with pytest.raises(UsageError, match="another query"):
        statelog.fork(root / "state", root / "n", new_checkpoint_location=root / "used")
    (query.folder / "metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(CheckpointError, match="is the checkpointLocation of query another"):
        forked(query, "third")
    made = statelog.fork(root / "state", root / "fourth", state_only=True)
    assert made.query is None
    assert BatchRecord.of(find_checkpoint(location(query, "fourth"))).query_id == "q"
    assert not os.path.exists(root / "fourth" / "offsets")


def test_the_verbs(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    root = query.folder.parent
    state, new = str(root / "state"), str(root / "q2" / "statelog")
    assert run(["tag", state]) == 0
    assert "does not have tags" in capsys.readouterr().out
    assert run(["tag", state, "v1", "--checkpoint", "4", "--comment", "before [bold]7[/bold]"]) == 0
    assert "Checkpoint 4" in capsys.readouterr().out
    assert run(["fork", state, new, "--checkpoint", "v1"]) == 0
    shown = capsys.readouterr().out
    assert f"stateLocation       file://{new}" in shown
    assert f"checkpointLocation  file://{root}/q2\n" in shown
    assert run(["tag", state]) == 0
    shown = capsys.readouterr().out
    assert "before [bold]7[/bold]" in shown
    assert new in shown
    assert run(["tag", state, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["kind"], one["checkpoint_id"]) for one in found] == [("fork", 4), ("tag", 4)]
    assert found[1]["facts"]["comment"] == "before [bold]7[/bold]"
    assert run(["tag", state, "v1", "--remove"]) == 0
    assert "This was a dry run" in capsys.readouterr().out
    assert run(["tag", state, "v1", "--remove", "--apply", "--json"]) == 0
    removed = json.loads(capsys.readouterr().out)
    assert ("v1", False) == (removed["name"], removed["dry_run"])
    assert run(["tag", state, "v1", "--remove", "--apply"]) == 0
    assert "Nothing to remove: " in capsys.readouterr().out
    assert run(["tag", state, "v1", "--remove", "--apply", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint_id"] is None
    assert run(["tag", state, found[0]["name"], "--kind", "other", "--remove"]) == 2
    assert run(["tag", state, found[0]["name"], "--kind", "fork", "--remove", "--apply"]) == 0
    assert run(["verify", new]) == 1  # released, so it can no longer be read
    assert run(["fork", state, str(root / "x")]) == 2
    assert run(["fork", state, str(root / "q3" / "statelog"), "--json"]) == 0
    capsys.readouterr()


def test_a_secret_in_the_url_of_the_parent_is_not_stored(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocationStore, "url", property(lambda store: "sftp://***@host/totals"))
    with pytest.raises(UsageError, match="contains a secret"):
        forked(query, checkpoint_location=query.folder)


def test_the_same_tag_is_put_twice_and_is_one(query: Query) -> None:
    state = query.folder.parent / "state"
    made = statelog.tag(state, "v1", checkpoint=4, comment="release 7")
    assert statelog.tag(state, "v1", checkpoint=4, comment="release 7") == made
    with pytest.raises(UsageError, match="already"):
        statelog.tag(state, "v1", checkpoint=4, comment="release 8")
    with pytest.raises(UsageError, match="already"):
        statelog.tag(state, "v1", checkpoint=5, comment="release 7")
    assert statelog.tags(state) == [made]


def test_a_tag_whose_checkpoint_was_deleted_before_it_counted_is_deleted(query: Query) -> None:
    state = query.folder.parent / "state"
    path = PATHS.tag("tag", "late", 77, 0, "0" * 16)
    query.state.put(path, bytes(query.state.get(statelog.tag(state, "v1").path)))
    with pytest.raises(CheckpointError, match="checkpoint 77 does not exist"):
        statelog.tag(state, "late", checkpoint=77)
    assert [one.name for one in statelog.tags(state)] == ["v1"]


@pytest.mark.parametrize("verb", ["tag", "fork"])
def test_a_sink_that_is_about_to_take_its_rows_is_waited_for(
    query: Query, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, waits = query.folder / "commits" / "4", []
    content = done.read_text()
    done.unlink()

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            query.put("commits/4", content)

    monkeypatch.setattr(savepoints, "pause", pause)
    if verb == "fork":
        assert forked(query).batch_id == 4
    else:
        assert statelog.tag(query.folder.parent / "state", "v1").checkpoint_id == 5
    assert len(waits) == 3


def test_a_query_that_goes_on_while_its_sink_is_waited_for_is_tagged_later(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    (query.folder / "commits" / "4").unlink()

    def pause(seconds: float) -> None:
        batch = query.driver.next_checkpoint_id - 1
        query.run(batch, batch + 2)
        query.state.delete([PATHS.metadata(5)])

    monkeypatch.setattr(savepoints, "pause", pause)
    assert statelog.tag(query.folder.parent / "state", "v1").checkpoint_id == 8
