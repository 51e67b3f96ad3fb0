"""A location as files that must be read for ever."""

import shutil
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import coordinator, read_log, started
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint import list_checkpoints, verify_location
from statelog.checkpoint.audit import BeginPart, EndPart, encoded, read_audit_log
from statelog.checkpoint.history import Entries, read_checkpoint, read_entry
from statelog.checkpoint.restore import find_restore_point
from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import read_tag
from statelog.errors import IncompatibleFormatError
from statelog.format.checkpoint_record import CHECKPOINT_TAG, ClaimRecord
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model.checkpoint import TimelineEnd
from statelog.store import PATHS, LocationPaths, open_store
from statelog.store.parents import ParentReference
from statelog.store.paths import parse_audit_part, parse_tag

LOCATION = Path(__file__).parent / "vectors" / "location_v3"
FIRST = "0000000000000001"
"""The attempt of the first claim."""


def test_a_location_is_read() -> None:
    """
    Claims 0, 3, 5 and 7, checkpoints 2, 4 and 6; the owner of claim 7 has not committed.

    Claim 5 went back to checkpoint 2.  A tag keeps checkpoint 4, which it gave up.
    """
    store = open_store(str(LOCATION))
    newest = Entries(store).newest()
    assert newest is not None
    assert (6, 5, (2, 6)) == (newest.checkpoint_id, newest.epoch, newest.retained)
    assert [b"one", b"two", b"right"] == [c.value for c in read_log(store, newest.log)]
    assert (FIRST, 5, (TimelineEnd(FIRST, 0, 2),)) == (
        newest.timeline.location_id,
        newest.timeline.number,
        newest.timeline.ancestors,
    )
    listed = [
        (checkpoint.checkpoint_id, checkpoint.is_retained, checkpoint.is_given_up)
        for checkpoint in list_checkpoints(store)
    ]
    assert [(2, True, False), (4, True, True), (6, True, False)] == listed
    claims = [read_entry(store, number) for number in (0, 3, 5, 7)]
    assert [
        ("a", None, 1, FIRST, 0),
        ("b", 2, 4, FIRST, 0),
        ("c", 4, 6, FIRST, 0),
        ("d", 6, 8, FIRST, 5),
    ] == [
        (claim.owner_id, claim.newest, claim.next_number, claim.location_id, claim.timeline)
        for claim in claims
        if isinstance(claim, ClaimRecord)
    ]
    assert not [one.problem for one in verify_location(store) if one.problem]


def test_what_is_read_can_be_continued(tmp_path: Path) -> None:
    shutil.copytree(LOCATION, tmp_path / "copy")
    store = open_store(str(tmp_path / "copy"))
    point = find_restore_point(Entries(store))
    assert point.checkpoint is not None
    assert (2, 4, 6) == tuple(one.checkpoint_id for one in point.retained)
    assert 8 == coordinator(store).claim()


@pytest.mark.parametrize("version", [1, 2])
def test_another_version_is_rejected_by_name(version: int) -> None:
    """Also a location that ends with a claim, and one that ends with a checkpoint."""
    for last in (6, 7):
        store = DictStore()
        for file in sorted(LOCATION.rglob("_metadata")):
            number = int(file.parent.name.removeprefix("chk-"))
            if number <= last:
                store.put(PATHS.metadata(number), of_version(file.read_bytes(), version))
        rejected = rf"chk-{last}/_metadata has version {version}, .* reads version 3 only"
        for use in (
            lambda store=store: started(store),
            lambda store=store: Entries(store).newest(),
            lambda store=store, last=last: read_checkpoint(store, last),
        ):
            before = dict(store.objects)
            with pytest.raises(IncompatibleFormatError, match=rejected):
                use()
            assert before.items() <= store.objects.items()
            assert not [path for path in store.objects.keys() - before if path.startswith("chk-")]


def of_version(data: bytes, version: int) -> bytes:
    """Return the object of an entry with another version of its record."""
    trailer = parse_segment(data).trailer
    assert trailer is not None
    body = bytearray(trailer.sections[CHECKPOINT_TAG])
    body[0:2] = version.to_bytes(2, "big")
    return b"".join(map(bytes, SegmentWriter().finish({CHECKPOINT_TAG: bytes(body)})))


VECTORS = Path(__file__).parent / "vectors"
FORK = "00112233445566778899aabbccddeeff"[:16]


def test_a_tag_is_read() -> None:
    store = open_store(str(VECTORS))
    made = Tag(kind=TagKind.TAG, name="v1", checkpoint_id=7, path="tag_v1.bin")
    content = read_tag(store, made)
    assert 1_700_000_000_000 == content.created_at_ms
    assert {"comment": "before ü", "batch_id": 7} == content.facts
    assert {"offsets/7": b'v1\n{}\n{"logOffset":7}', "commits/7": b"v1\n{}"} == content.files


def test_a_reference_to_a_parent_is_read(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(PATHS.parent(FORK), (VECTORS / "parent_v1.bin").read_bytes())
    expected = ParentReference(location="s3://bucket/jobs/totals", checkpoint_id=7)
    assert expected == ParentReference.read(store, FORK)


def test_the_names_of_tags() -> None:
    attempt = "0123456789abcdef"
    assert ("tag", "v1.2_x-y", 7, 0) == parse_tag(f"tags/tag/v1.2_x-y/7-{attempt}")
    assert ("reader", "feed", 7, 100) == parse_tag(f"tags/reader/feed/7+100-{attempt}")
    for name in ("tags/tag/v1/7", f"tags/tag/v1/x-{attempt}", f"tags/tag/../7-{attempt}", "tags"):
        assert parse_tag(name) is None


LINE = "20231114T221320000Z-0123456789abcdef"
BEGIN = BeginPart(
    version=1,
    operation="gc",
    arguments={"min_age": "1h"},
    user="ann",
    host="host ü",
    process=7,
    program="statelog",
    statelog="0.2.0",
    location="s3://bucket/jobs/totals",
    began_at_ms=1_700_000_000_000,
)
END = EndPart(
    version=1,
    outcome="done",
    result={"deleted": 3, "not_deleted": 0},
    error="",
    ended_at_ms=1_700_000_000_500,
)


def test_an_audit_line_is_read(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    for part in ("begin", "end"):
        shutil.copy(VECTORS / f"audit_{part}_v1.bin", tmp_path / "audit" / f"{LINE}.{part}")
    (line,) = read_audit_log(open_store(tmp_path)).lines
    assert (LINE, BEGIN, END, "") == (line.name, line.begin, line.end, line.problem)


def test_an_audit_line_is_written_as_before() -> None:
    assert (VECTORS / "audit_begin_v1.bin").read_bytes() == encoded(BEGIN)
    assert (VECTORS / "audit_end_v1.bin").read_bytes() == encoded(END)


def test_the_names_of_audit_lines() -> None:
    assert (LINE, "end") == parse_audit_part(LocationPaths("a").audit_part(LINE, "end"))
    for name in (f"audit/{LINE}", f"audit/{LINE}.begin/x", "audit/x.begin", f"other/{LINE}.end"):
        assert parse_audit_part(name) is None
