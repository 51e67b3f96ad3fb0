"""
Flink 2.3.0 itself reads our files, and we read its.

Every read by Flink goes through the storage view that a recovering TaskManager uses: once straight
from the file, once through Flink's download cache, which takes the file apart in another way.

`STATELOG_FLINK_SEED=7 make flink` tells other stories; the seed is in the name of each test.
"""

import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.flink.flink import Flink, WrittenByFlink, handle_of
from tests.flink.stories import (
    Changes,
    Story,
    difference,
    flink_lines,
    in_file_order,
    random_set,
    tell,
)
from tests.support.locations.checkpoints import batch_of, log_inline, run_checkpoint, started

from statelog.changelog import (
    ChangelogOptions,
    DirectStateChangeUploadScheduler,
    FsStateChangelogStorage,
    StateChangeFsUploader,
)
from statelog.changelog.upload.scheduler import InlineStateChangeUploader
from statelog.format.segment import SegmentWriter
from statelog.model import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    StateChange,
    TaskStateSnapshot,
)
from statelog.model.key_group import split_key_groups
from statelog.options import MIB
from statelog.runtime.clock import RandomIds
from statelog.store import LocationPaths, open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEED = int(os.environ.get("STATELOG_FLINK_SEED", "2300"))
SEEDS = range(SEED, SEED + 6)
COMPRESS = pytest.mark.parametrize("compress", [False, True], ids=["plain", "snappy"])
NEVER_PREEMPTIVE = 1024 * MIB
WHOLE = KeyGroupRange(0, 32767)


def settings(compress: bool, preemptive_bytes: int = NEVER_PREEMPTIVE) -> dict[str, str]:
    """Options under Flink's keys, for both: writers that persist together share a file."""
    prefix = "state.changelog.dstl.dfs."
    return {
        f"{prefix}compression.enabled": str(compress).lower(),
        f"{prefix}preemptive-persist-threshold": f"{preemptive_bytes}b",
        f"{prefix}batch.persist-delay": "200ms",
    }


def files_of(handles: Iterable[ChangelogStateHandle]) -> set[str]:
    """Return the paths of all files that *handles* name."""
    return {
        entry.handle.path
        for handle in handles
        for entry in handle.handles_and_offsets
        if isinstance(entry.handle, FileStateHandle)
    }


def assert_flink_reads(
    flink: Flink, handles: list[ChangelogStateHandle], expected: list[Changes], folder: Path
) -> None:
    """Assert that Flink returns *expected* to the byte and in this order, in both its ways."""
    found = flink.read(handles, folder, folder / "scratch")
    assert difference(expected, found.local) == ""
    assert difference(expected, found.remote) == ""
    assert len(files_of(handles)) == found.cached_files


def assert_files_are_shared(handles: Iterable[tuple[int, ChangelogStateHandle]]) -> None:
    """Assert that some file holds sets of several writers; each handle comes with its writer."""
    users: dict[str, set[int]] = {}
    for writer, handle in handles:
        for path in files_of([handle]):
            users.setdefault(path, set()).add(writer)
    assert any(len(writers) > 1 for writers in users.values()), "each file had one writer only"


@COMPRESS
@pytest.mark.parametrize("seed", SEEDS)
def test_flink_reads_our_files(seed: int, compress: bool, flink: Flink, tmp_path: Path) -> None:
    story = Story(seed)
    options = ChangelogOptions.from_mapping(
        {**settings(compress), "changelog.batch.fixed-delay": "true"}
    )
    with FsStateChangelogStorage(tmp_path, options=options) as storage:
        handles = tell(story, storage)
    assert story.held.keys() == handles.keys()
    for key, handle in handles.items():
        assert len(story.held[key]) == len(handle.handles_and_offsets)
        assert handle.size_bytes == sum(len(c.value) for s in story.held[key] for c in s)
    expected = [
        [change for each in story.held[key] for change in in_file_order(each)] for key in handles
    ]
    assert_files_are_shared((writer, handle) for (_, writer), handle in handles.items())
    assert_flink_reads(flink, list(handles.values()), expected, tmp_path)


@pytest.mark.parametrize("threshold_bytes", [20_000, 100 * MIB], ids=["some", "all"])
def test_flink_reads_what_stayed_inline(threshold_bytes: int, flink: Flink, tmp_path: Path) -> None:
    story, ids = Story(SEED), RandomIds()
    uploader = StateChangeFsUploader(
        open_store(str(tmp_path)), paths=LocationPaths("job"), ids=ids, compress=True
    )
    inline = InlineStateChangeUploader(threshold_bytes, uploader, ids=ids)
    with FsStateChangelogStorage(
        tmp_path,
        options=ChangelogOptions(preemptive_persist_threshold_bytes=NEVER_PREEMPTIVE),
        scheduler=DirectStateChangeUploadScheduler(inline),
    ) as storage:
        handles = tell(story, storage)
    kinds = {
        type(entry.handle) for handle in handles.values() for entry in handle.handles_and_offsets
    }
    both = threshold_bytes < 100 * MIB
    assert kinds == ({ByteStreamStateHandle, FileStateHandle} if both else {ByteStreamStateHandle})
    expected = [
        [change for each in story.held[key] for change in in_file_order(each)] for key in handles
    ]
    assert_flink_reads(flink, list(handles.values()), expected, tmp_path)


@COMPRESS
def test_flink_reads_each_set_by_its_offset(compress: bool, flink: Flink, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    sets = [random_set(chance, WHOLE) for _ in range(30)]
    # Sets without changes, at both ends too.
    sets = [[], *(each for change_set in sets for each in (change_set, []))]
    # An index of groups that fills most of the one chunk which holds the trailer of a framed file.
    every_group = [StateChange(key_group, b"x") for key_group in WHOLE]
    sets[1:1] = [every_group] * (16 if compress else 2)
    handles, expected = written_by_hand(sets, compress, tmp_path)
    assert_flink_reads(flink, handles, expected, tmp_path)


def written_by_hand(
    sets: list[Changes], compress: bool, folder: Path
) -> tuple[list[ChangelogStateHandle], list[Changes]]:
    """Put *sets* into one file; return a handle on each, and one on some out of their order."""
    writer = SegmentWriter(compress=compress)
    placed = [writer.add([batch_of(changes)] if changes else []) for changes in sets]
    (folder / "by-hand").write_bytes(b"".join(writer.finish()))
    file = FileStateHandle("by-hand", writer.payload_size)
    entries = [HandleAndOffset(file, each.offset) for each in placed]
    # The sets that are all alike say nothing that the first and the last of them do not.
    numbers = [0, 1, 2, *range(len(sets) - 60, len(sets))]
    shuffled = random.Random(SEED).sample(numbers, 20)
    handles = [handle_of(WHOLE, [entries[number]], 0) for number in numbers]
    handles.append(handle_of(WHOLE, [entries[number] for number in shuffled], 0))
    expected = [in_file_order(sets[number]) for number in numbers]
    expected.append([change for number in shuffled for change in in_file_order(sets[number])])
    return handles, expected


@COMPRESS
def test_flink_reads_a_commit(compress: bool, flink: Flink, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    store = open_store(str(tmp_path))
    ranges = split_key_groups(128, 4)
    coordinator = started(store, max_parallelism=128, compress_metadata=compress)
    handles: list[ChangelogStateHandle] = []
    expected: list[Changes] = []
    for checkpoint_id in range(1, 4):
        sets = [[random_set(chance, each) for _ in range(3)] for each in ranges]
        snapshots = [
            TaskStateSnapshot(each, log_inline(each, of_task, checkpoint_id))
            for each, of_task in zip(ranges, sets, strict=True)
        ]
        rows = chance.randbytes(checkpoint_id * 2 * MIB)
        completed = run_checkpoint(coordinator, checkpoint_id, snapshots, sections={b"OUTP": rows})
        log = [handle for handle in completed.log if handle.checkpoint_id == checkpoint_id]
        assert {f"chk-{checkpoint_id}/_metadata"} == files_of(log)
        file = tmp_path / f"chk-{checkpoint_id}" / "_metadata"
        assert (1 if compress else 0) == file.read_bytes()[0]
        handles += log
        expected += [
            [change for one in of_task for change in in_file_order(one)] for of_task in sets
        ]
    assert_flink_reads(flink, handles, expected, tmp_path)


def read_ours(
    storage: FsStateChangelogStorage, handle: ChangelogStateHandle
) -> list[list[StateChange]]:
    """Return what statelog reads, set by set, after making sure that both readers agree."""
    whole = list(storage.read(handle))
    in_columns = [
        StateChange(*row)
        for batch in storage.read_batches(handle)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    entries = handle.handles_and_offsets
    sets = [list(storage.read(handle_of(WHOLE, [entry], 0))) for entry in entries]
    assert difference([whole], [in_columns]) == ""
    assert difference([whole], [[change for change_set in sets for change in change_set]]) == ""
    return sets


def read_half(storage: FsStateChangelogStorage, handle: ChangelogStateHandle) -> Changes:
    """Return what a task that owns the upper half of the key groups reads after a rescale."""
    key_groups = upper_half(handle)
    rescaled = handle.intersection(key_groups)
    assert rescaled is not None
    return [
        StateChange(row["key_group"], row["value"])
        for batch in storage.read_batches(rescaled, key_groups)
        for row in batch.to_pylist()
    ]


def upper_half(handle: ChangelogStateHandle) -> KeyGroupRange:
    start, end = handle.key_group_range.start, handle.key_group_range.end
    return KeyGroupRange((start + end + 1) // 2, end)


def write_with_flink(
    flink: Flink, story: Story, options: dict[str, str], folder: Path
) -> list[WrittenByFlink]:
    options = {**options, "state.changelog.dstl.dfs.base-path": folder.as_uri()}
    written = flink.write(flink_lines(story, options), folder, folder / "scratch")
    assert list(story.held) == [(each.checkpoint_id, each.writer) for each in written]
    return written


@COMPRESS
@pytest.mark.parametrize("seed", SEEDS)
def test_we_read_what_flink_wrote(seed: int, compress: bool, flink: Flink, tmp_path: Path) -> None:
    story = Story(seed)
    written = write_with_flink(flink, story, settings(compress), tmp_path)
    with FsStateChangelogStorage(tmp_path) as storage:
        for (key, expected), each in zip(story.held.items(), written, strict=True):
            sets = read_ours(storage, each.handle)
            ours = [change for change_set in sets for change in change_set]
            assert difference([each.changes], [ours]) == ""
            # Which group of a set comes first is Flink's secret, but for metadata.
            in_order = [[in_file_order(changes) for changes in side] for side in (expected, sets)]
            assert difference(*in_order) == "", key
            assert all(metadata_first(change_set) for change_set in sets), key
            mine = upper_half(each.handle)
            theirs = [one for one in each.changes if one.key_group == -1 or one.key_group in mine]
            assert difference([theirs], [read_half(storage, each.handle)]) == "", key
    assert_files_are_shared((each.writer, each.handle) for each in written)
    for path in files_of(each.handle for each in written):
        assert (1 if compress else 0) == (tmp_path / path).read_bytes()[0]


def metadata_first(changes: Changes) -> bool:
    return changes == sorted(changes, key=lambda change: change.key_group != -1)


@COMPRESS
def test_sets_that_writers_cut_by_themselves_are_read_by_the_other_side(
    compress: bool, flink: Flink, tmp_path: Path
) -> None:
    story = Story(SEED + 1)
    options = settings(compress, preemptive_bytes=50_000)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    ours.mkdir()
    written = write_with_flink(flink, story, options, theirs)
    with FsStateChangelogStorage(ours, options=ChangelogOptions.from_mapping(options)) as storage:
        handles = tell(story, storage)
    with FsStateChangelogStorage(theirs) as storage:
        read = [list(storage.read(each.handle)) for each in written]
    found = flink.read(list(handles.values()), ours, ours / "scratch")
    expected = [
        in_file_order([one for change_set in sets for one in change_set])
        for sets in story.held.values()
    ]
    for side in (read, found.local, found.remote):
        assert difference(expected, [in_file_order(changes) for changes in side]) == ""
    told = sum(len(sets) for sets in story.held.values())
    for made in (handles.values(), [each.handle for each in written]):
        assert told < sum(len(handle.handles_and_offsets) for handle in made)


def test_the_campaign_notices_a_changed_byte(flink: Flink, tmp_path: Path) -> None:
    """Flink checks nothing in a plain file: what it returns has to be looked at."""
    sets = [[StateChange(1, b"abc"), StateChange(2, b"def")] for _ in range(60)]
    handles, expected = written_by_hand(sets, False, tmp_path)
    assert_flink_reads(flink, handles, expected, tmp_path)
    file = tmp_path / "by-hand"
    file.write_bytes(file.read_bytes().replace(b"def", b"deg", 1))
    with pytest.raises(AssertionError):
        assert_flink_reads(flink, handles, expected, tmp_path)
