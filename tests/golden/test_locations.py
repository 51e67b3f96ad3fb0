"""Locations of both editions, as files that must be read for ever."""

import shutil
from pathlib import Path

import pytest
from tests.unit.checkpoint.helpers import read_log

from statelog.checkpoint import list_checkpoints, verify_location
from statelog.checkpoint.history import Entries, read_entry
from statelog.checkpoint.restore import find_restore_point
from statelog.format.claim_record import ClaimRecord
from statelog.store import open_store

VECTORS = Path(__file__).parent / "vectors"


def test_a_location_of_the_first_edition_is_read() -> None:
    """Checkpoint 4 is a late commit of an owner that was fenced, and no part of the history."""
    store = open_store(str(VECTORS / "location_v1"))
    newest = Entries(store).newest_stored()
    assert newest is not None and newest.is_of_first_edition
    assert (3, 2, (2, 3)) == (
        newest.checkpoint.checkpoint_id,
        newest.checkpoint.epoch,
        newest.checkpoint.retained,
    )
    values = [change.value for change in read_log(store, newest.checkpoint.log)]
    assert [b"one", b"two", b"three"] == values
    assert not [one.problem for one in verify_location(store) if one.problem]


def test_a_location_with_one_sequence_is_read() -> None:
    """Claims 0, 3 and 5, checkpoints 2 and 4; the owner of claim 5 has not committed."""
    store = open_store(str(VECTORS / "location_v2"))
    newest = Entries(store).newest()
    assert newest is not None
    assert (4, 3, (2, 4)) == (newest.checkpoint_id, newest.epoch, newest.retained)
    assert [b"one", b"two", b"three"] == [c.value for c in read_log(store, newest.log)]
    assert [2, 4] == [one.checkpoint_id for one in list_checkpoints(store)]
    claims = [read_entry(store, number) for number in (0, 3, 5)]
    assert all(isinstance(one, ClaimRecord) for one in claims)
    found = [(one.owner_id, one.newest, one.next_number) for one in claims]  # type: ignore[union-attr]
    assert [("a", None, 1), ("b", 2, 4), ("c", 4, 6)] == found
    assert not [one.problem for one in verify_location(store) if one.problem]


@pytest.mark.parametrize("edition", ["location_v1", "location_v2"])
def test_what_is_read_can_be_continued(edition: str, tmp_path: Path) -> None:
    shutil.copytree(VECTORS / edition, tmp_path / "copy")
    store = open_store(str(tmp_path / "copy"))
    point = find_restore_point(Entries(store))
    assert point.checkpoint is not None
    assert point.checkpoint.retained == tuple(one.checkpoint_id for one in point.retained)
