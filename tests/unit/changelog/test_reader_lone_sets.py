"""One change set fetched by its position, where that is not where it lies."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.support.changelogs import ALL

from statelog.changelog.reader import read_changes
from statelog.format.segment import SegmentWriter
from statelog.format.trailer import SetEntry
from statelog.model import ChangeBatch, ChangelogStateHandle, FileStateHandle, HandleAndOffset
from statelog.store import open_store


def lone_set(file: FileStateHandle, at: SetEntry) -> ChangelogStateHandle:
    entry = HandleAndOffset(file, at.offset, at.size_bytes, at.crc32c)
    return ChangelogStateHandle(ALL, (entry,), 2000, 2000, "handle")


def test_a_set_behind_the_end_of_its_framed_file_is_read(tmp_path: Path) -> None:
    segment = SegmentWriter(compress=True)
    values = [b"a" * 200_000, b"b" * 2000, b"c" * 200_000]
    entries = [
        segment.add([ChangeBatch(np.array([3], np.int32), pa.array([value], pa.binary()))])
        for value in values
    ]
    store = open_store(str(tmp_path))
    store.put("dstl/framed", segment.finish())
    assert entries[1].offset > store.head("dstl/framed").size_bytes
    file = FileStateHandle("dstl/framed", segment.payload_size)
    assert [(3, values[1])] == list(read_changes(store, lone_set(file, entries[1])))
