"""A location as files that must be read for ever."""

import shutil
from pathlib import Path

import pytest
from tests.support.locations.checkpoints import coordinator, read_log, started
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint import list_checkpoints, verify_location
from statelog.checkpoint.history import Entries, read_checkpoint, read_entry
from statelog.checkpoint.restore import find_restore_point
from statelog.errors import IncompatibleFormatError
from statelog.format.checkpoint_record import CHECKPOINT_TAG, ClaimRecord
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model.checkpoint import TimelineEnd
from statelog.store import PATHS, open_store

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
