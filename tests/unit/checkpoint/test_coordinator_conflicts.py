"""
S3 may answer a conditional put with 409 while another request for the name is under way.

The client cannot tell 409 from 412: both arrive as `ObjectExistsError`.  Only reading back says
whether the name is taken.
"""

import threading

import pytest
from tests.support.locations.checkpoints import coordinator, small_checkpoint, started

from statelog.errors import FencedError, ObjectExistsError, StoreError
from statelog.store import verify_put_if_absent
from statelog.testing.faulty_store import Fault, FaultKind, FaultyStore


class ConflictingStore(FaultyStore):
    """Answers the next conditional puts of a name with 409, a number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.conflicts: dict[str, int] = {}
        self.conflicts_at_first = 0
        self.kind = FaultKind.CONFLICT
        self.puts: list[str] = []
        self._lock = threading.RLock()

    def put_if_absent(self, path, data) -> None:
        with self._lock:
            self._put_if_absent(path, data)

    def _put_if_absent(self, path, data) -> None:
        self.puts.append(path)
        if remaining := self.conflicts.setdefault(path, self.conflicts_at_first):
            self.conflicts[path] = remaining - 1
            self.next_fault = Fault(self.kind)
        try:
            FaultyStore.put_if_absent(self, path, data)
        finally:
            self.next_fault = None  # the put of a taken name uses no fault


@pytest.fixture
def conflicting() -> ConflictingStore:
    return ConflictingStore()


def test_a_conflict_at_the_commit_puts_the_same_name_again(conflicting):
    owner = started(conflicting)
    conflicting.conflicts["chk-1/_metadata"] = 3
    assert small_checkpoint(owner, 1).checkpoint_id == 1
    assert conflicting.puts.count("chk-1/_metadata") == 4
    assert started(conflicting, "b").latest.owner_id == "a"


def test_a_commit_whose_winner_shows_late_is_fenced(conflicting):
    """409 before the winner is visible: reading back finds nothing, the next put meets it."""
    owner = started(conflicting)
    winner = started(ConflictingStore(), "winner")
    small_checkpoint(winner, 1)
    conflicting.in_flight["chk-1/_metadata"] = winner._store.objects["chk-1/_metadata"]
    with pytest.raises(FencedError, match="was committed by 'winner'"):
        small_checkpoint(owner, 1)
    assert conflicting.puts.count("chk-1/_metadata") == 2


def test_a_conflict_at_the_claim_skips_no_number(conflicting):
    """The owner before wants exactly the number that was free."""
    first = started(conflicting, "first")
    conflicting.conflicts["chk-1/_metadata"] = 2
    second = started(conflicting, "second")
    assert second.epoch == 1
    with pytest.raises(FencedError, match="chk-1/_metadata, claimed by 'second'"):
        small_checkpoint(first, 1)
    small_checkpoint(second, 2)


@pytest.mark.parametrize("kind", [FaultKind.CONFLICT, FaultKind.CONFLICT_THEN_DONE])
@pytest.mark.parametrize("conflicts", [1, 2, 3])
def test_a_conflict_does_not_fail_the_probe(conflicting, monkeypatch, kind, conflicts):
    url = f"s3://conflicts/{kind.value}-{conflicts}"
    monkeypatch.setattr(ConflictingStore, "url", url)
    conflicting.kind, conflicting.conflicts_at_first = kind, conflicts
    verify_put_if_absent(conflicting)
    assert [name for name in conflicting.objects if not name.startswith("probed/")] == []


def test_a_probe_that_conflicts_for_ever_ends_with_a_store_error(conflicting, monkeypatch):
    monkeypatch.setattr(ConflictingStore, "url", "s3://conflicts/for-ever")
    conflicting.conflicts_at_first = 10**6
    with pytest.raises(StoreError, match=r"tmp/probe-.*there is no object") as raised:
        verify_put_if_absent(conflicting)
    assert "reason" not in raised.value.facts


@pytest.mark.parametrize("path", ["chk-0/_metadata", "chk-1/_metadata"], ids=["claim", "commit"])
def test_a_put_that_conflicts_for_ever_ends_with_a_store_error(conflicting, path):
    owner = coordinator(conflicting)
    conflicting.conflicts[path] = 10**6
    with pytest.raises(StoreError, match=rf"{path} .*there is no object") as raised:
        owner.claim()
        owner.restore()
        small_checkpoint(owner, 1)
    assert not isinstance(raised.value, ObjectExistsError)
    assert isinstance(raised.value.__cause__, ObjectExistsError)
    assert path == raised.value.path == conflicting.puts[-1], "no other number was tried"
    assert conflicting.puts.count(path) < 20
    conflicting.conflicts.clear()
    if owner.epoch is None:
        assert 0 == owner.claim(), "the call can be repeated"
    else:
        assert 1 == owner.complete(1, properties={}).checkpoint_id, "the call can be repeated"
