"""Published tables: every snapshot is the state of its checkpoint, whatever happens in between."""

import base64
import copy
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.locations import histories
from tests.support.locations.checkpoints import put_named_tag
from tests.support.locations.forked_query import sweep
from tests.support.locations.published_tables import KINDS, Published, checkpoints, pins
from tests.support.stores.killed_command import Killer

from statelog.checkpoint import verify_location
from statelog.checkpoint.retained import TagKind, delete_tag, list_tags, retained_checkpoints
from statelog.checkpoint.tags import find_tag
from statelog.cli.main import run
from statelog.errors import CheckpointError, StoreError, UnavailableError, UsageError
from statelog.extensions.publish import commands as publish_command
from statelog.extensions.publish.publisher import TablePublisher
from statelog.extensions.publish.table import Replacement
from statelog.model import KeyGroupRange
from statelog.state.heap import CLOCK_STEP_MS
from statelog.state.schema import StateDescriptor

pytestmark = pytest.mark.job

EVERY = KeyGroupRange(0, histories.GROUPS - 1)

Make = Callable[..., Published]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a maker of jobs with a table of each kind."""
    return lambda seed, root=tmp_path, **options: KINDS[request.param](seed, root, **options)


def batches_of(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> Callable[[KeyGroupRange, bool], None]:
    """
    Return a micro-batch that changes some key groups.

    One task writes a snapshot of all key groups, or six tasks write none, so that each key group has a log
    of its own.
    """
    history = published.history
    change, chance = history.change, history.rng.random
    monkeypatch.setattr(history.rng, "choices", lambda groups, k: [EVERY.start, EVERY.end])

    def micro_batch(key_groups: KeyGroupRange, snapshot: bool) -> None:
        def changed(codec: Any, state: Any, part: KeyGroupRange) -> Any:
            mine = part.intersection(key_groups)
            patch.setattr(history.rng, "random", chance)
            overlays = change(codec, state, mine) if len(mine) else {}
            patch.setattr(history.rng, "random", lambda: 0.0 if snapshot else 0.5)
            return overlays

        ranges = [EVERY] if snapshot else [KeyGroupRange(group, group) for group in EVERY]
        with monkeypatch.context() as patch:
            patch.setattr(history, "change", changed)
            patch.setattr(history, "ranges", lambda: iter(ranges))
            history.micro_batch()

    return micro_batch


CAMPAIGN = [pytest.param(seed, 20, marks=pytest.mark.campaign) for seed in range(100, 110)]


@pytest.mark.parametrize(("seed", "batches"), [(0, 5), (1, 5), (2, 5), *CAMPAIGN])
def test_every_snapshot_of_the_table_is_the_state_of_its_checkpoint(
    make: Make, seed: int, batches: int
) -> None:
    """Run a job, publish each so many of its checkpoints, and compare all."""
    rng = random.Random(f"publish {seed}")
    published = make(f"publish {seed}")
    publisher = published.publisher()
    count = 0
    for _ in range(batches):
        store, newest = published.history.store, published.history.checkpoint_id
        if rng.random() < 0.15 and newest >= 0:
            published.rewind(rng.choice(retained_checkpoints(store)))
        if rng.random() < 0.1:
            published.history.now_ms -= CLOCK_STEP_MS // 2  # what had expired may be there again
        published.history.run(rng.randrange(1, 3))
        newest = published.history.checkpoint_id
        if rng.random() < 0.2:
            put_named_tag(store, f"tag-{newest}", newest)
        tags = [tag for tag in list_tags(store) if tag.kind is TagKind.TAG]
        if tags and rng.random() < 0.2:
            delete_tag(store, rng.choice(tags))
        if rng.random() < 0.3:
            publisher = published.publisher()  # a process that begins without memory
        report = publisher.publish()
        count += len(report.published)
        assert report.checkpoint_id == newest
        assert pins(published) == {max(checkpoints(published))}
        if rng.random() < 0.5:
            published.check()
    published.check()
    assert all(finding.problem == "" for finding in verify_location(published.history.store))
    assert count >= batches


def test_a_checkpoint_that_is_not_newer_changes_nothing(make: Make, tmp_path: Path) -> None:
    def change_times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    published = make("again", retained=5)
    published.history.run(4)
    newest = published.history.checkpoint_id
    assert (newest,) == published.publish().published
    before = change_times()
    again = published.publish()
    assert ((), newest) == (again.published, again.checkpoint_id)
    with pytest.raises(CheckpointError, match="cannot follow it"):
        published.publish(checkpoint=newest - 1)
    assert before == change_times()


def test_a_table_has_one_location(make: Make, tmp_path: Path) -> None:
    published = make("first")
    published.history.run(2)
    published.publish()
    (tmp_path / "b").mkdir()
    other = make("second", tmp_path / "b")
    other.history.run(2)
    other.target = published.target
    with pytest.raises(UsageError, match="publish to a different table"):
        other.publish()


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("newer", [None, 0, 1])
def test_a_checkpoint_of_another_history_does_not_follow_one_of_its_number(
    make: Make, is_restarted: bool, newer: int | None, tmp_path: Path
) -> None:
    """After a backup was restored, the same numbers have other states, or none yet (None)."""
    published = make("restored", retained=4)
    backup = tmp_path / "backup"
    published.history.run(2)
    shutil.copytree(published.location, backup)
    model = copy.deepcopy(published.history.model)
    publisher = published.publisher()
    published.history.micro_batch()
    published.history.micro_batch()
    number = publisher.publish().checkpoint_id
    shutil.rmtree(published.location)
    shutil.copytree(backup, published.location)
    published.history.restart()
    published.history.model = model
    while newer is not None and published.history.coordinator.next_checkpoint_id <= number + newer:
        published.history.micro_batch()
    if is_restarted:
        publisher = published.publisher()
    for call in (publisher.publish, publisher.refresh):
        with pytest.raises(CheckpointError, match="publish to a different table") as refused:
            call()
        assert "not_newer" == refused.value.reason


def test_some_variables_are_published(make: Make) -> None:
    published = make("chosen")
    publisher = published.publisher(variables=["total", "counts"])
    count = 0
    for _ in range(8):
        published.history.micro_batch()
        publisher.publish()
        count += published.check(["total", "counts"])
    assert count > 0
    with pytest.raises(UsageError, match="not have a state variable 'none'"):
        published.publisher(variables=["none"]).publish()


def test_an_encrypted_location_is_published(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "k:" + base64.b64encode(bytes(32)).decode())
    monkeypatch.setenv("STATELOG_ENCRYPTION", "env:KEYS")
    published = make("encrypted")
    publisher = published.publisher()
    for _ in range(5):
        published.history.run(2)
        publisher.publish()
    published.check()


def test_a_wider_field_reads_in_old_snapshots(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(histories.FIELDS, "a", pa.int16())
    published = make("wider")
    for kind in (pa.int16(), pa.int32(), pa.int64()):
        monkeypatch.setitem(histories.FIELDS, "a", kind)
        published.history.evolve()
        published.history.micro_batch()
        published.history.micro_batch()
        published.publish()
    published.check()


def give_ttl(monkeypatch: pytest.MonkeyPatch, ttl_ms: int | None) -> None:
    """Let entries of all variables live that long, or for ever."""
    descriptor = histories.History.descriptor

    def with_ttl(history: histories.History, name: str) -> StateDescriptor:
        return replace(descriptor(history, name), ttl_ms=ttl_ms)

    monkeypatch.setattr(histories.History, "descriptor", with_ttl)


def test_a_rewind_below_a_snapshot_is_published(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a snapshot that were deleted from the table are rows again."""
    published = make("rewound", retained=2)
    publisher, micro_batch = published.publisher(), batches_of(published, monkeypatch)
    for _ in range(3):
        micro_batch(EVERY, True)
        older = published.history.checkpoint_id
        micro_batch(KeyGroupRange(2, 3), False)
        publisher.publish()
        published.rewind(older)
        micro_batch(KeyGroupRange(4, 5), False)
        publisher.publish()
        published.check()


def test_the_command_publishes_and_follows(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "jöb 100% ☃"
    root.mkdir()
    published = make("command", root)
    call = ["publish", published.location, *published.arguments]
    published.history.run(3)
    assert 0 == run(call)
    first = published.history.checkpoint_id
    assert f"checkpoint {first} published in" in capsys.readouterr().out
    assert 0 == run(call)
    assert f" already contains checkpoint {first}" in capsys.readouterr().out
    assert 2 == run([*call, "--catalog-option", "token:hidden"])
    error = capsys.readouterr().err
    assert "KEY=VALUE" in error and "hidden" not in error
    assert 2 == run([*call, "--follow", "--checkpoint", "1"])

    pauses: list[float] = []
    commits: list[object] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise KeyboardInterrupt
        if len(pauses) < 3:
            published.history.run(1)

    def second_fails(commit: Callable[[], Any]) -> Any:
        commits.append(commit)
        if len(commits) == 2:
            raise published.broken
        return commit()

    capsys.readouterr()
    published.around_commits(monkeypatch, second_fails)
    monkeypatch.setattr(publish_command, "pause", pause)
    assert 130 == run([*call, "--json", "--follow", "--interval", "0.5"])
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [[], [first + 1], [first + 2]] == [line["published"] for line in lines]
    assert "the line broke" in said.err, "an error of the catalog does not end it"
    assert [0.5] * 4 == pauses
    published.check()


# --- faults


@pytest.mark.parametrize("is_conflict", [False, True])
def test_a_lost_answer_to_a_commit_heals(
    make: Make, is_conflict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeded; its client repeats it and meets its own, or reports an error."""
    published = make("lost")
    publisher = published.publisher()
    lost: list[object] = []

    def with_lost_answer(commit: Callable[[], Any]) -> Any:
        answer = commit()
        if len(lost) < 3:
            lost.append(answer)
            raise published.conflict if is_conflict else published.broken
        return answer

    published.around_commits(monkeypatch, with_lost_answer)
    for _ in range(5):
        published.history.run(1)
        assert (published.history.checkpoint_id,) == publisher.publish().published
    assert 3 == len(lost)
    assert pins(published) == {max(checkpoints(published))}
    published.check()


def test_a_commit_that_failed_is_repeated(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error ends the call; after several conflicts the publisher gives up."""
    published = make("failed")
    publisher = published.publisher()
    published.history.run(2)
    publisher.publish()
    for failure, error, message in (
        (published.broken, StoreError, "the line broke"),
        (published.conflict, UnavailableError, "let only one process publish"),
    ):

        def fail(_: object, failure: Exception = failure) -> None:
            raise failure

        with monkeypatch.context() as patch:
            published.around_commits(patch, fail)
            for _ in range(2):
                published.history.run(1)
                with pytest.raises(error, match=message):
                    publisher.publish()
        assert (published.history.checkpoint_id,) == publisher.publish().published
        published.check()
    published.history.run(1)
    publisher.publish()
    assert pins(published) == {max(checkpoints(published))}


def test_only_changed_key_groups_are_written(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    give_ttl(monkeypatch, None)
    published = make("groups", retained=9)
    publisher, micro_batch = published.publisher(), batches_of(published, monkeypatch)
    micro_batch(EVERY, True)
    publisher.publish()
    for group in EVERY:
        micro_batch(KeyGroupRange(group, group), False)
        report = publisher.publish()
        expected = published.expected(published.history.checkpoint_id, None)
        keys = {key for rows in expected.values() for key in rows}
        assert report.row_count == len(keys)
        assert report.written_rows == len([key for key in keys if histories.group_of(key) == group])
        published.check()


def test_after_a_deleted_checkpoint_the_whole_state_is_published(make: Make) -> None:
    published = make("gone", retained=1)
    published.history.run(4)
    published.publish()
    for old in list_tags(published.history.store):
        delete_tag(published.history.store, old)
    published.history.run(12)
    sweep(published.history.store)
    published.publish()
    published.check()


def test_tagged_checkpoints_are_published_and_retained(make: Make) -> None:
    published = make("tags")
    published.history.run(3)
    tagged = published.history.checkpoint_id
    put_named_tag(published.history.store, "release", tagged)
    published.history.run(3)
    report = published.publish(retain=1)
    assert (tagged, published.history.checkpoint_id) == report.published
    assert {"release": tagged} == report.tags
    versions = {snapshot: checkpoint for checkpoint, snapshot in report.versions.items()}
    assert published.snapshots() == versions
    published.check()
    published.history.run(1)
    assert {tagged, published.history.checkpoint_id} == {*published.publish(retain=1).versions}
    delete_tag(published.history.store, find_tag(published.history.store, "release", TagKind.TAG))
    published.history.run(1)
    assert {} == published.publish(retain=1).tags
    assert {published.history.checkpoint_id} == checkpoints(published)
    assert set() == published.orphans()
    published.check()


def test_two_publishers_alternate(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    published = make("two")
    publishers = [published.publisher(), published.publisher()]
    reader = Replacement.reader
    interfering = False

    def with_another(rows: Replacement) -> pa.RecordBatchReader:
        nonlocal interfering
        if not interfering:
            interfering = True
            published.history.run(1)
            publishers[1].publish()  # it commits before the commit of the first one
        return reader(rows)

    monkeypatch.setattr(Replacement, "reader", with_another)
    for _ in range(6):
        published.history.run(1)
        publishers[0].publish()
        interfering = False
        publishers.reverse()
        assert pins(published) == {max(checkpoints(published))}
        published.check()


@pytest.mark.campaign
def test_a_killed_publication_continues(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of the location, of the files of the table and of the catalog is the last one."""
    import deltalake
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

    killer = Killer()
    killer.install(monkeypatch)
    for owner, name in (
        (SqlCatalog, "commit_table"),
        (SqlCatalog, "create_table"),
        (PyArrowFile, "create"),
        (PyArrowFileIO, "delete"),
        (deltalake, "write_deltalake"),
        (deltalake.DeltaTable, "vacuum"),
    ):
        act = getattr(owner, name)

        def counted(*arguments: Any, act: Any = act, **more: Any) -> Any:
            return killer.change(lambda: act(*arguments, **more))

        monkeypatch.setattr(owner, name, counted)
    published = make("killed")
    kills = 0
    for _ in range(4):
        published.history.run(1)
        limit = 0
        while killer.run(lambda: published.publish(retain=2), limit) is None:
            limit += 1
            kills += 1
            sweep(published.history.store)  # deletes nothing that the next attempt needs
            published.check()
        published.check()
        assert pins(published) == {max(checkpoints(published))}
        assert 2 >= len(checkpoints(published))
    assert kills > 12


def test_a_checkpoint_deleted_during_the_publication_is_replaced_by_a_newer_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = make("overtaken", retained=1)
    published.history.run(3)
    rows, micro_batch = TablePublisher._rows, batches_of(published, monkeypatch)
    overtaken = 0

    def slow(publisher: TablePublisher, *arguments: Any) -> Any:
        nonlocal overtaken
        if overtaken < 2:
            overtaken += 1
            micro_batch(EVERY, True)
            micro_batch(EVERY, True)
            sweep(published.history.store)
        return rows(publisher, *arguments)

    monkeypatch.setattr(TablePublisher, "_rows", slow)
    assert published.history.checkpoint_id < published.publish().checkpoint_id
    assert {published.history.checkpoint_id} == checkpoints(published) == pins(published)
    published.check()
