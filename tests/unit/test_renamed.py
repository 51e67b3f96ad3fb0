"""Former names work for one version, with a warning that shows the new name."""

import warnings

import pytest
from tests.unit.state.reader.histories import History

import statelog
from statelog.errors import UsageError
from statelog.renamed import dry_run_by_default, renamed
from statelog.state.reader import StateReader
from statelog.store import open_store


@renamed(old="new")
def called(first: int, *, new: int = 0) -> tuple[int, int]:
    return first, new


def test_the_former_name_is_replaced_with_a_warning_at_the_caller() -> None:
    with pytest.warns(FutureWarning) as warned:
        assert (1, 2) == called(1, old=2)  # type: ignore[call-arg]
    (warning,) = warned
    assert __file__ == warning.filename
    assert str(warning.message) == (
        "called(old=...) is now called(new=...); the next version of statelog removes the old name"
    )


def test_the_new_name_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (1, 2) == called(1, new=2)


def test_both_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"give called\(new=\.\.\.\) only"):
        called(1, new=1, old=2)  # type: ignore[call-arg]


def test_public_calls_take_the_former_name_of_storage_options(tmp_path) -> None:
    History("renamed", open_store(str(tmp_path), fsync=False)).run(1)
    with pytest.warns(FutureWarning, match="open.storage_options=...."):
        statelog.open(tmp_path, store_options={}).close()
    with pytest.warns(FutureWarning, match="tags.storage_options=...."):
        assert [] == statelog.tags(tmp_path, store_options={})
    with pytest.warns(FutureWarning, match=r"open\(storage_options=\.\.\.\)"):
        StateReader.open(tmp_path, store_options={}).close()


@dry_run_by_default(old="new")
def changing(*, new: int = 0, apply: bool = False) -> tuple[int, bool]:
    return new, apply


def test_a_call_without_apply_is_a_dry_run_and_says_so() -> None:
    with pytest.warns(
        FutureWarning, match=r"changing\(\.\.\.\) changes nothing.*apply=True"
    ) as warned:
        assert (0, False) == changing()
    assert __file__ == warned[0].filename


@pytest.mark.parametrize("dry_run", [True, False])
def test_dry_run_is_mapped_to_apply(dry_run) -> None:
    with pytest.warns(FutureWarning, match=f"is now changing.apply={not dry_run}.") as warned:
        assert (3, not dry_run) == changing(dry_run=dry_run, new=3)  # type: ignore[call-arg]
    assert __file__ == warned[0].filename
    with pytest.raises(UsageError, match="give apply only"):
        changing(dry_run=dry_run, apply=dry_run)  # type: ignore[call-arg]


def test_apply_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (0, True) == changing(apply=True)
        assert (0, False) == changing(apply=False)
