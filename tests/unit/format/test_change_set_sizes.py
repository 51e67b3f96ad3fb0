"""A change set has the size it declares when it is written, and ends where it is said to end."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.support.changelogs import ALL, ScriptedStore
from tests.support.values.change_set_reader import iterate_change_set

from statelog import changelog as cl
from statelog.changelog.reader import read_change_batches, read_changes
from statelog.errors import CorruptionError, InvariantError
from statelog.format.buffers import checksum
from statelog.format.change_set import decode_change_set
from statelog.format.change_set_encoder import EncodedChangeSet, encode_change_set
from statelog.format.checkpoint_metadata import _inline_set
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model import (
    ByteStreamStateHandle,
    ChangeBatch,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    SequenceNumber,
    StateChangeSet,
)

LEFT_OVER = b"\x00\x00\x00\x00"


def batch(key_groups: list[int], values: list[bytes]) -> ChangeBatch:
    return ChangeBatch(np.array(key_groups, np.int32), pa.array(values, pa.binary()))


@pytest.mark.parametrize("values", [[b"a"], [b"a", b"bb", b"c"], []])
def test_columns_of_different_length_are_not_encoded(values):
    shifted = batch([1, 2], values)
    with pytest.raises(InvariantError, match=f"2 key groups but {len(values)} values"):
        encode_change_set([shifted])


@pytest.mark.parametrize("size_bytes", [0, 3, 5])
def test_a_set_that_declares_another_size_is_not_encoded(size_bytes):
    change_set = StateChangeSet(3, SequenceNumber(7), (batch([1, 2], [b"aa", b"bb"]),), size_bytes)
    with pytest.raises(InvariantError, match=f"set 7 of writer 3 declares {size_bytes}"):
        encode_change_set(change_set)
    assert encode_change_set(replace(change_set, size_bytes=4)).size_bytes


SETS = {
    "one length": batch([1, 1, 2], [b"abcd", b"efgh", b"ijkl"]),
    "lengths differ": batch([1, 1, 2], [b"a", b"bcd", b""]),
    "odd length": batch([1, 2], [b"abc", b"def"]),
    "empty": batch([], []),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("wrong", [-1, 1, 4])
def test_both_decoders_end_exactly_where_the_set_ends(name, wrong):
    encoded = encode_change_set([SETS[name]])
    payload = b"".join(bytes(buffer) for buffer in encoded.buffers) + LEFT_OVER
    size = encoded.size_bytes
    assert size == decode_change_set(payload, 0, size_bytes=size).end
    assert list(SETS[name]) == list(iterate_change_set(payload, 0, size_bytes=size))
    with pytest.raises(CorruptionError, match=f"{size + wrong} are recorded"):
        decode_change_set(payload, 0, size_bytes=size + wrong)
    with pytest.raises(CorruptionError, match=f"{size + wrong} are recorded"):
        list(iterate_change_set(payload, 0, size_bytes=size + wrong))


def with_left_over(sets: int, *, compress: bool) -> tuple[bytes, list[HandleAndOffset]]:
    """Return a file whose sets have bytes too many, under checksums that are right."""
    writer, entries = SegmentWriter(compress=compress), []
    handle = FileStateHandle("job/dstl/file", 0)
    for _ in range(sets):
        encoded = encode_change_set([SETS["lengths differ"]])
        buffers = (*encoded.buffers, LEFT_OVER)
        size = encoded.size_bytes + len(LEFT_OVER)
        longer = EncodedChangeSet(buffers, size, checksum(buffers), encoded.groups)
        at = writer.add_encoded(longer)
        entries.append(HandleAndOffset(handle, at.offset, at.size_bytes, at.crc32c))
    data = b"".join(bytes(piece) for piece in writer.finish())
    whole = FileStateHandle("job/dstl/file", writer.payload_size)
    return data, [replace(entry, handle=whole) for entry in entries]


def handle_on(entries: list[HandleAndOffset]) -> ChangelogStateHandle:
    return ChangelogStateHandle(
        key_group_range=ALL,
        handles_and_offsets=tuple(entries),
        size_bytes=0,
        incremental_size_bytes=0,
        state_handle_id="id",
        checkpoint_id=1,
    )


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("read", [read_changes, read_change_batches])
@pytest.mark.parametrize("how", ["all", "lone", "without size"])
def test_readers_refuse_leftover_bytes(compress, sets, read, how):
    data, entries = with_left_over(sets, compress=compress)
    store = ScriptedStore()
    store.objects["job/dstl/file"] = data
    if how == "lone":
        entries = entries[:1]
    elif how == "without size":
        entries = [replace(entry, size_bytes=None, crc32c=None) for entry in entries]
    with pytest.raises(CorruptionError, match="its changes end after"):
        list(read(store, handle_on(entries)))


def test_a_file_that_lost_its_trailer_is_held_to_the_size_in_the_handle():
    data, entries = with_left_over(2, compress=False)
    store = ScriptedStore()
    trailer = parse_segment(data).trailer
    assert trailer is not None
    store.objects["job/dstl/file"] = data[: trailer.start]
    with pytest.raises(CorruptionError, match="its changes end after"):
        list(read_changes(store, handle_on(entries)))


def test_inline_state_is_held_to_its_size():
    data, (entry,) = with_left_over(1, compress=False)
    stream = ByteStreamStateHandle("inline", data)
    entry = replace(entry, handle=stream)
    with pytest.raises(CorruptionError, match="its changes end after"):
        list(read_changes(ScriptedStore(), handle_on([entry])))
    segment = parse_segment(data)
    for index in (segment.sets_by_offset(), {}):
        with pytest.raises(CorruptionError, match="its changes end after"):
            _inline_set(segment, index, entry)


def test_a_shifted_column_is_never_acknowledged():
    """What is wrong in memory must fail the persist, not the restore."""
    with cl.FsStateChangelogStorage(ScriptedStore(), job_id="job") as storage:
        writer = storage.create_writer("op", ALL)
        writer._has_batches = True
        writer._add((None, (batch([1, 2], [b"a"]), 1)))
        error = writer.persist(SequenceNumber(0)).exception(20)
        assert isinstance(error, cl.UploadFailedError)
        assert "2 key groups but 1 values" in str(error)
