"""A location of statelog 0.2 is taken over, with a kill at every request."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.checkpoint.dict_store import DictStore
from tests.unit.checkpoint.helpers import (
    coordinator,
    log_inline,
    read_log,
    run_checkpoint,
)

from statelog.checkpoint.history import Entries, read_entry
from statelog.errors import CheckpointError, FencedError, ObjectExistsError, ObjectNotFoundError
from statelog.format.claim_record import ClaimRecord
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.store import PATHS

ALL = KeyGroupRange(0, 7)
GOLDEN = Path(__file__).parents[2] / "golden" / "vectors" / "location_v1"


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def store() -> Iterator[DictStore]:
    """Checkpoints 2 and 3, the late one 4 of a fenced owner, claims 1 and 2."""
    store = DictStore()
    for file in sorted(GOLDEN.rglob("*")):
        if file.is_file():
            store.put(str(file.relative_to(GOLDEN)), file.read_bytes())
    store.requests.clear()
    yield store


def kill_at(store: DictStore, number: int, *, after: bool = False) -> None:
    """End the process at a request: before it is sent, or before its answer."""
    count = 0

    def on_request(operation: str, path: str) -> str | None:
        nonlocal count
        count += 1
        if count == number and not after:
            raise Killed
        if after and count == number + 1:
            raise Killed
        return None

    store.on_request = on_request


def go_on(store: DictStore, owner: str, value: bytes) -> int:
    """Take the location over, and commit one change; return its id."""
    one = coordinator(store, owner, retained=2)
    one.claim()
    one.restore()
    number = one.next_checkpoint_id
    run_checkpoint(one, number, [TaskStateSnapshot(ALL, log_inline(ALL, [[(4, value)]], number))])
    one.clean_up()
    return number


def values(store: DictStore) -> list[bytes]:
    newest = Entries(store).newest()
    assert newest is not None
    return [bytes(change.value) for change in read_log(store, newest.log)]


def is_fenced(store: DictStore, epoch: int) -> bool:
    """Return what a running driver of 0.2 finds when it looks before and after its commit."""
    try:
        store.head(PATHS.owner(epoch + 1))
    except ObjectNotFoundError:
        return False
    return True


def test_the_history_goes_on_and_old_drivers_are_fenced(store: DictStore) -> None:
    assert not is_fenced(store, 2)
    number = go_on(store, "new", b"four")
    assert number == 6  # 5 is the claim: 4 is taken by the late commit
    assert [b"one", b"two", b"three", b"four"] == values(store)
    assert is_fenced(store, 2)
    claim = read_entry(store, 5)
    assert isinstance(claim, ClaimRecord)
    assert (3, 3) == (claim.newest, claim.fenced)
    # The late commit is no part of the history, and is deleted as what a dead owner left.
    assert PATHS.metadata(4) not in store.objects
    assert go_on(store, "newer", b"five") == 8
    assert [b"one", b"two", b"three", b"four", b"five"] == values(store)


def test_no_claim_for_old_drivers_in_a_new_location() -> None:
    store = DictStore()
    assert go_on(store, "new", b"one") == 1
    assert not [path for path in store.objects if path.startswith("owner/")]


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_every_request_loses_nothing(store: DictStore, after: bool) -> None:
    before = dict(store.objects)
    go_on(store, "counted", b"four")
    requests = sum(store.requests.values())
    assert requests >= 8
    for number in range(1, requests + 1):
        store.objects = dict(before)
        kill_at(store, number, after=after)
        try:
            go_on(store, "killed", b"four")
        except Killed:
            pass
        store.on_request = lambda operation, path: None
        reached = values(store)
        assert reached in ([b"one", b"two", b"three"], [b"one", b"two", b"three", b"four"])
        go_on(store, "next", b"five")
        assert [*reached, b"five"] == values(store), f"killed at request {number}"
        assert is_fenced(store, 2)


def test_two_that_take_over_at_once_agree(store: DictStore) -> None:
    """The second one comes between any two requests of the first."""
    before = dict(store.objects)
    go_on(store, "counted", b"four")
    requests = sum(store.requests.values())
    for number in range(1, requests + 1):
        store.objects = dict(before)
        store.requests.clear()
        count = 0

        def on_request(operation: str, path: str, at: int = number) -> str | None:
            nonlocal count
            count += 1
            if count == at:
                go_on(store, "other", b"other")
            return None

        store.on_request = on_request
        try:
            go_on(store, "first", b"four")
            first = True
        except FencedError:
            first = False
        store.on_request = lambda operation, path: None
        reached = values(store)
        assert reached[:3] == [b"one", b"two", b"three"]
        allowed = [[b"other"], [b"other", b"four"], [b"four", b"other"]]
        assert reached[3:] in allowed, f"at request {number}: {reached}, first {first}"


def test_a_late_commit_of_the_first_edition_is_reported(store: DictStore) -> None:
    """It cannot be told from one of a driver that goes on, so no driver continues by itself."""
    late = bytes(store.objects[PATHS.metadata(4)][0])
    go_on(store, "new", b"four")
    with pytest.raises(ObjectExistsError):  # the numbers that are taken are rejected
        store.put_if_absent(PATHS.metadata(6), late)
    number = 9
    store.put(PATHS.metadata(number), _numbered(late, number))
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"'a', a driver of statelog 0\.2.*delete") as it:
            go_on(store, "newer", b"five")
        assert it.value.reason == "two_editions"
    store.delete([PATHS.metadata(number)])
    go_on(store, "newer", b"five")
    assert [b"one", b"two", b"three", b"four", b"five"] == values(store)


def _numbered(data: bytes, number: int) -> bytes:
    """Return a checkpoint of 0.2 under another number."""
    from dataclasses import replace

    from statelog.format.checkpoint_metadata import rewrite_metadata
    from statelog.format.checkpoint_record import CHECKPOINT_TAG, decode_record
    from statelog.format.segment import parse_segment
    from statelog.testing.faulty_store import joined

    trailer = parse_segment(memoryview(data)).trailer
    assert trailer is not None
    record = decode_record(trailer.sections[CHECKPOINT_TAG])
    moved = replace(
        record, checkpoint=replace(record.checkpoint, checkpoint_id=number, retained=(number,))
    )
    return joined(list(rewrite_metadata(data, moved).buffers))
