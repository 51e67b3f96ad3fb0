"""Open a state location by its own path, or by the checkpointLocation that has it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from statelog.checkpoint.history import present_ids
from statelog.store import LocationStore, open_existing_store
from statelog.store.paths import STATE_FOLDER


def open_state(
    location: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
) -> LocationStore:
    """
    Return the store of a state location.

    A location wins over a folder of the same name inside it.  A path with neither is returned as it is:
    the caller says what is missing.

    Args:
        location: Path or URL of the state location, or of the checkpointLocation of a query whose
            state is in it.
        options: As for `open_store`.

    Raises:
        UsageError: There is no such directory.
        StoreError: The store failed.

    Blocks: On the store, a listing; three where *location* is not the state location itself.
    """
    store = open_existing_store(location, options=options)
    if is_state(store) or STATE_FOLDER not in store.list_folders():
        return store
    inner = open_existing_store(
        f"{os.fspath(location).rstrip('/')}/{STATE_FOLDER}", options=options
    )
    return inner if is_state(inner) else store


def is_state(store: LocationStore) -> bool:
    """Return whether a store has a checkpoint or a claim of statelog."""
    return bool(present_ids(store))
