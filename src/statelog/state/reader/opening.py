"""Open the state of a location by its path or URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from statelog.state.reader.location_state import LocationState
from statelog.store import open_existing_store


def open(
    location: str | os.PathLike[str],
    *,
    operator: str | None = None,
    store_options: Mapping[str, object] | None = None,
) -> LocationState:
    """
    Open the state of a location, to read it.

    Args:
        location: Path or URL of the state location.
        operator: Name of the operator (its operatorId), where the query has several.
        store_options: Options of the store's client, as for `open_store`.

    Raises:
        UsageError: There is no such directory.
        StoreError: The store failed.
    """
    store = open_existing_store(location, options=store_options)
    return LocationState(store, operator=operator)
