"""Who owns a file, and when it goes."""

import pytest

from statelog.core.file_ownership import (
    DeleteFile,
    FileConfirmed,
    FileDiscarded,
    FileOffered,
    FileOwner,
    FileOwnership,
    FileTracked,
    SetReleased,
)
from statelog.errors import UsageError


def test_the_last_release_deletes() -> None:
    core = FileOwnership()
    core.handle(FileTracked("f", 2), 0)
    assert (FileOwner.TASK, 2) == (core.owner("f"), core.num_sets("f"))
    assert [] == core.handle(SetReleased("f"), 0)
    core.handle(FileOffered("f"), 0)
    assert FileOwner.OFFERED == core.owner("f")
    assert [DeleteFile("f")] == core.handle(SetReleased("f"), 0)
    assert 0 == len(core)


def test_a_confirmed_file_is_forgotten_but_never_deleted() -> None:
    core = FileOwnership()
    core.handle(FileTracked("f", 2), 0)
    core.handle(FileConfirmed("f"), 0)
    core.handle(FileOffered("f"), 0)
    assert FileOwner.CHECKPOINT == core.owner("f")
    for _ in range(2):
        core.check_invariants()
        assert [] == core.handle(SetReleased("f"), 0)
    assert core.owner("f") is None


def test_unknown_files_are_left_alone() -> None:
    core = FileOwnership()
    for event in (FileConfirmed("f"), FileOffered("f"), SetReleased("f")):
        assert [] == core.handle(event, 0)


def test_a_loser_is_deleted_whatever_its_count() -> None:
    core = FileOwnership()
    core.handle(FileTracked("f", 5), 0)
    assert [DeleteFile("f")] == core.handle(FileDiscarded("f"), 0)
    assert [DeleteFile("g")] == core.handle(FileDiscarded("g"), 0)


def test_names_are_never_reused_and_files_never_empty() -> None:
    core = FileOwnership()
    core.handle(FileTracked("f", 1), 0)
    for event in (FileTracked("f", 1), FileTracked("g", 0)):
        with pytest.raises(UsageError):
            core.handle(event, 0)
