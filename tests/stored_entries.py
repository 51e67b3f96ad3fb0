"""Which entries of a state location are claims, and which are checkpoints."""

from collections.abc import Iterator
from contextlib import suppress

from statelog.checkpoint.history import present_ids, read_entry
from statelog.errors import ObjectNotFoundError
from statelog.format.claim_record import ClaimRecord
from statelog.store import LocationPaths, ObjectStore

_PATHS = LocationPaths()


def claim_numbers(store: ObjectStore) -> list[int]:
    """Return the numbers of all claims, ascending."""
    return [number for number, is_claim in _entries(store) if is_claim]


def committed_numbers(store: ObjectStore) -> list[int]:
    """Return the ids of all checkpoints whose object is stored, ascending."""
    return [number for number, is_claim in _entries(store) if not is_claim]


def claim_objects(store: ObjectStore) -> set[str]:
    """Return the names of the objects of all claims."""
    return {_PATHS.metadata(number) for number in claim_numbers(store)}


def _entries(store: ObjectStore) -> Iterator[tuple[int, bool]]:
    for number in present_ids(store, _PATHS):
        with suppress(ObjectNotFoundError):  # a folder without its object
            yield number, isinstance(read_entry(store, _PATHS, number), ClaimRecord)
