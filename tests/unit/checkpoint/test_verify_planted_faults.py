"""`verify` finds each of a list of planted faults, names it, and finds nothing on a sound tree."""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.locations.checkpoints import log_in_file, log_inline, run_checkpoint, started
from tests.support.locations.histories import History

from statelog.changelog.reader import read_changes
from statelog.checkpoint.history import Entries, read_checkpoint
from statelog.checkpoint.verify import SoundCheckpoints, VerifiedObject, verify_location
from statelog.format.buffers import checksum
from statelog.format.checkpoint_metadata import RESERVED_TAGS, write_metadata
from statelog.format.checkpoint_record import encode_record
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.format.trailer import FOOTER, MAGIC
from statelog.model import (
    OBJECTS_PROPERTY,
    CompletedCheckpoint,
    FileStateHandle,
    KeyGroupRange,
    MaterializedHandle,
    TaskStateSnapshot,
)
from statelog.store import PATHS
from statelog.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.campaign

ALL = KeyGroupRange(0, 7)


def output_of(store: FaultyStore, number: int) -> dict:
    """Put a file of staged rows; return the properties that name it."""
    data = f"staged rows {number}".encode()
    path = PATHS.output(f"rows-{number}")
    store.put(path, data)
    handle = FileStateHandle(path, len(data), checksum([data]))
    return {"output_files": [handle.to_json()], OBJECTS_PROPERTY: [path]}


@pytest.fixture(scope="module")
def tree() -> FaultyStore:
    """Return a location with log files, inline log, a snapshot and staged output; 3 of 5 retained."""
    store = FaultyStore()
    owner = started(store, retained=3)
    for number in range(1, 6):
        sets = [[(kg, f"{number}/{kg}/{i}".encode() * 9) for kg in (0, 3, 7)] for i in range(3)]
        others = [[(7, f"{number}/other {i}".encode() * 9)] for i in range(3)]
        halves = [
            TaskStateSnapshot(
                part,
                log_in_file(store, part, others if part.start else sets, number),
                snapshot_of(store, number, part) if number == 3 and part.start == 0 else None,
            )
            for part in (KeyGroupRange(0, 3), KeyGroupRange(4, 7))
        ]
        run_checkpoint(owner, number, halves, properties=output_of(store, number))
    owner.clean_up()
    return store


def snapshot_of(store: FaultyStore, number: int, part: KeyGroupRange) -> MaterializedHandle:
    data = parquet(part)
    path = PATHS.task_owned(f"snapshot-{number}-{part.start}")
    store.put(path, data)
    return MaterializedHandle(part, number, FileStateHandle(path, len(data), checksum([data])))


def parquet(part: KeyGroupRange) -> bytes:
    groups = [kg for kg in part for _ in range(5)]
    table = pa.table({"key_group": pa.array(groups, pa.int32()), "key.k": list(range(len(groups)))})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def planted(tree: FaultyStore) -> FaultyStore:
    store = FaultyStore()
    store.objects = dict(tree.objects)
    return store


def verified(store: FaultyStore) -> tuple[list[VerifiedObject], int | None]:
    sound = SoundCheckpoints()
    findings = []
    for item in verify_location(store):
        sound.add(item)
        if item.problem:
            findings.append(item)
    return findings, sound.newest


def needed(tree: FaultyStore) -> dict[str, set[int]]:
    """Return by object which retained checkpoints need it."""
    needed_by: dict[str, set[int]] = {}
    newest = Entries(tree).newest()
    assert newest is not None
    for checkpoint_id in newest.retained:
        checkpoint = read_checkpoint(tree, checkpoint_id).checkpoint
        for path in (PATHS.metadata(checkpoint_id), *checkpoint.referenced_paths()):
            needed_by.setdefault(path, set()).add(checkpoint_id)
    return needed_by


def names(tree: FaultyStore, kind: str) -> list[str]:
    return sorted(path for path in needed(tree) if path.startswith(kind))


def expect(tree: FaultyStore, store: FaultyStore, path: str, finding: str) -> VerifiedObject:
    """Check that exactly this object is found, and which checkpoint is the newest sound one."""
    findings, newest_sound = verified(store)
    assert [(path, finding)] == [(item.path, item.finding) for item in findings], findings
    sound = set(Entries(tree).newest().retained) - needed(tree)[path]
    assert max(sound, default=None) == newest_sound
    assert path in findings[0].problem or "checkpoint" in findings[0].problem
    return findings[0]


KINDS = ("chk-", "dstl/", "taskowned/", "output/")


def test_the_tree_is_sound_and_has_every_kind(tree):
    assert verified(tree) == ([], 5)
    items = list(verify_location(tree))
    assert {"checkpoint", "changelog", "snapshot", "other"} == {item.kind for item in items}
    assert set(needed(tree)) == {item.path for item in items}
    assert all(set(item.checkpoints) == needed(tree)[item.path] for item in items)


def places(size: int) -> Iterator[int]:
    """Yield positions in all regions: the first and last bytes, and some of all between."""
    yield from range(min(size, 6))
    yield from range(6, size, max(1, size // 23))
    yield from range(max(0, size - FOOTER.size - 30), size, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bit_flip_in_any_region_is_found(tree, kind):
    offsets = 0
    for path in names(tree, kind)[-2:]:
        for position in places(len(tree.objects[path])):
            store = planted(tree)
            content = bytearray(store.objects[path])
            content[position] ^= 1 << (position % 8)
            store.objects[path] = bytes(content)
            findings, newest_sound = verified(store)
            assert [path] == [finding.path for finding in findings], (path, position, findings)
            assert findings[0].finding in ("damaged", "newer")
            assert newest_sound not in needed(tree)[path]
            offsets += findings[0].offset is not None
    if kind == "dstl/":
        assert offsets > 10, "the damaged change set is named"


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_without_its_mark_is_read_and_found(compress):
    """It looks like a file of Flink; what handles say of its change sets is still right."""
    store = FaultyStore()
    owner = started(store)
    sets = [[(kg, bytes([kg]) * 900) for kg in (0, 3, 7)] for _ in range(2)]
    log = log_in_file(store, ALL, sets, compress=compress)
    run_checkpoint(owner, 1, [TaskStateSnapshot(ALL, log)])
    (path,) = names(store, "dstl/")
    whole = store.objects[path]
    changes = list(read_changes(store, log))
    for place, bit in itertools.product(range(1, 1 + len(MAGIC)), range(8)):
        content = bytearray(whole)
        content[-place] ^= 1 << bit
        store.objects[path] = bytes(content)
        assert changes == list(read_changes(store, log))
        assert "mark" in expect(store, store, path, "damaged").problem


def test_metadata_without_its_trailer_is_found():
    """Of a checkpoint that is not retained, but whose inline change sets are needed."""
    store = FaultyStore()
    owner = started(store, retained=1)
    for number in (1, 2):
        log = log_inline(ALL, [[(kg, bytes([kg]) * 900) for kg in (0, 3, 7)]], number)
        run_checkpoint(owner, number, [TaskStateSnapshot(ALL, log)])
    owner.clean_up()
    path = PATHS.metadata(1)
    assert needed(store)[path] == {2}
    trailer = parse_segment(store.objects[path]).trailer
    assert trailer is not None
    store.objects[path] = store.objects[path][: trailer.start]
    assert "truncated" in expect(store, store, path, "damaged").problem


STRANGER = b"".join(map(bytes, SegmentWriter().finish()))
FAULTS: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "cut short": lambda content: content[: int(len(content) * 0.99)],
    "missing": lambda content: None,
    "an image": lambda content: b"GIF89a" + bytes(100),
    "an empty changelog file": lambda content: STRANGER,
    "not a Parquet file": lambda content: b"PAR1 no PAR1",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_an_object_with_other_content_is_found(tree, kind, fault):
    # Without its newest checkpoint a location is one that ended before it.
    store, path = planted(tree), names(tree, kind)[0 if fault == "missing" else -1]
    content = FAULTS[fault](store.objects.pop(path))
    if content is not None:
        store.objects[path] = content
    expect(tree, store, path, "missing" if content is None else "damaged")


@pytest.mark.parametrize("kind", ["dstl/", "output/", "chk-"])
def test_swapped_objects_are_found(tree, kind):
    first, last = names(tree, kind)[-2:]
    store = planted(tree)
    store.objects[first], store.objects[last] = store.objects[last], store.objects[first]
    findings, newest_sound = verified(store)
    assert {first, last} == {finding.path for finding in findings}
    assert newest_sound not in needed(tree)[first] | needed(tree)[last]


def test_metadata_of_another_checkpoint_is_found(tree):
    store = planted(tree)
    store.objects[PATHS.metadata(5)] = store.objects[PATHS.metadata(4)]
    item = expect(tree, store, PATHS.metadata(5), "damaged")
    assert "contains checkpoint 4" in item.problem


def rewritten(
    tree: FaultyStore, checkpoint_id: int, change: Callable[[CompletedCheckpoint], object]
) -> FaultyStore:
    """Return the tree with metadata that another program wrote, with sound checksums."""
    store = planted(tree)
    stored = read_checkpoint(store, checkpoint_id)
    changed = change(copy.deepcopy(stored.checkpoint))
    assert isinstance(changed, CompletedCheckpoint)
    sections = {tag: data for tag, data in stored.sections.items() if tag not in RESERVED_TAGS}
    path = PATHS.metadata(checkpoint_id)
    written = write_metadata(changed, path, sections=sections)
    store.objects[path] = b"".join(map(bytes, written.buffers))
    return store


def test_a_wrong_checksum_in_a_handle_is_found(tree):
    paths = []

    def change(checkpoint: CompletedCheckpoint) -> CompletedCheckpoint:
        last = checkpoint.log[-1]
        entry = replace(last.handles_and_offsets[1], crc32c=7)
        paths.append(entry.handle.path)
        entries = (last.handles_and_offsets[0], entry, *last.handles_and_offsets[2:])
        last = replace(last, handles_and_offsets=entries)
        return replace(checkpoint, log=(*checkpoint.log[:-1], last))

    store = rewritten(tree, 5, change)
    item = expect(tree, store, paths[0], "damaged")
    assert item.offset is not None
    assert item.offset > 0


def test_a_gap_in_the_log_is_found(tree):
    for lost in (0, -3):  # a handle of the first checkpoint after the snapshot, and of the parent

        def change(checkpoint: CompletedCheckpoint, lost: int = lost) -> CompletedCheckpoint:
            log = list(checkpoint.log)
            del log[lost]
            return replace(checkpoint, log=tuple(log))

        store = rewritten(tree, 5, change)
        findings, newest_sound = verified(store)
        assert [PATHS.metadata(5)] == [finding.path for finding in findings]
        assert "does not contain the log of checkpoint" in findings[0].problem
        assert newest_sound == 4


def test_a_snapshot_of_wrong_key_groups_is_found(tree):
    data = parquet(KeyGroupRange(5, 6))

    def change(checkpoint: CompletedCheckpoint) -> CompletedCheckpoint:
        (snapshot,) = checkpoint.materialized
        handle = FileStateHandle(snapshot.handle.path, len(data), checksum([data]))
        return replace(checkpoint, materialized=(replace(snapshot, handle=handle),))

    store = planted(tree)
    for checkpoint_id in (3, 4, 5):
        store.objects[PATHS.metadata(checkpoint_id)] = rewritten(
            tree, checkpoint_id, change
        ).objects[PATHS.metadata(checkpoint_id)]
    (path,) = names(tree, "taskowned/")
    store.objects[path] = data
    findings, newest_sound = verified(store)
    assert [path] == [finding.path for finding in findings]
    assert "contains key groups 5 to 6, but the checkpoint records 0 to 3" in findings[0].problem
    assert newest_sound is None


def test_a_newer_version_is_not_called_damaged(tree):
    store = planted(tree)
    path = PATHS.metadata(5)
    stored = read_checkpoint(store, 5)
    body = bytearray(encode_record(stored.checkpoint))
    body[0:2] = (99).to_bytes(2, "big")
    writer = SegmentWriter()
    store.objects[path] = b"".join(map(bytes, writer.finish({b"CKPT": bytes(body)})))
    findings, newest_sound = verified(store)
    assert [(path, "newer")] == [(finding.path, finding.finding) for finding in findings]
    assert "upgrade statelog" in findings[0].problem
    assert newest_sound == 4


def test_a_half_written_checkpoint_is_no_finding_without_metadata(tree):
    store = planted(tree)
    store.objects["chk-6/exclusive-state"] = b"of a checkpoint that was not committed"
    assert verified(store) == ([], 5)
    store.objects[PATHS.metadata(6)] = store.objects[PATHS.metadata(5)][:100]
    findings, newest_sound = verified(store)
    assert [PATHS.metadata(6)] == [finding.path for finding in findings]
    assert newest_sound == 5


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_found_on_sound_histories(seed):
    """With snapshots of parts, other numbers of tasks, evolved schemas, and rewinds."""
    history = History(f"verify {seed}", FaultyStore())
    for _ in range(8):
        history.run(2)
        assert verified(history.store) == ([], history.checkpoint_id)


def test_a_cached_copy_is_verified_once_and_others_always(tree):
    from statelog.checkpoint import state_stream
    from statelog.errors import CorruptionError
    from statelog.store import CachedStore

    store = planted(tree)
    (path,) = names(tree, "taskowned/")
    data = store.objects[path]
    handle = FileStateHandle(path, len(data), checksum([data]))
    cached = CachedStore(store, 10**6)
    summed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_stream, "checksum", lambda pieces: summed.append(1) or checksum(pieces))
        for _ in range(3):
            assert bytes(state_stream.read_stream(cached, handle)) == data
        assert len(summed) == 1
        for _ in range(2):
            state_stream.read_stream(CachedStore(store, 1), handle)
        assert len(summed) == 3, "an object that is not kept is verified each time"
    with pytest.raises(CorruptionError, match="checksum"):
        state_stream.read_stream(cached, replace(handle, crc32c=7))
