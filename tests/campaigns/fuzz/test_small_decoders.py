"""Small stored texts of any content are refused with one of statelog's errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from statelog.checkpoint.history import read_entry
from statelog.checkpoint.ownership import describe_newest_claim
from statelog.checkpoint.query_files import (
    files_upto,
    newest_offsets,
    recorded_query_id,
    refuse_unfinished_repartition,
)
from statelog.checkpoint.retained import TagKind, list_tags
from statelog.checkpoint.tags import read_tag
from statelog.core.source_position import log_entry, parse_files, parse_offsets
from statelog.errors import CorruptionError, StatelogError
from statelog.format.checkpoint_metadata import decode_streams
from statelog.format.checkpoint_record import CHECKPOINT_TAG, CLAIM_KIND, seal_record
from statelog.format.segment import SegmentWriter
from statelog.store import PATHS, open_store

DEEP = b"[" * 200_000
HOSTILE = (
    DEEP,
    b'{"a":' * 100_000,
    b'{"conf":' + DEEP,
    b'{"id":' + DEEP,
    b"\xff\xfe",
    b'{"\xff":1}',
    b'{"logOffset":"\\ud800"}',
    b'{"owner_id":1}',
    b'{"created_at_ms":1e400}',
    b'{"created_at_ms":' + b"9" * 30 + b"}",
    b"9" * 5000,
    b"",
    b"\x00",
)


class Files:
    """A checkpointLocation in which every file has the same bytes."""

    url = "file:///query"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def names(self, folder: str) -> Sequence[str]:
        return ("1", "0", "\u00b2", "\u00b2.compact")

    def read(self, name: str, tail: int | None = None) -> bytes | None:
        return None if name.startswith("commits/") else self._data


READERS: dict[str, Callable[[bytes], Any]] = {
    "id of a query": lambda data: recorded_query_id(Files(data)),
    "offsets": lambda data: newest_offsets(Files(b"v1\n" + data + b"\n" + data)),
    "parsed offsets": lambda data: parse_offsets(b"v1\n" + data + b"\n" + data, "offsets/1"),
    "repartition": lambda data: refuse_unfinished_repartition(Files(b"v1\n" + data)),
    "log of a source": lambda data: files_upto(Files(b"v1\n" + data), "0", 1),
    "files": lambda data: parse_files(b"v1\n" + data, "sources/0/1"),
    "offset": lambda data: log_entry(data.decode("utf-8", "replace")),
    "staged rows": lambda data: decode_streams(data, where="chk-1/_metadata"),
    "staged row": lambda data: decode_streams(
        b"\x91\x91" * 100_000 + data, where="chk-1/_metadata"
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_hostile_text_is_refused_or_read(reader: str) -> None:
    for data in HOSTILE:
        try:
            READERS[reader](data)
        except StatelogError as error:
            assert str(error)


def test_damage_names_the_object() -> None:
    with pytest.raises(CorruptionError, match="chk-1/_metadata") as caught:
        decode_streams(b"\x92\xa1", where="chk-1/_metadata")
    assert caught.value.path == "chk-1/_metadata"
    with pytest.raises(CorruptionError, match="sources/0/1") as caught:
        parse_files(b'v1\n{"path":"file:///a","timestamp":1,"batchId":0}\n{', "sources/0/1")
    assert (caught.value.path, caught.value.offset) == ("sources/0/1", 50)
    with pytest.raises(CorruptionError, match="offsets/1") as caught:
        parse_offsets(b"v1\n{\n-", "offsets/1")
    assert (caught.value.path, caught.value.offset) == ("offsets/1", 3)


def claim_object(data: bytes) -> bytes:
    """Return the object of a claim with any content, with the right checksums."""
    section = {CHECKPOINT_TAG: seal_record(data, CLAIM_KIND)}
    return b"".join(SegmentWriter(compress=False).finish(section))


def claim_text(**changes: Any) -> bytes:
    """Return the content of claim 3 with other fields."""
    fields = {"number": 3, "owner": "o", "attempt": "a", "created_at_ms": 1, "next": 4}
    fields |= {"location": "a0"}
    return msgspec.json.encode(fields | changes)


def test_a_claim_of_any_content_is_refused(tmp_path: Any) -> None:
    store = open_store(tmp_path, storage_options={"fsync": False})
    path = PATHS.metadata(3)
    hostile = [
        claim_text(**changes)
        for changes in (
            {"number": 4, "next": 5},  # a copy under another number
            {"next": 3}, {"next": 2**63}, {"newest": 3}, {"newest": -2}, {"timeline": -1},
            {"timeline": 4}, {"location": "../x"}, {"attempt": "zz"}, {"number": "3"}, {"owner": None}, {"owner": 1}, {"newest": 1.5},
        )
    ]  # fmt: skip
    for data in (*HOSTILE, *hostile):
        store.put(path, claim_object(data))
        with pytest.raises(CorruptionError, match="chk-3/_metadata") as caught:
            read_entry(store, 3)
        assert caught.value.path == path
        assert describe_newest_claim(store).startswith("unknown (")


@pytest.mark.parametrize(
    "time", [1, -(2**62), 2**63, 10**400], ids=["1", "before", "after", "huge"]
)
def test_a_claim_of_any_time_is_described(time: int, tmp_path: Any) -> None:
    store = open_store(tmp_path, storage_options={"fsync": False})
    data = claim_text(created_at_ms=0).replace(b'"created_at_ms":0', b'"created_at_ms":%d' % time)
    store.put(PATHS.metadata(3), claim_object(data))
    described = describe_newest_claim(store)
    assert described.startswith("chk-3/_metadata, claimed by 'o'")
    assert (" at 1970-01-01 " in described) == (time == 1)


def test_a_tag_of_any_content_is_refused(tmp_path: Any) -> None:
    store = open_store(tmp_path, storage_options={"fsync": False})
    path = PATHS.tag(TagKind.TAG.value, "t", 1, 0, "0" * 16)
    good = b'{"version":1,"created_at_ms":1,"facts":{}}'
    hostile = (*HOSTILE, b"\x81" * 100_000, b"\x81\xdb\xff\xff\xff\xff", b"\x81\xa1\xff\xc4\x00")
    for data in hostile:
        for sections in ({b"TAGS": data, b"FILE": b"\x80"}, {b"TAGS": good, b"FILE": data}):
            store.put(path, b"".join(SegmentWriter().finish(sections)))
            with pytest.raises(CorruptionError, match="damaged") as caught:
                read_tag(store, list_tags(store)[0])
            assert caught.value.path == path
