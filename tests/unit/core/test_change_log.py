"""The sets of one writer, event by event."""

import pytest

from statelog.core.change_log import (
    Action,
    ChangeLog,
    ChangesCut,
    Closed,
    CompletePersist,
    Confirmed,
    FailPersist,
    FlushRequested,
    HandOver,
    OfferFiles,
    PersistRequested,
    ReleaseSets,
    StartUpload,
    Truncated,
    UploadFailed,
    UploadSucceeded,
)
from statelog.errors import WriterClosedError
from statelog.model import FileStateHandle, HandleAndOffset, SequenceNumber
from statelog.model.handles import UploadResult


def result(sqn: int, size: int = 1) -> UploadResult:
    entry = HandleAndOffset(FileStateHandle(f"file-{sqn}", size), 0)
    return UploadResult(log_id=0, sqn=SequenceNumber(sqn), size_bytes=size, entry=entry)


def with_sets(count: int) -> ChangeLog:
    log = ChangeLog(0)
    for _ in range(count):
        log.handle(ChangesCut((), 1), 0)
    return log


def persisting(count: int) -> ChangeLog:
    """Return a log whose sets are being uploaded for a persist, which has the number 0."""
    log = with_sets(count)
    log.handle(PersistRequested(0, 0), 0)
    return log


def uploads(actions: list[Action]) -> list[list[int]]:
    return [
        [change_set.sqn.value for change_set in action.change_sets]
        for action in actions
        if isinstance(action, StartUpload)
    ]


def test_three_persists_share_three_uploads():
    log = ChangeLog(0)
    sent = []
    for persist_id, from_sqn in enumerate((0, 0, 1)):
        log.handle(ChangesCut((), 1), 0)
        sent += uploads(log.handle(PersistRequested(persist_id, from_sqn), 0))
    assert [[0], [1], [2]] == sent
    assert [] == log.handle(UploadSucceeded((result(2),)), 0)
    second = log.handle(UploadSucceeded((result(1),)), 0)
    assert [
        OfferFiles((result(1), result(2))),
        CompletePersist(2, (result(1), result(2)), 2),
    ] == second, "the last one is complete without set 0"
    last = log.handle(UploadSucceeded((result(0),)), 0)
    completed = [action for action in last if isinstance(action, CompletePersist)]
    assert [0, 1] == [action.persist_id for action in completed]
    assert [1, 0] == [action.incremental_size_bytes for action in completed]
    log.check_invariants()


def test_sets_below_the_persist_stay_until_a_flush():
    log = with_sets(3)
    assert [[2]] == uploads(log.handle(PersistRequested(0, 2), 0))
    assert 2 == log.pending_bytes
    assert [[0, 1]] == uploads(log.handle(FlushRequested(), 0))
    assert 0 == log.pending_bytes
    log.check_invariants()


def test_a_failed_set_fails_the_persists_that_want_it_and_is_sent_again():
    log = persisting(2)
    log.handle(ChangesCut((), 1), 0)
    log.handle(PersistRequested(1, 2), 0)
    error = OSError("no")
    assert [FailPersist(0, error)] == log.handle(UploadFailed((0, 1), error), 0)
    log.check_invariants()
    assert (1,) == log.open_persists
    assert [[0, 1]] == uploads(log.handle(PersistRequested(2, 0), 0))
    log.check_invariants()


def test_truncation_releases_what_is_uploaded_and_forgets_the_rest():
    log = persisting(3)
    log.handle(UploadSucceeded(tuple(result(sqn) for sqn in range(3))), 0)
    log.handle(Confirmed(0, 1), 0)
    released = ReleaseSets((result(0), result(1)))
    assert [HandOver((result(0),)), released] == log.handle(Truncated(2), 0)
    assert [] == log.handle(Truncated(1), 0)
    assert 2 == log.lowest_sqn
    log.check_invariants()


def test_truncation_spares_a_persist_whose_truncated_sets_are_confirmed():
    log = persisting(1)
    log.handle(UploadSucceeded((result(0),)), 0)
    log.handle(Confirmed(0, 1), 0)
    log.handle(ChangesCut((), 1), 0)
    log.handle(PersistRequested(1, 0), 0)
    released = [HandOver((result(0),)), ReleaseSets((result(0),))]
    assert released == log.handle(Truncated(1), 0), "another thread may not have handed it over yet"
    actions = log.handle(UploadSucceeded((result(1),)), 0)
    assert CompletePersist(1, (result(0), result(1)), 1) in actions


def test_a_confirmation_during_the_upload_holds_when_it_ends():
    log = persisting(2)
    assert [] == log.handle(Confirmed(0, 2), 0)
    first, *others = log.handle(UploadSucceeded((result(0), result(1))), 0)
    assert HandOver((result(0), result(1))) == first, (
        "before the persist ends: its caller may truncate"
    )
    assert CompletePersist(0, (result(0), result(1)), 2) in others
    assert [] == log.handle(Confirmed(0, 2), 0)
    log.check_invariants()


def test_a_set_that_is_confirmed_and_truncated_during_its_upload_reaches_its_persist():
    log = persisting(2)
    log.handle(Confirmed(0, 1), 0)
    assert [] == log.handle(Truncated(1), 0)
    log.check_invariants()
    handed = log.handle(UploadSucceeded((result(0),)), 0)
    assert [HandOver((result(0),)), ReleaseSets((result(0),))] == handed
    log.check_invariants()
    complete = log.handle(UploadSucceeded((result(1),)), 0)
    assert CompletePersist(0, (result(0), result(1)), 1) in complete
    log.check_invariants()


def test_a_failed_upload_ends_a_confirmation():
    log = persisting(2)
    log.handle(Confirmed(0, 2), 0)
    log.handle(Truncated(1), 0)
    error = OSError("full")
    assert [FailPersist(0, error)] == log.handle(UploadFailed((0, 1), error), 0)
    log.check_invariants()
    log.handle(PersistRequested(1, 1), 0)
    actions = log.handle(UploadSucceeded((result(1),)), 0)
    assert [] == [action for action in actions if isinstance(action, HandOver)]
    assert [HandOver((result(1),))] == log.handle(Confirmed(1, 2), 0)


def test_a_close_ends_confirmations_of_running_uploads():
    log = persisting(1)
    log.handle(Confirmed(0, 1), 0)
    (failed,) = log.handle(Closed(), 0)
    assert isinstance(failed, FailPersist)
    assert [ReleaseSets((result(0),))] == log.handle(UploadSucceeded((result(0),)), 0)


def test_a_set_is_handed_over_once():
    log = persisting(2)
    log.handle(UploadSucceeded((result(0), result(1))), 0)
    assert [HandOver((result(0),))] == log.handle(Confirmed(0, 1), 0)
    assert [HandOver((result(1),))] == log.handle(Confirmed(0, 2), 0)


def test_a_close_keeps_what_was_handed_out_and_releases_the_rest():
    log = persisting(1)
    log.handle(UploadSucceeded((result(0),)), 0)
    log.handle(ChangesCut((), 1), 0)
    log.handle(FlushRequested(), 0)
    log.handle(UploadSucceeded((result(1),)), 0)
    log.handle(ChangesCut((), 1), 0)
    log.handle(PersistRequested(1, 0), 0)
    failed, kept, released = log.handle(Closed(), 0)
    assert isinstance(failed, FailPersist)
    assert isinstance(failed.error, WriterClosedError)
    # Set 0 was in a persist that completed, so its file stays; set 1 was only flushed. The log
    # itself refers to neither any longer.
    assert HandOver((result(0),)) == kept
    assert ReleaseSets((result(0), result(1))) == released
    assert [ReleaseSets((result(2),))] == log.handle(UploadSucceeded((result(2),)), 0)
    assert [] == log.handle(Closed(), 0)
    log.check_invariants()
    with pytest.raises(WriterClosedError):
        log.handle(PersistRequested(2, 0), 0)


def test_truncate_and_close_releases_what_no_checkpoint_holds():
    log = persisting(2)
    log.handle(UploadSucceeded((result(0), result(1))), 0)
    assert [HandOver((result(0),)), ReleaseSets((result(0), result(1)))] == log.handle(
        Closed(unwanted_from_sqn=1), 0
    )
