"""The bytes of `_metadata`: nothing lost, small, and damage always told."""

import random

import pytest
from hypothesis import given, settings
from tests.support.locations.checkpoints import (
    log_inline,
    read_log,
    record_of,
    small_checkpoint,
    started,
)
from tests.support.strategies import checkpoints

from statelog.errors import CorruptionError, IncompatibleFormatError, UsageError
from statelog.format import checkpoint_metadata
from statelog.format.change_set import decode_change_set, group_index
from statelog.format.checkpoint_metadata import OUTPUT_TAG, write_metadata
from statelog.format.checkpoint_record import CHECKPOINT_TAG, decode_record, encode_record
from statelog.format.segment import parse_segment
from statelog.model import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    MaterializedHandle,
    split_key_groups,
)
from statelog.store import open_store

ALL = KeyGroupRange(0, 7)


def file_of(record, **more) -> bytes:
    written = write_metadata(record, "chk-41/_metadata", **more)
    return b"".join(bytes(piece) for piece in written.buffers)


def in_full(checkpoint):
    """All fields, also those that equality of handles leaves out."""
    return (
        [handle.to_json() for handle in checkpoint.log],
        [(snapshot, snapshot.handle.to_json()) for snapshot in checkpoint.materialized],
    )


@settings(max_examples=150, deadline=None)
@given(checkpoints())
def test_a_record_comes_back_as_it_was(checkpoint):
    back = decode_record(encode_record(checkpoint))
    assert back == checkpoint
    assert in_full(back) == in_full(checkpoint)


def test_odd_handles_come_back_as_they_were():
    record = record_of(
        log=[
            ChangelogStateHandle(
                ALL,
                (
                    HandleAndOffset(FileStateHandle("a", 5, 9), 3),
                    HandleAndOffset(FileStateHandle("a", 5, None), 0, 2, 0),
                    HandleAndOffset(ByteStreamStateHandle("i", b"\x00\xff"), 1, 1, 2**32 - 1),
                ),
                -1,
                0,
                'ä\u2028"',
                7,
                "memory",
            ),
            ChangelogStateHandle(ALL, (), 0, 0, "", 8),
        ],
        materialized=[MaterializedHandle(ALL, 8, ByteStreamStateHandle("n", bytes(range(256))))],
        parent_id=None,
        properties={"a": [1, None, {"b": 1.5}], "c": True},
    )
    back = decode_record(encode_record(record))
    assert back == record
    assert in_full(back) == in_full(record)


def test_a_log_entry_costs_at_most_forty_bytes():
    dice = random.Random(1)
    log = []
    for checkpoint_id in range(1, 101):
        offset = 0
        for key_groups in split_key_groups(128, 4):
            size = dice.randrange(1000, 3000)
            name = f"{dice.getrandbits(128):032x}"
            file = FileStateHandle(f"chk-{checkpoint_id}/_metadata", 9000 + checkpoint_id)
            entry = HandleAndOffset(file, offset, size + 300, dice.getrandbits(32))
            log.append(ChangelogStateHandle(key_groups, (entry,), size, size, name, checkpoint_id))
            offset += size + 300
    assert len(encode_record(record_of(log))) / len(log) <= 40


@pytest.mark.parametrize("compress", [True, False])
def test_the_file_is_a_changelog_file(compress):
    log = [log_inline(ALL, [[(1, b"a"), (-1, b"m")], [(2, b"b" * 500)]], 40)]
    written = write_metadata(
        record_of(log),
        "chk-41/_metadata",
        compress=compress,
        sections={OUTPUT_TAG: b"rows", b"MORE": b""},
    )
    data = b"".join(bytes(piece) for piece in written.buffers)
    segment = parse_segment(data)
    assert segment.compressed is compress
    assert segment.trailer.sections[OUTPUT_TAG] == b"rows"
    assert segment.trailer.sections[b"MORE"] == b""
    assert decode_record(segment.trailer.sections[CHECKPOINT_TAG]) == written.checkpoint
    groups = [change_set.groups for change_set in segment.trailer.sets]
    assert [[-1, 1], [2]] == [[group.key_group for group in of_set] for of_set in groups]
    [handle] = written.checkpoint.log
    assert {entry.handle.path for entry in handle.handles_and_offsets} == {"chk-41/_metadata"}
    assert handle.state_handle_id == log[0].state_handle_id
    store = open_store("memory://metadata-format")
    store.put("chk-41/_metadata", data)
    assert read_log(store, [handle], metadata=True) == [(-1, b"m"), (1, b"a"), (2, b"b" * 500)]


def test_inline_bytes_without_a_trailer_are_taken_too():
    log = log_inline(ALL, [[(5, b"x"), (2, b"yy"), (5, b"z")]])
    [entry] = log.handles_and_offsets
    bare = ByteStreamStateHandle("bare", entry.handle.data[: 1 + entry.size_bytes])
    log = ChangelogStateHandle(ALL, (HandleAndOffset(bare, 0),), 4, 4, "h", 40)
    segment = parse_segment(file_of(record_of([log])))
    [change_set] = segment.trailer.sets
    assert (change_set.size_bytes, change_set.crc32c) == (entry.size_bytes, entry.crc32c)
    assert [(g.key_group, g.count) for g in change_set.groups] == [(2, 1), (5, 2)]
    assert 4 + sum(g.size_bytes for g in change_set.groups) == change_set.size_bytes


def test_a_commit_decodes_no_set_whose_groups_a_trailer_has(monkeypatch):
    decoded = []

    def counted(payload, offset, **more):
        decoded.append(offset)
        return decode_change_set(payload, offset, **more)

    monkeypatch.setattr(checkpoint_metadata, "decode_change_set", counted)
    sets = [[(5, b"x"), (2, b"yy"), (5, b"z"), (-1, b"m")], [(1, b"")], [(7, b"b" * 5000)]]
    log = log_inline(ALL, sets)
    segment = parse_segment(file_of(record_of([log])))
    assert [] == decoded
    assert len(sets) == len(segment.trailer.sets)
    for change_set in segment.trailer.sets:
        batch = decode_change_set(segment.payload, change_set.offset).batch
        assert group_index(batch) == change_set.groups
    [entry, *_] = log.handles_and_offsets
    bare = ByteStreamStateHandle("bare", entry.handle.data[: 1 + entry.size_bytes])
    file_of(record_of([ChangelogStateHandle(ALL, (HandleAndOffset(bare, 0),), 4, 4, "h", 40)]))
    assert [0] == decoded


def test_damaged_inline_bytes_are_never_committed():
    log = log_inline(ALL, [[(1, b"abc")]])
    [entry] = log.handles_and_offsets
    data = bytearray(entry.handle.data)
    data[17] ^= 1
    inline = ByteStreamStateHandle("i", bytes(data[: 1 + entry.size_bytes]))
    entry = HandleAndOffset(inline, 0, entry.size_bytes, entry.crc32c)
    log = ChangelogStateHandle(ALL, (entry,), 3, 3, "h", 40)
    with pytest.raises(CorruptionError, match="checksum does not match the acknowledgement"):
        file_of(record_of([log]))


def test_large_sections_make_the_file_plain():
    rows = bytes(17 * 2**20)
    data = file_of(record_of(), compress=True, sections={OUTPUT_TAG: rows})
    segment = parse_segment(data)
    assert not segment.compressed
    assert segment.trailer.sections[OUTPUT_TAG] == rows


@pytest.mark.parametrize("tag", [b"CKPT", b"SETS", b"FRAM", b"LONGER", b""])
def test_reserved_tags_are_refused(tag):
    with pytest.raises(UsageError, match="section tag"):
        file_of(record_of(), sections={tag: b""})


def test_properties_must_be_json():
    with pytest.raises(UsageError, match="not JSON"):
        encode_record(record_of(properties={"a": object()}))


@pytest.mark.parametrize("header", [b"\x00\x04\x01\x00", b"\x00\x03\x07\x00", b"\x00\x03\x01\x02"])
def test_a_newer_record_is_not_called_damaged(header):
    body = header + encode_record(record_of())[4:]
    with pytest.raises(IncompatibleFormatError, match="upgrade statelog"):
        decode_record(body, where="chk-2/_metadata")


def test_any_cut_or_flip_of_a_record_is_detected():
    body = encode_record(record_of([log_inline(ALL, [[(1, b"a")]])]))
    for end in range(len(body)):
        with pytest.raises(CorruptionError):
            decode_record(body[:end])
    for position in range(8, len(body)):
        damaged = bytearray(body)
        damaged[position] ^= 0x55
        try:  # the trailer's checksum finds it; here it may only not end in another error
            decode_record(bytes(damaged))
        except CorruptionError:
            pass


@pytest.mark.parametrize("compress_metadata", [True, False])
def test_any_flip_in_the_file_is_detected(compress_metadata):
    store = open_store("memory://flips")
    store.delete([info.path for info in store.list()])
    small_checkpoint(started(store, compress_metadata=compress_metadata), 1)
    data = bytes(store.get("chk-1/_metadata"))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        with pytest.raises((CorruptionError, IncompatibleFormatError)):
            segment = parse_segment(bytes(damaged))
            decode_record(segment.trailer.sections[CHECKPOINT_TAG] if segment.trailer else b"")
