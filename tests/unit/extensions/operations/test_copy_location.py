"""Copies of a location: whole, verified, resumable, and never taken for whole before they are."""

import datetime as dt
import random
import shutil

import pytest
from tests.support.locations.checkpoints import ManualClock
from tests.support.locations.histories import GROUPS, History, local, rows_of

import statelog
from statelog.checkpoint import CheckpointCoordinator, CheckpointOptions
from statelog.checkpoint.clean_up import collect_garbage, reachable_objects
from statelog.checkpoint.history import Entries
from statelog.checkpoint.restore import find_checkpoint
from statelog.checkpoint.retained import Tag, TagKind, list_tags
from statelog.checkpoint.tags import put_tag, read_tag
from statelog.checkpoint.verify import verify_location
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    ObjectNotFoundError,
    StatelogError,
    StoreError,
    UsageError,
)
from statelog.extensions.operations.copy_location import CopyProgress, copy_location
from statelog.state.reader import StateReader
from statelog.store import PATHS, open_existing_store
from statelog.store.paths import parse_copy_folder
from statelog.testing.faulty_store import Fault, FaultKind, FaultyStore

pytestmark = pytest.mark.job


class Target(FaultyStore):
    """A store whose operations fail at random, and whose URL is its own."""

    def __init__(self, seed: object = None, rate: float = 0.0) -> None:
        super().__init__()
        self.rng, self.rate = random.Random(str(seed)), rate
        self.puts: list[str] = []

    @property
    def url(self) -> str:
        return "faulty://copy"

    def put(self, path, data):
        self._draw()
        super().put(path, data)
        self.puts.append(path)

    def get(self, path):
        self._draw()
        return super().get(path)

    def _draw(self) -> None:
        kinds = [FaultKind.ERROR, FaultKind.TORN, FaultKind.LOST_ANSWER]
        if self.rng.random() < self.rate:
            self.next_fault = Fault(self.rng.choice(kinds))


def history(seed: object, batches: int = 5) -> History:
    made = History(f"copy {seed}", FaultyStore())
    made.run(batches)
    return made


def states(store, checkpoint_id: int) -> dict:
    reader = StateReader(store, find_checkpoint(store, checkpoint_id))
    return {
        variable.name: rows_of(reader.table(variable.name, include_expired=True))
        for variable in reader.variables()
    }


def copied(source, target, **options):
    options = {"parallelism": 1, "pause": lambda seconds: None, **options}
    return copy_location(source, target, **options)


def check_whole(source, target, ids) -> None:
    """Check that the copy has the retained checkpoints of the source, and nothing is damaged."""
    for checkpoint_id in ids:
        assert states(target, checkpoint_id) == states(source, checkpoint_id)
    findings = list(verify_location(target))
    assert findings
    assert not [item for item in findings if item.problem]
    marked = reachable_objects(target)
    assert marked is not None
    assert marked <= set(target.objects)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_has_the_same_state_at_every_retained_checkpoint(seed):
    made = history(seed)
    newest = Entries(made.store).newest()
    target = Target()
    seen: list[CopyProgress] = []
    report = copied(made.store, target, on_progress=seen.append, parallelism=3)
    assert report.checkpoints == newest.retained
    check_whole(made.store, target, newest.retained)
    for path in target.objects:
        if path != PATHS.metadata(0) and parse_copy_folder(path) is None:
            assert target.objects[path] == made.store.objects[path]
    assert report.objects == report.copied == len(seen) == seen[-1].objects_done
    assert seen[-1].bytes_done == report.size_bytes == report.copied_bytes
    # Metadata objects are last, and the newest is the first of them.
    order = [path for path in target.puts if path.endswith("/_metadata")]
    assert target.puts[-len(order) :] == order
    # The claim of the copy says that the newest one is next.
    assert order[:2] == [PATHS.metadata(0), PATHS.metadata(newest.checkpoint_id)]
    again = copied(made.store, target)
    assert (again.copied, again.objects) == (0, report.objects)


@pytest.mark.parametrize("seed", range(6))
def test_an_interrupted_copy_continues_and_never_looks_complete(seed):
    made = history(f"interrupted {seed}")
    newest = Entries(made.store).newest()
    target = Target()
    rng = random.Random(seed)
    stops = 0
    for _ in range(100):
        left = rng.randrange(3)

        def stop(progress):
            nonlocal left
            left -= progress.copied > 0
            if left < 0:
                raise KeyboardInterrupt

        try:
            report = copied(made.store, target, on_progress=stop)
            break
        except KeyboardInterrupt:
            stops += 1
        complete = Entries(target).newest()
        assert complete is None or complete.checkpoint_id == newest.checkpoint_id
        if rng.random() < 0.3:
            made.run(1)  # the query goes on, and cleans up
            newest = Entries(made.store).newest()
        if rng.random() < 0.5 and target.objects:  # half an object, as after a power failure
            path = rng.choice(sorted(target.objects))
            target.objects[path] = target.objects[path][: len(target.objects[path]) // 2]
            if parse_copy_folder(path) or path.endswith("/_metadata"):
                assert_refused_or_empty(target)
        if complete is not None:  # of an older call maybe, and complete from here on
            break
    report = copied(made.store, target)
    assert stops
    check_whole(made.store, target, report.checkpoints)
    assert report.checkpoints == Entries(made.store).newest().retained


def assert_refused_or_empty(target) -> None:
    """A copy with half a metadata object is refused by readers."""
    if any(path.endswith("/_metadata") for path in target.objects):
        try:
            Entries(target).newest()
        except StatelogError:
            return


@pytest.mark.parametrize("seed", range(6))
def test_faults_of_the_target_are_repeated_or_reported(seed):
    made = history(f"faults {seed}")
    target = Target(seed, rate=0.15)
    failures = 0
    for _ in range(60):
        try:
            report = copied(made.store, target)
            break
        except StoreError:
            failures += 1
    else:
        raise AssertionError("the copy never ends")
    target.rate = 0
    check_whole(made.store, target, report.checkpoints)


def test_an_older_checkpoint_is_the_newest_of_its_copy():
    for seed in range(5):
        made = history(f"older {seed}")
        newest = Entries(made.store).newest()
        wanted = newest.retained[1]
        target = Target()
        report = copied(made.store, target, checkpoint_id=wanted)
        assert report.checkpoints == newest.retained[:2]
        check_whole(made.store, target, report.checkpoints)
        assert Entries(target).newest().retained == report.checkpoints
        assert copied(made.store, target, checkpoint_id=wanted).copied == 0
        # The whole location may follow, and gives the older checkpoint its own record back.
        whole = copied(made.store, target)
        check_whole(made.store, target, whole.checkpoints)
        path = PATHS.metadata(wanted)
        assert target.objects[path] == made.store.objects[path]
        with pytest.raises(UsageError, match="which is newer than checkpoint"):
            copied(made.store, target, checkpoint_id=wanted)
    with pytest.raises(CheckpointError, match="checkpoint 100 does not exist"):
        copied(made.store, Target(), checkpoint_id=100)


def test_the_copy_continues_alone_and_is_protected_from_another_copy():
    made = history("goes on")
    target = Target()
    report = copied(made.store, target)
    owner = CheckpointCoordinator(
        target, owner_id="of the copy", max_parallelism=GROUPS,
        options=CheckpointOptions(retained=2), clock_ms=ManualClock(),
    )  # fmt: skip
    assert owner.claim() == report.checkpoints[-1] + 1
    assert owner.restore().checkpoint_id == report.checkpoints[-1]
    with pytest.raises(UsageError, match=r"has been claimed by a query since it was copied"):
        copied(made.store, target)
    made.coordinator.claim()  # the same number, of another owner
    with pytest.raises(UsageError, match="has been claimed"):
        copied(made.store, target)


def test_a_target_that_is_not_a_copy_is_rejected(tmp_path):
    made, other = history("one"), history("two")
    with pytest.raises(UsageError, match="cannot be copied onto itself"):
        copied(made.store, made.store)
    target = Target()
    target.objects.update(other.store.objects)
    with pytest.raises(UsageError, match="is a state location, not a copy"):
        copied(made.store, target)
    target = Target()
    without_checkpoint = local(tmp_path / "local")
    copied(made.store, target)
    (mark,) = filter(parse_copy_folder, target.objects)
    target.objects[mark] = b'{"version":2,"source":"s3://elsewhere/and/further"}'
    with pytest.raises(UsageError, match="is a copy of a different location"):
        copied(made.store, target)
    with pytest.raises(CheckpointError, match="does not contain a checkpoint"):
        copied(without_checkpoint, Target())


def test_damage_of_the_source_is_not_copied():
    for seed in range(5):
        made = history(f"damage {seed}")
        plan = [path for path in copied_paths(made.store) if not path.endswith("_metadata")]
        rng = random.Random(seed)
        path = rng.choice(plan or copied_paths(made.store)[:1])
        whole = made.store.objects[path]
        target = Target()
        for at in (rng.randrange(len(whole)), len(whole) - 3):  # the last eight bytes: the mark
            made.store.objects[path] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            with pytest.raises((CorruptionError, CheckpointError), match=path.replace("/", ".")):
                copied(made.store, target)
            assert path not in target.objects
        made.store.objects[path] = whole
        check_whole(made.store, target, copied(made.store, target).checkpoints)


def copied_paths(store) -> list[str]:
    target = Target()
    copied(store, target)
    whole = (path for path in target.objects if path != PATHS.metadata(0))
    return sorted(path for path in whole if parse_copy_folder(path) is None)


class Running(FaultyStore):
    """A source whose query commits and cleans up while it is copied."""

    def __init__(self, made: History, every: int) -> None:
        super().__init__()
        self.objects, self.made, self.left, self.every = made.store.objects, made, every, every

    def get(self, path):
        self.left -= 1
        if not self.left:
            self.left = self.every
            self.made.micro_batch()
        return super().get(path)


def test_the_query_of_the_source_may_run():
    for seed in range(4):
        made = history(f"running {seed}")
        target = Target()
        report = copied(Running(made, 25), target)
        check_whole(made.store, target, report.checkpoints[-1:])
    with pytest.raises(CheckpointError, match="raise its retainedCheckpoints"):
        copied(Running(history("fast"), 1), Target())


def test_garbage_collection_deletes_nothing_of_a_copy():
    made = history("garbage")
    target = Target()
    copied(made.store, target)
    late = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    report = collect_garbage(target, min_age=dt.timedelta(0), apply=True, now=late)
    assert (report.deleted, report.unknown) == ((), 0)
    with pytest.raises(ObjectNotFoundError):
        target.get("nothing")


def test_a_location_is_copied_by_url(tmp_path):
    made = History("by url", local(tmp_path / "a"))
    made.run(5)
    report = statelog.copy(tmp_path / "a", tmp_path / "b")
    with statelog.open(tmp_path / "b") as state:
        assert [
            checkpoint.checkpoint_id for checkpoint in state.checkpoints() if checkpoint.is_retained
        ] == list(report.checkpoints)


def test_tagged_checkpoints_are_copied_with_their_tags():
    made = history("tagged", 3)
    first = Entries(made.store).newest().checkpoint_id
    for kind, name in ((TagKind.TAG, "kept"), (TagKind.READER, "feed")):
        tag = Tag(kind=kind, name=name, checkpoint_id=first)
        put_tag(made.store, tag, clock_ms=lambda: 0, files={"offsets/1": b"position"})
    made.run(4)
    newest = Entries(made.store).newest()
    target = Target()
    report = copied(made.store, target)
    assert report.checkpoints[0] == first
    assert len(report.checkpoints) == 4
    check_whole(made.store, target, report.checkpoints)
    (tag,) = list_tags(target)
    assert (tag.kind, tag.name, tag.checkpoint_id) == (TagKind.TAG, "kept", first)
    assert read_tag(target, tag).files == {"offsets/1": b"position"}
    late = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    swept = collect_garbage(target, min_age=dt.timedelta(0), apply=True, now=late)
    assert (swept.deleted, swept.unknown) == ((), 0)
    assert newest.checkpoint_id in report.checkpoints


def test_the_copy_of_a_fork_is_whole(tmp_path):
    for seed in range(4):
        root = tmp_path / str(seed)
        made = History(f"fork {seed}", local(root / "parent"))
        made.run(4)
        newest = Entries(made.store).newest()
        statelog.fork(root / "parent", root / "fork", state_only=True)
        statelog.fork(root / "fork", root / "second", state_only=True)
        report = statelog.copy(root / "second", root / "copy")
        assert report.checkpoints == (newest.checkpoint_id,)
        assert report.parents == (f"file://{root / 'parent'}",)
        wanted = states(made.store, newest.checkpoint_id)
        assert not list(open_existing_store(root / "copy").list("parents"))
        assert statelog.copy(root / "second", root / "copy").copied == 0
        for name in ("parent", "fork", "second"):
            shutil.rmtree(root / name)
        copy = open_existing_store(root / "copy")
        assert states(copy, newest.checkpoint_id) == wanted
        assert not [finding for finding in verify_location(copy) if finding.problem]
