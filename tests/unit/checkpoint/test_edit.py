"""What an edit session commits, claims, pins and writes into the audit log."""

from pathlib import Path

import pytest
from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import log_inline, run_checkpoint, started

from statelog.checkpoint.attachments import Attachment
from statelog.checkpoint.audit import read_audit_log
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.edit import edit_session, newest_checkpoint
from statelog.checkpoint.history import Entries
from statelog.checkpoint.retained import Tag, TagKind, list_tags
from statelog.errors import CheckpointError, FencedError
from statelog.format.checkpoint_record import ClaimRecord
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.store import ObjectStore, open_location

ALL = KeyGroupRange(0, 7)
DEAD_LETTERS = Attachment(
    kind="side_output", oldest=1, newest=1, path="output/a", size=1, count=1, at_ms=0, name="late"
)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = open_location(tmp_path / "job")
    store.put("output/a", b"x")
    driver = started(store, retained=2)
    for batch in range(3):
        record = one_operator(batch_id=batch, attachments=(DEAD_LETTERS,), went_back_to=1)
        changes = TaskStateSnapshot(ALL, log_inline(ALL, [[(1, b"%d" % batch)]]))
        number, properties = driver.next_checkpoint_id, record.to_properties()
        run_checkpoint(driver, number, [changes], properties=properties)
    return store


def lines(store: ObjectStore) -> list[tuple[str, str]]:
    read = read_audit_log(store).lines
    return [(line.begin.operation if line.begin else "", line.outcome) for line in read]


def test_a_commit_keeps_the_record_but_for_what_is_replaced(store):
    base = newest_checkpoint(store)
    with edit_session(store, "forget") as session:
        session.claim(base)
        committed = session.commit([], attachments=())
    assert committed.checkpoint_id == newest_checkpoint(store).checkpoint_id > base.checkpoint_id
    assert committed.log == base.log
    committed = newest_checkpoint(store)
    record, before = BatchRecord.of(committed), BatchRecord.of(base)
    assert before.attachments == (DEAD_LETTERS,)
    assert record.attachments == ()
    assert (record.batch_id, record.went_back_to) == (2, 1)
    assert lines(store) == [("forget", "done")]


def test_an_older_checkpoint_is_committed_on_a_new_timeline(store):
    older = Entries(store).load(newest_checkpoint(store).checkpoint_id - 1).checkpoint
    with edit_session(store, "rewind") as session:
        session.claim_older(older.checkpoint_id)
        committed = session.commit_older(older.checkpoint_id, went_back_to=7)
    record = BatchRecord.of(committed)
    assert (committed.log, record.batch_id, record.went_back_to) == (older.log, 1, 7)
    assert committed.timeline.number == committed.epoch


def test_a_session_that_changes_nothing_writes_nothing(store):
    before = {info.path for info in store.list()}
    with edit_session(store, "edit"):
        newest_checkpoint(store)
    assert {info.path for info in store.list()} == before


def test_a_commit_needs_a_claim_of_the_newest_checkpoint(store):
    base = newest_checkpoint(store)
    with pytest.raises(CheckpointError, match="claim"), edit_session(store, "edit") as session:
        session.commit([])
    with edit_session(store, "edit") as session:
        session.claim(base)
        session.commit([])
    with (
        pytest.raises(CheckpointError, match="committed in the meantime") as raised,
        edit_session(store, "edit") as session,
    ):
        session.claim(base)
    assert raised.value.reason == "active"
    assert lines(store) == [("edit", "done"), ("edit", "failed")]


def test_a_pin_of_an_earlier_call_is_checked_and_not_put_again(store):
    tag = Tag(kind=TagKind.TAG, name="t", checkpoint_id=newest_checkpoint(store).checkpoint_id)
    with edit_session(store, "tag") as session:
        pinned = session.pin(tag, facts={"comment": "why"})
        assert session.pin(pinned) == pinned
    assert list_tags(store) == [pinned]


def test_the_first_checkpoint_of_another_location_has_its_number(store, tmp_path):
    base = Entries(store).newest_stored()
    assert base is not None
    number, other = base.checkpoint.checkpoint_id, open_location(tmp_path / "other")
    with edit_session(other, "fork") as session:
        assert session.leave_out(0, number, owner_id="fork-1", location_id="ab" * 8)
        assert not session.leave_out(0, number)
        session.commit_first(base.checkpoint, base.sections)
        with pytest.raises(FencedError):
            session.commit_first(base.checkpoint, base.sections)
    claim = Entries(other).read(0)
    assert isinstance(claim, ClaimRecord)
    assert (claim.owner_id, claim.next_number, claim.newest) == ("fork-1", number, None)
    assert newest_checkpoint(other).checkpoint_id == number
