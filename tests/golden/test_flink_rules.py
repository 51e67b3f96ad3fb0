"""
Files of ours, read by Flink's rules.

`FlinkReader` below is Flink's reader written down from its description, and shares no code with
statelog: flag byte, Snappy's own framed decoder, skip to the offset, one change set.  It looks at
nothing else, so what statelog adds after the payload must not disturb it.
"""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import cramjam
import pytest
from tests.support.locations.checkpoints import batch_of

from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model import (
    ByteStreamStateHandle,
    ChangelogStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    StateChange,
)
from statelog.model.checkpoint import TaskStateSnapshot
from statelog.options import CheckpointOptions
from statelog.store import open_store

HERE = Path(__file__).parent


class FlinkReader:
    """Reads one change set at an offset, as Flink's StateChangeFormat does."""

    def __init__(self, file: bytes, offset: int) -> None:
        compressed = file[0] == 1
        payload = bytes(cramjam.snappy.decompress(file[1:])) if compressed else file[1:]
        self._stream = io.BytesIO(payload)
        self._stream.seek(offset)

    def _int(self) -> int:
        return int(struct.unpack(">i", self._stream.read(4))[0])

    def changes(self) -> list[StateChange]:
        found = []
        for _ in range(self._int()):
            count, key_group = self._int(), self._int()
            for _ in range(count):
                length = self._int()
                value = self._stream.read(length)
                assert length == len(value)
                found.append(StateChange(key_group, value))
        return found


def in_file_order(changes: list[StateChange]) -> list[StateChange]:
    return sorted(changes, key=lambda change: change.key_group)


SETS = [
    [StateChange(3, b"abc"), StateChange(-1, b"meta"), StateChange(3, b""), StateChange(0, b"x")],
    [StateChange(7, bytes([i % 251]) * 1000) for i in range(200)],
    [StateChange(i % 128, i.to_bytes(3, "big")) for i in range(1000)],
    [],
]


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "snappy"])
def test_every_set_of_a_changelog_file_is_read(compress: bool) -> None:
    writer = SegmentWriter(compress=compress)
    entries = [writer.add([batch_of(changes)]) for changes in SETS]
    file = b"".join(writer.finish())
    for entry, changes in zip(entries, SETS, strict=True):
        assert in_file_order(changes) == FlinkReader(file, entry.offset).changes()


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "snappy"])
def test_the_object_that_commits_a_checkpoint_is_such_a_file(compress: bool) -> None:
    store = open_store(f"memory://flink-rules-{compress}")
    coordinator = CheckpointCoordinator(
        store,
        owner_id="me",
        max_parallelism=128,
        options=CheckpointOptions(compress_metadata=compress),
        clock_ms=lambda: 0,
    )
    coordinator.claim()
    coordinator.restore()
    whole = KeyGroupRange(0, 127)
    coordinator.trigger(1, [whole])
    writer = SegmentWriter()
    entry = writer.add([batch_of(SETS[2])])
    inline = ByteStreamStateHandle("inline", b"".join(writer.finish()))
    log = ChangelogStateHandle(whole, (HandleAndOffset(inline, entry.offset),), 3000, 3000, "a", 1)
    coordinator.acknowledge(1, TaskStateSnapshot(whole, log))
    completed = coordinator.complete(1, properties={}, sections={b"OUTP": b"rows" * 100})
    (place,) = completed.log[0].handles_and_offsets
    file = bytes(store.get(place.handle.path))
    assert "chk-1/_metadata" == place.handle.path
    assert (1 if compress else 0) == file[0]
    assert in_file_order(SETS[2]) == FlinkReader(file, place.offset).changes()


@pytest.mark.parametrize("name", ["one_change", "meta_only", "empty_set"])
def test_where_the_order_of_groups_is_given_the_payload_is_flinks_to_the_byte(name: str) -> None:
    manifest = json.loads((HERE / f"{name}.json").read_text())
    golden = (HERE / manifest["file"]).read_bytes()
    foreign = parse_segment(golden)
    writer = SegmentWriter()
    for change_set in sorted(manifest["changeSets"], key=lambda each: each["offset"]):
        changes = FlinkReader(golden, change_set["offset"]).changes()
        writer.add([batch_of(changes)])
    ours = b"".join(writer.finish())
    assert golden == ours[: len(golden)]
    assert bytes(foreign.payload) == bytes(parse_segment(ours).payload)
