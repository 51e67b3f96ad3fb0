"""Many small sets in one upload: time and memory that grow with their number, not faster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.changelog.helpers import ALL, ScriptedStore, handle_of

import statelog as sl
from statelog.changelog import reader
from statelog.format.segment import Segment, SetEntry, parse_segment

START = sl.SequenceNumber(0)


class CountingSets(tuple[SetEntry, ...]):
    """The index of a file, which counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Iterator[SetEntry]:
        CountingSets.walks += 1
        return super().__iter__()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(data: Any, *, where: str = "") -> Segment:
        segment = parse_segment(data, where=where)
        assert segment.trailer is not None
        sets = CountingSets(segment.trailer.sets)
        return dataclasses.replace(segment, trailer=dataclasses.replace(segment.trailer, sets=sets))

    monkeypatch.setattr(reader, "parse_segment", parse)
    CountingSets.walks = 0


def singly(storage: sl.FsStateChangelogStorage, handle: sl.ChangelogStateHandle) -> list[bytes]:
    return [change.value for change in storage.read(handle)]


def in_columns(storage: sl.FsStateChangelogStorage, handle: sl.ChangelogStateHandle) -> list[bytes]:
    return [value for each in storage.read_batches(handle) for value in each.column(1).to_pylist()]


@pytest.mark.parametrize("snappy", [False, True], ids=["plain", "snappy"])
@pytest.mark.parametrize("read", [singly, in_columns])
def test_the_index_of_a_file_is_walked_once_for_all_its_sets(
    counted: None,
    snappy: bool,
    read: Callable[[sl.FsStateChangelogStorage, sl.ChangelogStateHandle], list[bytes]],
) -> None:
    options = sl.ChangelogOptions(compression_enabled=snappy)
    with sl.FsStateChangelogStorage(ScriptedStore(), options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        values = [b"value %d" % number for number in range(50)]
        for value in values:
            writer.append(1, value)
            writer.next_sequence_number()
        handle = handle_of(writer.persist(START).result(20))
        assert values == read(storage, handle)
    assert CountingSets.walks == 1
