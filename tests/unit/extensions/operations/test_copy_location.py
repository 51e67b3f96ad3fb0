"""Copies of a location: whole, verified, resumable, and never taken for whole before they are."""

import contextlib
import itertools
import random
import shutil

import pytest
from tests.support.locations.checkpoints import coordinator, put_named_tag
from tests.support.locations.forked_query import sweep
from tests.support.locations.histories import GROUPS, History, local, rows_of

import statelog
from statelog.checkpoint.clean_up import reachable_objects
from statelog.checkpoint.history import Entries
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import TagKind, list_tags, retained_checkpoints
from statelog.checkpoint.tags import read_tag
from statelog.checkpoint.verify import verify_location
from statelog.errors import CheckpointError, CorruptionError, StatelogError, UsageError
from statelog.extensions.operations.copy_location import CopyProgress, copy_location
from statelog.state.reader import StateReader
from statelog.store import PATHS, open_existing_store
from statelog.store.paths import parse_copy_folder
from statelog.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.job


class Target(FaultyStore):
    """A store with a URL of its own, which notes what is put."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[str] = []

    @property
    def url(self) -> str:
        return "faulty://copy"

    def put(self, path, data):
        super().put(path, data)
        self.puts.append(path)


def source_of(seed: object, batches: int = 5) -> History:
    """Return a history whose location is copied."""
    history = History(f"copy {seed}", FaultyStore())
    history.run(batches)
    return history


def retained_by(history: History) -> tuple[int, ...]:
    return Entries(history.store).newest().retained


def states(store, checkpoint_id: int) -> dict:
    reader = StateReader(store, find_checkpoint(store, checkpoint_id))
    names = [variable.name for variable in reader.variables()]
    return {name: rows_of(reader.table(name, include_expired=True)) for name in names}


def copied(source, target, **options):
    options = {"parallelism": 1, "pause": lambda seconds: None, **options}
    return copy_location(source, target, **options)


def check_whole(source, target, ids) -> None:
    """Check that the copy has the retained checkpoints of the source, and nothing is damaged."""
    for checkpoint_id in ids:
        assert states(target, checkpoint_id) == states(source, checkpoint_id)
    findings = list(verify_location(target))
    assert findings
    assert not [finding for finding in findings if finding.problem]
    reachable = reachable_objects(target)
    assert reachable is not None
    assert reachable <= set(target.objects)


def check_without_garbage(target) -> None:
    garbage = sweep(target)
    assert (garbage.deleted, garbage.unknown) == ((), 0)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_has_the_same_state_at_every_retained_checkpoint(seed):
    source = source_of(seed)
    retained, target = retained_by(source), Target()
    progress: list[CopyProgress] = []
    report = copied(source.store, target, on_progress=progress.append, parallelism=3)
    assert report.checkpoints == retained
    check_whole(source.store, target, retained)
    for path in target.objects:
        if path != PATHS.metadata(0) and parse_copy_folder(path) is None:
            assert target.objects[path] == source.store.objects[path]
    assert report.objects == report.copied == len(progress) == progress[-1].objects_done
    assert progress[-1].bytes_done == report.size_bytes == report.copied_bytes
    # Metadata objects are last, and the newest is the first of them.
    order = [path for path in target.puts if path.endswith("/_metadata")]
    assert target.puts[-len(order) :] == order
    # The claim of the copy says that the newest one is next.
    assert order[:2] == [PATHS.metadata(0), PATHS.metadata(retained[-1])]
    check_without_garbage(target)
    again = copied(source.store, target)
    assert (again.copied, again.objects) == (0, report.objects)


@pytest.mark.parametrize("seed", range(6))
def test_an_interrupted_copy_continues_and_never_looks_complete(seed):
    source, target = source_of(f"interrupted {seed}"), Target()
    newest_id = retained_by(source)[-1]
    rng = random.Random(seed)
    stops = 0
    for _ in range(100):
        copies_left = rng.randrange(3)

        def stop(progress):
            nonlocal copies_left
            copies_left -= progress.copied > 0
            if copies_left < 0:
                raise KeyboardInterrupt

        try:
            copied(source.store, target, on_progress=stop)
            break
        except KeyboardInterrupt:
            stops += 1
        complete = Entries(target).newest()
        assert complete is None or complete.checkpoint_id == newest_id
        if rng.random() < 0.3:
            source.run(1)  # the query goes on, and cleans up
            newest_id = retained_by(source)[-1]
        if rng.random() < 0.5 and target.objects:  # half an object, as after a power failure
            path = rng.choice(sorted(target.objects))
            target.objects[path] = target.objects[path][: len(target.objects[path]) // 2]
            with contextlib.suppress(StatelogError):  # no other error
                Entries(target).newest()
        if complete is not None:  # of an older call maybe, and complete from here on
            break
    report = copied(source.store, target)
    assert stops
    check_whole(source.store, target, report.checkpoints)
    assert report.checkpoints == retained_by(source)


@pytest.mark.parametrize("seed", range(5))
def test_an_older_checkpoint_is_the_newest_of_its_copy(seed):
    source, target = source_of(f"older {seed}"), Target()
    retained = retained_by(source)
    older = retained[1]
    report = copied(source.store, target, checkpoint_id=older)
    assert report.checkpoints == retained[:2]
    check_whole(source.store, target, report.checkpoints)
    assert Entries(target).newest().retained == report.checkpoints
    assert copied(source.store, target, checkpoint_id=older).copied == 0
    # The whole location may follow, and gives the older checkpoint its own record back.
    whole = copied(source.store, target)
    check_whole(source.store, target, whole.checkpoints)
    path = PATHS.metadata(older)
    assert target.objects[path] == source.store.objects[path]
    with pytest.raises(UsageError, match="which is newer than checkpoint"):
        copied(source.store, target, checkpoint_id=older)
    with pytest.raises(CheckpointError, match="checkpoint 100 does not exist"):
        copied(source.store, Target(), checkpoint_id=100)


def test_the_copy_continues_alone_and_is_protected_from_a_second_copy():
    source, target = source_of("goes on"), Target()
    report = copied(source.store, target)
    owner = coordinator(target, "of the copy", max_parallelism=GROUPS, retained=2)
    assert owner.claim() == report.checkpoints[-1] + 1
    assert owner.restore().checkpoint_id == report.checkpoints[-1]
    with pytest.raises(UsageError, match=r"has been claimed by a query since it was copied"):
        copied(source.store, target)
    source.coordinator.claim()  # the same number, of a different owner
    with pytest.raises(UsageError, match="has been claimed"):
        copied(source.store, target)


def test_a_target_that_is_not_a_copy_is_rejected(tmp_path):
    source, target = source_of("one"), Target()
    with pytest.raises(UsageError, match="cannot be copied onto itself"):
        copied(source.store, source.store)
    target.objects.update(source_of("two").store.objects)
    with pytest.raises(UsageError, match="is a state location, not a copy"):
        copied(source.store, target)
    target = Target()
    copied(source.store, target)
    (mark,) = filter(parse_copy_folder, target.objects)
    target.objects[mark] = b'{"version":2,"source":"s3://elsewhere/and/further"}'
    with pytest.raises(UsageError, match="is a copy of a different location"):
        copied(source.store, target)
    with pytest.raises(CheckpointError, match="does not contain a checkpoint"):
        copied(local(tmp_path / "without checkpoint"), Target())


@pytest.mark.parametrize("seed", range(5))
def test_damage_of_the_source_is_not_copied(seed):
    source, rng = source_of(f"damage {seed}"), random.Random(seed)
    objects = source.store.objects
    paths = copied_paths(source.store)
    files = [path for path in paths if not path.endswith("_metadata")]
    path = rng.choice(files or paths[:1])
    whole, target = objects[path], Target()
    for at in (rng.randrange(len(whole)), len(whole) - 3):  # the last eight bytes: the mark
        objects[path] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises((CorruptionError, CheckpointError), match=path.replace("/", ".")):
            copied(source.store, target)
        assert path not in target.objects
    objects[path] = whole
    check_whole(source.store, target, copied(source.store, target).checkpoints)


def copied_paths(store) -> list[str]:
    target = Target()
    copied(store, target)
    paths = sorted(path for path in target.objects if path != PATHS.metadata(0))
    return [path for path in paths if parse_copy_folder(path) is None]


class Running(FaultyStore):
    """A source whose query commits and cleans up after every so many reads."""

    def __init__(self, history: History, reads: int) -> None:
        super().__init__()
        self.objects = history.store.objects
        self.history = history
        self.numbers = itertools.count(1)
        self.reads = reads

    def get(self, path):
        if next(self.numbers) % self.reads == 0:
            self.history.micro_batch()
        return super().get(path)


def test_the_query_of_the_source_may_run():
    for seed in range(4):
        source, target = source_of(f"running {seed}"), Target()
        report = copied(Running(source, 25), target)
        check_whole(source.store, target, report.checkpoints[-1:])
    with pytest.raises(CheckpointError, match="raise its retainedCheckpoints"):
        copied(Running(source_of("fast"), 1), Target())


def test_tagged_checkpoints_are_copied_with_their_tags():
    source, target = source_of("tagged", 3), Target()
    first = retained_by(source)[-1]
    for kind, name in ((TagKind.TAG, "kept"), (TagKind.READER, "feed")):
        put_named_tag(source.store, name, first, kind, files={"offsets/1": b"position"})
    source.run(4)
    report = copied(source.store, target)
    assert report.checkpoints[0] == first
    assert retained_by(source)[-1] in report.checkpoints
    assert len(report.checkpoints) == 4
    check_whole(source.store, target, report.checkpoints)
    (tag,) = list_tags(target)
    assert (tag.kind, tag.name, tag.checkpoint_id) == (TagKind.TAG, "kept", first)
    assert read_tag(target, tag).files == {"offsets/1": b"position"}
    check_without_garbage(target)


@pytest.mark.parametrize("seed", range(4))
def test_the_copy_of_a_fork_by_url_is_whole(seed, tmp_path):
    history = History(f"fork {seed}", local(tmp_path / "parent"))
    history.run(4)
    newest_id = retained_by(history)[-1]
    statelog.fork(tmp_path / "parent", tmp_path / "fork", state_only=True)
    statelog.fork(tmp_path / "fork", tmp_path / "second", state_only=True)
    report = statelog.copy(tmp_path / "second", tmp_path / "copy")
    assert report.checkpoints == (newest_id,)
    assert report.parents == (f"file://{tmp_path / 'parent'}",)
    expected = states(history.store, newest_id)
    assert not list(open_existing_store(tmp_path / "copy").list("parents"))
    assert statelog.copy(tmp_path / "second", tmp_path / "copy").copied == 0
    for name in ("parent", "fork", "second"):
        shutil.rmtree(tmp_path / name)
    copy = open_existing_store(tmp_path / "copy")
    assert retained_checkpoints(copy) == report.checkpoints
    assert states(copy, newest_id) == expected
    assert not [finding for finding in verify_location(copy) if finding.problem]
