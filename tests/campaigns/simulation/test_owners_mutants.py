"""
The simulation of owners finds what it is for: each mutant is caught within some seeds.

A mutant is what the coordinator or the claim did, or could do, with S3's 409.
"""

from collections.abc import Callable
from typing import Any

import pytest
from tests.campaigns.simulation.owners import simulate

from statelog.checkpoint import coordinator, ownership
from statelog.checkpoint.retained import read_pins
from statelog.errors import (
    CheckpointError,
    CorruptionError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from statelog.format.checkpoint_record import ClaimRecord
from statelog.store.verified import put_or_find

SEEDS = range(0, 200, 2)
LOST = r"all continue the same|then forgotten|lost \['|checkpoint \d+ does not exist|damaged change set"
"""What a history says in which a commit that was acknowledged is gone, or a fork was not noticed."""


def _one_put(store, path, data, find, on_absent) -> Any:
    """Put once; where the store says "exists" and nothing is there, return what *on_absent* says."""
    try:
        store.put_if_absent(path, data)
        return None
    except StoreError as error:
        try:
            return find()
        except ObjectNotFoundError:
            if isinstance(error, ObjectExistsError):
                return on_absent(error)
            raise error from None


def gives_up(store, path, data, find, pause) -> Any:
    """A conflict is raised as "already exists"."""

    def on_absent(error: StoreError) -> Any:
        raise error

    return _one_put(store, path, data, find, on_absent)


def takes_for_done(store, path, data, find, pause) -> Any:
    """A conflict is taken for a put whose answer was lost."""
    return _one_put(store, path, data, find, lambda error: None)


def never_looks(store, path, data, find, pause) -> Any:
    """Whatever exists is taken for the own object."""
    try:
        return put_or_find(store, path, data, find, pause) and None
    except ObjectNotFoundError:
        return None


def looks_once(store, path, data, find, pause) -> Any:
    """The second refusal counts as the own object, although nothing shows whose it is."""
    return _one_put(store, path, data, find, lambda error: _second(store, path, data))


def _second(store, path, data) -> None:
    try:
        store.put_if_absent(path, data)
    except ObjectExistsError:
        return


MUTANTS = (
    (coordinator, gives_up, "a conflict alone failed a commit"),
    (coordinator, takes_for_done, LOST),
    (coordinator, never_looks, LOST),
    (coordinator, looks_once, LOST),
    (ownership, gives_up, "a conflict alone ended an owner"),
    (ownership, takes_for_done, "both own epoch|" + LOST),
    (ownership, never_looks, "both own epoch|" + LOST),
)


@pytest.mark.parametrize(
    ("module", "mutant", "verdict"),
    MUTANTS,
    ids=lambda value: getattr(value, "__name__", "verdict").rpartition(".")[2],
)
def test_a_mutant_is_caught(
    module: Any, mutant: Callable[..., Any], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "put_or_find", mutant)
    with pytest.raises((AssertionError, CheckpointError, CorruptionError), match=verdict):
        for seed in SEEDS:
            simulate(seed)


def claims_nothing(entries, owner_id, clock_ms, pause, *, verify) -> Any:
    """A new owner puts no claim, and begins at the first free number."""
    entries.list_again()
    claim = ClaimRecord(
        number=entries.next_number - 1,
        owner_id=owner_id,
        attempt="",
        created_at_ms=0,
        newest=entries.newest_id(),
        next_number=entries.next_number,
        location_id="",
    )
    return claim, read_pins(entries.store)


def test_owners_that_put_no_claim_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """More mutants of the rules of claims are in test_owners_interleaved.py."""
    monkeypatch.setattr(coordinator, "claim_location", claims_nothing)
    with pytest.raises(AssertionError, match="both own epoch|" + LOST):
        for seed in SEEDS:
            simulate(seed)
